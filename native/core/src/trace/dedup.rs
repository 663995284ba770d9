//! Drops block writes that repeat the previous one within a short time (a trace of two layers).

use std::collections::HashMap;

use super::survey::{BuildMix, Seen};
use super::Columns;

const BLOCK: i64 = 4096;
/// A write longer than this (1 GiB) indicates a wrong unit; it is not split.
const LONGEST: i64 = 1 << 30;

/// A volume and a block of it.
type Block = (u32, i64);

/// Drops each 4 KiB block of a write at most `window` after the previous write of the same
/// block, dropped or not. The rest of a record is kept, split at the gaps.
///
/// Two generations of the last writes are kept, each of one window, so memory is limited by what is
/// written within two windows. Records must be in the order of time.
pub struct Dedup {
    window: i64,
    young: HashMap<Block, i64, BuildMix>,
    old: HashMap<Block, i64, BuildMix>,
    turned: i64,
}

impl Dedup {
    pub fn new(window: i64) -> Self {
        Self {
            window,
            young: HashMap::default(),
            old: HashMap::default(),
            turned: i64::MIN,
        }
    }

    pub fn feed(&mut self, seen: &Seen, latency: &[i64], out: &mut Columns) {
        for (at, &took) in latency.iter().enumerate() {
            let (begin, length) = (seen.offset[at], seen.length[at]);
            let mut push = |from: i64, to: i64| {
                out.time.push(seen.time[at]);
                out.volume.push(seen.volume[at]);
                out.op.push(seen.op[at]);
                out.offset.push(from);
                out.length.push(to - from);
                out.latency.push(took);
            };
            if seen.op[at] != 0 || length <= 0 || length > LONGEST {
                push(begin, begin + length);
                continue;
            }
            let (time, volume) = (seen.time[at], seen.volume[at]);
            self.turn(time);
            let end = begin + length;
            let mut kept: Option<i64> = None;
            for block in begin / BLOCK..=(end - 1) / BLOCK {
                let from = begin.max(block * BLOCK);
                if self.repeats(time, (volume, block)) {
                    if let Some(start) = kept.take() {
                        push(start, from);
                    }
                } else if kept.is_none() {
                    kept = Some(from);
                }
            }
            if let Some(start) = kept {
                push(start, end);
            }
        }
    }

    fn turn(&mut self, time: i64) {
        if self.turned == i64::MIN {
            self.turned = time;
        }
        if time - self.turned > self.window {
            self.old = std::mem::take(&mut self.young);
            self.turned = time;
        }
    }

    #[inline]
    fn repeats(&mut self, time: i64, key: Block) -> bool {
        let before = match self.young.insert(key, time) {
            Some(before) => Some(before),
            None => self.old.get(&key).copied(),
        };
        before.is_some_and(|before| time - before <= self.window)
    }
}
