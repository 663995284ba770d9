//! A limit in bytes a second.

use crate::types::{Time, SECOND};

/// What an idle limiter may be behind: events come that seldom.
const BURST: Time = SECOND / 10;

#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// Bytes a second; 0: no limit.
    limit: u64,
    /// When the next bytes may go.
    next: Time,
}

impl Rate {
    pub fn new(limit: u64) -> Self {
        Rate { limit, next: 0 }
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn is_open(&self, now: Time) -> bool {
        self.limit == 0 || now >= self.next
    }

    pub fn take(&mut self, bytes: u32, now: Time) {
        if self.limit > 0 {
            let cost = (u128::from(bytes) * u128::from(SECOND)).div_ceil(u128::from(self.limit));
            self.next = self.next.max(now.saturating_sub(BURST)) + cost as Time;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in `time`, with a look at the limiter every 50 ms.
    fn passed(limit: u64, chunk: u32, time: Time) -> u64 {
        let mut rate = Rate::new(limit);
        let mut bytes = 0;
        for now in (10 * SECOND..10 * SECOND + time).step_by(50_000) {
            while rate.is_open(now) && bytes < 1 << 40 {
                rate.take(chunk, now);
                bytes += u64::from(chunk);
            }
        }
        bytes
    }

    #[test]
    fn a_rate_is_kept() {
        for limit in [100_000, 1 << 20, 100 << 20, 1 << 30] {
            let bytes = passed(limit, 256 << 10, 100 * SECOND) as f64;
            let expected = limit as f64 * 100.0;
            assert!(
                (0.98..1.06).contains(&(bytes / expected)),
                "{limit}: {bytes}"
            );
        }
    }
}
