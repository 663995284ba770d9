//! Copies of ranges that differ: an exchange, a resync, and the other way around.

use super::writes::SentKind;
use super::{Link, Primary, State, Step};
use crate::frame::{Class, Frame, FLAG};
use crate::hello::{Begin, Hello};
use crate::io::{Action, File, Outcome, Token};
use crate::record::Reader;
use crate::types::Phase;
use std::sync::Arc;

impl Primary {
    pub(super) fn begin_resync(&mut self, peer: &Hello, out: &mut Vec<Action>) {
        if self.is_rolled_back(peer) {
            self.disown(peer, out);
        }
        let mine = self.record.generation;
        let begin = if peer.phase == Phase::Empty {
            if peer.generation != mine + 1 {
                // The other end will count as one whose copy was begun: it is not to begin before
                // the map on disk has everything.
                self.tracker.outdate_saved_all();
            }
            Begin::Initial {
                generation: mine + 1,
            }
        } else {
            let is_known = peer.generation == mine
                || peer.generation == mine + 1
                || peer.diverged && peer.generation + 1 == mine;
            if !is_known {
                self.tracker.outdate_all();
            }
            Begin::Resync {
                bytes: self.tracker.tracked_blocks() * u64::from(self.geometry.block),
            }
        };
        self.link = Link::Beginning(begin);
    }

    pub(super) fn pump_copies(&mut self, out: &mut Vec<Action>) {
        let is_pull = match self.state {
            State::Exchange {
                pull,
                step: Step::Copying,
            } => pull,
            State::Resync => false,
            _ => return,
        };
        if self.link != Link::Session || self.tracker.dirty.is_empty() {
            return;
        }
        let chunk = u64::from(self.settings.copy_chunk / self.geometry.block).max(1);
        let mut wrapped = self.copy_cursor == 0;
        loop {
            if self.copy_used > 0
                && self.copy_used + u64::from(self.settings.copy_chunk) > self.settings.copy_window
            {
                return;
            }
            if self.state == State::Resync && !self.copy_rate.is_open(self.now) {
                return;
            }
            let Some(run) = self.tracker.dirty.run(self.copy_cursor, chunk) else {
                if wrapped {
                    return;
                }
                wrapped = true;
                self.copy_cursor = 0;
                continue;
            };
            self.copy_cursor = run.end;
            let range = self.geometry.range_of(run);
            // A range that is being read or written is left for the next round.
            if !self.locks.is_free(range) {
                continue;
            }
            self.copy_used += u64::from(range.length);
            if self.state == State::Resync {
                self.copy_rate.take(range.length, self.now);
            }
            self.progress += 1;
            if is_pull {
                self.tracker.sent(range);
                self.fetches.insert(range.offset, (range, self.now));
                let mut frame = Frame::new(Class::Fetch, self.record.epoch);
                (frame.offset, frame.length) = (range.offset, range.length);
                out.push(Action::Send(frame));
            } else {
                self.locks.lock(range);
                self.reads.insert(range.offset, range);
                out.push(Action::Read {
                    file: File::Image,
                    offset: range.offset,
                    length: range.length,
                    token: Token::Copy(range.offset),
                });
            }
        }
    }

    pub(super) fn copy_read(&mut self, offset: u64, outcome: Outcome, out: &mut Vec<Action>) {
        let Some(range) = self.reads.remove(&offset) else {
            return;
        };
        self.locks.unlock(range);
        self.progress += 1;
        let is_copying = match self.state {
            State::Exchange { pull, step } => !pull && step == Step::Copying,
            State::Resync => true,
            _ => false,
        };
        if !is_copying || self.link != Link::Session {
            return;
        }
        match outcome {
            Outcome::Data(data) => {
                self.counts.copied_bytes += data.len() as u64;
                self.tracker.sent(range);
                let mut frame = if data.iter().all(|byte| *byte == 0) {
                    Frame {
                        flags: FLAG,
                        ..Frame::new(Class::Zero, self.record.epoch)
                    }
                } else {
                    Frame {
                        payload: Arc::new(data),
                        ..Frame::new(Class::Copy, self.record.epoch)
                    }
                };
                (frame.offset, frame.length) = (range.offset, range.length);
                let bytes = u64::from(range.length);
                self.operation(frame, SentKind::Copy { bytes }, out);
            }
            _ => {
                out.push(Action::Log(format!(
                    "the local image can't be read at {offset}"
                )));
                self.hang_up("the local image can't be read", out);
            }
        }
    }

    /// The other end's data for a range.
    pub(super) fn fetched(&mut self, frame: &Frame, out: &mut Vec<Action>) {
        let expected = self.fetches.remove(&frame.offset).map(|(range, _)| range);
        let Some(range) = expected.filter(|range| range.length as usize == frame.payload.len())
        else {
            self.hang_up("data that was not asked for", out);
            return;
        };
        self.pulls.insert(range.offset, range);
        out.push(Action::Write {
            file: File::Image,
            offset: range.offset,
            data: frame.payload.clone(),
            token: Token::Pull(range.offset),
        });
    }

    pub(super) fn pulled(&mut self, offset: u64, outcome: &Outcome, out: &mut Vec<Action>) {
        if let Some(range) = self.pulls.remove(&offset) {
            self.copy_used = self.copy_used.saturating_sub(u64::from(range.length));
            self.progress += 1;
            if outcome.failure().is_some() {
                self.fail("the replica's data can't be written", out);
            }
        }
    }

    /// Blocks that the other end changed while it was a primary.
    pub(super) fn mapped(&mut self, frame: &Frame, out: &mut Vec<Action>) {
        if self.state != State::Alone || self.link != Link::Ready {
            return;
        }
        let mut from = Reader::new(&frame.payload);
        let mut last = 0;
        while let (Some(first), Some(count)) = (from.u64(), from.u64()) {
            let end = first.checked_add(count);
            let blocks = self.geometry.blocks();
            let Some(end) = end.filter(|end| first >= last && *end <= blocks) else {
                self.hang_up("a map that is larger than the image", out);
                return;
            };
            last = end;
            for run in (first..end).step_by(1 << 16) {
                let range = self.geometry.range_of(run..(run + (1 << 16)).min(end));
                self.tracker.outdate(range);
            }
        }
        let is_last = frame.flags & FLAG != 0;
        let peer: Option<Hello> = self.peer.clone();
        if let Some(peer) = peer.filter(|_| is_last) {
            self.begin_resync(&peer, out);
            self.progress += 1;
        }
    }
}
