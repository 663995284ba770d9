//! What a failure of the primary would lose: answered writes that the replica does not show.
//!
//! While tracked blocks are missing at the replica, it shows the state before the first of them.

use super::NEVER;

/// `peak` values with the time at which they were reached; sums over time in bytes and seconds.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Totals {
    pub peak_bytes: u64,
    pub peak_bytes_at_ns: i64,
    /// The age of the oldest answered write that the replica does not show.
    pub peak_ns: i64,
    pub peak_at_ns: i64,
    pub byte_seconds: f64,
    pub age_seconds: f64,
    /// How long something could be lost.
    pub exposed_ns: i64,
}

/// The replica's state while tracked blocks are missing.
struct Behind {
    /// Bytes of all writes before the first tracked one, and when that arrived.
    written: u64,
    since_ns: i64,
    /// Bytes of writes before it that were still on their way.
    ahead: u64,
}

#[derive(Default)]
pub struct Lag {
    now_ns: i64,
    /// Bytes of all writes.
    written: u64,
    behind: Option<Behind>,
    copied_ns: i64,
    /// What would be lost now, and when the oldest of it was written.
    pub bytes: u64,
    since_ns: i64,
    pub totals: Totals,
}

impl Lag {
    pub fn begin(&mut self, at_ns: i64) {
        self.now_ns = at_ns;
    }

    /// A write that is sent.
    pub fn queue(&mut self, length: u64) {
        self.written += length;
    }

    /// A write that is only tracked, after unacknowledged ones of `ahead` bytes.
    pub fn track(&mut self, at_ns: i64, length: u64, ahead: u64) {
        let written = self.written;
        self.behind.get_or_insert(Behind {
            written,
            since_ns: at_ns,
            ahead,
        });
        self.written += length;
    }

    pub fn acknowledged(&mut self, length: u64) {
        if let Some(behind) = &mut self.behind {
            behind.ahead = behind.ahead.saturating_sub(length);
        }
    }

    /// A tracked block will be acknowledged then.
    pub fn copied(&mut self, acknowledged_ns: i64) {
        self.copied_ns = acknowledged_ns;
    }

    pub fn is_whole(&self) -> bool {
        self.behind.is_none()
    }

    /// When the replica has all tracked blocks, if all are sent.
    pub fn whole_at_ns(&self, all_sent: bool) -> i64 {
        match &self.behind {
            Some(behind) if all_sent => self.copied_ns.max(behind.since_ns),
            _ => NEVER,
        }
    }

    pub fn make_whole(&mut self) {
        self.behind = None;
    }

    /// After a change: bytes of writes that are unacknowledged, of those that are unanswered, and
    /// the arrival of the oldest unacknowledged one.
    pub fn set(&mut self, unacknowledged: u64, unanswered: u64, oldest_ns: Option<i64>) {
        let oldest_ns = oldest_ns.unwrap_or(self.now_ns);
        let (shown, since_ns) = match &self.behind {
            None => (self.written - unacknowledged, oldest_ns),
            Some(behind) if behind.ahead > 0 => (behind.written - behind.ahead, oldest_ns),
            Some(behind) => (behind.written, behind.since_ns),
        };
        self.bytes = (self.written - unanswered).saturating_sub(shown);
        self.since_ns = since_ns;
        if self.bytes > self.totals.peak_bytes {
            self.totals.peak_bytes = self.bytes;
            self.totals.peak_bytes_at_ns = self.now_ns;
        }
    }

    /// Time passes, without a change.
    pub fn pass(&mut self, to_ns: i64) {
        let passed_ns = to_ns - self.now_ns;
        if passed_ns <= 0 {
            return;
        }
        if self.bytes > 0 {
            let passed_s = passed_ns as f64 / 1e9;
            let (from_ns, age_ns) = (self.now_ns - self.since_ns, to_ns - self.since_ns);
            self.totals.byte_seconds += self.bytes as f64 * passed_s;
            self.totals.age_seconds += (from_ns + age_ns) as f64 / 2e9 * passed_s;
            self.totals.exposed_ns += passed_ns;
            if age_ns > self.totals.peak_ns {
                self.totals.peak_ns = age_ns;
                self.totals.peak_at_ns = to_ns;
            }
        }
        self.now_ns = to_ns;
    }
}
