//! The secondary: executes the primary's operations in order and keeps a consistent image.

mod breaking;
mod operations;
mod redo;
mod session;
mod undo;
mod verify;

use crate::fault::Fault;
use crate::frame::Frame;
use crate::hello::{Begin, Hello};
use crate::io::{Action, Backend, File, Outcome, Token};
use crate::journal::Journal;
use crate::layout;
use crate::locks::RangeLocks;
use crate::record::Record;
use crate::side;
use crate::tracker::Tracker;
use crate::types::{BootId, Failure, Geometry, Payload, Phase, Range, Settings, Time};
use breaking::Breaking;
use redo::Redo;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use undo::Undo;

/// What a secondary is told.
#[derive(Clone, Debug)]
pub enum Event {
    Done {
        token: Token,
        outcome: Outcome,
    },
    Connected,
    Frame(Frame),
    Disconnected,
    Tick {
        wall: u64,
    },
    /// All that was received together has been passed on: acknowledge it.
    Turn,
    /// Become the primary of the next epoch.
    Break,
}

/// What becomes true when a transaction on the tracking file is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Commit {
    Start,
    Begin,
    Settle,
    /// Blocks that a rollback changes are in the map.
    Marked,
    /// The record says so.
    Noted,
    /// This end's own map is empty.
    Wiped,
    Consistent,
    Broken,
    /// The record says that unflushed writes are gone.
    Lost,
    /// The redo log may be used.
    Opening,
    /// The image has all of the redo log.
    Closing,
    /// Until when both ends were in sync.
    Since,
}

/// What the queue waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Busy {
    No,
    Starting,
    Beginning(Begin, u64),
    Settling,
    Committing,
    /// The record is being written, and changes nothing.
    Noting,
    /// A redo log that begins after this operation is being opened.
    Opening(u64),
    /// A sync of the image failed, and the record does not say so yet.
    Losing,
}

pub struct Replica {
    settings: Settings,
    geometry: Geometry,
    fault: Option<Fault>,
    boot: BootId,
    record: Record,
    tracker: Tracker,
    journal: Journal<Commit>,
    connected: bool,
    /// Operations are accepted.
    session: bool,
    /// They go to the redo log.
    logging: bool,
    busy: Busy,
    /// The primary that asked for the session that begins is still connected.
    is_awaited: bool,
    queue: VecDeque<Frame>,
    queued_bytes: u64,
    /// The operation that comes next; those up to `written` are done.
    expected: u64,
    written: u64,
    finished: BTreeSet<u64>,
    durable: u64,
    flushes: VecDeque<u64>,
    /// The sync in progress covers operations up to here.
    syncing: Option<u64>,
    ack_due: bool,
    /// What a commit in progress leads to.
    pending_generation: u64,
    pending_since: u64,
    /// What the record on disk says.
    saved_since: u64,
    inflight: HashMap<u64, Range>,
    fetches: HashMap<u64, Range>,
    /// This end's map was sent in this turn.
    is_mapped: bool,
    /// Digests to compare with what is being read, by operation.
    verifying: HashMap<u64, Payload>,
    locks: RangeLocks,
    undo: Undo,
    redo: Redo,
    breaking: Breaking,
    /// Reopened from the files: nothing counts any more.
    is_over: bool,
    now: Time,
    wall: u64,
    last_heard: Time,
    last_ack: Time,
    pub problem: String,
    pub applied_bytes: u64,
}

/// What `status` shows.
#[derive(Clone, Debug)]
pub struct Status {
    pub phase: Phase,
    pub epoch: u64,
    pub generation: u64,
    pub connected: bool,
    pub session: bool,
    pub lost: bool,
    pub since: u64,
    pub before_image_bytes: u64,
    /// Operations in the redo log that are not in the image yet; None: no log is open.
    pub redo: Option<usize>,
    /// A break is in progress; so many before-images have yet to be written back.
    pub breaking: bool,
    pub rollback: usize,
    pub problem: String,
}

impl Replica {
    pub fn open(
        record: Record,
        boot: BootId,
        settings: Settings,
        backend: &dyn Backend,
        fault: Option<Fault>,
        out: &mut Vec<Action>,
    ) -> io::Result<Self> {
        let geometry = record.geometry;
        let tracker = if record.diverged {
            Tracker::load(geometry, backend, true)?
        } else {
            Tracker::new(geometry)
        };
        let undo = match record.phase {
            Phase::Resync => Undo::load(backend, &geometry, record.side)?,
            _ => Some(Undo::new(geometry.blocks())),
        };
        let has_undo = undo.is_some();
        // A log that the record does not name was not used yet, or the image has all of it and may
        // be ahead of it by now. In `Phase::Empty` the one that it names is lost.
        let redo = match (record.phase, record.log) {
            (Phase::Empty, _) | (_, 0) => Redo::new(),
            _ => Redo::load(backend, &geometry)?,
        };
        let mut replica = Replica {
            saved_since: record.since,
            settings,
            geometry,
            fault,
            boot,
            record,
            tracker,
            journal: Journal::new(File::Tracking, Token::Tracking),
            connected: false,
            session: false,
            logging: false,
            busy: Busy::Starting,
            is_awaited: false,
            queue: VecDeque::new(),
            queued_bytes: 0,
            expected: 1,
            written: 0,
            finished: BTreeSet::new(),
            durable: 0,
            flushes: VecDeque::new(),
            syncing: None,
            ack_due: false,
            pending_generation: 0,
            pending_since: 0,
            inflight: HashMap::new(),
            fetches: HashMap::new(),
            is_mapped: false,
            verifying: HashMap::new(),
            locks: RangeLocks::default(),
            undo: undo.unwrap_or_else(|| Undo::new(geometry.blocks())),
            redo,
            breaking: Breaking::No,
            is_over: false,
            now: 0,
            wall: 0,
            last_heard: 0,
            last_ack: 0,
            problem: String::new(),
            applied_bytes: 0,
        };
        // What a killed process left in the page cache was read as if it were durable.
        let pages = if has_undo {
            replica.check_log(backend, out)?
        } else {
            vec![replica.lose_undo(out)]
        };
        replica.journal.start(pages, Commit::Start, out);
        replica
            .undo
            .journal
            .start(Vec::new(), undo::Step::Start, out);
        // What is left of a log that does not count must not count again.
        if backend.size(File::Log)? > 0 {
            let is_left = replica.redo.log() == 0;
            let pages = is_left.then(|| (0, replica.redo.closed_slot()));
            let journal = &mut replica.redo.journal;
            journal.start(pages.into_iter().collect(), redo::Step::Start, out);
        }
        Ok(replica)
    }

    pub fn step(&mut self, now: Time, event: Event, out: &mut Vec<Action>) {
        self.now = self.now.max(now);
        if self.is_over {
            return;
        }
        match event {
            Event::Done { token, outcome } => self.done(token, outcome, out),
            Event::Connected => {
                self.disconnected();
                self.connected = true;
                self.last_heard = self.now;
            }
            Event::Frame(frame) => self.frame(frame, out),
            Event::Disconnected => self.disconnected(),
            Event::Tick { wall } => {
                self.wall = wall;
                let quiet = self.now.saturating_sub(self.last_heard);
                if self.connected && quiet > 2 * self.settings.timeout {
                    self.hang_up("the primary is silent", out);
                }
                self.show_life();
                self.retry_redo(out);
                self.note_loss(out);
                self.note_sync(out);
            }
            Event::Turn => {
                self.is_mapped = false;
                return self.acknowledge(out);
            }
            Event::Break => self.start_break(out),
        }
        self.pump(out);
    }

    fn done(&mut self, token: Token, outcome: Outcome, out: &mut Vec<Action>) {
        match token {
            Token::Write(osn) => self.executed(osn, &outcome, out),
            Token::Sync => self.synced(&outcome, out),
            Token::Tracking => match self.journal.done(&outcome, out) {
                Ok(Some(commit)) => self.committed(commit, out),
                Ok(None) => {}
                // Started again from this record, it would not know: the next tick tries again.
                Err(_) if self.busy == Busy::Losing && !self.is_faulty(Fault::LossForgotten) => {
                    self.report_break(out);
                }
                Err(problem) => self.fail(&problem, out),
            },
            Token::Verify(osn) => self.compared(osn, outcome, out),
            Token::Copy(offset) => self.fetched(offset, outcome, out),
            Token::Before(offset) => self.before_read(offset, outcome, out),
            Token::Side => self.side_done(&outcome, out),
            Token::Rollback | Token::Pull(_) => self.rollback_step(token, outcome, out),
            Token::Log => self.log_done(&outcome, out),
            Token::Redo(number) => self.applied(number, outcome, out),
            Token::Checkpoint => self.checkpointed(&outcome, out),
        }
    }

    fn pump(&mut self, out: &mut Vec<Action>) {
        if self.is_over {
            return;
        }
        self.pump_break(out);
        self.pump_queue(out);
        self.pump_sync(out);
        self.pump_redo(out);
    }

    fn is_faulty(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Unflushed writes of this end may be gone.
    fn is_lost(&self) -> bool {
        self.record.boot != self.boot
    }

    /// The primary was heard just now.
    pub fn is_hearing(&self, now: Time) -> bool {
        self.connected && now.saturating_sub(self.last_heard) <= 2 * self.settings.heartbeat
    }

    /// Nothing of an operation is under way.
    fn is_quiet(&self) -> bool {
        self.inflight.is_empty()
            && self.syncing.is_none()
            && self.journal.is_idle()
            && self.undo.is_idle()
            && self.redo.is_quiet()
            && self.fetches.is_empty()
    }

    /// Where much is under way, what the primary asks for a sign of life comes after it.
    fn show_life(&mut self) {
        let is_time = self.now.saturating_sub(self.last_ack) >= self.settings.heartbeat;
        if is_time && self.session && self.last_heard > self.last_ack {
            self.ack_due = true;
        }
    }

    /// Without the primary, the time until which both ends were in sync does not change any more.
    fn note_sync(&mut self, out: &mut Vec<Action>) {
        let is_idle = self.busy == Busy::No && self.breaking.is_no() && self.is_quiet();
        if !self.connected && is_idle && self.saved_since != self.record.since {
            self.busy = Busy::Noting;
            self.save_record(Commit::Since, out);
        }
    }

    fn save_record(&mut self, commit: Commit, out: &mut Vec<Action>) {
        let page = self.next_record();
        self.journal.start(vec![page], commit, out);
    }

    fn next_record(&mut self) -> (u64, Vec<u8>) {
        self.saved_since = self.record.since;
        self.record.serial += 1;
        let at = layout::record_offset(self.record.serial);
        (at, self.record.encode())
    }

    /// No image of this end is consistent: everything is copied. Returns the record that says so.
    fn lose_image(&mut self, problem: String, out: &mut Vec<Action>) -> (u64, Vec<u8>) {
        out.push(Action::Log(problem.clone()));
        self.problem = problem;
        self.redo = Redo::new();
        self.record.phase = Phase::Empty;
        // One that no primary knows as its initial copy.
        self.record.generation = 0;
        self.next_record()
    }

    fn disconnected(&mut self) {
        self.connected = false;
        self.end_session();
    }

    fn end_session(&mut self) {
        self.session = false;
        self.logging = false;
        // The next one may number its operations from another one on.
        if !self.is_faulty(Fault::OldBeginAnswered) {
            self.is_awaited = false;
        }
        self.redo.forget_collected();
        self.queue.clear();
        self.queued_bytes = 0;
        self.flushes.clear();
        self.ack_due = false;
    }

    fn hang_up(&mut self, reason: &'static str, out: &mut Vec<Action>) {
        if self.connected {
            self.problem = reason.into();
            out.push(Action::Disconnect(Some(reason)));
            self.disconnected();
        }
    }

    /// The tracking or side file failed: what is in memory may be ahead of it.
    fn fail(&mut self, problem: &str, out: &mut Vec<Action>) {
        self.problem = problem.into();
        out.push(Action::Log(format!("the replica failed: {problem}")));
        self.reopen(out);
    }

    /// Starts again from the files. A break that is in progress can be asked for again.
    fn reopen(&mut self, out: &mut Vec<Action>) {
        if !self.is_over {
            self.report_break(out);
            self.report_failure(Failure::Io, out);
            self.is_over = true;
            out.push(Action::Reopen);
        }
    }

    /// A break that is in progress failed.
    fn report_break(&mut self, out: &mut Vec<Action>) {
        if std::mem::replace(&mut self.breaking, Breaking::No).is_no() {
            return;
        }
        let problem = match self.record.phase {
            Phase::Empty => self.problem.clone(),
            _ => format!(
                "the break failed: {}; repair the disk of this end, then run break again",
                self.problem
            ),
        };
        out.push(Action::Report(Err(problem)));
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    pub fn hello(&self) -> Hello {
        Hello {
            log: Some(self.redo.log()),
            ..Hello::of(&self.record, self.is_lost())
        }
    }

    /// Bytes received and not yet executed; a driver reads no more above its bound.
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    pub fn status(&self) -> Status {
        Status {
            phase: self.record.phase,
            epoch: self.record.epoch,
            generation: self.record.generation,
            connected: self.connected,
            session: self.session,
            lost: self.is_lost(),
            since: self.record.since,
            before_image_bytes: self.undo.end.saturating_sub(side::HEAD),
            redo: (self.redo.log() != 0).then_some(self.redo.left()),
            breaking: !self.breaking.is_no(),
            rollback: self.breaking.rollback_left(),
            problem: self.problem.clone(),
        }
    }
}
