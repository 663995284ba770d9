//! Kernels of the replay: what a mirror would transfer for a traced workload.
//!
//! One access to a block's state serves all grids of update intervals. Time is divided into
//! epochs by the boundaries of all grids together; the state is the epoch of the block's last write,
//! and a write is the first of its block in an interval if the block's epoch is before that in which
//! the interval began. Blocks are split into parts by volume and block range: parts share no state,
//! and their counts are added.

mod clock;
mod links;
mod part;
mod table;
#[cfg(test)]
mod tests;
mod totals;

use std::thread;

pub use clock::Cuts;
pub use links::Link;
pub use part::{Fault, Part, Row, Whole};
pub use totals::Totals;

/// Writes and trims, as numbered by `mirrord.traces.model.Op`; the others change nothing.
pub const WRITE: u8 = 0;
pub const TRIM: u8 = 2;

/// Minimum number of records for starting threads.
const THREAD_RECORDS: usize = 16 << 10;

/// Consecutive records as columns of one length.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    pub time_ns: &'a [i64],
    pub volume: &'a [u32],
    pub op: &'a [u8],
    pub offset: &'a [i64],
    pub length: &'a [i64],
}

/// Some of the parts of a replay, one thread each, and the totals if the first part is among them.
pub struct Replayer {
    parts: Vec<Part>,
    pub totals: Option<Totals>,
}

impl Replayer {
    /// `here` parts from `first` on, of `of` in total. Blocks of `1 << block_bits` bytes. `bounds_ns`:
    /// of semi-synchronous mirrors, positive; the totals have the link that each needs.
    pub fn new(
        block_bits: u32,
        cuts: &[Cuts],
        bounds_ns: &[i64],
        first: u32,
        here: u32,
        of: u32,
    ) -> Self {
        Self {
            parts: (first..first + here)
                .map(|index| Part::new(block_bits, cuts.to_vec(), index, of))
                .collect(),
            totals: (first == 0).then(|| Totals::new(cuts.to_vec(), bounds_ns)),
        }
    }

    /// Replays the records, which follow those fed before in time.
    pub fn feed(&mut self, columns: Columns) -> Result<(), Fault> {
        let totals = &mut self.totals;
        if self.parts.len() == 1 || columns.time_ns.len() < THREAD_RECORDS {
            for part in &mut self.parts {
                part.feed(columns)?;
            }
            if let Some(totals) = totals {
                totals.feed(columns);
            }
            return Ok(());
        }
        thread::scope(|scope| {
            let (last, others) = self.parts.split_last_mut().expect("there is a part");
            let running: Vec<_> = others
                .iter_mut()
                .map(|part| scope.spawn(move || part.feed(columns)))
                .collect();
            let mut result = last.feed(columns);
            for one in running {
                result = result.and(one.join().expect("a part does not panic"));
            }
            if result.is_ok() {
                if let Some(totals) = totals {
                    totals.feed(columns);
                }
            }
            result
        })
    }

    /// Ends the grid's interval at `at_ns`, after all records fed so far. Returns the block writes
    /// of the interval, blocks for an update in place, and blocks in the active map.
    pub fn cut(&mut self, grid: usize, at_ns: i64) -> (i64, i64, i64) {
        let mut sum = (0, 0, 0);
        for part in &mut self.parts {
            let counted = part.cut(grid, at_ns);
            sum = (sum.0 + counted.0, sum.1 + counted.1, sum.2 + counted.2);
        }
        if let Some(totals) = &mut self.totals {
            totals.cut(grid, at_ns);
        }
        sum
    }

    /// Closes the last intervals: each grid's rows, and the volumes.
    pub fn finish(&mut self) -> (Vec<Vec<Row>>, Vec<Whole>) {
        let mut rows: Vec<Vec<Row>> = Vec::new();
        let mut volumes = Vec::new();
        for part in &mut self.parts {
            part.finish();
            let found = std::mem::take(&mut part.rows);
            if rows.is_empty() {
                rows = found;
            } else {
                for (all, more) in rows.iter_mut().zip(found) {
                    all.extend(more);
                }
            }
            volumes.extend(part.wholes());
        }
        if let Some(totals) = &mut self.totals {
            totals.finish();
        }
        (rows, volumes)
    }

    /// Memory of the tables of blocks, in bytes.
    pub fn memory(&self) -> usize {
        self.parts.iter().map(Part::memory).sum()
    }
}
