//! The link that a semi-synchronous mirror needs.

use std::collections::VecDeque;

/// A moment and the bytes written by then.
type Point = (i64, i64);

/// Bytes over nanoseconds, compared exactly.
#[derive(Clone, Copy)]
struct Rate {
    bytes: i64,
    over_ns: i64,
}

impl Rate {
    fn between(from: Point, to: Point) -> Self {
        Self {
            bytes: to.1 - from.1,
            over_ns: to.0 - from.0,
        }
    }

    fn exceeds(self, other: Self) -> bool {
        i128::from(self.bytes) * i128::from(other.over_ns)
            > i128::from(other.bytes) * i128::from(self.over_ns)
    }
}

/// The slowest link on which each write has arrived within a bound, exactly: a queue in order.
///
/// What is written from s to t, A(s, t), must have passed by t + bound, and cannot begin before s:
/// the rate is the maximum of A(s, t) / (bound + t - s). For each t that is the steepest line from a
/// moment s to (t + bound, bytes by t), which touches the lower convex hull of the moments. The rate
/// never falls, so moments before the one where a line of this slope touches the hull do not matter
/// again: these are before the queue was last empty. Each moment is added and removed once.
pub struct Link {
    bound_ns: i64,
    hull: VecDeque<Point>,
    rate: Rate,
}

impl Link {
    /// `bound_ns` is positive.
    pub fn new(bound_ns: i64) -> Self {
        Self {
            bound_ns,
            hull: VecDeque::new(),
            rate: Rate {
                bytes: 0,
                over_ns: 1,
            },
        }
    }

    /// Bytes per second.
    pub fn per_second(&self) -> f64 {
        self.rate.bytes as f64 / self.rate.over_ns as f64 * 1e9
    }

    /// A write; the bytes written before it, and with it.
    #[inline]
    pub fn add(&mut self, time_ns: i64, before: i64, after: i64) {
        if self.hull.back().is_none_or(|last| last.0 != time_ns) {
            self.begin((time_ns, before));
        }
        let arrived = (time_ns + self.bound_ns, after);
        let mut rate = Rate::between(self.hull[0], arrived);
        if !rate.exceeds(self.rate) {
            return;
        }
        while let Some(&next) = self.hull.get(1) {
            let steeper = Rate::between(next, arrived);
            if rate.exceeds(steeper) {
                break;
            }
            rate = steeper;
            self.hull.pop_front();
        }
        self.rate = rate;
    }

    /// Adds a moment, which is later than the others.
    fn begin(&mut self, moment: Point) {
        while let Some(index) = self.hull.len().checked_sub(2) {
            let (before, last) = (self.hull[index], self.hull[index + 1]);
            if Rate::between(last, moment).exceeds(Rate::between(before, last)) {
                break;
            }
            self.hull.pop_back();
        }
        self.hull.push_back(moment);
        while let Some(&next) = self.hull.get(1) {
            if Rate::between(self.hull[0], next).exceeds(self.rate) {
                break;
            }
            self.hull.pop_front();
        }
    }
}
