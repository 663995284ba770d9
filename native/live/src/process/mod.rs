//! The process: one thread for sockets and state machine; `executor` for what may block.

mod actions;
mod hold;
mod peers;
mod recording;
mod serving;

use crate::address::{Address, Listener, Network};
use crate::clients::{Client, Group, Held};
use crate::control::Event;
use crate::credentials::{Credentials, With};
use crate::executor::{Answer, Choice, Executor, For, Job};
use crate::files::{explain, Files};
use crate::link::{self, Traffic};
use crate::machine::Machine;
use crate::problem::{Code, Problem};
use crate::stream::Stream;
use mio::{Events, Poll, Token as Key, Waker};
use mirrord_live_core::frame::{Class, Frame};
use mirrord_live_core::hello::{Hello, IS_OTHER_MIRROR, IS_TAKEN};
use mirrord_live_core::io::{Action, File, Outcome, Token};
use mirrord_live_core::types::{BootId, Range, Role, Settings, Time};
use mirrord_live_core::{primary, replica};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What the process is started with.
pub struct Config {
    pub image: PathBuf,
    pub state: PathBuf,
    pub export: String,
    pub control: PathBuf,
    pub nbd: Vec<Address>,
    pub link: Option<Address>,
    pub peer: Option<Address>,
    /// For the link.
    pub tls: Option<Credentials>,
    /// For clients that connect over TCP.
    pub clients_tls: Option<Credentials>,
    /// Where clients may connect from over TCP; empty: anywhere.
    pub clients_from: Vec<Network>,
    pub settings: Settings,
    /// Bytes of clients' requests that are held at a time.
    pub buffers: usize,
    pub io: Choice,
}

const WAKER: Key = Key(0);
const RING: Key = Key(1);
/// How often time passes for the state machine.
const TICK: Duration = Duration::from_millis(50);
/// How long to wait before the other end is tried again.
const RECONNECT: Duration = Duration::from_millis(250);
/// Of each kind.
const CONNECTIONS_MAX: usize = 256;
/// How long a connection may take to say what it is for.
const GREETING: Duration = Duration::from_secs(20);
/// Between two lines about connections that fail.
const COMPLAINTS: Duration = Duration::from_secs(1);
const EVENTS_KEPT: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Clients,
    Link,
    Control,
}

pub(crate) enum Conn {
    Client(Client),
    /// To the other end, made by this primary.
    Outgoing(Stream),
    /// From the other end; anonymous until its greeting.
    Incoming(Stream),
    Control(Stream),
}

impl Conn {
    pub fn stream(&mut self) -> &mut Stream {
        match self {
            Conn::Client(client) => &mut client.stream,
            Conn::Outgoing(stream) | Conn::Incoming(stream) | Conn::Control(stream) => stream,
        }
    }

    /// It has not said what it is for. is_link: its greeting was accepted.
    fn is_strange(&self, is_link: bool) -> bool {
        match self {
            Conn::Client(client) => client.session.is_negotiating(),
            Conn::Incoming(_) => !is_link,
            Conn::Outgoing(stream) => stream.is_handshaking(),
            Conn::Control(_) => false,
        }
    }
}

pub struct Process {
    pub(crate) config: Config,
    pub(crate) files: Files,
    boot: BootId,
    poll: Poll,
    pub(crate) executor: Executor,
    pub(crate) machine: Machine,
    life: u64,
    started: Instant,
    pub(crate) conns: BTreeMap<usize, Conn>,
    next_key: usize,
    listeners: HashMap<usize, (Door, Listener)>,
    pub(crate) outgoing: Option<usize>,
    pub(crate) incoming: Option<usize>,
    next_connect: Instant,
    pub(crate) groups: HashMap<u64, Group>,
    pub(crate) next_group: u64,
    pub(crate) buffered: usize,
    pub(crate) held: Vec<Held>,
    pub(crate) actions: Vec<Action>,
    backlog: VecDeque<(Token, Outcome)>,
    /// Changes of the image that are not begun.
    image_writes: VecDeque<(Token, Job)>,
    pub(crate) waiting_reports: VecDeque<usize>,
    /// Why the last break failed: who asked for it may not wait any more.
    pub(crate) break_problem: String,
    /// Which connection holds clients' requests and answers back, and until when.
    hold: Option<(usize, Instant)>,
    /// Who waits for a full window of semi-sync, and until when.
    pub(crate) awaiting: Vec<(usize, Time)>,
    recorder: recording::Recorder,
    pub(crate) events: VecDeque<Event>,
    pub(crate) next_event: u64,
    /// Since the start, to the other end.
    pub(crate) traffic: Traffic,
    /// When something was last wrong with a connection, and what.
    complaint: Option<(Instant, String)>,
    /// The size of the image that was last reported as another than it had; Some(None): it is gone.
    odd_size: Option<Option<u64>>,
    /// The bytes of the image when it was opened.
    size: u64,
    /// The size is being asked for.
    is_looking: bool,
    pub(crate) reopen: bool,
    /// Something was done after this turn's output: the next one does not wait.
    is_late: bool,
    pub(crate) stop: bool,
}

pub(crate) fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Process {
    pub fn start(config: Config, files: Files, boot: BootId) -> io::Result<Process> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let executor = Executor::start(&files, config.io, poll.registry(), &waker, RING)?;
        let size = files.image_size()?;
        let mut actions = Vec::new();
        files.forget_cached(&boot);
        let machine = Machine::open(&files, boot, config.settings.clone(), &mut actions)
            .map_err(|error| explain(&config.state, &error))?;
        let mut process = Process {
            files,
            boot,
            poll,
            executor,
            machine,
            life: 0,
            started: Instant::now(),
            conns: BTreeMap::new(),
            next_key: 1,
            listeners: HashMap::new(),
            outgoing: None,
            incoming: None,
            next_connect: Instant::now(),
            groups: HashMap::new(),
            next_group: 0,
            buffered: 0,
            held: Vec::new(),
            actions,
            backlog: VecDeque::new(),
            image_writes: VecDeque::new(),
            waiting_reports: VecDeque::new(),
            break_problem: String::new(),
            hold: None,
            awaiting: Vec::new(),
            recorder: recording::Recorder::default(),
            events: VecDeque::new(),
            next_event: 1,
            traffic: Traffic::default(),
            complaint: None,
            odd_size: None,
            size,
            is_looking: false,
            reopen: false,
            is_late: false,
            stop: false,
            config,
        };
        let control = Address::Unix(process.config.control.clone());
        process.listen(Door::Control, &control)?;
        for address in process.config.nbd.clone() {
            process.listen(Door::Clients, &address)?;
        }
        if let Some(address) = process.config.link.clone() {
            process.listen(Door::Link, &address)?;
        }
        Ok(process)
    }

    fn listen(&mut self, door: Door, address: &Address) -> io::Result<()> {
        let key = self.key();
        let mut listener = address.listen()?;
        listener.register(self.poll.registry(), Key(key))?;
        self.listeners.insert(key, (door, listener));
        Ok(())
    }

    fn key(&mut self) -> usize {
        self.next_key += 1;
        self.next_key
    }

    pub(crate) fn now(&self) -> Time {
        self.started.elapsed().as_micros() as Time
    }

    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        let mut last_tick = Instant::now();
        self.settle();
        while !self.stop {
            let timeout = if self.has_input() || self.is_late {
                Duration::ZERO
            } else {
                let due = self.machine.due().map(|at| at.saturating_sub(self.now()));
                let due = due.map_or(TICK, Duration::from_micros);
                let due = due.min(self.hold_left());
                TICK.saturating_sub(last_tick.elapsed()).min(due)
            };
            if let Err(error) = self.poll.poll(&mut events, Some(timeout)) {
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            for event in &events {
                let key = event.token().0;
                if self.listeners.contains_key(&key) {
                    self.accept(key);
                } else if let Some(conn) = self.conns.get_mut(&key) {
                    let stream = conn.stream();
                    stream.ended |= event.is_read_closed();
                    stream.readable |= event.is_readable() || event.is_read_closed();
                }
            }
            self.end_hold();
            self.collect();
            self.receive();
            self.settle();
            if self.machine.due().is_some_and(|at| at <= self.now()) {
                self.machine.tick(self.now(), wall(), &mut self.actions);
                self.settle();
            }
            if last_tick.elapsed() >= TICK {
                last_tick = Instant::now();
                let now = self.now();
                self.machine.tick(now, wall(), &mut self.actions);
                self.connect();
                self.accept_all();
                self.check_size();
                if self.hold.is_none() {
                    self.drop_strangers();
                    self.share_buffers();
                }
                self.settle();
                self.tell_full();
                self.check_recording();
            }
            self.finish_turn();
        }
        Ok(())
    }

    /// A connection may have more to read, and is not held back.
    fn has_input(&mut self) -> bool {
        let is_full = self.is_full();
        let is_behind = self.is_behind();
        let is_held = self.hold.is_some();
        self.conns.values_mut().any(|conn| {
            let may_read = match conn {
                Conn::Client(client) => !is_held && client.may_read(is_full),
                Conn::Incoming(_) => !is_behind,
                _ => true,
            };
            let stream = conn.stream();
            may_read && (stream.readable || stream.unparsed) && !stream.closed
        })
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used_buffers() > self.config.buffers
    }

    fn accept(&mut self, key: usize) {
        loop {
            let Some((door, listener)) = self.listeners.get(&key) else {
                return;
            };
            let door = *door;
            let Some((mut socket, from)) = listener.accept() else {
                return;
            };
            let is_primary = matches!(self.machine, Machine::Primary(_));
            let is_wanted = door != Door::Clients || is_primary && self.is_allowed(from);
            let key = self.key();
            let registered = socket.register(self.poll.registry(), Key(key));
            if !is_wanted || registered.is_err() || !self.has_room(door) {
                continue;
            }
            let mut stream = Stream::new(socket);
            let conn = match door {
                Door::Clients => Conn::Client(self.new_client(stream, from.is_none())),
                Door::Link if self.secure(&mut stream, With::Connecting) => Conn::Incoming(stream),
                Door::Link => continue,
                Door::Control => Conn::Control(stream),
            };
            self.conns.insert(key, conn);
        }
    }

    /// What the executor has done.
    fn collect(&mut self) {
        while let Some(done) = self.executor.done() {
            self.is_late = true;
            match done {
                (For::Machine(life, token), Answer::Outcome(outcome)) if life == self.life => {
                    self.backlog.push_back((token, outcome));
                }
                (For::Read(group), Answer::Outcome(outcome)) => self.read_done(group, outcome),
                (For::Extents(group), Answer::Extents(found)) => self.block_status(group, found),
                (For::Size, Answer::Size(size, has_records)) => self.size_found(size, has_records),
                // Of an earlier life.
                _ => {}
            }
        }
    }

    fn receive(&mut self) {
        let keys: Vec<usize> = self.conns.keys().copied().collect();
        for key in keys {
            if matches!(self.conns.get(&key), Some(Conn::Client(client)) if client.waiting) {
                self.reserve(key);
            }
            let (is_full, is_behind) = (self.is_full(), self.is_behind());
            let is_held = self.hold.is_some();
            let Some(conn) = self.conns.get_mut(&key) else {
                continue;
            };
            let is_held_back = match conn {
                Conn::Client(client) => is_held || !client.may_read(is_full),
                Conn::Incoming(_) => is_behind,
                _ => false,
            };
            let stream = conn.stream();
            if is_held_back || !stream.readable && !stream.unparsed {
                continue;
            }
            if !stream.unparsed {
                stream.receive();
            }
            match conn {
                Conn::Client(_) => self.client_input(key),
                Conn::Outgoing(_) | Conn::Incoming(_) => self.link_input(key),
                Conn::Control(_) => self.control_input(key),
            }
        }
        self.retry_held();
    }

    pub(crate) fn close(&mut self, key: usize) {
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stream().closed = true;
        }
    }

    /// Acknowledges, sends what is left, and forgets closed connections.
    fn finish_turn(&mut self) {
        self.is_late = false;
        if let Machine::Replica(replica) = &mut self.machine {
            let now = self.started.elapsed().as_micros() as Time;
            replica.step(now, replica::Event::Turn, &mut self.actions);
            self.settle();
        }
        self.flush_all();
        let closed: Vec<usize> = self
            .conns
            .iter_mut()
            .filter_map(|(key, conn)| conn.stream().closed.then_some(*key))
            .collect();
        for key in closed {
            self.forget(key);
        }
        // What was begun in this life must not change a file in the next one, nor take the report
        // of a failed sync from it.
        if self.reopen && self.executor.is_drained() {
            self.reopen = false;
            self.open_again();
        }
        self.settle();
    }

    fn forget(&mut self, key: usize) {
        let mut conn = self.conns.remove(&key);
        let problem = conn.as_mut().and_then(|it| it.stream().problem.take());
        if let Some(problem) = &problem {
            let kind = match conn {
                Some(Conn::Client(_)) => "client",
                _ => "link",
            };
            self.complain(format!("{kind}: TLS: {problem}"));
        }
        let now = self.now();
        if self.outgoing == Some(key) {
            self.outgoing = None;
            self.machine.disconnected(now, &mut self.actions);
            self.explain(problem);
        }
        if self.incoming == Some(key) {
            self.incoming = None;
            self.machine.disconnected(now, &mut self.actions);
        }
        self.waiting_reports.retain(|waiting| *waiting != key);
        self.awaiting.retain(|(waiting, _)| *waiting != key);
        self.released(key);
    }

    /// Starts again from the files, with the role that they have now.
    pub(crate) fn open_again(&mut self) {
        self.life += 1;
        self.backlog.clear();
        self.image_writes.clear();
        self.actions.clear();
        self.drop_clients();
        for key in self.outgoing.take().into_iter().chain(self.incoming.take()) {
            self.close(key);
        }
        // After a sync that failed, what is cached is not what the disk has.
        self.files.forget_cached(&self.boot);
        let settings = self.config.settings.clone();
        self.recorder = recording::Recorder::default();
        match Machine::open(&self.files, self.boot, settings, &mut self.actions) {
            Ok(machine) => {
                self.machine = machine;
                let role = self.machine.hello().role.name();
                self.log(format!("this end is {role} now"));
            }
            Err(problem) => {
                self.log(format!("the state files can't be read: {problem}"));
                self.stop = true;
            }
        }
    }

    pub(crate) fn boot(&self) -> BootId {
        self.boot
    }

    pub(crate) fn log(&mut self, line: String) {
        crate::say(&line);
        let number = self.next_event;
        self.next_event += 1;
        self.events.push_back(Event {
            number,
            time: wall(),
            text: line,
        });
        if self.events.len() > EVENTS_KEPT {
            self.events.pop_front();
        }
    }
}
