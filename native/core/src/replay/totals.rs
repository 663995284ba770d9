//! Totals of a trace, independent of blocks: counts, bytes over time, ends of volumes.

use std::collections::VecDeque;

use super::clock::{Clock, Cuts};
use super::links::Link;
use super::{Columns, TRIM, WRITE};

const SECOND_NS: i64 = 1_000_000_000;

/// The most bytes written within any second, whatever the instant at which it begins.
#[derive(Default)]
pub struct Busiest {
    recent: VecDeque<(i64, i64)>,
    bytes: i64,
    pub peak: i64,
}

impl Busiest {
    #[inline]
    pub fn add(&mut self, time_ns: i64, bytes: i64) {
        while let Some(&(then_ns, before)) = self.recent.front() {
            if time_ns - then_ns < SECOND_NS {
                break;
            }
            self.bytes -= before;
            self.recent.pop_front();
        }
        // Writes of one instant are one entry: what is kept is bounded by the trace's resolution.
        match self.recent.back_mut() {
            Some((then_ns, sum)) if *then_ns == time_ns => *sum += bytes,
            _ => self.recent.push_back((time_ns, bytes)),
        }
        self.bytes += bytes;
        self.peak = self.peak.max(self.bytes);
    }
}

/// Bins of the series of bytes written; beyond this number, pairs of bins are merged.
const BINS_MAX: usize = 4 << 20;

pub struct Totals {
    clock: Clock,
    pub first_ns: i64,
    pub last_ns: i64,
    pub records: u64,
    pub writes: u64,
    pub trims: u64,
    pub bytes_written: u64,
    /// For each volume, the end of the accessed range in bytes.
    pub ends: Vec<i64>,
    pub bin_ns: i64,
    pub bins: Vec<i64>,
    pub busiest: Busiest,
    pub links: Vec<Link>,
    /// For each grid, intervals with writes and the bytes written in them.
    pub grids: Vec<Vec<(i64, i64)>>,
    marks: Vec<u64>,
}

impl Totals {
    pub fn new(cuts: Vec<Cuts>, bounds_ns: &[i64]) -> Self {
        let count = cuts.len();
        Self {
            clock: Clock::new(cuts),
            first_ns: 0,
            last_ns: 0,
            records: 0,
            writes: 0,
            trims: 0,
            bytes_written: 0,
            ends: Vec::new(),
            bin_ns: 1_000_000_000,
            bins: Vec::new(),
            busiest: Busiest::default(),
            links: bounds_ns.iter().copied().map(Link::new).collect(),
            grids: vec![Vec::new(); count],
            marks: vec![0; count],
        }
    }

    pub fn feed(&mut self, columns: Columns) {
        let (Some(&first_ns), Some(&last_ns)) = (columns.time_ns.first(), columns.time_ns.last())
        else {
            return;
        };
        if self.records == 0 {
            self.first_ns = first_ns;
        }
        self.last_ns = last_ns;
        self.records += columns.time_ns.len() as u64;
        // The current bin: its end and its bytes.
        let (mut bin_end_ns, mut in_bin) = (i64::MIN, 0);
        let mut bin = 0;
        for (index, &time_ns) in columns.time_ns.iter().enumerate() {
            if time_ns >= self.clock.next_ns {
                // Too many epochs are reported by the parts.
                let _ = self.clock.advance(time_ns);
                self.close();
            }
            let end = columns.offset[index].saturating_add(columns.length[index]);
            let volume = columns.volume[index] as usize;
            if volume >= self.ends.len() {
                self.ends.resize(volume + 1, 0);
            }
            self.ends[volume] = self.ends[volume].max(end);
            match columns.op[index] {
                WRITE => self.writes += 1,
                TRIM => {
                    self.trims += 1;
                    continue;
                }
                _ => continue,
            }
            let before = self.bytes_written as i64;
            self.bytes_written += columns.length[index] as u64;
            for link in &mut self.links {
                link.add(time_ns, before, self.bytes_written as i64);
            }
            self.busiest.add(time_ns, columns.length[index]);
            if time_ns >= bin_end_ns {
                self.add(bin, in_bin);
                in_bin = 0;
                bin = self.bin_of(time_ns);
                bin_end_ns = self.first_ns + (bin as i64 + 1) * self.bin_ns;
            }
            in_bin += columns.length[index];
        }
        self.add(bin, in_bin);
    }

    /// The bin of an instant; bins are merged if there would be too many.
    fn bin_of(&mut self, time_ns: i64) -> usize {
        while (time_ns - self.first_ns) / self.bin_ns >= BINS_MAX as i64 {
            self.bin_ns *= 2;
            self.bins = self.bins.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        ((time_ns - self.first_ns) / self.bin_ns) as usize
    }

    fn add(&mut self, bin: usize, bytes: i64) {
        if bytes > 0 {
            if bin >= self.bins.len() {
                self.bins.resize(bin + 1, 0);
            }
            self.bins[bin] += bytes;
        }
    }

    pub fn cut(&mut self, grid: usize, at_ns: i64) {
        let _ = self.clock.cut(grid, at_ns);
        self.close();
    }

    pub fn finish(&mut self) {
        self.clock.closed.clear();
        for grid in 0..self.grids.len() {
            self.clock.closed.push((grid, self.clock.interval(grid)));
        }
        self.close();
    }

    fn close(&mut self) {
        for &(grid, interval) in &self.clock.closed {
            let bytes = self.bytes_written - self.marks[grid];
            self.marks[grid] = self.bytes_written;
            if bytes > 0 {
                self.grids[grid].push((interval, bytes as i64));
            }
        }
    }
}
