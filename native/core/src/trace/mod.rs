//! Parsers of trace formats: bytes in, columns out.
//!
//! Each parser takes a source piece by piece as it comes and appends to `Columns`. Times are
//! nanoseconds since the first record of the parser, which keeps that record's own time in `zero`:
//! what a source counts from (1601, 1970, the start of the recording) is known one level up.

pub mod binary;
pub mod blkparse;
pub mod blktrace;
pub mod columns;
pub mod dedup;
pub mod delimited;
pub mod fio;
pub mod lines;
pub mod number;
pub mod survey;

pub use columns::{Columns, Fault, Op, Shared};

/// A source of one format, read piece by piece.
pub trait Parser {
    /// Parse what `data` completes; what is left over waits for the next piece.
    fn feed(&mut self, data: &[u8], out: &mut Columns) -> Result<(), Fault>;
    /// The end of one source; `partial`: a record that breaks off is counted and left out.
    fn finish(&mut self, partial: bool, out: &mut Columns) -> Result<(), Fault>;
    /// What was found besides the records.
    fn shared(&self) -> &Shared;
}

#[cfg(test)]
mod tests;
