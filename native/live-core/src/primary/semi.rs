//! Semi-sync: the other end journals the operations in order, and a write is answered while what
//! it has not journaled is within the window.
//!
//! It is begun in sync: the other end makes its image durable and opens a redo log. Then the
//! record says that the other end lacks at most the window (`bounded`). Without a link the
//! operations are kept, and sent again in order. Where that is not possible, as after a restart,
//! a resync leads back to sync, and no write is answered meanwhile: how much of the window was
//! used is not known.

use super::writes::{Issued, SentKind};
use super::{Link, Primary, State};
use crate::fault::Fault;
use crate::frame::{Class, Frame};
use crate::io::Action;
use crate::types::{Failure, Mode, RequestId, Time, Window};

/// How far the other end is behind in semi-sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The window in force.
    pub window: Window,
    /// The bytes that it can grow to.
    pub limit: u64,
    /// How long a write may wait before it grows; 0: it does not.
    pub within: Time,
    /// Bytes sent that the other end has not journaled.
    pub buffered: u64,
    /// Bytes of answered writes that it has not journaled.
    pub bytes: u64,
    /// Since when it lacks the oldest write.
    pub time: Time,
    /// Writes are not answered until it has more, or until it can be reached.
    pub is_full: bool,
}

impl Primary {
    pub(super) fn lag(&self) -> Lag {
        let is_semi = self.state == State::Semi;
        Lag {
            window: self.window(),
            limit: self.settings.semi.bytes,
            within: self.settings.within,
            buffered: self.sent_bytes.saturating_sub(self.arrived_bytes),
            bytes: self.answered_bytes.saturating_sub(self.arrived_bytes),
            time: if is_semi { self.oldest_sent() } else { 0 },
            is_full: is_semi && self.is_window_full || self.is_withholding(),
        }
    }

    /// The age of the oldest write that the other end does not have.
    fn oldest_sent(&self) -> Time {
        let is_write = |kind: SentKind| matches!(kind, SentKind::Write { .. });
        let oldest = self.sent.iter().find(|each| is_write(each.kind));
        oldest.map_or(0, |each| self.now.saturating_sub(each.issued))
    }

    /// How much of the window is used is not known: it counts as full.
    pub(super) fn is_withholding(&self) -> bool {
        self.saved.bounded && self.state != State::Semi && self.stream.is_none()
    }

    /// What the other end does not have can be answered: the mode still says so, too.
    pub(super) fn is_windowed(&self) -> bool {
        let is_asked = self.record.mode == Mode::Semi || self.is_faulty(Fault::ModeIgnored);
        self.state == State::Semi && is_asked
    }

    /// The answers to writes do not wait for the other end; what it lacks is kept for it.
    pub fn answers_alone(&self) -> bool {
        self.is_windowed() || matches!(self.state, State::Alone | State::Resync)
    }

    /// Whether flushes wait for the other end, after the mode or the state has changed.
    pub(super) fn gate_barrier(&mut self, out: &mut Vec<Action>) {
        let is_windowed = self.is_windowed();
        if let Some(barrier) = &mut self.barrier {
            barrier.gated = !is_windowed;
            if !is_windowed && self.fault != Some(Fault::LateFlushJoins) {
                // Some may have come after the operation that the other end makes durable: see
                // `sync_meanwhile`.
                self.flushes.append(&mut barrier.flushes);
            }
        }
        self.check_barrier(out);
        if is_windowed {
            self.answer_waiting(out);
        }
    }

    /// Nothing forbids to answer a write that the local image has.
    pub(super) fn may_answer(&self, issued: &Issued) -> bool {
        match self.state {
            State::Semi => issued.peer || self.is_windowed() && self.is_within(issued.end),
            // It is journaled, or written.
            State::Finishing { .. } | State::Committing if self.stream.is_some() => issued.peer,
            _ if self.is_faulty(Fault::RestartUnbounded) => issued.peer,
            _ => issued.peer && (!self.saved.bounded || issued.failure.is_some()),
        }
    }

    fn is_within(&self, end: u64) -> bool {
        let window = self.window();
        let slack = match self.fault {
            Some(Fault::AckOutsideWindow) => 4,
            _ => 1,
        };
        end.saturating_sub(self.arrived_bytes) <= window.bytes.saturating_mul(slack)
            && self.oldest_sent() <= window.time.saturating_mul(slack)
    }

    /// Bytes that can be under way: those that are answered, and as many as in other modes.
    pub(super) fn send_limit(&self) -> u64 {
        match self.state {
            State::Semi => self
                .settings
                .semi
                .bytes
                .saturating_add(self.settings.window),
            _ => self.settings.window,
        }
    }

    /// The request of a write under way, and its number as an operation, 0 if it was not sent.
    pub fn order_of(&self, number: u64) -> Option<(RequestId, u64)> {
        self.issued
            .get(&number)
            .map(|each| (each.request, each.osn))
    }

    /// Answers what was not within the window before.
    pub(super) fn answer_waiting(&mut self, out: &mut Vec<Action>) {
        let waiting = self.issued.iter().filter(|(_, each)| !each.replied);
        let numbers: Vec<u64> = waiting.map(|(number, _)| *number).collect();
        for number in numbers {
            self.complete(number, out);
        }
    }

    pub(super) fn set_window(&mut self, window: Window, out: &mut Vec<Action>) {
        self.settings.semi = window;
        self.answer_waiting(out);
    }

    /// Transitions of semi-sync.
    pub(super) fn pump_semi(&mut self, out: &mut Vec<Action>) {
        let is_linked = self.link == Link::Session;
        match self.state {
            State::InSync if self.record.mode == Mode::Semi && is_linked => {
                if !self.has_logs {
                    self.reason = "the replica's mirrord-live is too old for semi-sync".into();
                } else if self.now >= self.next_stream {
                    self.state = State::Opening { ready: false };
                    let frame = Frame::new(Class::Stream, self.record.epoch);
                    self.operation(frame, SentKind::Control, out);
                    self.progress += 1;
                }
            }
            State::Opening { ready: true } if !self.record_changed && self.journal.is_idle() => {
                self.reason.clear();
                self.enter_semi(out);
                out.push(Action::Log(
                    "semi-sync: the replica journals the writes".into(),
                ));
            }
            State::Semi if self.record.mode == Mode::Async => self.leave("mode async", out),
            State::Semi if self.record.mode != Mode::Semi && is_linked => {
                // The commit ends the redo log; nothing has to be copied.
                self.barrier_wanted = true;
                self.state = State::Finishing {
                    barrier: self.barriers_started + 1,
                };
                self.progress += 1;
            }
            _ => {}
        }
    }

    pub(super) fn enter_semi(&mut self, out: &mut Vec<Action>) {
        self.state = State::Semi;
        self.is_window_full = false;
        self.begin_adapting();
        self.gate_barrier(out);
        self.progress += 1;
    }

    /// The other end has opened its redo log, or can't.
    pub(super) fn streamed(&mut self, frame: &Frame, out: &mut Vec<Action>) {
        if self.state != (State::Opening { ready: false }) {
            if self.state == State::InSync {
                // It was asked before the mode changed.
                self.hang_up("a redo log that is not needed any more", out);
            }
            return;
        }
        self.progress += 1;
        if frame.length != 0 {
            let failure = Failure::from_code(frame.length).unwrap_or(Failure::Io);
            self.reason = format!("the replica can't open its redo log: {failure:?}");
            out.push(Action::Log(self.reason.clone()));
            self.next_stream = self.now + self.settings.retry;
            self.state = State::InSync;
            return;
        }
        self.stream = Some(frame.sequence);
        self.record.synced = false;
        self.record.bounded = true;
        self.record.since = self.wall;
        self.record.boot = self.boot;
        self.record_changed = true;
        self.state = State::Opening { ready: true };
    }

    /// The replica of this stream is back, or another one.
    pub(super) fn decide_semi(&mut self, log: Option<u64>, out: &mut Vec<Action>) {
        match self.stream.filter(|mine| log == Some(*mine)) {
            Some(log) => self.link = Link::Beginning(crate::hello::Begin::Continue { log }),
            None => self.lose_stream("the replica does not have its redo log any more", out),
        }
    }

    pub(super) fn lose_stream(&mut self, reason: &str, out: &mut Vec<Action>) {
        // A generation that it can't have: everything is copied, also after a restart.
        self.record.generation += 2;
        self.leave(reason, out);
        self.next_try = self.now;
    }

    /// The other end continues its log, which has everything up to `last`.
    pub(super) fn continued(&mut self, last: u64, out: &mut Vec<Action>) {
        if last < self.acked || last > self.osn {
            self.link = Link::Ready;
            self.lose_stream("the replica's redo log is not the one that it had", out);
            return;
        }
        if !self.has_merging() && self.sent.iter().any(|each| each.is_formed) {
            self.link = Link::Ready;
            self.lose_stream(
                "the replica's mirrord-live is too old for merged writes",
                out,
            );
            return;
        }
        self.link = Link::Session;
        self.reason.clear();
        self.arrived(last, out);
        self.rewind();
        self.peer_durable(last, out);
        self.last_arrived = self.now;
        self.is_acknowledging |= self.is_faulty(Fault::GreetingProlongs);
        self.received = last;
        self.transmit(out);
    }

    /// Says when the window is full, and when it is not any more.
    pub(super) fn watch_window(&mut self, out: &mut Vec<Action>) {
        let is_late =
            |each: &Issued| self.now.saturating_sub(each.arrived) > self.settings.heartbeat;
        let is_waiting = |each: &Issued| each.local && !each.replied;
        let is_full = self.state == State::Semi && self.issued.values().any(is_waiting);
        let is_lasting = is_full && self.issued.values().any(is_late);
        if self.is_window_full && !is_full || !self.is_window_full && is_lasting {
            self.is_window_full = is_full;
            let line = match is_full {
                true => "semi-sync: the window is full; writes wait for the replica",
                false => "semi-sync: writes do not wait any more",
            };
            out.push(Action::Log(line.into()));
        }
        // No session for as long as `sync` waits: the mode is not `semi-sync` any more.
        let quiet = self.now.saturating_sub(self.session_ended);
        let is_given_up = self.link != Link::Session && quiet > self.settings.hold;
        if self.state == State::Semi && self.record.mode != Mode::Semi && is_given_up {
            self.leave("the replica was not reached in time", out);
        }
        // The mode was changed before a restart, or before the link was lost: it waits no longer
        // than that.
        let is_out_of_sync = matches!(self.state, State::Alone | State::Resync);
        let is_over = self.now.saturating_sub(self.withheld) > self.settings.hold;
        if is_out_of_sync && self.record.bounded && self.record.mode != Mode::Semi && is_over {
            self.record.bounded = false;
            self.record_changed = true;
        }
    }
}
