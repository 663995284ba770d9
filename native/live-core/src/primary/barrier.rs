//! Barriers: everything written before is made durable at both ends, in parallel.
//!
//! A client's FLUSH waits for a barrier that starts after it arrived, never for one that runs
//! already: the sync in progress need not cover what was written since it began. Those that
//! arrive meanwhile share the next one.

use super::writes::SentKind;
use super::{Link, Primary, State, Step};
use crate::fault::Fault;
use crate::frame::{Class, Frame};
use crate::io::{Action, File, Outcome, Token};
use crate::types::{Failure, RequestId, Time};

/// Who waits for a barrier: a client's FLUSH, or a write that is answered with it.
pub(super) struct Waiter {
    pub request: RequestId,
    pub write: Option<Delayed>,
}

/// A write of which the answer alone is missing.
#[derive(Clone, Copy)]
pub(super) struct Delayed {
    pub number: u64,
    pub arrived: Time,
    /// How long the local image took.
    pub took: Time,
    /// It waits because of `Settings.durable`: out of sync it would not.
    pub is_for_mirror: bool,
}

pub(super) struct Barrier {
    pub number: u64,
    pub flushes: Vec<Waiter>,
    /// The local sync is done.
    pub local: bool,
    /// The operation that the other end has to report as durable.
    pub remote: Option<u64>,
    /// Flushes wait for the other end, too.
    pub gated: bool,
    pub started: Time,
}

impl Primary {
    pub(super) fn submit_flush(&mut self, request: RequestId, out: &mut Vec<Action>) {
        self.counts.flushes += 1;
        self.end_unit();
        let waiter = Waiter {
            request,
            write: None,
        };
        match self.state {
            State::Fenced => {}
            State::Failed => out.push(Action::Reply {
                request,
                result: self.tell_loss(),
            }),
            State::Holding { failing: true, .. } => out.push(Action::Reply {
                request,
                result: Err(Failure::Io),
            }),
            State::Semi if self.is_faulty(Fault::BarrierIgnored) => out.push(Action::Reply {
                request,
                result: Ok(()),
            }),
            _ => match &mut self.barrier {
                Some(barrier) if self.fault == Some(Fault::FlushJoinsRunningSync) => {
                    barrier.flushes.push(waiter);
                }
                _ => self.flushes.push(waiter),
            },
        }
    }

    pub(super) fn pump_barrier(&mut self, out: &mut Vec<Action>) {
        let is_ready = match self.state {
            State::Exchange {
                step: Step::Barrier(_),
                ..
            } => self.link == Link::Session,
            State::Leaving(Some(barrier)) => {
                self.barriers_started < barrier
                    && self.pulls.is_empty()
                    && self.issued.values().all(|each| each.local)
            }
            _ => self.is_issuing(),
        };
        self.sync_meanwhile(out);
        if self.barrier.is_some() || !is_ready || self.flushes.is_empty() && !self.barrier_wanted {
            return;
        }
        self.progress += 1;
        self.counts.barriers += 1;
        self.barrier_wanted = false;
        self.barriers_started += 1;
        self.last_barrier = self.now;
        let in_progress = self.issued.values().filter(|each| !each.local);
        self.tracker
            .start_barrier(in_progress.map(|each| each.range));
        let mut remote = None;
        let is_forwarded = self.link == Link::Session || self.state == State::Semi;
        if is_forwarded && !self.is_faulty(Fault::FlushNotForwarded) {
            let frame = Frame::new(Class::Flush, self.record.epoch);
            self.operation(frame, SentKind::Control, out);
            remote = Some(self.osn);
        }
        self.barrier = Some(Barrier {
            number: self.barriers_started,
            flushes: match self.state {
                // They are answered when the record says that this end alone counts.
                State::Leaving(_) => Vec::new(),
                _ => std::mem::take(&mut self.flushes),
            },
            local: false,
            remote,
            gated: self.state != State::Resync && !self.is_windowed(),
            started: self.now,
        });
        out.push(Action::Sync {
            file: File::Image,
            token: Token::Sync,
        });
    }

    /// In semi-sync a flush does not wait for the other end, not even for a barrier that does.
    fn sync_meanwhile(&mut self, out: &mut Vec<Action>) {
        let is_windowed = self.is_windowed();
        let waiting = self.barrier.as_mut().filter(|each| {
            is_windowed && each.local && each.remote.is_some() && !self.flushes.is_empty()
        });
        if let Some(barrier) = waiting {
            barrier.local = false;
            barrier.flushes.append(&mut self.flushes);
            out.push(Action::Sync {
                file: File::Image,
                token: Token::Sync,
            });
            self.progress += 1;
        }
    }

    /// The local sync is done.
    pub(super) fn synced(&mut self, outcome: &Outcome, out: &mut Vec<Action>) {
        if let Some(failure) = outcome.failure() {
            self.fail(&format!("sync: {failure:?}"), out);
            return;
        }
        if let Some(barrier) = &mut self.barrier {
            barrier.local = true;
        }
        self.check_barrier(out);
    }

    pub(super) fn check_barrier(&mut self, out: &mut Vec<Action>) {
        let Some(barrier) = &mut self.barrier else {
            return;
        };
        if !barrier.local {
            return;
        }
        let (number, is_done) = (barrier.number, barrier.remote.is_none());
        if is_done || !barrier.gated {
            let flushes = std::mem::take(&mut barrier.flushes);
            let result = flushes.first().map_or(Ok(()), |_| self.tell_loss());
            for each in flushes {
                if let Some(write) = each.write {
                    self.answered(write);
                }
                out.push(Action::Reply {
                    request: each.request,
                    result,
                });
            }
        }
        if is_done {
            self.barriers_done = number;
            self.barrier = None;
            self.tracker.finish_barrier();
            self.progress += 1;
        }
    }

    /// The other end has made everything up to `durable` durable.
    pub(super) fn peer_durable(&mut self, durable: u64, out: &mut Vec<Action>) {
        self.note_durable(durable);
        if let Some(barrier) = &mut self.barrier {
            if barrier.remote.is_some_and(|wanted| wanted <= durable) {
                barrier.remote = None;
                self.released = self.released.max(durable);
            }
        }
        self.check_barrier(out);
    }

    /// The barrier can't complete at the other end. Its flushes wait for another one if `again`.
    pub(super) fn abandon_barrier(&mut self, again: bool, out: &mut Vec<Action>) {
        if let Some(barrier) = &mut self.barrier {
            barrier.remote = None;
            barrier.gated = true;
            if again {
                self.flushes.append(&mut barrier.flushes);
            }
        }
        self.check_barrier(out);
    }

    /// The session goes on, but the other end may have forgotten that a sync was asked for.
    pub(super) fn ask_again(&mut self, out: &mut Vec<Action>) {
        let acked = self.acked;
        let forgotten = |barrier: &Barrier| barrier.remote.is_some_and(|wanted| wanted <= acked);
        if self.barrier.as_ref().is_some_and(forgotten) {
            let frame = Frame::new(Class::Flush, self.record.epoch);
            self.operation(frame, SentKind::Control, out);
            let (osn, now) = (self.osn, self.now);
            if let Some(barrier) = &mut self.barrier {
                barrier.remote = Some(osn);
                barrier.started = now;
            }
        }
    }
}
