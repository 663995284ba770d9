//! Writes on their way to the replica, in order: not sent, sent, acknowledged.

use std::collections::{HashMap, VecDeque};

use super::dirty::{Hashing, BLOCK};
use super::NEVER;

/// Volume, offset, length.
pub type Place = (u32, u64, u64);

/// The mergeable versions are searched for outdated ones when there are so many.
const OUTDATED_MIN: usize = 1 << 20;

struct Entry {
    arrived_ns: i64,
    length: u64,
    /// The bytes of all writes up to this one.
    end: u64,
    /// What is still sent of it.
    live: u64,
    acknowledged_ns: i64,
}

/// The newest version of a block that is on its way: which write has it, and the bytes of the block
/// that it covers.
struct Version {
    number: u64,
    first: u64,
    last: u64,
}

#[derive(Default)]
pub struct Queue {
    /// Unacknowledged writes. Those with a number below `unsent` are on the link, those from
    /// `unanswered` on wait for an answer; the first entry has the number `first`.
    entries: VecDeque<Entry>,
    first: u64,
    unsent: u64,
    unanswered: u64,
    /// The bytes of all writes, of those acknowledged, and of those answered.
    end: u64,
    acknowledged: u64,
    answered: u64,
    /// Bytes of unacknowledged writes that are or were sent: what buffers hold.
    pub buffered: u64,
    versions: HashMap<(u32, u64), Version, Hashing>,
    clean_at: usize,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// merge: drop older versions that are not sent yet.
    pub fn push(&mut self, arrived_ns: i64, place: Place, merge: bool) {
        let length = place.2;
        self.end += length;
        if merge {
            self.supersede(place);
        }
        self.entries.push_back(Entry {
            arrived_ns,
            length,
            end: self.end,
            live: length,
            acknowledged_ns: NEVER,
        });
        self.buffered += length;
    }

    fn supersede(&mut self, (volume, offset, length): Place) {
        let number = self.first + self.entries.len() as u64;
        if self.unsent == number {
            self.versions.clear();
        } else if self.versions.len() >= self.clean_at.max(OUTDATED_MIN) {
            let unsent = self.unsent;
            self.versions.retain(|_, version| version.number >= unsent);
            self.clean_at = 2 * self.versions.len();
        }
        let past = offset.saturating_add(length);
        for block in offset / BLOCK..past.div_ceil(BLOCK) {
            let first = offset.max(block * BLOCK) - block * BLOCK;
            let last = past.min((block + 1) * BLOCK) - block * BLOCK;
            let newer = Version {
                number,
                first,
                last,
            };
            let Some(older) = self.versions.insert((volume, block), newer) else {
                continue;
            };
            if older.number >= self.unsent && first <= older.first && older.last <= last {
                let bytes = older.last - older.first;
                self.entries[(older.number - self.first) as usize].live -= bytes;
                self.buffered -= bytes;
            }
        }
    }

    /// Arrival and bytes of the first write that is not sent.
    pub fn next_unsent(&self) -> Option<(i64, u64)> {
        let entry = self.entries.get((self.unsent - self.first) as usize)?;
        Some((entry.arrived_ns, entry.live))
    }

    pub fn sent(&mut self, acknowledged_ns: i64) {
        self.entries[(self.unsent - self.first) as usize].acknowledged_ns = acknowledged_ns;
        self.unsent += 1;
    }

    pub fn next_ack_ns(&self) -> i64 {
        self.entries
            .front()
            .map_or(NEVER, |entry| entry.acknowledged_ns)
    }

    /// The replica has the first write: when it arrived, and its length. It stays until `forget`.
    pub fn acknowledge(&mut self) -> (i64, u64) {
        let entry = self.entries.front().expect("a write is unacknowledged");
        self.acknowledged = entry.end;
        (entry.arrived_ns, entry.length)
    }

    pub fn forget(&mut self) {
        let entry = self.entries.pop_front().expect("a write was acknowledged");
        self.buffered -= entry.live;
        self.first += 1;
    }

    /// Answers the next write if no more than `limit` bytes up to it are unacknowledged: its
    /// arrival.
    pub fn admit(&mut self, limit: u64) -> Option<i64> {
        let entry = self.entries.get((self.unanswered - self.first) as usize)?;
        if entry.end - self.acknowledged > limit {
            return None;
        }
        self.unanswered += 1;
        self.answered = entry.end;
        Some(entry.arrived_ns)
    }

    pub fn oldest_unanswered(&self) -> Option<i64> {
        let entry = self.entries.get((self.unanswered - self.first) as usize)?;
        Some(entry.arrived_ns)
    }

    /// When the first unacknowledged write arrived.
    pub fn oldest_ns(&self) -> Option<i64> {
        self.entries.front().map(|entry| entry.arrived_ns)
    }

    pub fn unacknowledged(&self) -> u64 {
        self.end - self.acknowledged
    }

    pub fn unanswered(&self) -> u64 {
        self.end - self.answered
    }

    /// Bytes of the unacknowledged writes that arrived by then.
    pub fn unacknowledged_until(&self, at_ns: i64) -> u64 {
        let count = self
            .entries
            .partition_point(|entry| entry.arrived_ns <= at_ns);
        match count {
            0 => 0,
            _ => self.entries[count - 1].end - self.acknowledged,
        }
    }
}
