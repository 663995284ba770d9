//! How long writes took, over the last seconds: counts by classes, four to each power of two.

use crate::types::{Time, SECOND};

const CLASSES: usize = 120;
/// The counts of one to two of these are shown.
const WINDOW: Time = 10 * SECOND;

/// What `Peak` shows is of one to two of these.
const PEAK_WINDOW: Time = SECOND / 2;

/// The times of one kind of event, in microseconds.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Of all since the start: how many, and their sum.
    pub count: u64,
    pub total: Time,
    counts: [u64; CLASSES],
    before: [u64; CLASSES],
    began: Time,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            count: 0,
            total: 0,
            counts: [0; CLASSES],
            before: [0; CLASSES],
            began: 0,
        }
    }
}

/// Exact below 4, then the power of two and the next two bits.
fn class_of(time: Time) -> usize {
    if time < 4 {
        return time as usize;
    }
    let power = time.ilog2() as usize;
    let next = (time >> (power - 2)) as usize & 3;
    ((power - 1) * 4 + next).min(CLASSES - 1)
}

/// The greatest time of a class.
fn end_of(class: usize) -> Time {
    if class < 4 {
        return class as Time;
    }
    let (power, next) = (class / 4 + 1, class as Time % 4);
    ((4 + next + 1) << (power - 2)) - 1
}

impl Latency {
    pub fn add(&mut self, now: Time, took: Time) {
        self.turn(now);
        self.counts[class_of(took)] += 1;
        self.count += 1;
        self.total += took;
    }

    /// Forgets what is too old.
    pub fn turn(&mut self, now: Time) {
        if now.saturating_sub(self.began) >= WINDOW {
            let is_old = now.saturating_sub(self.began) >= 2 * WINDOW;
            let counts = std::mem::replace(&mut self.counts, [0; CLASSES]);
            self.before = if is_old { [0; CLASSES] } else { counts };
            self.began = now;
        }
    }

    /// The median, and what 95 and 99 of 100 do not exceed; 0 without any.
    pub fn percentiles(&self) -> [Time; 3] {
        let counts = || self.counts.iter().zip(&self.before).map(|(a, b)| a + b);
        let total: u64 = counts().sum();
        [50, 95, 99].map(|percent| {
            let mut below = 0;
            let class = counts().position(|count| {
                below += count;
                below > 0 && below * 100 >= total * percent
            });
            class.map_or(0, end_of)
        })
    }
}

/// The greatest of the last times.
#[derive(Clone, Debug, Default)]
pub struct Peak {
    now: Time,
    before: Time,
    began: Time,
}

impl Peak {
    pub fn add(&mut self, now: Time, took: Time) {
        self.turn(now);
        self.now = self.now.max(took);
    }

    /// Forgets what is too old.
    pub fn turn(&mut self, now: Time) {
        let passed = now.saturating_sub(self.began);
        if passed >= PEAK_WINDOW {
            self.before = if passed < 2 * PEAK_WINDOW {
                self.now
            } else {
                0
            };
            self.now = 0;
            self.began = now;
        }
    }

    pub fn get(&self) -> Time {
        self.now.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_its_class() {
        for time in (0..5000).chain([1 << 20, (1 << 25) + 12_345]) {
            let class = class_of(time);
            assert!(time <= end_of(class), "{time}");
            assert!(class == 0 || time > end_of(class - 1), "{time}");
        }
        assert_eq!(class_of(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn percentiles_of_the_last_seconds() {
        let mut found = Latency::default();
        assert_eq!(found.percentiles(), [0, 0, 0]);
        for time in 1..=100 {
            found.add(0, time);
        }
        assert_eq!(found.percentiles(), [55, 95, 111]);
        found.turn(WINDOW);
        assert_eq!(found.percentiles(), [55, 95, 111]);
        found.turn(2 * WINDOW);
        assert_eq!(found.percentiles(), [0, 0, 0]);
        assert_eq!((found.count, found.total), (100, 5050));
    }

    #[test]
    fn the_greatest_of_the_last_times() {
        let mut found = Peak::default();
        found.add(0, 9);
        found.add(PEAK_WINDOW - 1, 5);
        found.turn(PEAK_WINDOW);
        assert_eq!(found.get(), 9);
        found.add(PEAK_WINDOW, 3);
        found.turn(2 * PEAK_WINDOW);
        assert_eq!(found.get(), 3);
        found.turn(4 * PEAK_WINDOW);
        assert_eq!(found.get(), 0);
    }
}
