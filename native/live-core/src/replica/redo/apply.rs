//! From the redo log to the image, and what makes room in the log.

use super::{Apply, Redo, Step};
use crate::io::{Action, File, Outcome, Token};
use crate::redo::{Entry, Kind};
use crate::replica::{Busy, Commit, Replica};
use std::sync::Arc;

impl Replica {
    /// Applies what is journaled: in order where it overlaps.
    pub(super) fn pump_apply(&mut self, out: &mut Vec<Action>) {
        let is_starting = matches!(self.redo.journal.running(), Some(Step::Start));
        if is_starting || self.redo.retry.is_some_and(|time| self.now < time) {
            return;
        }
        self.redo.retry = None;
        while let Some(apply) = self.redo.unapplied.front() {
            if self.redo.applying.len() >= 64 || !self.locks.is_free(apply.entry.range) {
                return;
            }
            let Some(apply) = self.redo.unapplied.pop_front() else {
                return;
            };
            let number = self.redo.next_apply;
            self.redo.next_apply += 1;
            self.locks.lock(apply.entry.range);
            let Entry { range, at, .. } = apply.entry;
            self.redo.applying.insert(number, apply.clone());
            let token = Token::Redo(number);
            match (apply.entry.kind, apply.data) {
                (Kind::Write, Some(data)) => out.push(Action::Write {
                    file: File::Image,
                    offset: range.offset,
                    data,
                    token,
                }),
                (Kind::Write, None) => out.push(Action::Read {
                    file: File::Log,
                    offset: at,
                    length: range.length,
                    token,
                }),
                (kind, _) => out.push(Action::Zero {
                    range,
                    punch: kind == Kind::Punch,
                    token,
                }),
            }
        }
    }

    pub(in crate::replica) fn applied(
        &mut self,
        number: u64,
        outcome: Outcome,
        out: &mut Vec<Action>,
    ) {
        let Some(apply) = self.redo.applying.remove(&number) else {
            return;
        };
        let range = apply.entry.range;
        if let Outcome::Data(data) = outcome {
            out.push(Action::Write {
                file: File::Image,
                offset: range.offset,
                data: Arc::new(data),
                token: Token::Redo(number),
            });
            self.redo.applying.insert(number, apply);
            return;
        }
        self.locks.unlock(range);
        if let Some(data) = &apply.data {
            self.redo.held -= data.len() as u64;
        }
        if let Some(failure) = outcome.failure() {
            self.problem = format!("the redo log cannot be applied: {failure:?}");
            let data = None;
            self.redo.unapplied.push_front(Apply { data, ..apply });
            self.redo.retry = Some(self.now + self.settings.retry);
            self.break_failed(out);
            return;
        }
        self.applied_bytes += u64::from(range.length);
        self.redo.halves[apply.half].left -= 1;
    }

    /// Makes durable what was applied, so that a half can be overwritten, or the log closed.
    pub(super) fn pump_checkpoint(&mut self, out: &mut Vec<Action>) {
        if self.redo.checkpoint.is_some() {
            return;
        }
        let other = 1 - (self.redo.generation % 2) as usize;
        let Redo { halves, .. } = self.redo;
        let is_drained = self.redo.closing && self.redo.is_idle() && self.redo.left() == 0;
        if is_drained && self.redo.is_drained_durable {
            if !self.journal.is_idle() {
                return;
            }
            // A log that the record names has to be there: the record is first.
            if self.record.log != 0 {
                self.record.log = 0;
                self.save_record(Commit::Closing, out);
                return;
            }
            let page = (0, self.redo.closed_slot());
            self.redo.journal.start(vec![page], Step::Closed, out);
        } else if is_drained || halves[other].left == 0 && !halves[other].clean {
            self.redo.is_drained_durable = false;
            self.redo.checkpoint = Some((other, is_drained));
            out.push(Action::Sync {
                file: File::Image,
                token: Token::Checkpoint,
            });
        }
    }

    pub(in crate::replica) fn checkpointed(&mut self, outcome: &Outcome, out: &mut Vec<Action>) {
        if let Busy::Opening(_) = self.busy {
            match outcome.failure() {
                Some(failure) => self.image_sync_failed(failure, out),
                None => self.write_slot(out),
            }
            return;
        }
        let Some((half, was_drained)) = self.redo.checkpoint.take() else {
            return;
        };
        if let Some(failure) = outcome.failure() {
            // What the image holds is unknown; the log has all of it since the last sync.
            self.problem = format!("sync of the image failed: {failure:?}");
            self.redo.again = true;
            self.redo.retry = Some(self.now + self.settings.retry);
            self.break_failed(out);
            return;
        }
        self.redo.halves[half].clean = self.redo.halves[half].left == 0;
        self.redo.is_drained_durable = was_drained;
    }

    /// After a sync that failed everything in the log is applied again.
    pub(in crate::replica) fn retry_redo(&mut self, out: &mut Vec<Action>) {
        if self.redo.again && self.redo.retry.is_some_and(|time| self.now >= time) {
            self.reopen(out);
        }
    }
}
