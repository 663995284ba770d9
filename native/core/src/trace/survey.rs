//! Statistics of a trace from one pass: counts, unusual grids, early rewrites, bursts.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

const BLOCK_SHIFT: u32 = 12;
/// Grids to test: 0, 512 … 3584 bytes are added to each offset.
pub const SHIFTS: usize = 8;
/// Gaps between two writes of a block: up to 1 ms, 10 ms, 0.1 s, 1 s, 10 s, and longer.
pub const GAPS: usize = 6;
const GAP_LIMITS: [i64; GAPS - 1] = [
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];
/// Maximum number of blocks whose writes are tracked; beyond it, every second one is dropped.
const FOLLOWED_MAX: usize = 1 << 17;
const SECOND: i64 = 1_000_000_000;

/// Multiplies and folds: block numbers are not chosen by an attacker.
#[derive(Default, Clone, Copy)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_i64(&mut self, value: i64) {
        self.write_u64(value as u64);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = mixed(self.0 ^ value);
    }
}

#[derive(Default, Clone, Copy)]
pub struct BuildMix;

impl BuildHasher for BuildMix {
    type Hasher = Mix;
    fn build_hasher(&self) -> Mix {
        Mix::default()
    }
}

/// The finalizer of SplitMix64.
#[inline]
pub fn mixed(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One number for a block of a volume.
#[inline]
pub fn block_key(volume: u32, block: u64) -> u64 {
    block | u64::from(volume) << 51
}

/// A running survey of records in any order.
pub struct Survey {
    pub records: [u64; 4],
    pub bytes: [u64; 4],
    pub first: i64,
    pub last: i64,
    pub end: i64,
    pub backward: u64,
    pub backward_max: i64,
    pub empty: u64,
    /// Bytes of the longest record.
    pub longest: i64,
    /// Writes whose offset or length is not a multiple of 4096.
    pub unaligned: u64,
    /// Blocks touched by writes on each grid.
    pub touched: [u64; SHIFTS],
    /// Times that are a multiple of 1 s, of 1 ms, of 1 µs.
    pub round: [u64; 3],
    /// Tracked blocks: writes, and the time since the previous write.
    pub followed_writes: u64,
    pub gaps: [u64; GAPS],
    /// Reads that repeat the read before them within 1 ms, byte for byte.
    pub twin_reads: u64,
    pub peak_bytes: u64,
    /// Records later than the one before them: all, by less than 1 µs, by less than 1 ms.
    pub later: [u64; 3],
    previous: i64,
    followed: HashMap<u64, i64, BuildMix>,
    mask: u64,
    second: i64,
    in_second: u64,
    last_read: (u32, i64, i64, i64),
}

impl Default for Survey {
    fn default() -> Self {
        Self {
            records: [0; 4],
            bytes: [0; 4],
            first: i64::MAX,
            last: i64::MIN,
            end: 0,
            backward: 0,
            backward_max: 0,
            empty: 0,
            longest: 0,
            unaligned: 0,
            touched: [0; SHIFTS],
            round: [0; 3],
            followed_writes: 0,
            gaps: [0; GAPS],
            twin_reads: 0,
            peak_bytes: 0,
            later: [0; 3],
            previous: i64::MIN,
            followed: HashMap::default(),
            mask: 0,
            second: i64::MIN,
            in_second: 0,
            last_read: (u32::MAX, 0, -1, 0),
        }
    }
}

/// The columns that are read; all of equal length.
pub struct Seen<'a> {
    pub time: &'a [i64],
    pub volume: &'a [u32],
    pub op: &'a [u8],
    pub offset: &'a [i64],
    pub length: &'a [i64],
}

impl Survey {
    pub fn feed(&mut self, seen: &Seen) {
        for at in 0..seen.time.len() {
            let (time, op) = (seen.time[at], usize::from(seen.op[at] & 3));
            let (offset, length) = (seen.offset[at], seen.length[at]);
            self.records[op] += 1;
            self.bytes[op] += length as u64;
            self.time(time);
            self.end = self.end.max(offset + length);
            self.longest = self.longest.max(length);
            self.empty += u64::from(length == 0 && op != 3);
            if op == 0 && length > 0 {
                self.write(time, seen.volume[at], offset as u64, length as u64);
            } else if op == 1 {
                self.read(time, seen.volume[at], offset, length);
            }
        }
    }

    #[inline]
    fn time(&mut self, time: i64) {
        if time < self.previous {
            self.backward += 1;
            self.backward_max = self.backward_max.max(self.previous - time);
        } else if time > self.previous && self.previous != i64::MIN {
            let gap = time - self.previous;
            self.later[0] += 1;
            self.later[1] += u64::from(gap < 1_000);
            self.later[2] += u64::from(gap < 1_000_000);
        }
        self.previous = time;
        self.first = self.first.min(time);
        self.last = self.last.max(time);
        if time % 1_000 == 0 {
            self.round[2] += 1;
            if time % 1_000_000 == 0 {
                self.round[1] += 1;
                self.round[0] += u64::from(time % SECOND == 0);
            }
        }
    }

    #[inline]
    fn write(&mut self, time: i64, volume: u32, offset: u64, length: u64) {
        for (index, touched) in self.touched.iter_mut().enumerate() {
            let begin = offset + 512 * index as u64;
            *touched += ((begin + length - 1) >> BLOCK_SHIFT) - (begin >> BLOCK_SHIFT) + 1;
        }
        self.unaligned += u64::from((offset | length) & 4095 != 0);
        // Seconds in the order of the source; an unsorted source only splits some of them.
        let second = time.div_euclid(SECOND);
        if second != self.second {
            self.second = second;
            self.in_second = 0;
        }
        self.in_second += length;
        self.peak_bytes = self.peak_bytes.max(self.in_second);
        // In steps of a block from the beginning of the write, on any grid: adjacent writes that
        // share a block are not rewrites. Only the first blocks of a long write are used.
        for step in 0..length.div_ceil(4096).min(256) {
            self.follow(time, block_key(volume, (offset >> 9) + 8 * step));
        }
    }

    #[inline]
    fn follow(&mut self, time: i64, key: u64) {
        if mixed(key) & self.mask != 0 {
            return;
        }
        self.followed_writes += 1;
        if let Some(before) = self.followed.insert(key, time) {
            // A step back in time is not an early rewrite.
            let gap = time.saturating_sub(before);
            if gap >= 0 {
                let class = GAP_LIMITS.iter().position(|&limit| gap <= limit);
                self.gaps[class.unwrap_or(GAPS - 1)] += 1;
            }
        }
        if self.followed.len() > FOLLOWED_MAX {
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.followed.retain(|&key, _| mixed(key) & mask == 0);
        }
    }

    #[inline]
    fn read(&mut self, time: i64, volume: u32, offset: i64, length: i64) {
        let (before_volume, before_offset, before_length, before_time) = self.last_read;
        let same = (before_volume, before_offset, before_length) == (volume, offset, length);
        self.twin_reads += u64::from(same && time - before_time <= 1_000_000);
        self.last_read = (volume, offset, length, time);
    }
}
