//! Two ends, a network and a client, in virtual time.

mod client;
mod healing;
mod network;
mod nodes;
mod prefix;
mod verify;

use crate::disk::{Disk, Loss};
use crate::history::{Clock, History, Secured};
use crate::plan::{geometry, Op, Plan, Tuning, MILLISECOND};
use crate::rng::Rng;
use mirrord_live_core::fault::Fault;
use mirrord_live_core::frame::{Class, Frame};
use mirrord_live_core::hello::Hello;
use mirrord_live_core::io::{Action, Backend, File, Outcome, Token};
use mirrord_live_core::primary::{self, Primary, State};
use mirrord_live_core::record::Record;
use mirrord_live_core::replica::{self, Replica};
use mirrord_live_core::setup;
use mirrord_live_core::types::{Failure, Mode, Phase, Range, Role, Settings, Time, Window, SECOND};
use prefix::Prefix;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use verify::Flip;

/// Times and sizes of a run; production has them a thousand times larger.
pub fn settings() -> Settings {
    Settings {
        within: 0,
        hold: 1500 * MILLISECOND,
        heartbeat: 50 * MILLISECOND,
        timeout: 250 * MILLISECOND,
        window: 6 << 10,
        copy_window: 4 << 10,
        copy_chunk: 2 << 10,
        copy_rate: 0,
        copy_rate_min: 1 << 10,
        barrier: 120 * MILLISECOND,
        retry: 150 * MILLISECOND,
        pages: 2,
        semi: Window {
            bytes: 3 << 10,
            time: Time::MAX,
        },
        log: 20 << 10,
        merge: true,
        merge_above: u64::MAX,
        unit: 3 << 10,
        compress: false,
        durable: false,
    }
}

/// Nothing may stay unanswered for longer while the primary runs in `sync` mode.
const ANSWER_WITHIN: Time = 6000 * MILLISECOND;
/// Everything is in sync again after so long without accidents.
const HEAL_WITHIN: Time = 40_000 * MILLISECOND;

pub(crate) enum Machine {
    Down,
    Primary(Box<Primary>),
    Replica(Box<Replica>),
    Fenced,
}

pub(crate) struct Node {
    pub machine: Machine,
    pub disk: Disk,
    boot: u8,
    /// Counts the starts, so that what belongs to an earlier one is told apart.
    life: u64,
    stalled_until: Time,
    /// A copy of an earlier state.
    kept: Option<Disk>,
    fail_read: bool,
    fail_write: bool,
    fail_sync: bool,
    fail_reserve: bool,
    /// A file of the records; true: its sync fails.
    fail_records: Option<(File, bool)>,
    /// When it last needed the other end's data, for which it waits without limit.
    needed_peer: Time,
    /// Writes that were handed to the disk and are not done.
    inflight: BTreeMap<u64, (File, u64, Vec<u8>)>,
}

struct Connection {
    number: u64,
    initiator: usize,
    /// Nothing more arrives from this end.
    dead: [bool; 2],
    last: [Time; 2],
}

enum What {
    Script(usize),
    Tick {
        node: usize,
        life: u64,
    },
    Start {
        node: usize,
    },
    Io {
        node: usize,
        life: u64,
        number: u64,
        token: Token,
        io: Io,
    },
    Connected {
        connection: u64,
        node: usize,
    },
    Frame {
        connection: u64,
        to: usize,
        frame: Frame,
        corrupt: bool,
    },
    Disconnected {
        connection: u64,
        node: usize,
    },
}

enum Io {
    Write(File, u64, Vec<u8>),
    Read(File, u64, u32),
    Sync(File, u64),
    Reserve(File, u64),
}

enum Asked {
    Write { fua: bool },
    Flush { start: Clock },
}

/// One run.
pub struct World {
    pub(crate) plan: Plan,
    rng: Rng,
    fault: Option<Fault>,
    pub now: Time,
    pub steps: u64,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    events: HashMap<u64, What>,
    next: u64,
    pub(crate) nodes: [Node; 2],
    connections: Vec<Connection>,
    blocked: [bool; 2],
    narrow: [bool; 2],
    delay: [Time; 2],
    drag: Time,
    corrupt: [bool; 2],
    pub(crate) history: History,
    asked: HashMap<u64, Asked>,
    next_request: u64,
    /// Where the client is connected.
    pub(crate) primary: usize,
    /// The client waits for a served image to look at.
    recovering: bool,
    lost: [bool; 2],
    /// Roles parted, and the ends were not in sync since.
    broken: bool,
    /// The secondary that was told to take over has never had a consistent image.
    has_no_image: bool,
    healing: bool,
    prefix: Prefix,
    /// Since when nothing went wrong.
    calm_since: Time,
    /// When a write last had a reason to wait in semi-sync.
    window_full: Time,
    /// When requests last had a reason to wait without limit in semi-sync.
    excused: Time,
    /// When the mode was last changed from `semi-sync`, in which requests may wait.
    left_semi: Time,
    flip: Flip,
    /// An end was replaced by an older copy of itself, and the ends were not made equal since.
    is_apart: bool,
    /// It was the secondary.
    is_aged: bool,
    /// Nothing is checked any more.
    is_void: bool,
    pub violation: Option<String>,
    pub trace: Option<Vec<String>>,
    /// For exhaustive runs: accidents before the event of that number.
    pub accidents: Vec<(u64, Op)>,
    pub reached: [u64; 7],
}

impl World {
    pub fn new(plan: Plan, fault: Option<Fault>) -> World {
        let mut disks = [Disk::default(), Disk::default()];
        for (node, role) in [Role::Primary, Role::Secondary].into_iter().enumerate() {
            let mut record = Record::new([7; 16], geometry(), role, [1; 16]);
            if plan.synced {
                record.synced = role == Role::Primary;
                record.generation = 1;
                record.phase = Phase::Consistent;
            }
            let image = Range::new(0, geometry().size as u32);
            let done = disks[node]
                .zero(image, false)
                .and_then(|()| disks[node].sync(File::Image))
                .and_then(|()| setup::format(&mut disks[node], &record));
            assert!(done.is_ok(), "formatting failed");
        }
        let node = |disk| Node {
            machine: Machine::Down,
            disk,
            boot: 1,
            life: 0,
            stalled_until: 0,
            kept: None,
            fail_read: false,
            fail_write: false,
            fail_sync: false,
            fail_reserve: false,
            fail_records: None,
            needed_peer: 0,
            inflight: BTreeMap::new(),
        };
        let mut world = World {
            rng: Rng::new(plan.seed ^ 0x5eed),
            fault,
            now: 0,
            steps: 0,
            queue: BinaryHeap::new(),
            events: HashMap::new(),
            next: 0,
            nodes: disks.map(node),
            connections: Vec::new(),
            blocked: [false; 2],
            narrow: [false; 2],
            delay: [0; 2],
            drag: 0,
            corrupt: [false; 2],
            history: History::new(geometry().size),
            asked: HashMap::new(),
            next_request: 1,
            primary: 0,
            recovering: true,
            lost: [false; 2],
            broken: false,
            has_no_image: false,
            healing: false,
            prefix: Prefix::default(),
            calm_since: 0,
            window_full: 0,
            excused: 0,
            left_semi: 0,
            flip: Flip::No,
            is_apart: false,
            is_aged: false,
            is_void: false,
            violation: None,
            trace: None,
            accidents: Vec::new(),
            reached: [0; 7],
            plan,
        };
        for step in 0..world.plan.steps.len() {
            // The first operations wait until both ends are up.
            let at = world.plan.steps[step].at + 60 * MILLISECOND;
            world.at(at, What::Script(step));
        }
        world.at(0, What::Start { node: 1 });
        world.at(0, What::Start { node: 0 });
        world
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9} {}", self.now, line()));
        }
    }

    pub(crate) fn fail(&mut self, problem: String) {
        if self.is_void {
            return;
        }
        self.note(|| format!("VIOLATION {problem}"));
        self.violation.get_or_insert(problem);
    }

    fn at(&mut self, time: Time, what: What) {
        self.next += 1;
        self.events.insert(self.next, what);
        self.queue.push(Reverse((time, self.next)));
    }

    fn latency(&mut self) -> Time {
        if self.plan.fixed {
            MILLISECOND
        } else {
            let scale = if self.rng.once_in(8) { 8 } else { 1 };
            (100 + self.rng.below(2000)) * scale
        }
    }

    /// Runs the plan, then heals everything and checks that both ends become equal.
    pub fn run(&mut self) {
        while self.violation.is_none() && self.turn() {
            let is_over = self
                .events
                .values()
                .all(|what| !matches!(what, What::Script(_)));
            let idle =
                self.now > 60 * MILLISECOND + self.plan.steps.last().map_or(0, |step| step.at);
            if is_over && idle && self.accidents.iter().all(|(at, _)| *at < self.steps) {
                break;
            }
        }
        self.heal();
    }

    /// Runs until an instant, without repairing anything.
    pub fn run_for(&mut self, until: Time) {
        while self.now < until && self.violation.is_none() && self.turn() {}
    }

    /// One event. False if there is none.
    fn turn(&mut self) -> bool {
        let Some(Reverse((time, number))) = self.queue.pop() else {
            return false;
        };
        let Some(what) = self.events.remove(&number) else {
            return true;
        };
        self.now = self.now.max(time);
        let node = match &what {
            What::Tick { node, .. } | What::Io { node, .. } | What::Connected { node, .. } => {
                Some(*node)
            }
            What::Frame { to, .. } => Some(*to),
            What::Disconnected { node, .. } => Some(*node),
            _ => None,
        };
        if let Some(until) = node.map(|node| self.nodes[node].stalled_until) {
            if until > self.now {
                // Whatever a stalled process has waiting is handled in order when it goes on.
                self.events.insert(number, what);
                self.queue.push(Reverse((until, number)));
                return true;
            }
        }
        self.steps += 1;
        let due: Vec<Op> = self
            .accidents
            .iter()
            .filter(|(at, _)| *at == self.steps)
            .map(|(_, op)| op.clone())
            .collect();
        for op in due {
            self.perform(op);
        }
        self.handle(what);
        self.watch();
        true
    }

    fn handle(&mut self, what: What) {
        match what {
            What::Script(step) => {
                let op = self.plan.steps[step].op.clone();
                self.perform(op);
            }
            What::Start { node } => self.start(node),
            What::Tick { node, life } if self.nodes[node].life == life => {
                self.tick(node);
            }
            What::Io {
                node,
                life,
                number,
                token,
                io,
            } if self.nodes[node].life == life => self.io_done(node, number, token, io),
            What::Connected { connection, node } if self.is_open(connection) => {
                self.connected(connection, node);
            }
            What::Frame {
                connection,
                to,
                frame,
                corrupt,
            } if self.is_open(connection) => {
                if corrupt {
                    self.note(|| format!("corrupt frame to {to}"));
                    self.close(connection, Some(to));
                } else {
                    self.deliver(connection, to, frame);
                }
            }
            What::Disconnected { connection, node } => self.disconnected(connection, node),
            _ => {}
        }
    }

    /// What has to hold after every event.
    fn watch(&mut self) {
        let node = self.primary;
        let Machine::Primary(primary) = &self.nodes[node].machine else {
            return;
        };
        let differing = primary.verify.differing.first().copied();
        if let Some(range) = differing.filter(|_| self.flip == Flip::No) {
            return self.fail(format!("P4: verify reports a difference: {range:?}"));
        }
        let state = primary.state();
        let is_readable = primary.is_readable();
        if state == State::InSync {
            // Each end knows whether it was made equal since its last power cut.
            let is_lost = |node: &Node| match &node.machine {
                Machine::Primary(primary) => primary.hello().lost,
                Machine::Replica(replica) => replica.hello().lost || !replica.status().session,
                _ => true,
            };
            for (lost, node) in self.lost.iter_mut().zip(&self.nodes) {
                *lost &= is_lost(node);
            }
            self.broken = false;
            self.is_apart &= is_lost(&self.nodes[1 - self.primary]);
            self.is_aged &= self.is_apart;
            self.prefix.end();
            self.reached[0] += 1;
        }
        if state == State::Semi {
            self.reached[4] += 1;
            self.reached[6] += u64::from(primary.counts.merged_writes > 0);
        }
        if is_readable && self.recovering {
            self.recovering = false;
            self.reached[1] += 1;
            let image = self.nodes[node].disk.contents(File::Image).to_vec();
            self.note(|| format!("serving again, {state:?}"));
            if let Some(problem) = self.history.check(&image, Secured::Acknowledged, true) {
                self.fail(format!("P1 after recovery in {state:?}: {problem}"));
            }
            self.history.settle(&image);
            self.lost[node] = false;
        }
    }

    fn tick(&mut self, node: usize) {
        let life = self.nodes[node].life;
        let wall = self.now / SECOND;
        let mut wants_link = false;
        let mut late = None;
        let mut needed_peer = self.nodes[node].needed_peer;
        match &self.nodes[node].machine {
            Machine::Primary(primary) => {
                wants_link = primary.wants_link();
                let status = primary.status();
                let is_exchange = matches!(status.state, State::Exchange { .. });
                let is_needed = is_exchange && primary.hello().lost
                    || matches!(status.state, State::Holding { until: None, .. });
                if is_needed {
                    needed_peer = self.now;
                }
                let is_waited_for = status.state == State::Starting;
                // Nor can a process answer while it is stopped.
                let stalled = self.nodes[node].stalled_until.min(self.now);
                let since = needed_peer.max(stalled).max(self.left_semi);
                let waited = status.oldest.min(self.now - since);
                if self.is_excused(&status) {
                    self.excused = self.now;
                }
                let is_late = waited.min(self.now - self.excused) > ANSWER_WITHIN;
                if let Some(problem) = self.waits_within_window(&status, waited) {
                    late = Some(problem);
                } else if is_late && !is_waited_for && node == self.primary {
                    late = Some(format!(
                        "P9: a request waits too long in {:?}",
                        status.state
                    ));
                }
                self.primary_event(node, primary::Event::Tick { wall });
            }
            Machine::Replica(_) => self.replica_event(node, replica::Event::Tick { wall }),
            _ => {}
        }
        self.nodes[node].needed_peer = needed_peer;
        if let Some(problem) = late {
            self.fail(problem);
        }
        if wants_link && !self.connections.iter().any(|each| each.initiator == node) {
            self.connect(node);
        }
        self.at(self.now + 20 * MILLISECOND, What::Tick { node, life });
    }
}
