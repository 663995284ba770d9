//! A recording: when each write arrived, was sent, was at each end, and was answered.
//!
//! It is kept in memory until it is fetched. What does not fit is left out and counted; no write
//! ever waits for it. docs/traces.md has the format.

use super::{Primary, State};
use crate::types::{Mode, Range, Time};
use std::collections::VecDeque;

/// Bytes of a record, and of the header.
pub const RECORD: usize = 64;
pub const MAGIC: &[u8; 16] = b"mirrord live 1\n\0";
/// What is kept until it is fetched.
const READY_MAX: usize = 16 << 20;
/// Writes that are not complete. Of the oldest beyond it not everything becomes known.
const OPEN_MAX: usize = 1 << 18;
/// A time that is not known, and the longest that can be noted.
const UNKNOWN: u32 = u32::MAX;
const LONGEST: u32 = u32::MAX - 1;

/// What a record is.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Kind {
    Write = 0,
    Zero = 1,
    Trim = 2,
    /// The mode is another one from here on.
    Mode = 16,
    /// So many records are missing here: they are in the offset.
    Dropped = 17,
    /// Nothing follows. The offset is the number of all that are missing.
    End = 18,
}

/// A write under way; times in us after its arrival.
struct Entry {
    kind: Kind,
    mode: Mode,
    failed: bool,
    range: Range,
    osn: u64,
    limit: u64,
    arrived: Time,
    local: u32,
    sent: u32,
    received: u32,
    answered: u32,
    durable: u32,
    /// What the other end has of it will not be known any more than now.
    is_lost: bool,
    /// Nothing more will be known at all.
    is_over: bool,
}

impl Entry {
    fn after(&self, now: Time) -> u32 {
        let passed = now.saturating_sub(self.arrived);
        u32::try_from(passed).map_or(LONGEST, |passed| passed.min(LONGEST))
    }

    fn is_complete(&self) -> bool {
        let is_at_peer = self.received != UNKNOWN && self.durable != UNKNOWN;
        let is_at_ends = self.local != UNKNOWN && (self.osn == 0 || self.is_lost || is_at_peer);
        self.is_over || self.answered != UNKNOWN && is_at_ends
    }

    fn bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[0] = self.kind as u8;
        bytes[1] = self.mode as u8;
        bytes[2] = u8::from(self.failed);
        bytes[4..8].copy_from_slice(&self.range.length.to_le_bytes());
        let wide = [self.range.offset, self.osn, self.limit, self.arrived];
        for (place, value) in bytes[8..40].chunks_exact_mut(8).zip(wide) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        let times = [
            self.local,
            self.sent,
            self.received,
            self.answered,
            self.durable,
        ];
        for (place, value) in bytes[40..60].chunks_exact_mut(4).zip(times) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}

pub(super) struct Recording {
    /// In the order in which they were issued; the first has this number.
    open: VecDeque<Entry>,
    first: u64,
    ready: Vec<u8>,
    /// Left out since the last record, and in all.
    missing: u64,
    dropped: u64,
    mode: Mode,
    /// Operations up to it are durable at the other end.
    durable: u64,
}

impl Recording {
    fn new(first: u64, mode: Mode, durable: u64) -> Self {
        Recording {
            open: VecDeque::new(),
            first,
            ready: Vec::new(),
            missing: 0,
            dropped: 0,
            mode,
            durable,
        }
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        let index = number.checked_sub(self.first)?;
        self.open.get_mut(usize::try_from(index).ok()?)
    }

    fn push(&mut self, bytes: &[u8; RECORD]) {
        if self.ready.len() + 2 * RECORD > READY_MAX {
            self.missing += 1;
            self.dropped += 1;
            return;
        }
        if self.missing > 0 {
            let missing = std::mem::take(&mut self.missing);
            let time = u64::from_le_bytes(bytes[32..40].try_into().unwrap_or_default());
            let note = note(Kind::Dropped, self.mode, missing, time, 0);
            self.ready.extend_from_slice(&note);
        }
        self.ready.extend_from_slice(bytes);
    }

    /// Moves what is complete to what can be fetched, in order.
    fn settle(&mut self) {
        while let Some(entry) = self.open.front() {
            if !entry.is_complete() && self.open.len() <= OPEN_MAX {
                return;
            }
            let bytes = entry.bytes();
            self.open.pop_front();
            self.first += 1;
            self.push(&bytes);
        }
    }
}

/// A record that is no write.
fn note(kind: Kind, mode: Mode, count: u64, time: Time, limit: u64) -> [u8; RECORD] {
    let entry = Entry {
        kind,
        mode,
        failed: false,
        range: Range::new(count, 0),
        osn: 0,
        limit,
        arrived: time,
        local: UNKNOWN,
        sent: UNKNOWN,
        received: UNKNOWN,
        answered: UNKNOWN,
        durable: UNKNOWN,
        is_lost: true,
        is_over: true,
    };
    entry.bytes()
}

impl Primary {
    /// Begins a recording, in place of the one before.
    pub fn begin_recording(&mut self) {
        let mode = self.effective_mode();
        let mut made = Recording::new(self.next_number, mode, self.released);
        made.push(&note(Kind::Mode, mode, 0, self.now, self.window().bytes));
        self.recording = Some(Box::new(made));
    }

    /// Ends it. What is not complete is noted as it is; returns what was not fetched.
    pub fn end_recording(&mut self) -> Vec<u8> {
        let mode = self.effective_mode();
        let Some(mut it) = self.recording.take() else {
            return Vec::new();
        };
        it.open.iter_mut().for_each(|each| each.is_over = true);
        it.settle();
        let end = note(Kind::End, mode, it.dropped, self.now, 0);
        it.ready.extend_from_slice(&end);
        it.ready
    }

    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// Records that nobody has fetched yet, at most so many bytes.
    pub fn recorded(&mut self, most: usize) -> Vec<u8> {
        let Some(it) = &mut self.recording else {
            return Vec::new();
        };
        let most = (most / RECORD * RECORD).min(it.ready.len());
        let rest = it.ready.split_off(most);
        std::mem::replace(&mut it.ready, rest)
    }

    /// What clients notice of the mode: tracking counts as `async`.
    fn effective_mode(&self) -> Mode {
        match self.state {
            State::Semi => Mode::Semi,
            State::Alone | State::Resync => Mode::Async,
            _ if self.record.mode == Mode::Strict => Mode::Strict,
            _ => Mode::Sync,
        }
    }

    /// After each step.
    pub(super) fn note_mode(&mut self) {
        if self.recording.is_none() {
            return;
        }
        let mode = self.effective_mode();
        let (now, limit) = (self.now, self.window().bytes);
        if let Some(it) = self.recording.as_mut().filter(|it| it.mode != mode) {
            it.mode = mode;
            it.push(&note(Kind::Mode, mode, 0, now, limit));
        }
    }

    /// A write was issued; `osn` 0: it was not sent.
    pub(super) fn note_issue(&mut self, kind: Kind, range: Range, arrived: Time, osn: u64) {
        if self.recording.is_none() {
            return;
        }
        let (mode, limit) = (self.effective_mode(), self.window().bytes);
        if let Some(it) = &mut self.recording {
            let entry = Entry {
                kind,
                mode,
                failed: false,
                range,
                osn,
                limit: if mode == Mode::Semi { limit } else { 0 },
                arrived,
                local: UNKNOWN,
                sent: UNKNOWN,
                received: UNKNOWN,
                answered: UNKNOWN,
                durable: UNKNOWN,
                is_lost: false,
                is_over: false,
            };
            it.open.push_back(entry);
            it.settle();
        }
    }

    pub(super) fn note_local(&mut self, number: u64, failed: bool) {
        let now = self.now;
        if let Some(it) = &mut self.recording {
            if let Some(entry) = it.entry(number) {
                entry.local = entry.after(now);
                entry.failed |= failed;
            }
            it.settle();
        }
    }

    pub(super) fn note_answered(&mut self, number: u64) {
        let now = self.now;
        if let Some(it) = &mut self.recording {
            if let Some(entry) = it.entry(number) {
                entry.answered = entry.after(now);
            }
            it.settle();
        }
    }

    /// The link gets it; the first time counts.
    pub(super) fn note_sent(&mut self, number: u64) {
        let now = self.now;
        let entry = self.recording.as_mut().and_then(|it| it.entry(number));
        if let Some(entry) = entry.filter(|each| each.sent == UNKNOWN) {
            entry.sent = entry.after(now);
        }
    }

    pub(super) fn note_received(&mut self, number: u64) {
        let now = self.now;
        if let Some(entry) = self.recording.as_mut().and_then(|it| it.entry(number)) {
            entry.received = entry.after(now);
        }
    }

    /// The other end has everything up to `durable` durably.
    pub(super) fn note_durable(&mut self, durable: u64) {
        let now = self.now;
        let Some(it) = &mut self.recording else {
            return;
        };
        if durable <= it.durable {
            return;
        }
        it.durable = durable;
        // In the order of their numbers; what is not sent has none.
        for entry in &mut it.open {
            if entry.osn > durable {
                break;
            }
            if entry.osn > 0 && entry.durable == UNKNOWN {
                entry.durable = entry.after(now);
            }
        }
        it.settle();
    }

    /// The writes under way that are not answered failed, or are not answered at all.
    pub(super) fn note_refused(&mut self) {
        if let Some(it) = &mut self.recording {
            let unanswered = it.open.iter_mut().filter(|each| each.answered == UNKNOWN);
            for entry in unanswered {
                entry.failed = true;
                entry.is_over = true;
            }
            it.settle();
        }
    }

    /// What the other end has of the writes under way will not be known any more.
    pub(super) fn note_lost(&mut self) {
        if let Some(it) = &mut self.recording {
            for entry in &mut it.open {
                entry.is_lost = true;
            }
            it.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(it: &mut Recording, arrived: Time) {
        let mut bytes = note(Kind::Write, Mode::Sync, 0, arrived, 0);
        bytes[4] = 1;
        it.push(&bytes);
    }

    #[test]
    fn what_does_not_fit_is_counted_where_it_is_missing() {
        let mut it = Recording::new(0, Mode::Sync, 0);
        let most = READY_MAX / RECORD - 1;
        for number in 0..most as u64 + 5 {
            issue(&mut it, number);
        }
        assert_eq!(it.ready.len(), most * RECORD);
        assert_eq!((it.missing, it.dropped), (5, 5));
        it.ready.clear();
        issue(&mut it, 9_999_999);
        issue(&mut it, 9_999_999);
        let kinds: Vec<u8> = it.ready.iter().step_by(RECORD).copied().collect();
        assert_eq!(
            kinds,
            [Kind::Dropped as u8, Kind::Write as u8, Kind::Write as u8]
        );
        assert_eq!(it.ready[8], 5);
        assert_eq!((it.missing, it.dropped), (0, 5));
    }

    #[test]
    fn writes_that_stay_incomplete_do_not_fill_the_memory() {
        let mut it = Recording::new(0, Mode::Sync, 0);
        for number in 0..OPEN_MAX as u64 + 10 {
            it.open.push_back(Entry {
                kind: Kind::Write,
                mode: Mode::Semi,
                failed: false,
                range: Range::new(0, 1),
                osn: number + 1,
                limit: 0,
                arrived: number,
                local: 1,
                sent: 0,
                received: UNKNOWN,
                answered: 2,
                durable: UNKNOWN,
                is_lost: false,
                is_over: false,
            });
            it.settle();
        }
        assert_eq!((it.open.len(), it.first), (OPEN_MAX, 10));
        assert_eq!(it.ready.len(), 10 * RECORD);
        let entry = it.entry(10).map(|each| each.osn);
        assert_eq!((entry, it.entry(9).is_none()), (Some(11), true));
    }
}
