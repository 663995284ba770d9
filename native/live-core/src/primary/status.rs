//! What is shown of a primary, and asked of it.

use super::semi::Lag;
use super::{Link, Primary, State};
use crate::fault::Fault;
use crate::hello::Hello;
use crate::latency::{Latency, Peak};
use crate::record::Record;
use crate::types::{Mode, Range, Time, SECOND};

/// How long writes took: until the local image had them, until they were answered, and from when
/// they were sent until the other end had them.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    pub local: Latency,
    pub mirrored: Latency,
    pub received: Latency,
    /// The longest wait for an answer beyond the local image.
    pub waits: Peak,
}

impl Latencies {
    pub fn turn(&mut self, now: Time) {
        self.local.turn(now);
        self.mirrored.turn(now);
        self.received.turn(now);
        self.waits.turn(now);
    }
}

/// Totals since the start.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub barriers: u64,
    pub sent_bytes: u64,
    pub copied_bytes: u64,
    /// Writes that were replaced by later ones before they were sent.
    pub merged_writes: u64,
    pub merged_bytes: u64,
    pub tracking_commits: u64,
    pub left_sync: u64,
}

#[derive(Clone, Debug)]
pub struct Status {
    pub state: State,
    pub mode: Mode,
    pub epoch: u64,
    pub generation: u64,
    pub synced: bool,
    pub unfenced: bool,
    pub since: u64,
    pub connected: bool,
    pub reason: String,
    /// The reason is that the replica has refused something. It is asked again.
    pub refused: bool,
    pub dirty_bytes: u64,
    pub tracked_extents: usize,
    pub outstanding_requests: usize,
    pub outstanding_bytes: u64,
    /// How long the oldest unanswered request has been waiting.
    pub oldest: Time,
    /// How long the answer to a write was, or is, later than the local image, of the last second.
    pub slowest: Time,
    /// Bytes a second of a resync; 0: no limit.
    pub copy_rate: u64,
    pub lag: Lag,
    /// `Settings.merge`, `Settings.merge_above`, `Settings.compress`,
    /// `Settings.durable`.
    pub merge: bool,
    pub merge_above: u64,
    pub compress: bool,
    pub durable: bool,
    pub is_recording: bool,
}

impl Primary {
    /// Why there is no connection, as the process knows it.
    pub fn explain(&mut self, reason: String) {
        if self.link == Link::Down {
            self.reason = reason;
        }
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// The number of the last operation.
    pub fn last_operation(&self) -> u64 {
        self.osn
    }

    /// What this end answers to another one that connects.
    pub fn hello(&self) -> Hello {
        // Until the record on disk says that it is fenced, a restart makes it a primary again.
        Hello {
            role: self.saved.role,
            ..Hello::of(&self.record, self.is_lost())
        }
    }

    /// No request is under way, nor one that was answered and that an end does not have yet.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.issued.is_empty() && self.flushes.is_empty()
    }

    pub fn status(&self) -> Status {
        // A write that was answered may still be on its way to the other end.
        let unanswered = || self.issued.values().filter(|each| !each.replied);
        let waiting = self.waiting.iter().map(|each| each.arrived);
        let flushes = || {
            let begun = self.barrier.iter().flat_map(|each| &each.flushes);
            self.flushes.iter().chain(begun)
        };
        let delayed = || {
            let writes = flushes().filter_map(|each| each.write);
            writes.filter(|each| each.is_for_mirror)
        };
        let arrived = waiting.chain(unanswered().map(|each| each.arrived));
        let arrived = arrived.chain(delayed().map(|each| each.arrived));
        let bytes = |range: &Range| u64::from(range.length);
        let beyond =
            |arrived: Time, took: Time| self.now.saturating_sub(arrived).saturating_sub(took);
        let local = unanswered().filter(|each| each.local);
        let waits = local.map(|each| beyond(each.arrived, each.took));
        let waits = waits.chain(delayed().map(|each| beyond(each.arrived, each.took)));
        Status {
            slowest: waits.max().unwrap_or(0).max(self.latencies.waits.get()),
            state: self.state,
            mode: self.record.mode,
            epoch: self.record.epoch,
            generation: self.record.generation,
            synced: self.record.synced,
            unfenced: self.saved.unfenced,
            since: self.record.since,
            connected: self.link != Link::Down,
            reason: self.reason.clone(),
            refused: !self.reason.is_empty() && self.reason == self.refusal,
            dirty_bytes: self.tracker.dirty.count() * u64::from(self.geometry.block),
            tracked_extents: self.tracker.hot_count(),
            outstanding_requests: self.waiting.len() + unanswered().count() + flushes().count(),
            outstanding_bytes: self
                .waiting
                .iter()
                .map(|each| bytes(&each.range))
                .sum::<u64>()
                + unanswered().map(|each| bytes(&each.range)).sum::<u64>(),
            copy_rate: self.copy_rate.limit(),
            lag: self.lag(),
            merge: self.settings.merge,
            merge_above: self.settings.merge_above,
            compress: self.settings.compress,
            durable: self.settings.durable,
            is_recording: self.is_recording(),
            oldest: arrived
                .min()
                .map_or(0, |first| self.now.saturating_sub(first)),
        }
    }

    /// The other end has every write that was acknowledged before: seconds since 1970; 0: not known.
    pub(super) fn in_sync_until(&self) -> u64 {
        match self.state {
            State::InSync | State::Opening { .. } => self.wall,
            State::Alone if self.is_faulty(Fault::InSyncClaimed) => self.wall,
            State::Semi => self.wall.saturating_sub(self.lag().time.div_ceil(SECOND)),
            _ => 0,
        }
    }
}
