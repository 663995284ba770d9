//! Decompression of LZO1X, bounded by the sizes of both slices.
//!
//! The format is described in the kernel's Documentation/staging/lzo.rst.

const CUT: &str = "compressed data (lzo) is cut short";
const LONG: &str = "compressed data (lzo) is longer than announced";
const BACK: &str = "compressed data (lzo) refers to data before its beginning";

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<usize, &'static str> {
        let byte = *self.data.get(self.at).ok_or(CUT)?;
        self.at += 1;
        Ok(byte.into())
    }

    fn pair(&mut self) -> Result<usize, &'static str> {
        Ok(self.byte()? | self.byte()? << 8)
    }

    /// A length that does not fit its bits: zero bytes count 255 each.
    fn length(&mut self, bits: usize, least: usize) -> Result<usize, &'static str> {
        if bits != 0 {
            return Ok(bits + least);
        }
        let mut more = 0usize;
        loop {
            match self.byte()? {
                0 => more += 255,
                last => return Ok(more + last + least),
            }
        }
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn literals(&mut self, reader: &mut Reader, count: usize) -> Result<(), &'static str> {
        let from = reader
            .data
            .get(reader.at..)
            .and_then(|rest| rest.get(..count));
        let to = self
            .out
            .get_mut(self.at..)
            .and_then(|rest| rest.get_mut(..count));
        to.ok_or(LONG)?.copy_from_slice(from.ok_or(CUT)?);
        reader.at += count;
        self.at += count;
        Ok(())
    }

    fn again(&mut self, distance: usize, count: usize) -> Result<(), &'static str> {
        let start = self.at.checked_sub(distance).ok_or(BACK)?;
        if count > self.out.len() - self.at {
            return Err(LONG);
        }
        if distance >= count {
            self.out.copy_within(start..start + count, self.at);
        } else {
            for step in 0..count {
                self.out[self.at + step] = self.out[start + step];
            }
        }
        self.at += count;
        Ok(())
    }
}

/// Decompress `data` to the beginning of `out`; how many bytes that were.
pub fn decompress(data: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    let mut reader = Reader { data, at: 0 };
    let mut writer = Writer { out, at: 0 };
    // How many literals preceded the current instruction: 4 means four or more.
    let mut state = 0;
    let first = *data.first().ok_or(CUT)?;
    if first > 17 {
        reader.at = 1;
        let count = usize::from(first) - 17;
        writer.literals(&mut reader, count)?;
        state = count.min(4);
    }
    loop {
        let code = reader.byte()?;
        let (distance, count, literals) = if code >= 64 {
            let distance = (reader.byte()? << 3) + (code >> 2 & 7) + 1;
            (distance, (code >> 5) + 1, code & 3)
        } else if code >= 32 {
            let count = reader.length(code & 31, 2 + if code & 31 == 0 { 31 } else { 0 })?;
            let pair = reader.pair()?;
            ((pair >> 2) + 1, count, pair & 3)
        } else if code >= 16 {
            let count = reader.length(code & 7, 2 + if code & 7 == 0 { 7 } else { 0 })?;
            let pair = reader.pair()?;
            let distance = ((code & 8) << 11) + (pair >> 2);
            if distance == 0 {
                return if reader.at == data.len() {
                    Ok(writer.at)
                } else {
                    Err("something follows the end of compressed data (lzo)")
                };
            }
            (distance + 16384, count, pair & 3)
        } else if state == 0 {
            let count = reader.length(code, 3 + if code == 0 { 15 } else { 0 })?;
            writer.literals(&mut reader, count)?;
            state = 4;
            continue;
        } else {
            let distance = (reader.byte()? << 2) + (code >> 2) + 1;
            match state {
                4 => (distance + 2048, 3, code & 3),
                _ => (distance, 2, code & 3),
            }
        };
        writer.again(distance, count)?;
        writer.literals(&mut reader, literals)?;
        state = literals;
    }
}
