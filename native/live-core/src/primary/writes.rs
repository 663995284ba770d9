//! From a client's request to its answer: locks, tracking, local write and link, gate.

use super::barrier::{Delayed, Waiter};
use super::merging::cost;
use super::recording::Kind;
use super::{Link, Primary, State};
use crate::fault::Fault;
use crate::frame::{Class, Frame, FLAG};
use crate::io::{Action, File, Outcome, Token};
use crate::types::{Failure, Mode, Payload, Range, RequestId, Time};

/// Writes that wait for others and are looked at each time: with more, looking takes longer than
/// writing.
const LOOKED_AT: usize = 1024;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Write(Payload),
    Zero { punch: bool },
}

/// A write that was not issued yet.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub request: RequestId,
    pub range: Range,
    pub op: Op,
    pub fua: bool,
    pub arrived: Time,
}

/// A write under way.
#[derive(Clone, Debug)]
pub(super) struct Issued {
    pub request: RequestId,
    pub range: Range,
    pub fua: bool,
    pub arrived: Time,
    /// When the local write and the link got it.
    pub issued: Time,
    /// The local image has it, and how long that took.
    pub local: bool,
    pub took: Time,
    /// The other end has it, or is not waited for.
    pub peer: bool,
    pub failure: Option<Failure>,
    pub replied: bool,
    /// Its number as an operation; 0: it was not sent.
    pub osn: u64,
    /// Bytes of all writes that were sent up to it.
    pub end: u64,
}

/// An operation that the other end has not acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub kind: SentKind,
    pub frame: Frame,
    /// When it was sent last.
    pub at: Time,
    pub issued: Time,
    /// A client relies on what is before its end: no unit goes on after it.
    pub is_barrier: bool,
    /// It is part of a unit, whose extent does not change any more.
    pub is_formed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SentKind {
    Write { number: u64, bytes: u64 },
    Copy { bytes: u64 },
    Control,
}

impl Primary {
    pub(super) fn submit_write(
        &mut self,
        request: RequestId,
        offset: u64,
        data: Payload,
        fua: bool,
        out: &mut Vec<Action>,
    ) {
        let range = Range::new(offset, data.len() as u32);
        self.submit(request, range, Op::Write(data), fua, out);
    }

    pub(super) fn submit_zero(
        &mut self,
        request: RequestId,
        range: Range,
        punch: bool,
        fua: bool,
        out: &mut Vec<Action>,
    ) {
        self.submit(request, range, Op::Zero { punch }, fua, out);
    }

    fn submit(
        &mut self,
        request: RequestId,
        range: Range,
        op: Op,
        fua: bool,
        out: &mut Vec<Action>,
    ) {
        if self.state == State::Fenced {
            return;
        }
        let is_small = u64::from(range.length) <= u64::from(crate::frame::PAYLOAD_MAX);
        if !self.geometry.contains(range) || !is_small {
            let result = Err(Failure::Invalid);
            out.push(Action::Reply { request, result });
            return;
        }
        if self.state == State::Failed {
            let result = Err(Failure::Io);
            out.push(Action::Reply { request, result });
            return;
        }
        self.counts.writes += 1;
        self.counts.written_bytes += u64::from(range.length);
        self.waiting.push_back(Request {
            request,
            range,
            op,
            fua,
            arrived: self.now,
        });
    }

    /// Writes fail instead of being acknowledged without the other end.
    pub(super) fn is_refusing(&self) -> bool {
        self.record.mode == Mode::Strict
            && matches!(
                self.state,
                State::Alone | State::Resync | State::Holding { failing: true, .. }
            )
    }

    pub(super) fn pump_writes(&mut self, out: &mut Vec<Action>) {
        self.wanted.clear();
        if self.waiting.is_empty() {
            return;
        }
        if self.is_refusing() {
            for each in std::mem::take(&mut self.waiting) {
                out.push(Action::Reply {
                    request: each.request,
                    result: Err(Failure::Io),
                });
            }
            return;
        }
        if !self.is_issuing() {
            return;
        }
        let mut kept = Vec::new();
        while kept.len() < LOOKED_AT {
            let Some(each) = self.waiting.pop_front() else {
                break;
            };
            let is_free = self.locks.is_free(each.range) && !self.verify.is_claimed(each.range);
            if !is_free && !self.is_faulty(Fault::NoRangeLock) {
                kept.push(each);
                continue;
            }
            let is_cold = self.tracker.missing(each.range).next().is_some();
            if is_cold && !self.is_faulty(Fault::WriteBeforeTracking) {
                if self.wanted.is_empty() {
                    self.kept = self.geometry.extents_of(each.range);
                }
                self.wanted.extend(self.tracker.missing(each.range));
                kept.push(each);
                continue;
            }
            let bytes = u64::from(each.range.length);
            if self.is_sending()
                && self.window_used > 0
                && self.window_used + bytes > self.send_limit()
            {
                kept.push(each);
                break;
            }
            self.issue(each, out);
        }
        for each in kept.into_iter().rev() {
            self.waiting.push_front(each);
        }
    }

    fn issue(&mut self, each: Request, out: &mut Vec<Action>) {
        self.progress += 1;
        let number = self.next_number;
        self.next_number += 1;
        let sending = self.is_sending();
        let bytes = u64::from(each.range.length);
        self.sent_bytes += if sending { bytes } else { 0 };
        self.tracker.pin(each.range, sending);
        self.locks.lock(each.range);
        self.issued.insert(
            number,
            Issued {
                request: each.request,
                range: each.range,
                fua: each.fua,
                arrived: each.arrived,
                issued: self.now,
                local: false,
                took: 0,
                peer: !self.is_gated() && self.state != State::Semi
                    || self.is_faulty(Fault::AckBeforePeer),
                failure: None,
                replied: false,
                osn: if sending { self.osn + 1 } else { 0 },
                end: self.sent_bytes,
            },
        );
        let kind = match &each.op {
            Op::Write(_) => Kind::Write,
            Op::Zero { punch: false } => Kind::Zero,
            Op::Zero { punch: true } => Kind::Trim,
        };
        let osn = if sending { self.osn + 1 } else { 0 };
        self.note_issue(kind, each.range, each.arrived, osn);
        if sending {
            let mut frame = match &each.op {
                Op::Write(data) => Frame {
                    payload: data.clone(),
                    ..Frame::new(Class::Write, self.record.epoch)
                },
                Op::Zero { punch } => Frame {
                    flags: if *punch { FLAG } else { 0 },
                    ..Frame::new(Class::Zero, self.record.epoch)
                },
            };
            frame.offset = each.range.offset;
            frame.length = each.range.length;
            self.window_used += bytes;
            self.operation(frame, SentKind::Write { number, bytes }, out);
            if each.fua {
                self.end_unit();
            }
        }
        let token = Token::Write(number);
        out.push(match each.op {
            Op::Write(data) => Action::Write {
                file: File::Image,
                offset: each.range.offset,
                data,
                token,
            },
            Op::Zero { punch } => Action::Zero {
                range: each.range,
                punch,
                token,
            },
        });
        if self.is_faulty(Fault::AckBeforeLocal) && !self.is_gated() {
            self.complete(number, out);
        }
    }

    /// Sends a numbered operation.
    pub(super) fn operation(&mut self, mut frame: Frame, kind: SentKind, out: &mut Vec<Action>) {
        self.osn += 1;
        frame.sequence = self.osn;
        frame.released = self.released;
        self.counts.sent_bytes += frame.payload.len() as u64;
        let at = self.now;
        self.held += cost(&frame);
        self.sent.push_back(Sent {
            kind,
            frame,
            at,
            issued: at,
            is_barrier: false,
            is_formed: false,
        });
        self.transmit(out);
    }

    /// The local image has a write, or failed it.
    pub(super) fn written(&mut self, number: u64, outcome: &Outcome, out: &mut Vec<Action>) {
        let is_unmarked = self.is_faulty(Fault::FailedWriteUnmarked);
        let Some(issued) = self.issued.get_mut(&number) else {
            return;
        };
        issued.local = true;
        let took = self.now.saturating_sub(issued.issued);
        issued.took = took;
        self.latencies.local.add(self.now, took);
        let range = issued.range;
        self.locks.unlock(range);
        self.tracker.unpin(range);
        if let Some(failure) = outcome.failure() {
            issued.failure = Some(failure);
            if is_unmarked {
                issued.peer = true;
            } else {
                // What the local image has there is unknown, and so the other end's differs.
                self.tracker.outdate(range);
                if self.record.synced || self.is_gated() || self.state == State::Semi {
                    self.leave(
                        &format!("a write to the local image failed: {failure:?}"),
                        out,
                    );
                }
            }
        }
        self.note_local(number, outcome.failure().is_some());
        self.complete(number, out);
    }

    /// Answers a write if nothing is missing.
    pub(super) fn complete(&mut self, number: u64, out: &mut Vec<Action>) {
        let early = self.is_faulty(Fault::AckBeforeLocal);
        let Some(issued) = self.issued.get(&number) else {
            return;
        };
        let is_for_mirror = self.settings.durable && self.is_gated();
        let is_answered = (issued.local || early) && !issued.replied && self.may_answer(issued);
        let Some(issued) = self.issued.get_mut(&number) else {
            return;
        };
        let write = Delayed {
            number,
            arrived: issued.arrived,
            took: issued.took,
            is_for_mirror,
        };
        let is_delayed = (issued.fua || is_for_mirror) && issued.failure.is_none();
        let delayed = is_delayed.then_some(write);
        if is_answered {
            issued.replied = true;
            self.answered_bytes = self.answered_bytes.max(issued.end);
            if let Some(write) = delayed {
                let request = issued.request;
                self.flushes.push(Waiter {
                    request,
                    write: Some(write),
                });
            } else {
                out.push(Action::Reply {
                    request: issued.request,
                    result: issued.failure.map_or(Ok(()), Err),
                });
            }
        }
        let is_over = issued.peer || self.state == State::Semi;
        let is_over = is_over && issued.local && issued.replied;
        if is_answered && !(is_delayed && is_for_mirror) {
            self.count_answer(&write);
        }
        if is_answered && !is_delayed {
            self.note_answered(number);
        }
        if is_over {
            self.issued.remove(&number);
            self.progress += 1;
        }
    }

    /// A write that waited for a barrier is answered. What a client asked for with FUA, it would wait
    /// for without the other end, too: it does not count.
    pub(super) fn answered(&mut self, write: Delayed) {
        self.note_answered(write.number);
        if write.is_for_mirror {
            self.count_answer(&write);
        }
    }

    fn count_answer(&mut self, write: &Delayed) {
        let took = self.now.saturating_sub(write.arrived);
        self.latencies.mirrored.add(self.now, took);
        let beyond = took.saturating_sub(write.took);
        self.latencies.waits.add(self.now, beyond);
    }

    /// The other end is not waited for any more, or has everything.
    pub(super) fn complete_all(&mut self, out: &mut Vec<Action>) {
        let numbers: Vec<u64> = self.issued.keys().copied().collect();
        for number in numbers {
            if let Some(issued) = self.issued.get_mut(&number) {
                issued.peer = true;
            }
            self.complete(number, out);
        }
    }

    /// `strict-sync`, and the other end is gone: fails what is unanswered.
    pub(super) fn fail_outstanding(&mut self, out: &mut Vec<Action>) {
        self.note_refused();
        let mut waiting: Vec<Waiter> = self.flushes.drain(..).collect();
        if let Some(barrier) = &mut self.barrier {
            waiting.append(&mut barrier.flushes);
        }
        let mut failed: Vec<RequestId> = waiting.iter().map(|each| each.request).collect();
        for issued in self.issued.values_mut().filter(|each| !each.replied) {
            issued.replied = true;
            failed.push(issued.request);
        }
        for request in failed {
            out.push(Action::Reply {
                request,
                result: Err(Failure::Io),
            });
        }
    }

    /// New writes can be issued.
    pub(super) fn is_issuing(&self) -> bool {
        match self.state {
            State::Alone | State::Resync | State::Semi => true,
            _ => self.is_gated() && self.link == Link::Session,
        }
    }
}
