//! The primary: takes the clients' requests and keeps the other end equal to its image.

mod adaptive;
mod barrier;
mod copying;
mod link;
mod merging;
mod recording;
mod rollback;
mod semi;
mod state;
mod status;
mod tracking;
mod verify;
mod writes;

use crate::fault::Fault;
use crate::frame::Frame;
use crate::hello::{Begin, Hello};
use crate::io::{Action, Backend, File, Outcome, Token};
use crate::journal::Journal;
use crate::locks::RangeLocks;
use crate::rate::Rate;
use crate::record::Record;
use crate::tracker::Tracker;
use crate::types::{BootId, Geometry, Mode, Payload, Range, RequestId, Settings, Time, Window};
use barrier::{Barrier, Waiter};
use recording::Recording;
pub use recording::{MAGIC, RECORD};
pub use semi::Lag;
pub use status::{Counts, Latencies, Status};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use tracking::Commit;
pub use verify::{Progress, Verify};
use writes::{Issued, Request, Sent};

/// What a primary is told.
#[derive(Clone, Debug)]
pub enum Event {
    Write {
        request: RequestId,
        offset: u64,
        data: Payload,
        fua: bool,
    },
    Zero {
        request: RequestId,
        range: Range,
        punch: bool,
        fua: bool,
    },
    Flush {
        request: RequestId,
    },
    Done {
        token: Token,
        outcome: Outcome,
    },
    Connected,
    Frame(Frame),
    Disconnected,
    /// Another end connected to this one and says that it is a primary, too.
    Challenge(Hello),
    /// Time passes; `wall` is in seconds since 1970, for people.
    Tick {
        wall: u64,
    },
    SetMode(Mode),
    /// The limit of `semi-sync`.
    SetWindow(Window),
    /// Whether writes are merged, as far as `Settings.merge_above` says.
    Merge(bool),
    MergeAbove(u64),
    /// `Settings.compress`.
    Compress(bool),
    /// `Settings.durable`.
    Durable(bool),
    /// How long a write may wait in `semi-sync` before the part of the window that is in force
    /// grows (0: it does not), and that part (None: as it is).
    Adapt {
        within: Time,
        limit: Option<u64>,
    },
    /// Try to get in sync now.
    Resync,
    /// Serve without the other end, although it may have newer data.
    Force,
    /// Data of the image is gone: serving ends.
    Damaged(String),
    /// Bytes a second of a resync; 0: no limit.
    SetCopyRate(u64),
    /// Compare the images, so many bytes a second.
    Verify {
        rate: u64,
    },
    StopVerify,
    /// Have a resync copy what differs.
    VerifyResync,
}

/// docs/design-live.md has the transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// What was read from the files is made durable.
    Starting,
    /// In sync, without a session; acknowledgements are held. `until` None: the other end is
    /// needed, as it may have newer data.
    Holding {
        until: Option<Time>,
        failing: bool,
    },
    /// The tracked regions are made equal, before any new write.
    Exchange {
        pull: bool,
        step: Step,
    },
    InSync,
    /// Semi-sync is begun: the other end opens its redo log; then, if `ready`, the record is
    /// being written. Writes wait for both ends.
    Opening {
        ready: bool,
    },
    /// The other end journals the writes in order, and may be behind by the window.
    Semi,
    /// Acknowledgements are held: the barrier of this number makes durable what both ends have;
    /// then (None) the record that says "out of sync" is being written.
    Leaving(Option<u64>),
    /// Out of sync: changes are tracked.
    Alone,
    Resync,
    /// Everything is copied; from here on writes wait for the other end. The barrier of this
    /// number comes before the commit.
    Finishing {
        barrier: u64,
    },
    Committing,
    /// The record that says "in sync" is being written.
    Entering,
    /// A higher epoch exists.
    Fenced,
    /// The local disk failed a sync: what it holds is unknown.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Copying,
    Barrier(u64),
    Settling,
    Recording,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Link {
    Down,
    Greeting,
    /// The other end is known.
    Ready,
    /// `Begin` was sent.
    Beginning(Begin),
    /// Operations can be sent.
    Session,
}

pub struct Primary {
    settings: Settings,
    geometry: Geometry,
    fault: Option<Fault>,
    boot: BootId,
    record: Record,
    /// As it is on disk.
    saved: Record,
    /// The last number of a session that the other end may know.
    told: u64,
    record_changed: bool,
    /// Writes may be lost, and no client knows.
    is_untold: bool,
    tracker: Tracker,
    journal: Journal<Commit>,
    state: State,
    link: Link,
    peer: Option<Hello>,
    /// The exchange after this start was done.
    continuing: bool,
    now: Time,
    wall: u64,
    last_heard: Time,
    last_ping: Time,
    /// When the other end last acknowledged an operation.
    last_arrived: Time,
    /// It did so in this session.
    is_acknowledging: bool,
    /// The last operation that it said to have received.
    received: u64,
    /// Since when nothing is answered if the record says `bounded` and this is not semi-sync.
    withheld: Time,
    /// When the other end was last heard in a session that is over.
    session_ended: Time,
    /// When the other end was greeted, or told to begin, or to conclude an exchange or a copy.
    asked: Time,
    /// Until when clients wait for the other end, if they do since a connection was lost.
    awaited_until: Option<Time>,
    next_try: Time,
    /// Both ends are made equal once, whatever the mode; until they are.
    resync_wanted: bool,
    reason: String,
    /// The last one that the replica has refused something for.
    refusal: String,
    locks: RangeLocks,
    waiting: VecDeque<Request>,
    /// Extents that waiting writes need, the oldest write's first, which no other may displace.
    wanted: Vec<u32>,
    kept: std::ops::Range<u32>,
    issued: BTreeMap<u64, Issued>,
    next_number: u64,
    sent: VecDeque<Sent>,
    /// The last operation sent, the last one acknowledged as written, as durable at both ends.
    osn: u64,
    acked: u64,
    released: u64,
    /// The last operation of which the link has the frame, the bytes that it has and that are not
    /// acknowledged, and those that wait for it.
    transmitted: u64,
    flying: u64,
    held: u64,
    window_used: u64,
    copy_used: u64,
    /// The other end's redo log that the session uses.
    stream: Option<u64>,
    /// It knows redo logs.
    has_logs: bool,
    /// `Hello.features`.
    features: u8,
    /// It counts sessions. A confirmation is under way; when the last one was sent, and the last
    /// operation then.
    has_sessions: bool,
    confirming: bool,
    confirmed_at: Time,
    confirmed_osn: u64,
    /// When the other end is asked for a redo log again.
    next_stream: Time,
    /// Bytes of all writes sent, of those that the other end has, and of those answered.
    sent_bytes: u64,
    arrived_bytes: u64,
    answered_bytes: u64,
    /// Writes wait for the window; it was said.
    is_window_full: bool,
    /// M: the part of the window that is in force; None: all of it.
    limit: Option<u64>,
    /// What it gets smaller to.
    lowest: u64,
    flushes: Vec<Waiter>,
    barrier: Option<Barrier>,
    barrier_wanted: bool,
    barriers_started: u64,
    barriers_done: u64,
    last_barrier: Time,
    stale_saved_at: u64,
    copy_cursor: u64,
    copy_rate: Rate,
    pub verify: Verify,
    reads: HashMap<u64, Range>,
    /// What the other end was asked for, and when.
    fetches: HashMap<u64, (Range, Time)>,
    pulls: HashMap<u64, Range>,
    /// A fenced primary has nothing left to do.
    is_over: bool,
    progress: u64,
    recording: Option<Box<Recording>>,
    pub counts: Counts,
    pub latencies: Latencies,
}

impl Primary {
    /// A primary as its files describe it. It serves after the first actions are done.
    pub fn open(
        record: Record,
        boot: BootId,
        settings: Settings,
        backend: &dyn Backend,
        fault: Option<Fault>,
        out: &mut Vec<Action>,
    ) -> io::Result<Self> {
        let geometry = record.geometry;
        let tracker = Tracker::load(geometry, backend, !record.synced)?;
        let mut primary = Primary {
            copy_rate: Rate::new(settings.effective_copy_rate()),
            verify: Verify::default(),
            settings,
            geometry,
            fault,
            boot,
            saved: record.clone(),
            told: record.asked,
            record_changed: false,
            is_untold: false,
            record,
            tracker,
            journal: Journal::new(File::Tracking, Token::Tracking),
            state: State::Starting,
            link: Link::Down,
            peer: None,
            continuing: false,
            now: 0,
            wall: 0,
            last_heard: 0,
            last_ping: 0,
            last_arrived: 0,
            is_acknowledging: false,
            received: 0,
            withheld: 0,
            session_ended: 0,
            asked: 0,
            awaited_until: None,
            next_try: 0,
            resync_wanted: false,
            reason: String::new(),
            refusal: String::new(),
            locks: RangeLocks::default(),
            waiting: VecDeque::new(),
            wanted: Vec::new(),
            kept: 0..0,
            issued: BTreeMap::new(),
            next_number: 0,
            sent: VecDeque::new(),
            osn: 0,
            acked: 0,
            released: 0,
            transmitted: 0,
            flying: 0,
            held: 0,
            window_used: 0,
            copy_used: 0,
            stream: None,
            has_logs: false,
            features: 0,
            has_sessions: false,
            confirming: false,
            confirmed_at: 0,
            confirmed_osn: 0,
            next_stream: 0,
            sent_bytes: 0,
            arrived_bytes: 0,
            answered_bytes: 0,
            is_window_full: false,
            limit: None,
            lowest: 0,
            flushes: Vec::new(),
            barrier: None,
            barrier_wanted: false,
            barriers_started: 0,
            barriers_done: 0,
            last_barrier: 0,
            stale_saved_at: 0,
            copy_cursor: 0,
            reads: HashMap::new(),
            fetches: HashMap::new(),
            pulls: HashMap::new(),
            is_over: false,
            progress: 0,
            recording: None,
            counts: Counts::default(),
            latencies: Latencies::default(),
        };
        // What a killed process left in the page cache was read as if it were durable.
        let pages = primary.tracker.checkpoint();
        primary.journal.start(pages, Commit::Start, out);
        Ok(primary)
    }

    pub fn step(&mut self, now: Time, event: Event, out: &mut Vec<Action>) {
        self.now = self.now.max(now);
        match event {
            Event::Write {
                request,
                offset,
                data,
                fua,
            } => self.submit_write(request, offset, data, fua, out),
            Event::Zero {
                request,
                range,
                punch,
                fua,
            } => self.submit_zero(request, range, punch, fua, out),
            Event::Flush { request } => self.submit_flush(request, out),
            Event::Done { token, outcome } => self.done(token, outcome, out),
            Event::Connected => self.connected(out),
            Event::Frame(frame) => self.frame(frame, out),
            Event::Disconnected => self.link_lost("the connection to the replica ended", out),
            Event::Challenge(hello) => self.challenged(&hello, out),
            Event::Tick { wall } => {
                self.latencies.turn(now);
                self.wall = wall;
                self.tick(out);
            }
            Event::SetMode(mode) => self.set_mode(mode, out),
            Event::SetWindow(window) => self.set_window(window, out),
            Event::Merge(merge) => self.settings.merge = merge,
            Event::MergeAbove(bytes) => self.settings.merge_above = bytes,
            Event::Compress(compress) => self.settings.compress = compress,
            Event::Durable(durable) => self.settings.durable = durable,
            Event::Adapt { within, limit } => self.adapt(within, limit, out),
            Event::Resync => {
                self.resync_wanted = true;
                self.next_try = self.now;
            }
            Event::Force => self.force(out),
            Event::Damaged(problem) => self.fail(&problem, out),
            Event::SetCopyRate(rate) => {
                self.settings.copy_rate = rate;
                self.copy_rate = Rate::new(self.settings.effective_copy_rate());
            }
            Event::Verify { rate } => self.start_verify(rate, out),
            Event::StopVerify => self.stop_verify(out),
            Event::VerifyResync => self.mark_differing(out),
        }
        self.grow(out);
        self.pump(out);
        self.note_mode();
    }

    /// Does whatever can be done.
    fn pump(&mut self, out: &mut Vec<Action>) {
        loop {
            let before = self.progress;
            self.pump_state(out);
            self.pump_verify(out);
            self.pump_writes(out);
            self.pump_barrier(out);
            self.pump_copies(out);
            self.transmit(out);
            self.pump_tracking(out);
            if self.progress == before {
                return;
            }
        }
    }

    fn done(&mut self, token: Token, outcome: Outcome, out: &mut Vec<Action>) {
        match token {
            Token::Write(number) => self.written(number, &outcome, out),
            Token::Sync => self.synced(&outcome, out),
            Token::Tracking => match self.journal.done(&outcome, out) {
                Ok(Some(commit)) => self.committed(commit, out),
                Ok(None) => {}
                Err(problem) => self.fail(&problem, out),
            },
            Token::Copy(offset) => self.copy_read(offset, outcome, out),
            Token::Verify(offset) => self.verify_read(offset, outcome, out),
            Token::Pull(offset) => self.pulled(offset, &outcome, out),
            _ => {}
        }
    }

    fn is_faulty(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Unflushed writes of this end may be gone.
    fn is_lost(&self) -> bool {
        self.record.synced && self.record.boot != self.boot
    }

    /// Writes wait for the other end.
    fn is_gated(&self) -> bool {
        matches!(
            self.state,
            State::InSync
                | State::Opening { .. }
                | State::Finishing { .. }
                | State::Committing
                | State::Entering
        )
    }

    /// Operations go to the other end; in semi-sync once it can be reached.
    fn is_sending(&self) -> bool {
        let is_linked = self.is_gated() || self.state == State::Resync;
        self.link == Link::Session && is_linked || self.state == State::Semi
    }

    /// Nothing is served any more: reads fail.
    pub fn is_failed(&self) -> bool {
        self.state == State::Failed
    }

    /// True while a read returns what was acknowledged, and what no exchange can take back.
    pub fn is_readable(&self) -> bool {
        match self.state {
            State::Starting | State::Fenced | State::Failed => false,
            // Until the record says otherwise, what the replica has may still replace this image.
            State::Leaving(_) if self.is_faulty(Fault::ReadBeforeRecord) => true,
            State::Holding { .. } | State::Exchange { .. } | State::Leaving(_) => self.continuing,
            _ => true,
        }
    }
}
