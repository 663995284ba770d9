//! Numbered operations, executed in order: writes, copies, flushes, and the ends of an exchange
//! and of a resync.

use super::session::cost;
use super::{Busy, Commit, Replica};
use crate::fault::Fault;
use crate::frame::{Class, Frame, FLAG, PAYLOAD_MAX};
use crate::hello::is_possible;
use crate::io::{Action, File, Outcome, Token};
use crate::types::{Failure, Phase, Range};

impl Replica {
    pub(super) fn pump_queue(&mut self, out: &mut Vec<Action>) {
        while self.busy == Busy::No && self.breaking.is_no() {
            let Some(frame) = self.queue.front().cloned() else {
                return;
            };
            if !self.accept(&frame, out) {
                return;
            }
            // A session that ended meanwhile has emptied the queue.
            if let Some(done) = self.queue.pop_front() {
                self.queued_bytes -= cost(&done);
            }
        }
    }

    /// Starts what a frame asks for. False if it has to wait.
    fn accept(&mut self, frame: &Frame, out: &mut Vec<Action>) -> bool {
        match frame.class {
            Class::Begin => {
                // All but what continues a log needs an image that has everything.
                let is_ready = self.continues(frame) || self.close_log();
                if !is_ready || !self.is_quiet() {
                    return false;
                }
                self.begin(frame, out);
                return true;
            }
            Class::MapRequest => {
                self.send_map(out);
                return true;
            }
            _ if !self.session => return true,
            Class::Fetch => {
                return self.fetch(frame, out);
            }
            _ => {}
        }
        if frame.sequence != self.expected && !self.is_faulty(Fault::ResendOutOfOrder) {
            self.hang_up("an operation is missing", out);
            return false;
        }
        let is_accepted = match frame.class {
            Class::Settle if self.logging => self.log_settle(frame, out),
            _ if self.logging => self.log_operation(frame, out),
            Class::Stream => self.open_log(frame, out),
            Class::Write | Class::Zero | Class::Copy => self.execute(frame, out),
            Class::Flush => {
                self.flushes.push_back(frame.sequence);
                self.advance(frame.sequence);
                true
            }
            Class::Verify => self.verify(frame, out),
            Class::Settle => self.settle(frame, out),
            Class::Commit => self.commit(frame, out),
            _ => {
                self.hang_up("an operation that only a redo log takes", out);
                false
            }
        };
        if is_accepted {
            self.expected += 1;
        }
        is_accepted
    }

    fn execute(&mut self, frame: &Frame, out: &mut Vec<Action>) -> bool {
        let range = Range::new(frame.offset, frame.length);
        let is_zero = frame.class == Class::Zero;
        let is_sound = self.geometry.contains(range)
            && range.length <= PAYLOAD_MAX
            && (is_zero || frame.payload.len() == range.length as usize);
        if !is_sound {
            self.hang_up("an operation outside the image", out);
            return false;
        }
        if !self.locks.is_free(range) {
            return false;
        }
        if self.record.phase == Phase::Resync && !self.has_before_image(range, out) {
            return false;
        }
        self.locks.lock(range);
        self.inflight.insert(frame.sequence, range);
        self.applied_bytes += u64::from(range.length);
        let token = Token::Write(frame.sequence);
        if !is_zero {
            out.push(Action::Write {
                file: File::Image,
                offset: range.offset,
                data: frame.payload.clone(),
                token,
            });
        } else if self.is_faulty(Fault::TrimDivergence) && frame.flags & FLAG != 0 {
            self.executed(frame.sequence, &Outcome::Done, out);
        } else {
            out.push(Action::Zero {
                range,
                punch: frame.flags & FLAG != 0,
                token,
            });
        }
        true
    }

    pub(super) fn executed(&mut self, osn: u64, outcome: &Outcome, out: &mut Vec<Action>) {
        if let Some(range) = self.inflight.remove(&osn) {
            self.locks.unlock(range);
        }
        if let Some(failure) = outcome.failure() {
            self.problem = format!("a write to the image failed: {failure:?}");
            self.report_failure(failure, out);
        } else if self.session {
            self.advance(osn);
        }
    }

    /// A sync starts when everything before the flush is written, and covers what is written by
    /// then. One that runs already is not joined.
    pub(super) fn pump_sync(&mut self, out: &mut Vec<Action>) {
        let is_due = self.flushes.front().is_some_and(|osn| *osn <= self.written);
        if is_due && self.syncing.is_none() && self.busy == Busy::No && self.session {
            self.syncing = Some(self.written);
            let covered = self.written;
            self.flushes.retain(|osn| *osn > covered);
            out.push(Action::Sync {
                file: File::Image,
                token: Token::Sync,
            });
        }
    }

    /// What the image holds is unknown now, as after a power cut: the next sync would find nothing
    /// left to write. A break in progress fails with it.
    pub(super) fn image_sync_failed(&mut self, failure: Failure, out: &mut Vec<Action>) {
        self.problem = format!("sync of the image failed: {failure:?}");
        self.report_failure(failure, out);
        self.busy = Busy::Losing;
        self.record.boot = [0; 16];
        self.note_loss(out);
    }

    pub(super) fn note_loss(&mut self, out: &mut Vec<Action>) {
        if self.busy == Busy::Losing && self.journal.is_idle() {
            self.save_record(Commit::Lost, out);
        }
    }

    pub(super) fn synced(&mut self, outcome: &Outcome, out: &mut Vec<Action>) {
        let covered = self.syncing.take();
        if let Some(failure) = outcome.failure() {
            self.image_sync_failed(failure, out);
            return;
        }
        if self.break_synced(out) {
            return;
        }
        if self.busy == Busy::Committing {
            self.wipe(out);
        } else if let Some(covered) = covered.filter(|_| self.session) {
            self.durable = self.durable.max(covered);
            self.ack_due = true;
        }
    }

    /// The primary knows that both ends are equal and durable, or confirms the session.
    fn settle(&mut self, frame: &Frame, out: &mut Vec<Action>) -> bool {
        if !self.is_quiet() {
            return false;
        }
        self.advance(frame.sequence);
        if self.record.phase == Phase::Consistent {
            self.record.boot = self.boot;
        }
        self.count_session(frame);
        self.busy = Busy::Settling;
        self.save_record(Commit::Settle, out);
        true
    }

    /// The primary confirms the session; the image and its redo log are as they were.
    fn log_settle(&mut self, frame: &Frame, out: &mut Vec<Action>) -> bool {
        if !self.journal.is_idle() || !self.log_operation(frame, out) {
            return false;
        }
        self.count_session(frame);
        self.busy = Busy::Settling;
        self.save_record(Commit::Settle, out);
        true
    }

    /// The image is consistent when everything before is durable.
    pub(super) fn commit(&mut self, frame: &Frame, out: &mut Vec<Action>) -> bool {
        if !self.is_quiet() {
            return false;
        }
        let generation = frame.payload.first_chunk::<8>();
        let generation = generation.map(|bytes| u64::from_le_bytes(*bytes));
        let mine = self.record.generation;
        let Some(generation) = generation.filter(|theirs| is_possible(*theirs, mine)) else {
            self.hang_up("malformed commit", out);
            return false;
        };
        self.advance(frame.sequence);
        self.pending_generation = generation;
        self.pending_since = frame.offset;
        self.busy = Busy::Committing;
        self.syncing = Some(0);
        out.push(Action::Sync {
            file: File::Image,
            token: Token::Sync,
        });
        true
    }

    /// The primary has this end's own map in its own: it is not needed any more.
    fn wipe(&mut self, out: &mut Vec<Action>) {
        if !self.record.diverged {
            self.save_consistent(out);
            return;
        }
        self.tracker.clear();
        let mut pages = self.tracker.save_all();
        pages.extend(self.tracker.checkpoint());
        self.journal.start(pages, Commit::Wiped, out);
    }

    pub(super) fn save_consistent(&mut self, out: &mut Vec<Action>) {
        self.record.phase = Phase::Consistent;
        self.record.generation = self.pending_generation;
        self.record.since = self.pending_since;
        self.record.boot = self.boot;
        self.record.diverged = false;
        self.record.log = 0;
        self.save_record(Commit::Consistent, out);
    }
}
