//! OpenZFS send streams, checked record by record.
//!
//! `zfs recv` makes all received data visible once it has read the END record. So the receiver
//! must find the beginning of that record before passing it on, and verify that everything before
//! it is complete. A record is a header of 312 bytes, in the byte order of the sending machine, and
//! a payload whose length follows from the header's fields. One running Fletcher-4 checksum covers
//! the entire stream, and each header repeats its value: it is verified here, so a length is used
//! only if it is what the sender wrote, and even then only within bounds.

pub const HEADER: usize = 312;
/// Offset of a header's own checksum: at its end.
pub(crate) const CHECKSUM_AT: usize = HEADER - 32;
const MAGIC: u64 = 0x2_f5ba_cbac;
/// The largest block of any pool, and so the largest payload of a record.
const BLOCK_BYTES_MAX: u64 = 16 << 20;
/// The largest payload of a BEGIN record that OpenZFS accepts.
const BEGIN_BYTES_MAX: u64 = 64 << 20;
const BONUS_BYTES_MAX: u64 = 16 << 10;
/// The largest content embedded in a block pointer.
const EMBEDDED_BYTES_MAX: u64 = 112;
/// Numbers of objects have 48 bits.
const OBJECT_MAX: u64 = 1 << 48;

pub mod kind {
    pub const BEGIN: u32 = 0;
    pub const OBJECT: u32 = 1;
    pub const FREEOBJECTS: u32 = 2;
    pub const WRITE: u32 = 3;
    pub const FREE: u32 = 4;
    pub const END: u32 = 5;
    pub const WRITE_BYREF: u32 = 6;
    pub const SPILL: u32 = 7;
    pub const WRITE_EMBEDDED: u32 = 8;
    pub const OBJECT_RANGE: u32 = 9;
    pub const REDACT: u32 = 10;
    pub const COUNT: usize = 11;
}

/// Bits of `Begin::features`.
pub mod feature {
    pub const RAW: u64 = 1 << 24;
}

/// The content of the first record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Begin {
    pub to_guid: u64,
    /// 0: a full stream.
    pub from_guid: u64,
    pub to_name: Vec<u8>,
    pub creation_s: u64,
    pub features: u64,
    pub flags: u32,
    /// 2: a file system, 3: a volume.
    pub kind: u32,
    /// From a machine with the other byte order.
    pub swapped: bool,
}

/// A record's place in an object, its header verified. Lengths in bytes; `payload`: as sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Record {
    /// An object that is new or whose metadata changed; the following records may refer to it.
    Object { object: u64, kind: u32, block: u32 },
    /// These objects do not exist (any more).
    FreeObjects { first: u64, count: u64 },
    /// Content: of a WRITE, of an embedded block, or of a reference to another block.
    Write {
        object: u64,
        offset: u64,
        length: u64,
        payload: u64,
    },
    /// A hole; `length` u64::MAX: to the end.
    Free {
        object: u64,
        offset: u64,
        length: u64,
    },
    /// Attributes of an object in a separate block (spill block).
    Spill {
        object: u64,
        length: u64,
        payload: u64,
    },
    /// BEGIN, END, OBJECT_RANGE, REDACT: they change no blocks.
    Other,
}

/// The running checksum: sums of sums of 32-bit words, in the sender's byte order.
#[derive(Clone, Default)]
pub(crate) struct Fletcher {
    sums: [u64; 4],
    cut: [u8; 4],
    cut_length: usize,
}

impl Fletcher {
    pub(crate) fn update(&mut self, mut data: &[u8], swapped: bool) {
        while self.cut_length > 0 && !data.is_empty() {
            self.cut[self.cut_length] = data[0];
            self.cut_length += 1;
            data = &data[1..];
            if self.cut_length == 4 {
                self.cut_length = 0;
                let word = self.cut;
                self.words(&word, swapped);
            }
        }
        let whole = data.len() & !3;
        self.words(&data[..whole], swapped);
        let rest = &data[whole..];
        self.cut[self.cut_length..self.cut_length + rest.len()].copy_from_slice(rest);
        self.cut_length += rest.len();
    }

    fn words(&mut self, data: &[u8], swapped: bool) {
        if swapped {
            self.sum(data, u32::from_be_bytes);
        } else {
            self.sum(data, u32::from_le_bytes);
        }
    }

    #[inline(always)]
    fn sum(&mut self, data: &[u8], word: impl Fn([u8; 4]) -> u32) {
        let [mut a, mut b, mut c, mut d] = self.sums;
        for four in data.chunks_exact(4) {
            a = a.wrapping_add(word([four[0], four[1], four[2], four[3]]).into());
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        }
        self.sums = [a, b, c, d];
    }

    pub(crate) fn sums(&self) -> [u64; 4] {
        self.sums
    }
}

/// Reads a header's fields; offsets are those of `dmu_replay_record`.
struct Header<'a> {
    bytes: &'a [u8; HEADER],
    swapped: bool,
}

impl Header<'_> {
    fn u32(&self, at: usize) -> u32 {
        let four: [u8; 4] = self.bytes[at..at + 4].try_into().unwrap_or_default();
        if self.swapped {
            u32::from_be_bytes(four)
        } else {
            u32::from_le_bytes(four)
        }
    }

    fn u64(&self, at: usize) -> u64 {
        let eight: [u8; 8] = self.bytes[at..at + 8].try_into().unwrap_or_default();
        if self.swapped {
            u64::from_be_bytes(eight)
        } else {
            u64::from_le_bytes(eight)
        }
    }

    fn checksum(&self, at: usize) -> [u64; 4] {
        [0, 8, 16, 24].map(|step| self.u64(at + step))
    }

    fn object(&self) -> Result<u64, String> {
        let object = self.u64(8);
        if object == 0 || object >= OBJECT_MAX {
            return Err(format!("it is about the invalid object {object}"));
        }
        Ok(object)
    }

    /// The place (offset, length) at `at`; `open`: a length of all ones means "to the end".
    fn range(&self, at: usize, open: bool) -> Result<(u64, u64), String> {
        let (offset, length) = (self.u64(at), self.u64(at + 8));
        if !(open && length == u64::MAX) && offset.checked_add(length).is_none() {
            return Err(format!(
                "{length} bytes at {offset} are beyond the maximum size of an object"
            ));
        }
        Ok((offset, length))
    }
}

fn bounded(length: u64, most: u64, what: &str) -> Result<u64, String> {
    if length > most {
        return Err(format!(
            "its {what} claims {length} bytes; the limit is {most}"
        ));
    }
    if length % 4 != 0 {
        return Err(format!(
            "its {what} of {length} bytes is not an integer number of words"
        ));
    }
    Ok(length)
}

#[derive(Default, PartialEq)]
enum State {
    #[default]
    Beginning,
    Records,
    Ended,
    Broken,
}

/// Checks a stream that is passed in pieces of any size.
pub struct Scanner {
    state: State,
    header: [u8; HEADER],
    filled: usize,
    payload_left: u64,
    fletcher: Fletcher,
    swapped: bool,
    pub begin: Option<Begin>,
    /// Offset of the END record, as soon as it is complete.
    pub end_at: Option<u64>,
    pub bytes: u64,
    /// Number of records of each kind, by `kind`.
    pub records: [u64; kind::COUNT],
    /// Payload of the records with content: the user data in the stream.
    pub data_bytes: u64,
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            state: State::default(),
            header: [0; HEADER],
            filled: 0,
            payload_left: 0,
            fletcher: Fletcher::default(),
            swapped: false,
            begin: None,
            end_at: None,
            bytes: 0,
            records: [0; kind::COUNT],
            data_bytes: 0,
        }
    }
}

impl Scanner {
    pub fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// How many bytes from the stream's start belong to verified records other than END: these may
    /// be passed on.
    pub fn passable(&self) -> u64 {
        self.end_at.unwrap_or(self.bytes - self.filled as u64)
    }

    /// Check the next piece and pass each record to `sink`. After an error: only errors.
    pub fn feed(&mut self, data: &[u8], sink: &mut dyn FnMut(Record)) -> Result<(), String> {
        let result = self.advance(data, sink);
        if result.is_err() {
            self.state = State::Broken;
        }
        result
    }

    fn advance(&mut self, mut data: &[u8], sink: &mut dyn FnMut(Record)) -> Result<(), String> {
        if self.state == State::Broken {
            return Err("an earlier part of it was damaged".into());
        }
        while !data.is_empty() {
            if self.state == State::Ended {
                return Err("something follows its end".into());
            }
            if self.payload_left > 0 {
                let length = self.payload_left.min(data.len() as u64) as usize;
                self.fletcher.update(&data[..length], self.swapped);
                self.payload_left -= length as u64;
                self.bytes += length as u64;
                data = &data[length..];
                continue;
            }
            let length = (HEADER - self.filled).min(data.len());
            self.header[self.filled..self.filled + length].copy_from_slice(&data[..length]);
            self.filled += length;
            self.bytes += length as u64;
            data = &data[length..];
            if self.filled == HEADER {
                let number = self.records.iter().sum::<u64>() + 1;
                let record = self
                    .take()
                    .map_err(|why| format!("{why} (record {number})"))?;
                self.filled = 0;
                sink(record);
            }
        }
        Ok(())
    }

    /// Process a complete header.
    fn take(&mut self) -> Result<Record, String> {
        let bytes = self.header;
        if self.state == State::Beginning {
            self.begin = Some(self.take_begin(&bytes)?);
            self.state = State::Records;
            return Ok(Record::Other);
        }
        let header = Header {
            bytes: &bytes,
            swapped: self.swapped,
        };
        let found = header.u32(0);
        if found == kind::BEGIN || found as usize >= kind::COUNT {
            return Err(format!("a record of the unexpected type {found}"));
        }
        let before = self.fletcher.sums();
        self.fletcher.update(&bytes[..CHECKSUM_AT], self.swapped);
        if header.checksum(CHECKSUM_AT) != self.fletcher.sums() {
            return Err("a checksum in the stream is wrong".into());
        }
        self.fletcher.update(&bytes[CHECKSUM_AT..], self.swapped);
        if found == kind::END {
            self.take_end(&header, before)?;
        }
        let (record, payload) = self.parse(&header, found)?;
        self.payload_left = payload;
        if matches!(record, Record::Write { .. } | Record::Spill { .. }) {
            self.data_bytes += payload;
        }
        self.records[found as usize] += 1;
        Ok(record)
    }

    fn take_begin(&mut self, bytes: &[u8; HEADER]) -> Result<Begin, String> {
        let native = Header {
            bytes,
            swapped: false,
        };
        self.swapped = native.u64(8) == MAGIC.swap_bytes();
        let header = Header {
            bytes,
            swapped: self.swapped,
        };
        if header.u32(0) != kind::BEGIN || header.u64(8) != MAGIC {
            return Err("it does not begin as a ZFS stream".into());
        }
        let version = header.u64(16);
        match version & 3 {
            1 => {}
            2 => return Err("it is a package of several streams".into()),
            _ => return Err("its first record is of an unknown kind".into()),
        }
        let name = &bytes[56..HEADER];
        let length = name.iter().position(|&byte| byte == 0);
        let begin = Begin {
            to_guid: header.u64(40),
            from_guid: header.u64(48),
            to_name: name[..length.ok_or("the snapshot's name is not terminated")?].to_vec(),
            creation_s: header.u64(24),
            features: version >> 2 & ((1 << 56) - 1),
            flags: header.u32(36),
            kind: header.u32(32),
            swapped: self.swapped,
        };
        if !matches!(begin.kind, 2 | 3) {
            return Err("it is neither of a file system nor of a volume".into());
        }
        if begin.to_guid == 0 {
            return Err("the snapshot has no identity".into());
        }
        self.payload_left = bounded(header.u32(4).into(), BEGIN_BYTES_MAX, "beginning")?;
        self.fletcher.update(bytes, self.swapped);
        self.records[kind::BEGIN as usize] = 1;
        Ok(begin)
    }

    fn take_end(&mut self, header: &Header, before: [u64; 4]) -> Result<(), String> {
        if header.checksum(8) != before {
            return Err("the checksum of the whole stream is wrong".into());
        }
        let guid = header.u64(40);
        if self
            .begin
            .as_ref()
            .is_none_or(|begin| begin.to_guid != guid)
        {
            return Err("its END record is of another snapshot than its BEGIN record".into());
        }
        self.end_at = Some(self.bytes - HEADER as u64);
        self.state = State::Ended;
        Ok(())
    }

    /// The record of a verified header, and the length of its payload.
    fn parse(&self, header: &Header, found: u32) -> Result<(Record, u64), String> {
        let raw = self
            .begin
            .as_ref()
            .is_some_and(|begin| begin.features & feature::RAW != 0);
        match found {
            kind::OBJECT => {
                let (plain, raw_bonus) = (u64::from(header.u32(28)), u64::from(header.u32(36)));
                let bonus = if raw_bonus != 0 {
                    raw_bonus
                } else {
                    plain.div_ceil(8) * 8
                };
                let record = Record::Object {
                    object: header.object()?,
                    kind: header.u32(16),
                    block: header.u32(24),
                };
                Ok((record, bounded(bonus, BONUS_BYTES_MAX, "object")?))
            }
            kind::FREEOBJECTS => {
                let (first, count) = header.range(8, false)?;
                Ok((Record::FreeObjects { first, count }, 0))
            }
            kind::WRITE => {
                let compressed = raw || header.bytes[50] != 0;
                let (offset, length) = header.range(24, false)?;
                let payload = if compressed { header.u64(96) } else { length };
                content(header, offset, length, payload)
            }
            kind::WRITE_EMBEDDED => {
                let (offset, length) = header.range(16, false)?;
                let payload = bounded(
                    u64::from(header.u32(52)).div_ceil(8) * 8,
                    EMBEDDED_BYTES_MAX,
                    "embedded block",
                )?;
                content(header, offset, length, payload)
            }
            kind::WRITE_BYREF => {
                let (offset, length) = header.range(16, false)?;
                content(header, offset, length, 0)
            }
            kind::FREE | kind::REDACT => {
                let object = header.object()?;
                let (offset, length) = header.range(16, true)?;
                if found == kind::REDACT {
                    return Ok((Record::Other, 0));
                }
                Ok((
                    Record::Free {
                        object,
                        offset,
                        length,
                    },
                    0,
                ))
            }
            kind::SPILL => {
                let length = header.u64(16);
                let compressed = header.u64(40);
                let payload = if compressed != 0 { compressed } else { length };
                let payload = bounded(payload, BLOCK_BYTES_MAX, "attributes")?;
                Ok((
                    Record::Spill {
                        object: header.object()?,
                        length,
                        payload,
                    },
                    payload,
                ))
            }
            _ => Ok((Record::Other, 0)), // END, OBJECT_RANGE
        }
    }
}

fn content(
    header: &Header,
    offset: u64,
    length: u64,
    payload: u64,
) -> Result<(Record, u64), String> {
    let object = header.object()?;
    let payload = bounded(payload, BLOCK_BYTES_MAX, "block")?;
    if length == 0 || length > BLOCK_BYTES_MAX {
        return Err(format!("invalid block size of {length} bytes"));
    }
    Ok((
        Record::Write {
            object,
            offset,
            length,
            payload,
        },
        payload,
    ))
}

#[cfg(test)]
#[path = "zfs_stream_tests.rs"]
pub mod tests;
