//! The blocks of one part: their states, and the counts of each grid's intervals.

use super::clock::{Clock, Cuts};
use super::table::{Directory, Pages, NODE_BITS, PAGE, PAGE_BITS};
use super::{Columns, TRIM, WRITE};

/// Set in the state of a block that was trimmed since its last write.
const TRIMMED: i32 = i32::MIN;
/// Number of grids counted together, with one or two vector instructions.
const LANES: usize = 8;
/// Number of ranges looked up before the first of them is counted.
const AHEAD: usize = 256;
/// A trace has fewer volumes than this.
const VOLUMES_MAX: u32 = 1 << 20;
/// Longer writes are an error in the trace.
const WRITE_MAX: i64 = 1 << 40;

/// Why records cannot be replayed; `record` counts from the first one fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A record is earlier than the one before it.
    Order {
        record: u64,
        time_ns: i64,
        before_ns: i64,
    },
    /// No volume has such a range.
    Range {
        record: u64,
        offset: i64,
        length: i64,
    },
    /// A number that no volume of a trace has.
    Volume { record: u64, volume: u32 },
    /// There are more intervals than can be distinguished.
    Intervals { record: u64 },
}

/// The counts of one volume in one interval of one grid; rows of the same interval are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub volume: u32,
    pub interval: i64,
    /// Block writes.
    pub written: i64,
    /// Blocks written.
    pub in_place: i64,
    /// Blocks written that were not trimmed after that.
    pub active: i64,
    /// Change of the number of blocks with content.
    pub live: i64,
    /// The end of the highest block ever written; the maximum of such rows counts.
    pub end: i64,
}

/// The totals of a volume in one part; those of all parts are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    pub volume: u32,
    /// Block writes.
    pub written: i64,
    /// Different blocks written.
    pub unique: i64,
    /// Change of the number of blocks with content.
    pub live: i64,
}

#[derive(Default)]
struct Volume {
    directory: Directory,
    /// Since the beginning: block writes, different blocks written, change of live blocks.
    written: i64,
    unique: i64,
    live: i64,
    /// The end of the last block written.
    end: i64,
    /// For each grid's interval: blocks first written in it; the effect of trims on an update
    /// in place and on the active map.
    first: Vec<[u32; LANES]>,
    more_in_place: Vec<i64>,
    more_active: Vec<i64>,
    /// `written` and `live` when the interval began.
    mark_written: Vec<i64>,
    mark_live: Vec<i64>,
}

/// Blocks of one page that a record writes or trims.
struct Range {
    page: u32,
    volume: u32,
    first: u16,
    last: u16,
    trim: bool,
}

pub struct Part {
    block_bits: u32,
    index: u32,
    of: u32,
    clock: Clock,
    /// The clock's `starts`; lanes without a grid never count.
    starts: Vec<[i32; LANES]>,
    grids: usize,
    volumes: Vec<Volume>,
    pages: Pages,
    ahead: Vec<Range>,
    records: u64,
    last_ns: i64,
    pub rows: Vec<Vec<Row>>,
}

impl Part {
    pub fn new(block_bits: u32, cuts: Vec<Cuts>, index: u32, of: u32) -> Self {
        let grids = cuts.len();
        let mut part = Self {
            block_bits,
            index,
            of,
            clock: Clock::new(cuts),
            starts: vec![[0; LANES]; grids.div_ceil(LANES)],
            grids,
            volumes: Vec::new(),
            pages: Pages::default(),
            ahead: Vec::with_capacity(AHEAD),
            records: 0,
            last_ns: i64::MIN,
            rows: vec![Vec::new(); grids],
        };
        part.take_starts();
        part
    }

    pub fn feed(&mut self, columns: Columns) -> Result<(), Fault> {
        for (index, (&time_ns, &op)) in columns.time_ns.iter().zip(columns.op).enumerate() {
            if time_ns < self.last_ns {
                let record = self.records + index as u64;
                return Err(Fault::Order {
                    record,
                    time_ns,
                    before_ns: self.last_ns,
                });
            }
            self.last_ns = time_ns;
            if time_ns >= self.clock.next_ns {
                self.flush();
                let record = self.records + index as u64;
                self.clock
                    .advance(time_ns)
                    .ok_or(Fault::Intervals { record })?;
                self.close();
            }
            let volume = columns.volume[index];
            if volume >= VOLUMES_MAX {
                return Err(Fault::Volume {
                    record: self.records + index as u64,
                    volume,
                });
            }
            if op != WRITE && op != TRIM {
                continue;
            }
            let (offset, length) = (columns.offset[index], columns.length[index]);
            let plausible = offset >= 0 && length >= 0 && offset.checked_add(length).is_some();
            if !plausible || (op == WRITE && length > WRITE_MAX) {
                let record = self.records + index as u64;
                return Err(Fault::Range {
                    record,
                    offset,
                    length,
                });
            }
            if length > 0 {
                self.look_up(volume, op, offset as u64, length as u64);
            }
        }
        self.flush();
        self.records += columns.time_ns.len() as u64;
        Ok(())
    }

    /// Records the blocks of a record that belong to this part.
    #[inline]
    fn look_up(&mut self, volume: u32, op: u8, offset: u64, length: u64) {
        let end = offset + length;
        if op == TRIM {
            // Only blocks that it covers completely lose their content.
            let first = offset.div_ceil(1 << self.block_bits);
            let end = end >> self.block_bits;
            if first < end {
                self.look_up_trim(volume, first, end - 1);
            }
            return;
        }
        let (first, last) = (offset >> self.block_bits, (end - 1) >> self.block_bits);
        let (first_page, last_page) = (first >> PAGE_BITS, last >> PAGE_BITS);
        for page in first_page..=last_page {
            if !self.is_mine(volume, page) {
                continue;
            }
            self.need(volume);
            let of = &mut self.volumes[volume as usize];
            of.end = of.end.max(last as i64 + 1);
            let id = of.directory.find_or_add(page, &mut self.pages);
            self.note(volume, id, (page, first, last), false);
        }
    }

    #[cold]
    fn look_up_trim(&mut self, volume: u32, first: u64, last: u64) {
        self.need(volume);
        let directory = &self.volumes[volume as usize].directory;
        // Blocks that were never written are not known to have content.
        for (page, id) in directory.among(first >> PAGE_BITS, last >> PAGE_BITS) {
            self.note(volume, id, (page, first, last), true);
        }
    }

    #[inline]
    fn note(&mut self, volume: u32, id: u32, (page, first, last): (u64, u64, u64), trim: bool) {
        let base = page << PAGE_BITS;
        let first = first.saturating_sub(base) as u16;
        let last = (last - base).min(PAGE as u64 - 1) as u16;
        self.pages.prefetch(id, first as usize);
        self.ahead.push(Range {
            page: id,
            volume,
            first,
            last,
            trim,
        });
        if self.ahead.len() == AHEAD {
            self.flush();
        }
    }

    /// Whether a page belongs to this part: nodes of pages are hashed, so that hot regions are
    /// distributed.
    #[inline]
    fn is_mine(&self, volume: u32, page: u64) -> bool {
        if self.of == 1 {
            return true;
        }
        let mixed = ((page >> NODE_BITS) ^ (u64::from(volume) << 40))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 32;
        (mixed * u64::from(self.of)) >> 32 == u64::from(self.index)
    }

    #[inline]
    fn need(&mut self, volume: u32) {
        while self.volumes.len() <= volume as usize {
            self.volumes.push(Volume {
                first: vec![[0; LANES]; self.starts.len()],
                more_in_place: vec![0; self.grids],
                more_active: vec![0; self.grids],
                mark_written: vec![0; self.grids],
                mark_live: vec![0; self.grids],
                ..Volume::default()
            });
        }
    }

    /// Counts the ranges that were looked up.
    fn flush(&mut self) {
        for range in &self.ahead {
            let volume = &mut self.volumes[range.volume as usize];
            let page = self.pages.page(range.page);
            let states = &mut page[range.first as usize..=range.last as usize];
            if range.trim {
                volume.trim(states, &self.clock.starts);
            } else {
                volume.write(states, self.clock.epoch, &self.starts);
            }
        }
        self.ahead.clear();
    }

    pub fn cut(&mut self, grid: usize, at_ns: i64) -> (i64, i64, i64) {
        // Too many epochs are reported at the next record.
        let _ = self.clock.cut(grid, at_ns);
        let before = self.rows[grid].len();
        self.close();
        let rows = &self.rows[grid][before..];
        rows.iter().fold((0, 0, 0), |sum, row| {
            (
                sum.0 + row.written,
                sum.1 + row.in_place,
                sum.2 + row.active,
            )
        })
    }

    pub fn finish(&mut self) {
        self.clock.closed.clear();
        for grid in 0..self.grids {
            self.clock.closed.push((grid, self.clock.interval(grid)));
        }
        self.close();
    }

    /// Its volumes, after the end of the trace.
    pub fn wholes(&self) -> impl Iterator<Item = Whole> + '_ {
        let volumes = self.volumes.iter().enumerate();
        volumes.map(|(index, volume)| Whole {
            volume: index as u32,
            written: volume.written,
            unique: volume.unique,
            live: volume.live,
        })
    }

    pub fn memory(&self) -> usize {
        let directories = self.volumes.iter().map(|volume| volume.directory.memory());
        self.pages.memory() + directories.sum::<usize>()
    }

    fn take_starts(&mut self) {
        for (grid, &start) in self.clock.starts.iter().enumerate() {
            self.starts[grid / LANES][grid % LANES] = start;
        }
    }

    /// Adds rows for the intervals that have just ended.
    fn close(&mut self) {
        for &(grid, interval) in &self.clock.closed {
            for (index, volume) in self.volumes.iter_mut().enumerate() {
                self.rows[grid].extend(volume.close(index as u32, grid, interval));
            }
        }
        self.take_starts();
    }
}

impl Volume {
    #[inline]
    fn write(&mut self, states: &mut [i32], epoch: i32, starts: &[[i32; LANES]]) {
        self.written += states.len() as i64;
        for state in states {
            let before = std::mem::replace(state, epoch);
            if before < 0 {
                self.write_trimmed(before & !TRIMMED, starts);
                continue;
            }
            self.unique += i64::from(before == 0);
            for (counts, starts) in self.first.iter_mut().zip(starts) {
                for (count, &start) in counts.iter_mut().zip(starts) {
                    *count += u32::from(start > before);
                }
            }
        }
    }

    #[cold]
    fn write_trimmed(&mut self, before: i32, starts: &[[i32; LANES]]) {
        self.live += 1;
        for grid in 0..self.more_active.len() {
            let first = starts[grid / LANES][grid % LANES] > before;
            self.more_in_place[grid] += i64::from(first);
            self.more_active[grid] += 1;
        }
    }

    fn trim(&mut self, states: &mut [i32], starts: &[i32]) {
        for state in states.iter_mut().filter(|state| **state > 0) {
            self.live -= 1;
            for (more, &start) in self.more_active.iter_mut().zip(starts) {
                *more -= i64::from(*state >= start);
            }
            *state |= TRIMMED;
        }
    }

    /// The row of an interval that ends, if anything happened.
    fn close(&mut self, volume: u32, grid: usize, interval: i64) -> Option<Row> {
        let written = self.written - std::mem::replace(&mut self.mark_written[grid], self.written);
        let live = self.live - std::mem::replace(&mut self.mark_live[grid], self.live);
        let first = &mut self.first[grid / LANES][grid % LANES];
        let first = i64::from(std::mem::take(first));
        let in_place = first + std::mem::take(&mut self.more_in_place[grid]);
        let active = first + std::mem::take(&mut self.more_active[grid]);
        let row = Row {
            volume,
            interval,
            written,
            in_place,
            active,
            live,
            end: self.end,
        };
        (written != 0 || live != 0).then_some(row)
    }
}
