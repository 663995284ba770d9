//! Into and out of sync, modes, and the end of a primary.

use super::{Link, Primary, State, Step};
use crate::fault::Fault;
use crate::frame::{Class, Frame};
use crate::io::Action;
use crate::types::{BootId, Failure, Mode, RequestId, Role};

/// In place of a boot: a sync of the image failed, so that writes may be lost.
const FAILED: BootId = [0; 16];
/// The same, and the FLUSH of a client failed since.
const TOLD: BootId = [0xff; 16];

impl Primary {
    /// The local disk can't be relied upon: nothing is served any more, so that the other end can
    /// take over. After a restart this end counts as one that lost its memory.
    pub(super) fn fail(&mut self, problem: &str, out: &mut Vec<Action>) {
        if self.state == State::Failed {
            return;
        }
        let reason = format!("the local disk failed: {problem}; serving stopped");
        out.push(Action::Log(reason.clone()));
        self.state = State::Failed;
        self.note_refused();
        self.record.boot = FAILED;
        self.record_changed = true;
        self.hang_up("the primary's disk failed", out);
        self.reason = reason;
        let requests = self.waiting.drain(..).map(|each| each.request);
        let flushes = self.flushes.drain(..).map(|each| each.request);
        let mut failed: Vec<RequestId> = requests.chain(flushes).collect();
        for issued in self.issued.values_mut().filter(|each| !each.replied) {
            issued.replied = true;
            failed.push(issued.request);
        }
        failed.extend(
            self.barrier
                .take()
                .into_iter()
                .flat_map(|each| each.flushes)
                .map(|each| each.request),
        );
        for request in failed {
            out.push(Action::Reply {
                request,
                result: Err(Failure::Io),
            });
        }
    }

    /// Leaves the other end behind. Acknowledgements go on when the record says so.
    pub(super) fn leave(&mut self, reason: &str, out: &mut Vec<Action>) {
        if matches!(
            self.state,
            State::Leaving(_) | State::Alone | State::Fenced | State::Failed
        ) {
            return;
        }
        out.push(Action::Log(format!("out of sync: {reason}")));
        self.reason = reason.into();
        self.counts.left_sync += 1;
        self.awaited_until = None;
        if self.link == Link::Session || matches!(self.link, Link::Beginning(_)) {
            self.link = Link::Ready;
            self.peer = None;
        }
        // Of a pull: what comes now would replace what is written from here on.
        self.fetches.clear();
        self.next_try = self.now + self.settings.retry;
        let mut barrier = 0;
        if self.record.synced && !self.is_faulty(Fault::LeaveBeforeSync) {
            self.tracker.lose();
            self.abandon_barrier(true, out);
            self.barrier_wanted = true;
            barrier = self.barriers_started + 1;
        }
        self.state = State::Leaving(Some(barrier));
        self.progress += 1;
        if self.is_faulty(Fault::AckOutOfSyncBeforeRecord) {
            self.left();
            self.go_alone(out);
        }
    }

    /// From here on this end's image is the only one that counts.
    fn left(&mut self) {
        let was_bounded = self.record.synced || self.record.bounded;
        self.record.bounded = self.record.mode == Mode::Semi && was_bounded;
        self.record.synced = false;
        self.record.since = self.wall;
        self.record.boot = self.boot;
        self.record_changed = true;
        self.state = State::Leaving(None);
        self.progress += 1;
    }

    /// Out of sync: every change is tracked, and nobody waits for the other end.
    pub(super) fn go_alone(&mut self, out: &mut Vec<Action>) {
        self.state = State::Alone;
        if self.stream.take().is_some() {
            self.withheld = self.now;
        }
        if self.record.bounded && self.record.mode == Mode::Async {
            self.record.bounded = false;
            self.record_changed = true;
        }
        self.tracker.lose();
        self.forget_sent();
        self.fetches.clear();
        self.fail_if_refusing(out);
        self.abandon_barrier(false, out);
        self.complete_all(out);
        self.progress += 1;
    }

    /// What was sent is not waited for any more.
    pub(super) fn forget_sent(&mut self) {
        self.note_lost();
        self.sent.clear();
        self.acked = self.osn;
        self.rewind();
        self.window_used = 0;
        self.copy_used = 0;
        self.arrived_bytes = self.sent_bytes;
    }

    pub(super) fn fence(&mut self, epoch: u64, out: &mut Vec<Action>) {
        out.push(Action::Log(format!(
            "epoch {epoch} exists: the other end has taken over; this end's clients are disconnected"
        )));
        out.push(Action::Disconnect(Some("fenced")));
        self.link = Link::Down;
        self.peer = None;
        self.state = State::Fenced;
        self.reason = format!("the other end took over with epoch {epoch}");
        self.record.role = Role::Fenced;
        // What this end becomes next has to be above it.
        self.record.epoch = epoch;
        self.record_changed = true;
        self.note_refused();
        self.waiting.clear();
        self.flushes.clear();
        self.issued
            .values_mut()
            .for_each(|each| each.replied = true);
        if let Some(barrier) = &mut self.barrier {
            barrier.flushes.clear();
        }
        out.push(Action::DropClients);
    }

    pub(super) fn set_mode(&mut self, mode: Mode, out: &mut Vec<Action>) {
        self.record.mode = mode;
        self.record_changed = true;
        self.next_try = self.now;
        let is_in_sync = self.record.synced && !self.is_lost();
        if mode == Mode::Async && is_in_sync && self.state != State::Starting {
            self.leave("mode async", out);
        }
        match &mut self.state {
            // What is not answered waits until the record says so.
            State::Alone | State::Resync if mode != Mode::Semi => self.record.bounded = false,
            State::Finishing { .. } if mode == Mode::Semi && self.stream.is_some() => {
                self.enter_semi(out);
            }
            State::Semi => self.gate_barrier(out),
            // Nothing fails for want of the other end any more: it is left behind at `until`.
            State::Holding { failing, .. } if self.fault != Some(Fault::RefusalKept) => {
                *failing &= mode == Mode::Strict;
            }
            _ => {}
        }
        self.progress += 1;
        out.push(Action::Report(Ok(())));
    }

    /// Serves although the other end may have newer data.
    pub(super) fn force(&mut self, out: &mut Vec<Action>) {
        if let State::Holding { .. } = self.state {
            self.leave("forced to serve without the replica", out);
            out.push(Action::Report(Ok(())));
        } else {
            let problem = "this end is not waiting for the replica".to_owned();
            out.push(Action::Report(Err(problem)));
        }
    }

    /// Transitions that depend on nothing else than the state.
    pub(super) fn pump_state(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, State::Holding { .. } | State::Semi) {
            self.decide(out);
        }
        self.pump_semi(out);
        self.send_begin(out);
        match self.state {
            State::Exchange { pull, step } => self.pump_exchange(pull, step, out),
            State::Resync if self.is_copied() => {
                self.barrier_wanted = true;
                self.state = State::Finishing {
                    barrier: self.barriers_started + 1,
                };
                self.progress += 1;
            }
            State::Finishing { barrier } => self.pump_finish(barrier, out),
            State::Leaving(Some(barrier)) if self.barriers_done >= barrier => self.left(),
            State::Leaving(None) if !self.record_changed && self.journal.is_idle() => {
                self.go_alone(out);
            }
            State::Entering if !self.record_changed && self.journal.is_idle() => {
                self.progress += 1;
                if !self.record.synced {
                    self.link = Link::Ready;
                    self.go_alone(out);
                } else if self.link == Link::Session {
                    self.state = State::InSync;
                    self.reason.clear();
                } else {
                    self.hold();
                }
                out.push(Action::Log(format!(
                    "generation {}: both ends are equal",
                    self.record.generation
                )));
            }
            State::Fenced
                if !self.record_changed
                    && self.journal.is_idle()
                    && !self.is_over
                    && self.issued.values().all(|each| each.local) =>
            {
                self.is_over = true;
                out.push(Action::Reopen);
            }
            State::InSync if self.verify.leaving => self.leave_to_copy(out),
            State::InSync if self.record.mode == Mode::Async => self.leave("mode async", out),
            _ => {}
        }
    }

    fn is_copied(&self) -> bool {
        self.link == Link::Session
            && self.tracker.dirty.is_empty()
            && self.reads.is_empty()
            && self.fetches.is_empty()
            && self.pulls.is_empty()
    }

    fn pump_exchange(&mut self, pull: bool, step: Step, out: &mut Vec<Action>) {
        let next = match step {
            Step::Copying if self.is_copied() && self.barrier.is_none() => {
                self.barrier_wanted = true;
                Step::Barrier(self.barriers_started + 1)
            }
            Step::Barrier(number) if self.barriers_done >= number => {
                // Every write of before is durable at both ends.
                self.complete_all(out);
                let frame = Frame::new(Class::Settle, self.record.epoch);
                self.asked = self.now;
                self.operation(frame, super::writes::SentKind::Control, out);
                Step::Settling
            }
            Step::Recording if !self.record_changed && self.journal.is_idle() => {
                self.continuing = true;
                self.state = State::InSync;
                self.reason.clear();
                self.progress += 1;
                return;
            }
            _ => return,
        };
        self.state = State::Exchange { pull, step: next };
        self.progress += 1;
    }

    pub(super) fn settled(&mut self) {
        if let State::Exchange {
            pull,
            step: Step::Settling,
        } = self.state
        {
            self.record_changed |= self.record.boot != self.boot;
            self.record.boot = self.boot;
            self.state = State::Exchange {
                pull,
                step: Step::Recording,
            };
            self.progress += 1;
        } else if self.confirming {
            self.count_session();
        }
    }

    fn pump_finish(&mut self, barrier: u64, out: &mut Vec<Action>) {
        if !self.tracker.dirty.is_empty() {
            self.state = State::Resync;
            self.progress += 1;
        } else if self.barriers_done >= barrier
            && !self.tracker.has_stale()
            && (self.stream.is_none() || !self.record_changed)
            && self.journal.is_idle()
            && self.is_copied()
        {
            let generation = (self.record.generation + 1).to_le_bytes().to_vec();
            let mut frame = Frame::with_payload(Class::Commit, self.record.epoch, generation);
            frame.offset = self.wall;
            self.asked = self.now;
            self.operation(frame, super::writes::SentKind::Control, out);
            self.state = State::Committing;
            self.progress += 1;
        }
    }

    /// The other end has a consistent image of this generation.
    pub(super) fn peer_committed(&mut self) {
        if self.state != State::Committing {
            return;
        }
        self.stream = None;
        self.record.bounded = false;
        self.record.generation += 1;
        self.record.synced = self.record.mode != Mode::Async;
        self.record.boot = self.boot;
        self.record.diverged = false;
        self.record.since = self.wall;
        self.record_changed = true;
        self.continuing = true;
        // Not before: a copy that was interrupted is begun again. Nor later: the next one may have
        // been ordered by then.
        self.resync_wanted = false;
        self.state = State::Entering;
        self.progress += 1;
    }

    /// The files were made durable after the start.
    pub(super) fn started(&mut self) {
        if self.state != State::Starting {
            return;
        }
        self.last_heard = self.now;
        self.withheld = self.now;
        if self.record.synced {
            self.hold();
        } else {
            self.state = State::Alone;
            // No other end has what was lost.
            self.is_untold = self.record.boot == FAILED;
            if self.record.boot != self.boot && !self.is_untold {
                self.record.boot = self.boot;
                self.record_changed = true;
            }
        }
        self.progress += 1;
    }

    /// A FLUSH is about to be answered: the first one after a loss fails. The client may be one that
    /// has connected again, and counts on what was acknowledged before.
    pub(super) fn tell_loss(&mut self) -> Result<(), Failure> {
        let told = match self.state {
            State::Failed => TOLD,
            _ if !self.is_untold => return Ok(()),
            _ => self.boot,
        };
        self.is_untold = false;
        self.record_changed |= self.record.boot != told;
        self.record.boot = told;
        Err(Failure::Io)
    }

    /// The session is older than `hold`: what it did not carry would have ended it.
    pub(super) fn has_lasted(&self) -> bool {
        self.now.saturating_sub(self.asked) > self.settings.hold
    }

    /// A connection over which nothing gets through does not prolong the wait.
    pub(super) fn hold(&mut self) {
        let until = self.last_heard + self.settings.hold;
        let until = *self.awaited_until.get_or_insert(until);
        self.state = State::Holding {
            until: (!self.is_lost()).then_some(until),
            failing: false,
        };
    }

    pub(super) fn hold_expired(&mut self, out: &mut Vec<Action>) {
        match self.record.mode {
            Mode::Strict => {
                if let State::Holding { failing, .. } = &mut self.state {
                    *failing = true;
                }
                self.fail_if_refusing(out);
            }
            _ => self.leave("the replica was not reached in time", out),
        }
    }
}
