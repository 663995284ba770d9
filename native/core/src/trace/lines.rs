//! Splits text that is passed in pieces into lines.

use super::{Columns, Fault, Parser, Shared};

/// A longer line is not the text of a trace.
const LINE_MAX: usize = 1 << 20;

/// Parses the lines of one format.
pub trait LineParser {
    /// Append the record of a line, or skip the line; `Err` describes a malformed one.
    fn line(&mut self, line: &[u8], shared: &mut Shared, out: &mut Columns) -> Result<(), String>;
    /// A new source begins.
    fn restart(&mut self) {}
}

/// Splits a source into lines.
pub struct Lines<P> {
    inner: P,
    shared: Shared,
    carry: Vec<u8>,
    number: u64,
    /// Malformed lines are counted and skipped.
    skip_bad: bool,
}

impl<P: LineParser> Lines<P> {
    pub fn new(inner: P, skip_bad: bool) -> Self {
        Self {
            inner,
            shared: Shared::default(),
            carry: Vec::new(),
            number: 0,
            skip_bad,
        }
    }

    #[inline]
    fn take(&mut self, line: &[u8], out: &mut Columns) -> Result<(), Fault> {
        self.number += 1;
        match self.inner.line(line, &mut self.shared, out) {
            Ok(()) => Ok(()),
            Err(_) if self.skip_bad => {
                self.shared.count("bad lines left out");
                Ok(())
            }
            Err(what) => Err(Fault::new(what, self.number, line)),
        }
    }
}

impl<P: LineParser> Parser for Lines<P> {
    fn feed(&mut self, data: &[u8], out: &mut Columns) -> Result<(), Fault> {
        let mut rest = data;
        if !self.carry.is_empty() {
            let Some(end) = memchr(rest) else {
                self.carry.extend_from_slice(rest);
                return self.check_length();
            };
            let mut first = std::mem::take(&mut self.carry);
            first.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            self.take(&first, out)?;
        }
        while let Some(end) = memchr(rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            self.take(line, out)?;
        }
        self.carry.extend_from_slice(rest);
        self.check_length()
    }

    fn finish(&mut self, partial: bool, out: &mut Columns) -> Result<(), Fault> {
        let last = std::mem::take(&mut self.carry);
        if !last.is_empty() {
            match self.take(&last, out) {
                Ok(()) => {}
                Err(_) if partial => self.shared.count("broken records left out"),
                Err(fault) => return Err(fault.truncated()),
            }
        }
        self.number = 0;
        self.inner.restart();
        Ok(())
    }

    fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl<P> Lines<P> {
    fn check_length(&self) -> Result<(), Fault> {
        if self.carry.len() > LINE_MAX {
            return Err(Fault::new(
                "a line of more than a mebibyte: this is no text of a trace",
                self.number + 1,
                &self.carry,
            ));
        }
        Ok(())
    }
}

/// Where the next line ends.
#[inline]
fn memchr(data: &[u8]) -> Option<usize> {
    // Eight bytes at once: a byte of `word ^ newlines` is zero where a line ends.
    const NEWLINES: u64 = 0x0a0a_0a0a_0a0a_0a0a;
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let (words, tail) = data.as_chunks_of_eight();
    for (index, word) in words.enumerate() {
        let mixed = word ^ NEWLINES;
        let zeroes = mixed.wrapping_sub(LOW) & !mixed & HIGH;
        if zeroes != 0 {
            return Some(index * 8 + zeroes.trailing_zeros() as usize / 8);
        }
    }
    let before = data.len() - tail.len();
    tail.iter()
        .position(|&byte| byte == b'\n')
        .map(|at| before + at)
}

trait ChunksOfEight {
    fn as_chunks_of_eight(&self) -> (impl Iterator<Item = u64> + '_, &[u8]);
}

impl ChunksOfEight for [u8] {
    #[inline]
    fn as_chunks_of_eight(&self) -> (impl Iterator<Item = u64> + '_, &[u8]) {
        let chunks = self.chunks_exact(8);
        let tail = chunks.remainder();
        (
            chunks.map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes"))),
            tail,
        )
    }
}
