//! Break: this end becomes the primary of the next epoch, with its last consistent image.

use super::{Busy, Commit, Replica};
use crate::fault::Fault;
use crate::frame::{Class, Frame};
use crate::hello::Hello;
use crate::io::{Action, File, Outcome, Token};
use crate::types::{Phase, Role};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Breaking {
    No,
    /// What was started is being finished.
    Draining,
    /// The blocks that the rollback changes are being put on record.
    Marking,
    /// So many before-images have yet to be written back.
    Rolling(usize),
    Syncing,
    Recording,
}

impl Breaking {
    pub fn is_no(&self) -> bool {
        *self == Breaking::No
    }

    pub fn rollback_left(&self) -> usize {
        match self {
            Breaking::Rolling(left) => *left,
            _ => 0,
        }
    }
}

impl Replica {
    pub(super) fn start_break(&mut self, out: &mut Vec<Action>) {
        let is_empty = self.record.phase == Phase::Empty;
        let problem = if is_empty && !self.is_faulty(Fault::BreakDuringCopy) {
            match self.record.log {
                0 if self.record.side > 0 => super::undo::LOST.into(),
                0 => "the initial copy is not complete: this end has no consistent image".into(),
                log => super::redo::lost(log),
            }
        } else if !self.breaking.is_no() {
            "a break is already in progress".into()
        } else {
            self.breaking = Breaking::Draining;
            self.end_session();
            return;
        };
        out.push(Action::Report(Err(problem)));
    }

    pub(super) fn pump_break(&mut self, out: &mut Vec<Action>) {
        if self.breaking != Breaking::Draining || !self.close_log() {
            return;
        }
        if !self.is_quiet() || self.busy != Busy::No {
            return;
        }
        let is_overwritten = self.record.phase == Phase::Resync;
        if is_overwritten && !self.is_faulty(Fault::BreakWithoutRollback) {
            self.breaking = Breaking::Marking;
            if !self.is_faulty(Fault::RollbackUnmarked) {
                for entry in &self.undo.entries {
                    self.tracker.outdate(entry.range);
                }
            }
            let mut pages = self.tracker.save_all();
            pages.extend(self.tracker.checkpoint());
            self.journal.start(pages, Commit::Marked, out);
        } else {
            self.sync_for_break(out);
        }
    }

    fn sync_for_break(&mut self, out: &mut Vec<Action>) {
        self.breaking = Breaking::Syncing;
        out.push(Action::Sync {
            file: File::Image,
            token: Token::Sync,
        });
    }

    /// The map is durable. Once the record says that there is one, the image may change.
    pub(super) fn marked(&mut self, out: &mut Vec<Action>) {
        self.record.diverged = true;
        self.save_record(Commit::Noted, out);
    }

    /// Writes the before-images back, the newest first, so that the oldest counts.
    pub(super) fn roll_back(&mut self, left: usize, out: &mut Vec<Action>) {
        let Some(entry) = left.checked_sub(1).map(|index| self.undo.entries[index]) else {
            self.sync_for_break(out);
            return;
        };
        self.breaking = Breaking::Rolling(left);
        out.push(Action::Read {
            file: File::Side,
            offset: entry.at,
            length: entry.range.length,
            token: Token::Rollback,
        });
    }

    pub(super) fn rollback_step(&mut self, token: Token, outcome: Outcome, out: &mut Vec<Action>) {
        let Breaking::Rolling(left) = self.breaking else {
            return;
        };
        let entry = self.undo.entries[left - 1];
        match (token, outcome) {
            (Token::Rollback, Outcome::Data(data)) if !entry.is_intact(&data) => {
                let page = self.lose_undo(out);
                self.journal.start(vec![page], Commit::Lost, out);
            }
            (Token::Rollback, Outcome::Data(data)) => out.push(Action::Write {
                file: File::Image,
                offset: entry.range.offset,
                data: Arc::new(data),
                token: Token::Pull(0),
            }),
            (Token::Pull(_), Outcome::Done) => self.roll_back(left - 1, out),
            _ => {
                self.problem = "a before-image cannot be written back to the image".into();
                self.break_failed(out);
            }
        }
    }

    /// True if the sync that is done was the break's.
    pub(super) fn break_synced(&mut self, out: &mut Vec<Action>) -> bool {
        if self.breaking != Breaking::Syncing {
            return false;
        }
        self.breaking = Breaking::Recording;
        self.record.role = Role::Primary;
        self.record.epoch += 1;
        self.record.phase = Phase::Consistent;
        self.record.synced = false;
        self.record.unfenced = true;
        self.record.diverged = true;
        if self.is_lost() {
            self.record.since = 0; // unflushed writes from before may be gone
        }
        self.record.boot = self.boot;
        self.save_record(Commit::Broken, out);
        true
    }

    pub(super) fn broken(&mut self, out: &mut Vec<Action>) {
        if self.connected {
            let hello = Hello::of(&self.record, false).encode();
            let frame = Frame::with_payload(Class::Hello, self.record.epoch, hello);
            out.push(Action::Send(frame));
        }
        out.push(Action::Report(Ok(())));
        out.push(Action::Reopen);
        self.is_over = true;
    }

    /// The break can be asked for again: before-images and redo log are still there.
    pub(super) fn break_failed(&mut self, out: &mut Vec<Action>) {
        if !self.breaking.is_no() {
            self.reopen(out);
        }
    }
}
