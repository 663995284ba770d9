//! Greeting, the beginning and the end of a session, acknowledgements.

use super::{Busy, Commit, Replica};
use crate::fault::Fault;
use crate::frame::{Class, Frame, FLAG, HEADER};
use crate::hello::{is_possible, Begin, Hello, IMPOSSIBLE};
use crate::io::{Action, File, Outcome, Token};
use crate::side;
use crate::types::{Failure, Phase, Range, Role};

/// Ranges that are read for the primary at a time.
const FETCHES: usize = 64;
/// Runs of blocks in one frame of a map.
const RUNS: usize = 4096;

/// What a frame in the queue counts for: what is asked for has to be held, too.
pub(super) fn cost(frame: &Frame) -> u64 {
    let answer = match frame.class {
        Class::Fetch => u64::from(frame.length),
        _ => 0,
    };
    HEADER as u64 + frame.payload.len() as u64 + answer
}

impl Replica {
    pub(super) fn send(&mut self, mut frame: Frame, out: &mut Vec<Action>) {
        frame.epoch = self.record.epoch;
        out.push(Action::Send(frame));
    }

    pub(super) fn frame(&mut self, frame: Frame, out: &mut Vec<Action>) {
        // While it breaks, this end's epoch is not durable yet: it tells nobody.
        if !self.connected || !self.breaking.is_no() {
            return;
        }
        self.last_heard = self.now;
        if frame.class.is_operation() {
            self.receive(frame, out);
            return;
        }
        match frame.class {
            Class::Hello => self.greet(&frame, out),
            Class::Ping => {
                self.ack_due = true;
                if frame.offset > 0 && frame.epoch == self.record.epoch {
                    self.record.since = frame.offset;
                }
            }
            Class::Begin => {
                self.end_session();
                if self.is_sound(&frame) && frame.epoch >= self.record.epoch {
                    self.record.epoch = frame.epoch;
                    self.count_session(&frame);
                    self.problem.clear();
                    self.enqueue(frame);
                } else {
                    self.hang_up("malformed or outdated begin", out);
                }
            }
            Class::Fetch | Class::MapRequest if frame.epoch >= self.record.epoch => {
                self.enqueue(frame);
            }
            _ => self.hang_up("a frame that only a secondary sends", out),
        }
    }

    /// Whether it is complete, and its numbers are possible.
    fn is_sound(&self, begin: &Frame) -> bool {
        let generation = match Begin::decode(&begin.payload) {
            Some(Begin::Initial { generation }) => generation,
            Some(_) => 0,
            None => return false,
        };
        (1..1 << 62).contains(&begin.sequence)
            && is_possible(begin.epoch, self.record.epoch)
            && is_possible(begin.offset, self.record.session)
            && is_possible(generation, self.record.generation)
    }

    fn greet(&mut self, frame: &Frame, out: &mut Vec<Action>) {
        let theirs = Hello::decode(&frame.payload);
        let Some(theirs) = theirs.filter(|hello| hello.volume == self.record.volume) else {
            self.hang_up("the primary belongs to another mirror", out);
            return;
        };
        if !is_possible(theirs.epoch, self.record.epoch) {
            self.hang_up(IMPOSSIBLE, out);
            return;
        }
        if theirs.role == Role::Primary {
            // It becomes durable with the session.
            self.record.epoch = self.record.epoch.max(theirs.epoch);
        }
        let hello = self.hello().encode();
        self.send(Frame::with_payload(Class::Hello, 0, hello), out);
    }

    /// It becomes durable before the frame is answered.
    pub(super) fn count_session(&mut self, frame: &Frame) {
        if is_possible(frame.offset, self.record.session) {
            self.record.session = self.record.session.max(frame.offset);
        }
        self.record.asked = self.record.session;
    }

    pub(super) fn enqueue(&mut self, frame: Frame) {
        self.queued_bytes += cost(&frame);
        self.queue.push_back(frame);
    }

    fn receive(&mut self, frame: Frame, out: &mut Vec<Action>) {
        if !self.session && self.queue.is_empty() {
            // What was sent before the primary learned that the session is over.
            return;
        }
        if frame.epoch != self.record.epoch {
            self.hang_up("an operation of another epoch", out);
            return;
        }
        self.enqueue(frame);
    }

    pub(super) fn refuse(&mut self, reason: &str, out: &mut Vec<Action>) {
        self.problem = reason.into();
        self.end_session();
        let payload = reason.as_bytes().to_vec();
        self.send(Frame::with_payload(Class::Refuse, 0, payload), out);
    }

    /// Starts what `Begin` asks for. Nothing of an earlier session is under way.
    pub(super) fn begin(&mut self, frame: &Frame, out: &mut Vec<Action>) {
        let Some(begin) = Begin::decode(&frame.payload) else {
            return;
        };
        let is_possible = match begin {
            Begin::Resume => self.record.phase == Phase::Consistent && !self.is_lost(),
            Begin::Push | Begin::Pull => self.record.phase == Phase::Consistent,
            Begin::Resync { .. } => self.record.phase != Phase::Empty,
            Begin::Initial { .. } => self.record.phase == Phase::Empty,
            Begin::Continue { log } => self.can_continue(log),
        };
        if !is_possible {
            let phase = self.record.phase.name();
            self.refuse(&format!("{begin:?} is not possible while {phase}"), out);
            return;
        }
        self.busy = Busy::Beginning(begin, frame.sequence);
        self.is_awaited = true;
        self.finished.clear();
        match begin {
            Begin::Resync { bytes } => {
                let bytes = bytes.min(self.geometry.size);
                let more = side::needed(bytes, self.geometry.block);
                let base = if self.record.phase == Phase::Resync {
                    self.undo.end
                } else {
                    side::HEAD
                };
                self.reserve(base + more, out);
            }
            Begin::Initial { generation } => {
                self.record.generation = generation;
                self.save_record(Commit::Begin, out);
            }
            _ => self.save_record(Commit::Begin, out),
        }
    }

    pub(super) fn begun(&mut self, out: &mut Vec<Action>) {
        let Busy::Beginning(begin, mut from) = self.busy else {
            return;
        };
        self.busy = Busy::No;
        let is_continued = matches!(begin, Begin::Continue { .. });
        if is_continued {
            from = self.redo.logged + 1;
        }
        self.expected = from;
        self.written = from - 1;
        self.durable = from - 1;
        if self.connected && self.is_awaited {
            self.session = true;
            self.logging = is_continued;
            let mut frame = Frame::new(Class::Begun, 0);
            if is_continued {
                frame.sequence = self.redo.logged;
            }
            self.send(frame, out);
        }
    }

    pub(super) fn committed(&mut self, commit: Commit, out: &mut Vec<Action>) {
        match commit {
            Commit::Start | Commit::Since => self.busy = Busy::No,
            Commit::Begin => self.begun(out),
            Commit::Settle => {
                self.busy = Busy::No;
                self.send_if_connected(Class::Settled, out);
            }
            Commit::Consistent => {
                self.busy = Busy::No;
                self.drop_before_images(out);
                self.send_if_connected(Class::Committed, out);
            }
            Commit::Wiped => self.save_consistent(out),
            Commit::Marked => self.marked(out),
            Commit::Noted => self.roll_back(self.undo.entries.len(), out),
            Commit::Lost => self.reopen(out),
            Commit::Opening => self.log_in_use(out),
            Commit::Closing => {}
            Commit::Broken => self.broken(out),
        }
    }

    fn send_if_connected(&mut self, class: Class, out: &mut Vec<Action>) {
        if self.session {
            self.send(Frame::new(class, 0), out);
        }
    }

    /// Reads a range for a primary that lost its memory. False if it has to wait.
    pub(super) fn fetch(&mut self, frame: &Frame, out: &mut Vec<Action>) -> bool {
        let range = Range::new(frame.offset, frame.length);
        if !self.geometry.contains(range)
            || range.length > self.settings.copy_chunk.max(self.geometry.block)
        {
            self.hang_up("a fetch outside the image", out);
            return false;
        }
        if self.fetches.len() >= FETCHES || self.fetches.contains_key(&range.offset) {
            return false;
        }
        self.fetches.insert(range.offset, range);
        out.push(Action::Read {
            file: File::Image,
            offset: range.offset,
            length: range.length,
            token: Token::Copy(range.offset),
        });
        true
    }

    pub(super) fn fetched(&mut self, offset: u64, outcome: Outcome, out: &mut Vec<Action>) {
        let Some(range) = self.fetches.remove(&offset) else {
            return;
        };
        match outcome {
            Outcome::Data(data) if self.session => {
                let mut frame = Frame::with_payload(Class::Data, 0, data);
                (frame.offset, frame.length) = (range.offset, range.length);
                self.send(frame, out);
            }
            Outcome::Data(_) => {}
            _ => self.report_failure(Failure::Io, out),
        }
    }

    /// Sends the blocks that this end changed as a primary, once for all that ask for them in a turn.
    pub(super) fn send_map(&mut self, out: &mut Vec<Action>) {
        if std::mem::replace(&mut self.is_mapped, true) {
            return;
        }
        let mut from = 0;
        loop {
            let mut payload = Vec::new();
            for _ in 0..RUNS {
                let Some(run) = self.tracker.dirty.run(from, 1 << 31) else {
                    break;
                };
                payload.extend_from_slice(&run.start.to_le_bytes());
                payload.extend_from_slice(&(run.end - run.start).to_le_bytes());
                from = run.end;
            }
            let is_last = self.tracker.dirty.next(from).is_none();
            let mut frame = Frame::with_payload(Class::Map, 0, payload);
            frame.flags = if is_last { FLAG } else { 0 };
            self.send(frame, out);
            if is_last {
                return;
            }
        }
    }

    /// Tells the primary that this end can't go on; what follows in the session is dropped.
    pub(super) fn report_failure(&mut self, failure: Failure, out: &mut Vec<Action>) {
        if self.connected {
            let mut frame = Frame::new(Class::Ack, 0);
            frame.sequence = self.written;
            frame.released = self.durable;
            frame.length = failure as u32;
            self.send(frame, out);
        }
        self.end_session();
    }

    pub(super) fn acknowledge(&mut self, out: &mut Vec<Action>) {
        if !self.ack_due || !self.connected {
            return;
        }
        self.ack_due = false;
        self.last_ack = self.now;
        let mut frame = Frame::new(Class::Ack, 0);
        if self.session {
            frame.sequence = self.written;
            frame.released = self.durable;
            frame.offset = self.expected - 1;
        }
        self.send(frame, out);
    }

    pub(super) fn advance(&mut self, osn: u64) {
        self.finished.insert(osn);
        if self.is_faulty(Fault::ResendOutOfOrder) {
            self.written = self.written.max(osn);
        }
        while self.finished.remove(&(self.written + 1)) {
            self.written += 1;
        }
        self.ack_due = true;
    }
}
