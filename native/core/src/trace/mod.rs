//! Parsers of trace formats: bytes in, columns out.
//!
//! Each parser reads a source piece by piece and appends to `Columns`. Times are
//! nanoseconds since the first record of the parser, which keeps that record's own time in `zero`:
//! the caller knows the source's epoch (1601, 1970, the start of the recording).

pub mod binary;
pub mod blkparse;
pub mod blktrace;
pub mod columns;
pub mod dedup;
pub mod delimited;
pub mod fio;
pub mod lines;
pub mod live;
pub mod number;
pub mod survey;

pub use columns::{Columns, Fault, Op, Shared};

/// A source of one format, read piece by piece.
pub trait Parser {
    /// Parse the records that `data` completes; the rest is kept for the next piece.
    fn feed(&mut self, data: &[u8], out: &mut Columns) -> Result<(), Fault>;
    /// The end of one source; `partial`: an incomplete last record is counted and skipped.
    fn finish(&mut self, partial: bool, out: &mut Columns) -> Result<(), Fault>;
    /// The results besides the records.
    fn shared(&self) -> &Shared;
}

#[cfg(test)]
mod tests;
