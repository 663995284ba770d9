//! The replica link: greeting, the choice of what a session has to do, acknowledgements, silence.

use super::rollback::{OLDER, OLDER_AND_LOST};
use super::writes::SentKind;
use super::{Link, Primary, State, Step};
use crate::fault::Fault;
use crate::frame::{Class, Frame};
use crate::hello::{Begin, Hello, IMPOSSIBLE, OTHER_MIRROR};
use crate::io::Action;
use crate::types::{Failure, Mode, Phase, Role, Time};

/// Characters that are kept of a reason that the other end gives.
const REASON_MAX: usize = 400;

impl Primary {
    pub(super) fn connected(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, State::Fenced | State::Failed) {
            out.push(Action::Disconnect(Some("this end does not serve")));
            return;
        }
        self.link = Link::Greeting;
        self.last_heard = self.now;
        self.last_ping = self.now;
        self.greet(out);
    }

    pub(super) fn greet(&mut self, out: &mut Vec<Action>) {
        let hello = self.hello().encode();
        self.asked = self.now;
        self.peer = None;
        let frame = Frame::with_payload(Class::Hello, self.record.epoch, hello);
        out.push(Action::Send(frame));
    }

    pub(super) fn frame(&mut self, frame: Frame, out: &mut Vec<Action>) {
        if self.link == Link::Down {
            return;
        }
        self.last_heard = self.now;
        let is_of_epoch = frame.epoch == self.record.epoch;
        if !is_of_epoch && !matches!(frame.class, Class::Hello | Class::Refuse) {
            self.hang_up("a frame of another epoch", out);
            return;
        }
        match frame.class {
            Class::Hello => match Hello::decode(&frame.payload) {
                Some(hello) => self.greeted(hello, out),
                None => self.hang_up("malformed greeting", out),
            },
            Class::Begun => self.begun(&frame, out),
            Class::Ack => self.acknowledged(&frame, out),
            Class::Settled => self.settled(),
            Class::Committed => self.peer_committed(),
            Class::Data => self.fetched(&frame, out),
            Class::Map => self.mapped(&frame, out),
            Class::Verified => self.verified(&frame, out),
            Class::Streamed => self.streamed(&frame, out),
            // It is not asked for anything.
            Class::Refuse if matches!(self.link, Link::Greeting | Link::Ready) => {
                self.turned_away(frame.released, out);
            }
            Class::Refuse => {
                let text = String::from_utf8_lossy(&frame.payload);
                let is_shown = |each: &char| !each.is_control();
                let text: String = text.chars().filter(is_shown).take(REASON_MAX).collect();
                self.refused(&format!("the replica refused: {text}"), out);
            }
            _ => self.hang_up("a frame that only a primary sends", out),
        }
    }

    /// Another primary: the higher epoch wins.
    pub(super) fn challenged(&mut self, hello: &Hello, out: &mut Vec<Action>) {
        let is_newer = hello.volume == self.record.volume && hello.epoch > self.record.epoch;
        if is_newer && hello.is_possible(&self.record) && !self.is_faulty(Fault::EpochIgnored) {
            self.fence(hello.epoch, out);
        }
    }

    fn greeted(&mut self, hello: Hello, out: &mut Vec<Action>) {
        if hello.volume != self.record.volume {
            self.hang_up(OTHER_MIRROR, out);
        } else if hello.size != self.geometry.size || hello.block != self.geometry.block {
            self.hang_up("the other end's image has another size", out);
        } else if !hello.is_possible(&self.record) {
            self.hang_up(IMPOSSIBLE, out);
        } else if hello.epoch > self.record.epoch && !self.is_faulty(Fault::EpochIgnored) {
            self.fence(hello.epoch, out);
        } else if hello.role != Role::Secondary {
            self.heard_fenced(hello.role);
            self.hang_up("the other end is not a secondary; run resync there", out);
        } else if matches!(self.link, Link::Greeting | Link::Ready) {
            self.link = Link::Ready;
            self.heard_fenced(hello.role);
            self.has_logs = hello.log.is_some();
            self.features = hello.features;
            self.has_sessions = hello.sessions.is_some();
            self.peer = Some(hello);
            self.decide(out);
        }
    }

    fn heard_fenced(&mut self, role: Role) {
        if self.record.unfenced && role != Role::Primary {
            self.record.unfenced = false;
            self.record_changed = true;
        }
    }

    /// What this session has to do.
    pub(super) fn decide(&mut self, out: &mut Vec<Action>) {
        let Some(peer) = self.peer.clone().filter(|_| self.link == Link::Ready) else {
            return;
        };
        match self.state {
            State::Holding { .. } => {
                let is_old = self.is_rolled_back(&peer);
                let is_known = peer.generation == self.record.generation && !is_old;
                if !is_known || peer.phase != Phase::Consistent {
                    // Not the replica that this end was in sync with.
                    if self.is_lost() {
                        let reason = match is_old {
                            true => OLDER_AND_LOST,
                            false => "the other end is not the replica that may have newer data",
                        };
                        self.hang_up(reason, out);
                    } else if is_old {
                        self.disown(&peer, out);
                        self.leave(OLDER, out);
                    } else {
                        self.leave("the replica's generation is another one", out);
                    }
                    return;
                }
                let is_continued = self.continuing && self.tracker.dirty.is_empty();
                let begin = if is_continued && !peer.lost {
                    Begin::Resume
                } else if (self.is_lost() || !self.continuing)
                    && !peer.lost
                    && !self.is_faulty(Fault::PrimaryWinsAfterPowerCut)
                {
                    Begin::Pull
                } else {
                    Begin::Push
                };
                if begin != Begin::Resume {
                    self.tracker.lose();
                    self.abandon_barrier(true, out);
                }
                self.link = Link::Beginning(begin);
            }
            State::Semi if self.is_rolled_back(&peer) => {
                self.lose_stream(OLDER, out);
            }
            State::Semi => self.decide_semi(peer.log, out),
            State::Alone if self.wants_sync() && self.now >= self.next_try => {
                if peer.diverged {
                    self.next_try = self.now + self.settings.retry;
                    let frame = Frame::new(Class::MapRequest, self.record.epoch);
                    out.push(Action::Send(frame));
                } else {
                    self.begin_resync(&peer, out);
                }
            }
            _ => {}
        }
    }

    pub(super) fn wants_sync(&self) -> bool {
        self.record.mode != Mode::Async || self.resync_wanted
    }

    /// Sends what begins the session, once nothing of the last one is under way.
    pub(super) fn send_begin(&mut self, out: &mut Vec<Action>) {
        let Link::Beginning(begin) = self.link else {
            return;
        };
        let is_quiet = match begin {
            Begin::Push | Begin::Pull => {
                self.issued.values().all(|each| each.local)
                    && self.barrier.is_none()
                    && self.pulls.is_empty()
                    && self.reads.is_empty()
            }
            Begin::Resume | Begin::Continue { .. } => true,
            Begin::Resync { .. } => self.reads.is_empty(),
            Begin::Initial { .. } => {
                self.reads.is_empty() && !self.tracker.has_stale() && self.journal.is_idle()
            }
        };
        if !is_quiet || self.peer.is_none() || !self.ask_session() {
            return;
        }
        self.progress += 1;
        self.asked = self.now;
        self.is_acknowledging = false;
        self.peer = None;
        if !matches!(begin, Begin::Resume | Begin::Continue { .. }) {
            self.forget_sent();
            self.fetches.clear();
            self.copy_cursor = 0;
        }
        let mut frame = Frame::with_payload(Class::Begin, self.record.epoch, begin.encode());
        frame.sequence = self.acked + 1;
        frame.offset = self.asked_session();
        out.push(Action::Send(frame));
    }

    fn begun(&mut self, frame: &Frame, out: &mut Vec<Action>) {
        let Link::Beginning(begin) = self.link else {
            self.hang_up("an unexpected begin", out);
            return;
        };
        self.count_session();
        match (begin, self.state) {
            (Begin::Resume, State::Holding { .. }) => {
                self.link = Link::Session;
                self.state = State::InSync;
                self.reason.clear();
                let now = self.now;
                self.sent.iter_mut().for_each(|sent| sent.at = now);
                let mut frames: Vec<Frame> =
                    self.sent.iter().map(|each| each.frame.clone()).collect();
                self.sent_again();
                if self.is_faulty(Fault::ResendOutOfOrder) {
                    frames.reverse();
                }
                out.extend(frames.into_iter().map(Action::Send));
                self.ask_again(out);
            }
            (Begin::Push | Begin::Pull, State::Holding { .. }) => {
                self.link = Link::Session;
                self.state = State::Exchange {
                    pull: begin == Begin::Pull,
                    step: Step::Copying,
                };
            }
            (Begin::Continue { .. }, State::Semi) => self.continued(frame.sequence, out),
            (Begin::Resync { .. } | Begin::Initial { .. }, State::Alone) => {
                self.link = Link::Session;
                self.state = State::Resync;
                self.reason = "resync in progress".into();
            }
            _ => {
                // The state changed while the other end prepared: ask again what to do.
                self.link = Link::Greeting;
                self.greet(out);
            }
        }
        self.progress += 1;
    }

    fn acknowledged(&mut self, frame: &Frame, out: &mut Vec<Action>) {
        if self.link != Link::Session {
            return;
        }
        let (written, durable) = (frame.sequence, frame.released);
        if written > self.transmitted || durable > self.transmitted {
            self.hang_up("an acknowledgement of what was not sent", out);
            return;
        }
        self.arrived(written, out);
        self.peer_durable(durable, out);
        self.note_progress(frame.offset);
        if frame.length != 0 {
            let failure = Failure::from_code(frame.length).unwrap_or(Failure::Io);
            self.refused(&format!("the replica failed: {failure:?}"), out);
        }
    }

    /// It may take long until the other end has all of a unit, and journals it.
    fn note_progress(&mut self, received: u64) {
        let is_unit = self.sent.front().is_some_and(|sent| sent.is_formed);
        if is_unit && received > self.received && received <= self.transmitted {
            self.received = received;
            self.last_arrived = self.now;
        }
    }

    /// The other end has every operation up to `written`.
    pub(super) fn arrived(&mut self, written: u64, out: &mut Vec<Action>) {
        if written > self.acked {
            self.last_arrived = self.now;
            self.is_acknowledging = true;
            if self.state == State::InSync {
                self.awaited_until = None;
            }
        }
        self.acked = self.acked.max(written);
        while self
            .sent
            .front()
            .is_some_and(|sent| sent.frame.sequence <= written)
        {
            let Some(sent) = self.sent.pop_front() else {
                break;
            };
            self.landed(&sent);
            match sent.kind {
                SentKind::Write { number, bytes } => {
                    let took = self.now.saturating_sub(sent.issued);
                    self.latencies.received.add(self.now, took);
                    self.window_used = self.window_used.saturating_sub(bytes);
                    self.arrived_bytes += bytes;
                    self.lower(bytes);
                    self.note_received(number);
                    if let Some(issued) = self.issued.get_mut(&number) {
                        issued.peer = true;
                    }
                    self.complete(number, out);
                }
                SentKind::Copy { bytes } => {
                    self.copy_used = self.copy_used.saturating_sub(bytes);
                }
                SentKind::Control => {}
            }
            self.progress += 1;
        }
        if self.state == State::Semi {
            self.answer_waiting(out);
        }
    }

    /// The other end can't do what it was asked to.
    fn refused(&mut self, reason: &str, out: &mut Vec<Action>) {
        out.push(Action::Log(reason.into()));
        self.reason = reason.into();
        self.refusal = reason.into();
        self.next_try = self.now + self.settings.retry;
        match self.state {
            State::Semi | State::Finishing { .. }
                if self.stream.is_some() && self.record.mode != Mode::Semi =>
            {
                self.leave(reason, out);
            }
            State::Semi | State::Opening { ready: true } | State::Finishing { .. }
                if self.stream.is_some() =>
            {
                self.hang_up("the replica failed", out);
                self.reason = reason.into();
            }
            State::Resync | State::Finishing { .. } | State::Committing | State::Alone => {
                self.link = Link::Ready;
                self.peer = None;
                self.go_alone(out);
            }
            _ if self.record.mode == Mode::Strict && self.record.synced => {
                self.hang_up("the replica failed", out);
                if let State::Holding { until, failing } = &mut self.state {
                    *failing = until.is_some();
                }
                self.fail_if_refusing(out);
            }
            State::InSync
            | State::Opening { .. }
            | State::Entering
            | State::Exchange { pull: false, .. } => {
                self.link = Link::Ready;
                self.peer = None;
                self.leave(reason, out);
            }
            State::Holding { .. } | State::Exchange { .. } if !self.is_lost() => {
                self.link = Link::Ready;
                self.peer = None;
                self.leave(reason, out);
            }
            State::Exchange { .. } => self.hang_up("the exchange failed", out),
            _ => {}
        }
    }

    /// Ends the connection from this end.
    pub(super) fn hang_up(&mut self, reason: &'static str, out: &mut Vec<Action>) {
        if self.link != Link::Down {
            let is_known = self.link == Link::Greeting && self.reason == reason;
            out.push(Action::Disconnect((!is_known).then_some(reason)));
            self.link_lost(reason, out);
        }
    }

    /// There is no connection any more.
    pub(super) fn link_lost(&mut self, reason: &str, out: &mut Vec<Action>) {
        match self.link {
            Link::Down => return,
            // One over which nothing got through does not count: see `hold`.
            Link::Session if self.is_acknowledging || self.has_lasted() => {
                self.session_ended = self.last_heard;
            }
            _ => {}
        }
        self.link = Link::Down;
        self.peer = None;
        self.fetches.clear();
        self.reason = reason.into();
        match self.state {
            State::InSync | State::Opening { ready: false } => self.hold(),
            State::Finishing { .. } if self.stream.is_some() => self.enter_semi(out),
            State::Exchange { .. } => {
                self.tracker.lose();
                self.abandon_barrier(true, out);
                self.hold();
            }
            State::Resync | State::Finishing { .. } | State::Committing => self.go_alone(out),
            _ => {}
        }
        self.progress += 1;
    }

    /// Heartbeats, and what a deadline brings.
    pub(super) fn tick(&mut self, out: &mut Vec<Action>) {
        // A restart has to find that the disk failed.
        let is_noted = self.saved.boot == self.record.boot || self.is_faulty(Fault::LossForgotten);
        self.record_changed |= self.state == State::Failed && !is_noted;
        let quiet = self.now.saturating_sub(self.last_heard);
        if self.link != Link::Down {
            if quiet > self.settings.timeout && !self.is_faulty(Fault::StalledLinkUnseen) {
                self.hang_up("the replica is silent", out);
            } else if self.now.saturating_sub(self.last_ping) >= self.settings.heartbeat {
                self.last_ping = self.now;
                let mut frame = Frame::new(Class::Ping, self.record.epoch);
                frame.offset = self.in_sync_until();
                out.push(Action::Send(frame));
            }
        }
        // It answers heartbeats, but not what it was asked.
        let is_asked = self.link == Link::Greeting
            || matches!(self.link, Link::Beginning(_)) && self.peer.is_none();
        if is_asked && self.now.saturating_sub(self.asked) > self.settings.hold {
            self.hang_up("the replica does not answer", out);
        }
        if self.link == Link::Ready && self.state == State::Alone {
            let is_time = self.wants_sync() && self.now >= self.next_try;
            if is_time && self.peer.is_none() {
                self.link = Link::Greeting;
                self.greet(out);
            } else if is_time {
                self.decide(out);
            }
        }
        let is_idle = self.state == State::InSync && self.sent.is_empty() && self.barrier.is_none();
        let is_served = self.has_lasted() && !matches!(self.state, State::Exchange { .. });
        if self.link == Link::Session && (is_idle || is_served) {
            self.awaited_until = None;
        }
        // In semi-sync a long queue is not a replica that has stopped.
        let progress = self.stream.map_or(0, |_| self.last_arrived);
        let is_stalled =
            |since: Time| self.now.saturating_sub(since.max(progress)) > self.settings.hold;
        let barrier = self.barrier.as_ref().filter(|each| each.remote.is_some());
        // An end that needs the other's data waits without limit.
        let is_watched = !self.is_lost() && !self.is_faulty(Fault::FetchUnwatched);
        let fetched = self.fetches.values().map(|(_, at)| *at).min();
        let asked = (self.sent.front().map(|sent| sent.at))
            .or(barrier.map(|each| each.started))
            .or(fetched.or(self.concluding()).filter(|_| is_watched));
        if self.link == Link::Session && asked.is_some_and(is_stalled) {
            self.refused("the replica does not acknowledge what it was sent", out);
        }
        if let State::Holding {
            until: Some(until),
            failing,
        } = self.state
        {
            if self.now >= until && !failing {
                self.hold_expired(out);
            }
        }
        self.watch_window(out);
        self.confirm_session(out);
        let is_due = self.now.saturating_sub(self.last_barrier) >= self.settings.barrier;
        if is_due && self.tracker.undurable() && self.is_issuing() {
            self.barrier_wanted = true;
        }
    }

    /// Since when the other end writes the record that ends an exchange or a copy.
    fn concluding(&self) -> Option<Time> {
        let is_settling =
            matches!(self.state, State::Exchange { step, .. } if step == Step::Settling);
        (is_settling || self.state == State::Committing).then_some(self.asked)
    }

    pub(super) fn fail_if_refusing(&mut self, out: &mut Vec<Action>) {
        if self.is_refusing() {
            self.fail_outstanding(out);
            self.progress += 1;
        }
    }

    /// A hint for drivers: the connection is of no use.
    pub fn wants_link(&self) -> bool {
        self.link == Link::Down && !matches!(self.state, State::Fenced | State::Failed)
    }
}
