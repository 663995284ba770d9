//! P2: in `semi-sync` the secondary has the writes in the order in which they were issued, up to
//! one of them, and what it lacks of the acknowledged ones is within the window. P9: a write
//! within the window does not wait, even while the link is cut, nor longer than it may where the
//! window grows.

use super::*;
use mirrord_live_core::frame::MORE;
use mirrord_live_core::hello::Begin;
use mirrord_live_core::redo::Slot;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
struct Ordered {
    request: u64,
    offset: u64,
    data: Vec<u8>,
    issued: Time,
    answered: Option<Time>,
}

/// What the redo log began with, and the operations since.
#[derive(Clone, Debug)]
struct Stream {
    base: Vec<u8>,
    /// Of the secondary: a resync that is complete leads to another one.
    generation: u64,
    writes: BTreeMap<u64, Ordered>,
    /// The primary that numbered them is gone.
    frozen: bool,
    /// Bytes acknowledged since then.
    beyond: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Prefix {
    /// By the numbers of the primary that runs.
    writes: BTreeMap<u64, Ordered>,
    stream: Option<Stream>,
    /// Operations after which a client relies on what is before.
    relied_on: BTreeSet<u64>,
    /// Where the unit begins that is being sent.
    unit: Option<u64>,
}

impl Prefix {
    /// Another primary begins to number its writes again.
    pub fn freeze(&mut self) {
        self.writes.clear();
        self.relied_on.clear();
        self.unit = None;
        if let Some(stream) = &mut self.stream {
            stream.frozen = true;
        }
    }

    /// The ends are in sync, and the secondary's image is written in place.
    pub fn end(&mut self) {
        self.stream = None;
    }

    /// One with FUA is within the window first, and then waits for the local disk: that time does
    /// not count.
    pub fn answered(&mut self, request: u64, fua: bool, now: Time) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let mut found = stream.writes.values_mut();
        match found.find(|each| each.request == request) {
            Some(write) => write.answered = Some(if fua { write.issued } else { now }),
            None if stream.frozen => stream.beyond += 1,
            None => {}
        }
    }
}

impl World {
    /// The state after the last operation is one that a client relies on.
    pub(super) fn rely(&mut self) {
        if let Machine::Primary(primary) = &self.nodes[self.primary].machine {
            self.prefix.relied_on.insert(primary.last_operation());
        }
    }

    /// A unit of which something is not sent never goes on after a FLUSH, or a write with FUA.
    fn check_unit(&mut self, frame: &Frame) {
        if frame.class == Class::Begin {
            self.prefix.unit = None;
        } else if frame.flags & MORE != 0 {
            self.prefix.unit.get_or_insert(frame.sequence);
        } else if let Some(first) = self.prefix.unit.take() {
            let relied_on = &self.prefix.relied_on;
            if let Some(at) = relied_on.range(first..frame.sequence).next() {
                let last = frame.sequence;
                self.fail(format!(
                    "P3: {first} to {last} are merged across a barrier at {at}"
                ));
            }
        }
    }

    /// Keeps the order in which the primary issues writes.
    pub(super) fn order(&mut self, node: usize, action: &Action) {
        if let Action::Send(frame) = action {
            if node == self.primary && (frame.class == Class::Begin || frame.class.is_operation()) {
                self.check_unit(frame);
            }
            // From here on the secondary's image is written in place, as in sync.
            let begin = Begin::decode(&frame.payload).filter(|_| frame.class == Class::Begin);
            let is_exchange = matches!(begin, Some(Begin::Resume | Begin::Push | Begin::Pull));
            if is_exchange || frame.class == Class::Stream {
                self.prefix.end();
            }
        }
        let (Action::Write { token, .. } | Action::Zero { token, .. }) = action else {
            return;
        };
        let (Token::Write(number), true) = (*token, node == self.primary) else {
            return;
        };
        let (offset, data) = match action {
            Action::Write { offset, data, .. } => (*offset, data.to_vec()),
            Action::Zero { range, .. } => (range.offset, vec![0; range.length as usize]),
            _ => return,
        };
        let Machine::Primary(primary) = &self.nodes[node].machine else {
            return;
        };
        let Some((request, osn)) = primary.order_of(number).filter(|(_, osn)| *osn > 0) else {
            return;
        };
        if matches!(self.asked.get(&request), Some(Asked::Write { fua: true })) {
            self.prefix.relied_on.insert(osn);
        }
        let write = Ordered {
            request,
            offset,
            data,
            issued: self.now,
            answered: None,
        };
        self.prefix.writes.insert(osn, write.clone());
        if let Some(stream) = self.prefix.stream.as_mut().filter(|each| !each.frozen) {
            stream.writes.insert(osn, write);
        }
    }

    /// The secondary opens a redo log: its image is the base of what follows.
    pub(super) fn watch_log(&mut self, node: usize, io: &Io) {
        let Io::Write(File::Log, 0, page) = io else {
            return;
        };
        let slot = Slot::decode(page).filter(|_| node != self.primary);
        if let Some(slot) = slot {
            // All are kept: after a crash before it is used, another log may begin earlier.
            let later = self.prefix.writes.range(slot.base + 1..);
            let later = later.map(|(osn, write)| (*osn, write.clone())).collect();
            self.prefix.stream = Some(Stream {
                generation: setup::read_record(&self.nodes[node].disk)
                    .map_or(0, |record| record.generation),
                base: self.nodes[node].disk.contents(File::Image).to_vec(),
                writes: later,
                frozen: false,
                beyond: 0,
            });
        }
    }

    /// True while the primary promises that the replica is at most a window behind.
    fn is_bounded(&self) -> bool {
        let record = setup::read_record(&self.nodes[self.primary].disk);
        record.is_ok_and(|record| {
            record.bounded && record.mode == Mode::Semi && record.role != Role::Secondary
        })
    }

    pub(super) fn check_prefix(&mut self, image: &[u8], disk: &Disk, when: &str) {
        let Ok(record) = setup::read_record(disk) else {
            return;
        };
        let is_log = record.log != 0;
        let is_resync = record.phase == Phase::Resync;
        let is_break = when == "after break";
        let (Some(stream), true) = (&self.prefix.stream, self.is_bounded()) else {
            return;
        };
        let is_same = stream.generation == record.generation;
        // Without its log it has no image: everything is copied, and nobody can take over.
        let is_empty = record.phase == Phase::Empty;
        if !is_same || is_empty || !is_log && !is_resync && !is_break {
            return;
        }
        let mut model = stream.base.clone();
        let mut found = (model == image).then_some(0);
        for (osn, write) in &stream.writes {
            let first = write.offset as usize;
            model[first..first + write.data.len()].copy_from_slice(&write.data);
            if model == image {
                found = Some(*osn);
            }
        }
        let Some(last) = found else {
            return self.fail(format!("P2: the replica is not a prefix ({when})"));
        };
        let lost = stream.writes.range(last + 1..).map(|(_, write)| write);
        let lost: Vec<&Ordered> = lost.filter(|write| write.answered.is_some()).collect();
        let bytes: u64 = lost.iter().map(|write| write.data.len() as u64).sum();
        let first = lost.iter().map(|write| write.issued).min().unwrap_or(0);
        let newest = lost.iter().filter_map(|write| write.answered).max();
        let time = newest.unwrap_or(0).saturating_sub(first);
        let window = self.plan.semi.unwrap_or(settings().semi);
        let beyond = stream.beyond;
        if bytes > window.bytes || time > window.time || beyond > 0 {
            self.fail(format!(
                "P2: {bytes} bytes of {time} us and {beyond} later writes are acknowledged and \
                 not at the replica ({when}), window {window:?}"
            ));
        }
    }

    /// Once another mode is set, nothing is acknowledged that the other end has not journaled.
    pub(super) fn check_journaled(&mut self, request: u64) {
        let Machine::Primary(primary) = &self.nodes[self.primary].machine else {
            return;
        };
        let is_left = matches!(primary.record().mode, Mode::Sync | Mode::Strict);
        let stream = self.prefix.stream.as_ref().filter(|each| !each.frozen);
        let (State::Semi, true, Some(stream)) = (primary.state(), is_left, stream) else {
            return;
        };
        let mut found = stream.writes.iter();
        let Some((osn, _)) = found.find(|(_, write)| write.request == request) else {
            return;
        };
        let mut disk = self.nodes[1 - self.primary].disk.clone();
        disk.cut_power(&mut Rng::new(0), Loss::All);
        if let Some(log) = crate::complete_log(&disk) {
            if log.last < *osn {
                self.fail("P2: acknowledged and not journaled after the mode was changed".into());
            }
        }
    }

    /// Writes may wait in semi-sync while the other end can't be reached.
    pub(super) fn is_excused(&self, status: &primary::Status) -> bool {
        let is_semi =
            status.mode == Mode::Semi && (status.state == State::Semi || status.lag.is_full);
        let is_disturbed = self.now.saturating_sub(self.calm_since) < ANSWER_WITHIN;
        let is_cut = self.blocked != [false; 2] || self.narrow != [false; 2];
        let is_slow = self.delay != [0; 2] || self.drag != 0;
        is_semi && (is_disturbed || is_cut || is_slow)
    }

    /// `waited`: the oldest request, while both ends ran.
    pub(super) fn waits_within_window(
        &mut self,
        status: &primary::Status,
        waited: Time,
    ) -> Option<String> {
        let lag = status.lag;
        let used = lag.bytes + status.outstanding_bytes;
        let is_semi = status.state == State::Semi
            && status.mode == Mode::Semi
            && lag.window.time == Time::MAX;
        if !is_semi || used > lag.limit {
            self.window_full = self.now;
        }
        let limit = match lag.within {
            0 if used > lag.window.bytes => Time::MAX,
            0 => ANSWER_WITHIN / 2,
            within => within + ANSWER_WITHIN / 10,
        };
        let waits = waited.min(self.now - self.window_full) > limit;
        (is_semi && waits).then(|| format!("P9: a write within the window waits: {status:?}"))
    }
}
