//! Verification: digests of ranges go to the other end as numbered operations, and are compared
//! there with what it holds at that number. No write is held back but for the time of one read.

use super::writes::SentKind;
use super::{Link, Primary, State};
use crate::digest::digests;
use crate::fault::Fault;
use crate::frame::{Class, Frame};
use crate::io::{Action, File, Outcome, Token};
use crate::rate::Rate;
use crate::record::Reader;
use crate::types::{Mode, Range};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bytes of one range.
const CHUNK: u32 = 128 << 10;
/// Ranges that differ, as far as they are listed.
const LISTED: usize = 1000;

/// How far a verification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    #[default]
    Never,
    Running,
    Stopped,
    Complete,
}

#[derive(Clone, Debug, Default)]
pub struct Verify {
    pub progress: Progress,
    pub rate: Rate,
    /// Bytes compared.
    pub checked: u64,
    /// What differs, in the order in which it was found; adjacent ranges are one.
    pub differing: Vec<Range>,
    pub differing_bytes: u64,
    /// The differing ranges were put on record to be copied.
    pub marked: bool,
    /// Seconds since 1970.
    pub started: u64,
    pub ended: u64,
    /// Where the next range begins.
    cursor: u64,
    /// Ranges of before that have to be done again.
    again: VecDeque<Range>,
    /// The range that comes next, as soon as no write to it is in progress.
    claim: Option<Range>,
    /// Being read, by offset.
    reading: HashMap<u64, Range>,
    /// Sent and not answered, by number.
    asked: BTreeMap<u64, Range>,
    /// Leave sync as soon as the marks are durable.
    pub(super) leaving: bool,
}

impl Verify {
    fn outstanding(&self) -> usize {
        self.reading.len() + self.asked.len()
    }

    /// What was sent has to be done again.
    fn interrupt(&mut self) {
        self.again.extend(self.claim.take());
        self.again
            .extend(std::mem::take(&mut self.asked).into_values());
    }

    /// Writes to it wait.
    pub(super) fn is_claimed(&self, range: Range) -> bool {
        self.claim
            .is_some_and(|claim| claim.offset < range.end() && range.offset < claim.end())
    }

    fn found(&mut self, range: Range) {
        self.differing_bytes += u64::from(range.length);
        let has_room = self.differing.len() < LISTED;
        match self.differing.last_mut() {
            Some(last) if last.end() == range.offset && last.length < 1 << 30 => {
                last.length += range.length;
            }
            _ if has_room => self.differing.push(range),
            _ => {}
        }
    }
}

impl Primary {
    pub(super) fn start_verify(&mut self, rate: u64, out: &mut Vec<Action>) {
        let result = if self.verify.progress == Progress::Running {
            self.verify.rate = Rate::new(rate);
            Ok(())
        } else if self.verify.outstanding() > 0 {
            Err("the last verification is still being stopped".into())
        } else {
            self.verify = Verify {
                progress: Progress::Running,
                rate: Rate::new(rate),
                started: self.wall,
                ..Verify::default()
            };
            Ok(())
        };
        out.push(Action::Report(result));
    }

    pub(super) fn stop_verify(&mut self, out: &mut Vec<Action>) {
        if self.verify.progress == Progress::Running {
            self.verify.interrupt();
            self.verify.progress = Progress::Stopped;
            self.verify.ended = self.wall;
        }
        out.push(Action::Report(Ok(())));
    }

    /// Puts what differs on record; a resync copies it.
    pub(super) fn mark_differing(&mut self, out: &mut Vec<Action>) {
        let listed: u64 = self
            .verify
            .differing
            .iter()
            .map(|each| u64::from(each.length))
            .sum();
        let problem = if self.state == State::Semi {
            "the mode is semi-sync, in which the replica follows behind; set mode sync first"
        } else if self.state != State::InSync {
            "the ends are not in sync: a resync copies what differs"
        } else if self.record.mode == Mode::Strict {
            "the mode is strict-sync, in which writes would fail during the resync; set mode sync"
        } else if self.verify.differing.is_empty() {
            "no verification has found a difference"
        } else if self.verify.progress == Progress::Running {
            "a verification is in progress"
        } else {
            for range in std::mem::take(&mut self.verify.differing) {
                self.tracker.outdate_saved(range);
            }
            if listed < self.verify.differing_bytes {
                // More than the list has room for.
                self.tracker.outdate_saved_all();
            }
            self.verify.marked = true;
            self.verify.leaving = true;
            out.push(Action::Report(Ok(())));
            return;
        };
        out.push(Action::Report(Err(problem.into())));
    }

    /// Leaves sync once the marks are durable: from then on a crash does not forget them.
    pub(super) fn leave_to_copy(&mut self, out: &mut Vec<Action>) {
        if self.tracker.dirty.is_empty() {
            // Clients have written to all of it, or an exchange has copied it.
            self.verify.leaving = false;
        } else if !self.tracker.has_stale() && self.journal.is_idle() {
            self.verify.leaving = false;
            self.leave("ranges that differ are copied", out);
            self.next_try = self.now;
        }
    }

    fn is_verifying(&self) -> bool {
        self.verify.progress == Progress::Running
            && self.state == State::InSync
            && self.link == Link::Session
    }

    pub(super) fn pump_verify(&mut self, out: &mut Vec<Action>) {
        if !self.is_verifying() {
            // What is sent again later is not compared with the image of then: its answers are
            // of no interest.
            if !self.is_faulty(Fault::VerifySentAgain) {
                self.verify.interrupt();
            }
            return;
        }
        let chunk = CHUNK.min(self.settings.copy_chunk);
        let most = (self.settings.copy_window / u64::from(chunk)).clamp(1, 16) as usize;
        while self.verify.outstanding() < most && self.verify.rate.is_open(self.now) {
            let Some(range) = self.next_to_verify(chunk) else {
                if self.verify.outstanding() == 0 {
                    self.end_verify(out);
                }
                return;
            };
            if !self.locks.is_free(range) && !self.is_faulty(Fault::VerifyWithoutLock) {
                self.verify.claim = Some(range);
                return;
            }
            self.progress += 1;
            self.verify.rate.take(range.length, self.now);
            if !self.is_faulty(Fault::VerifyWithoutLock) {
                self.locks.lock(range);
            }
            self.verify.reading.insert(range.offset, range);
            out.push(Action::Read {
                file: File::Image,
                offset: range.offset,
                length: range.length,
                token: Token::Verify(range.offset),
            });
        }
    }

    fn next_to_verify(&mut self, chunk: u32) -> Option<Range> {
        let again = self.verify.claim.take();
        if let Some(range) = again.or_else(|| self.verify.again.pop_front()) {
            return Some(range);
        }
        let left = self.geometry.size.saturating_sub(self.verify.cursor);
        let length = u64::from(chunk).min(left) as u32;
        let range = Range::new(self.verify.cursor, length);
        self.verify.cursor += u64::from(length);
        (length > 0).then_some(range)
    }

    /// A range was read; no write to it is in progress.
    pub(super) fn verify_read(&mut self, offset: u64, outcome: Outcome, out: &mut Vec<Action>) {
        let Some(range) = self.verify.reading.remove(&offset) else {
            return;
        };
        if !self.is_faulty(Fault::VerifyWithoutLock) {
            self.locks.unlock(range);
        }
        self.progress += 1;
        match outcome {
            Outcome::Data(data) if self.is_verifying() => {
                let payload = digests(&data, self.geometry.block);
                let mut frame = Frame::with_payload(Class::Verify, self.record.epoch, payload);
                (frame.offset, frame.length) = (range.offset, range.length);
                self.operation(frame, SentKind::Control, out);
                self.verify.asked.insert(self.osn, range);
            }
            Outcome::Data(_) if self.verify.progress == Progress::Running => {
                self.verify.again.push_back(range);
            }
            Outcome::Failed(failure) if self.verify.progress == Progress::Running => {
                let at = range.offset;
                out.push(Action::Log(format!(
                    "verify: the local image can't be read at {at}: {failure:?}; stopped"
                )));
                self.verify.interrupt();
                self.verify.progress = Progress::Stopped;
                self.verify.ended = self.wall;
            }
            _ => {}
        }
    }

    /// The other end has compared a range.
    pub(super) fn verified(&mut self, frame: &Frame, out: &mut Vec<Action>) {
        let Some(range) = self.verify.asked.remove(&frame.sequence) else {
            // Of a verification that was stopped, or interrupted.
            return;
        };
        self.progress += 1;
        self.verify.checked += u64::from(range.length);
        let within = self.geometry.blocks_of(range);
        let mut from = Reader::new(&frame.payload);
        while let (Some(first), Some(count)) = (from.u64(), from.u64()) {
            let end = first.checked_add(count);
            match end.filter(|end| first >= within.start && *end <= within.end && count > 0) {
                Some(end) => self.verify.found(self.geometry.range_of(first..end)),
                None => return self.hang_up("a difference outside of what was asked", out),
            }
        }
    }

    fn end_verify(&mut self, out: &mut Vec<Action>) {
        self.progress += 1;
        self.verify.progress = Progress::Complete;
        self.verify.ended = self.wall;
        self.verify
            .differing
            .sort_unstable_by_key(|range| range.offset);
        let checked = self.verify.checked;
        out.push(Action::Log(match self.verify.differing_bytes {
            0 => format!("verify: {checked} bytes compared, no difference"),
            bytes => format!(
                "verify: {checked} bytes compared, {bytes} differ, the first at {}; \
                 verify-resync copies them",
                self.verify.differing[0].offset
            ),
        }));
    }
}
