//! Two ends whose disks answer at once, and a link that can be cut.

use mirrord_live_core::frame::Class;
use mirrord_live_core::io::{Action, Backend, File, Outcome, Token};
use mirrord_live_core::primary::{self, Primary, State};
use mirrord_live_core::record::Record;
use mirrord_live_core::replica::{self, Replica};
use mirrord_live_core::setup;
use mirrord_live_core::types::{Failure, Mode, Phase, Range, Role, Settings, Time};
use mirrord_live_sim::disk::Disk;
use mirrord_live_sim::plan::{geometry, MILLISECOND};
use mirrord_live_sim::world::settings;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub enum Input {
    Primary(primary::Event),
    Replica(replica::Event),
}

pub struct Pair {
    pub primary: Primary,
    pub replica: Replica,
    /// The primary's.
    pub settings: Settings,
    pub disks: [Disk; 2],
    pub now: Time,
    pub inputs: VecDeque<Input>,
    pub is_linked: bool,
    /// Operations wait, and are delivered one every 200 ms, with the heartbeats behind it.
    pub is_slow: bool,
    pub underway: VecDeque<replica::Event>,
    /// The replica's image takes no writes.
    pub is_image_broken: bool,
    /// Syncs of the primary's tracking file are not done.
    pub is_tracking_held: bool,
    /// They fail.
    pub is_tracking_broken: bool,
    pub replies: HashMap<u64, Result<(), Failure>>,
    pub reports: Vec<Result<(), String>>,
    pub logs: Vec<String>,
    pub disconnects: usize,
    /// The replica is of a version that knows neither units nor compression.
    pub is_older: bool,
    /// The operations that it was sent.
    pub sent: Vec<(u64, Class)>,
}

fn open_primary(disk: &Disk, settings: &Settings, out: &mut Vec<Action>) -> Primary {
    let record = setup::read_record(disk).unwrap();
    Primary::open(record, [1; 16], settings.clone(), disk, None, out).unwrap()
}

fn open_replica(disk: &Disk, out: &mut Vec<Action>) -> Replica {
    let record = setup::read_record(disk).unwrap();
    Replica::open(record, [1; 16], settings(), disk, None, out).unwrap()
}

impl Pair {
    pub fn in_semi_sync() -> Pair {
        Pair::in_semi_sync_with(settings())
    }

    pub fn in_semi_sync_with(settings: Settings) -> Pair {
        let disks = [Role::Primary, Role::Secondary].map(|role| {
            let mut disk = Disk::default();
            let mut record = Record::new([7; 16], geometry(), role, [1; 16]);
            record.synced = role == Role::Primary;
            record.generation = 1;
            record.phase = Phase::Consistent;
            disk.zero(Range::new(0, geometry().size as u32), false)
                .unwrap();
            setup::format(&mut disk, &record).unwrap();
            disk
        });
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let mut pair = Pair {
            primary: open_primary(&disks[0], &settings, &mut first),
            replica: open_replica(&disks[1], &mut second),
            settings,
            disks,
            now: 0,
            inputs: VecDeque::new(),
            is_linked: true,
            is_slow: false,
            underway: VecDeque::new(),
            is_image_broken: false,
            is_tracking_held: false,
            is_tracking_broken: false,
            replies: HashMap::new(),
            reports: Vec::new(),
            logs: Vec::new(),
            disconnects: 0,
            is_older: false,
            sent: Vec::new(),
        };
        pair.execute(0, first);
        pair.execute(1, second);
        pair.set_mode(Mode::Semi);
        pair.pass(500);
        assert_eq!(pair.primary.state(), State::Semi);
        pair
    }

    pub fn done(&mut self, node: usize, token: Token, outcome: Outcome) {
        self.inputs.push_back(match node {
            0 => Input::Primary(primary::Event::Done { token, outcome }),
            _ => Input::Replica(replica::Event::Done { token, outcome }),
        });
    }

    pub fn execute(&mut self, node: usize, out: Vec<Action>) {
        for action in out {
            match action {
                Action::Write {
                    file,
                    offset,
                    data,
                    token,
                } => {
                    let is_broken = node == 1 && file == File::Image && self.is_image_broken;
                    let outcome = match is_broken {
                        true => Outcome::Failed(Failure::Io),
                        false => {
                            self.disks[node].write(file, offset, &data).unwrap();
                            Outcome::Done
                        }
                    };
                    self.done(node, token, outcome);
                }
                Action::Zero { range, token, .. } => {
                    self.disks[node].zero(range, false).unwrap();
                    self.done(node, token, Outcome::Done);
                }
                Action::Read {
                    file,
                    offset,
                    length,
                    token,
                } => {
                    let mut data = vec![0; length as usize];
                    self.disks[node].read(file, offset, &mut data).unwrap();
                    self.done(node, token, Outcome::Data(data));
                }
                Action::Sync { file, token } => {
                    if node == 0 && file == File::Tracking && self.is_tracking_held {
                        continue;
                    }
                    if node == 0 && file == File::Tracking && self.is_tracking_broken {
                        self.done(node, token, Outcome::Failed(Failure::Io));
                        continue;
                    }
                    self.disks[node].sync(file).unwrap();
                    self.done(node, token, Outcome::Done);
                }
                Action::Reserve {
                    file,
                    length,
                    token,
                } => {
                    self.disks[node].reserve(file, length).unwrap();
                    self.done(node, token, Outcome::Done);
                }
                Action::Send(frame) if self.is_linked && node == 0 => {
                    let class = frame.class;
                    let is_operation = class.is_operation();
                    if is_operation {
                        self.sent.push((frame.sequence, frame.class));
                    }
                    let event = replica::Event::Frame(frame);
                    let is_behind = class == Class::Ping && !self.underway.is_empty();
                    if self.is_slow && (is_operation || is_behind) {
                        self.underway.push_back(event);
                    } else {
                        self.inputs.push_back(Input::Replica(event));
                    }
                }
                Action::Send(mut frame) if self.is_linked => {
                    if self.is_older && frame.class == Class::Hello {
                        // Neither features nor the number of the session.
                        let length = frame.payload.len() - 17;
                        frame.payload = Arc::new(frame.payload[..length].to_vec());
                    }
                    let event = primary::Event::Frame(frame);
                    self.inputs.push_back(Input::Primary(event));
                }
                Action::Disconnect(_) => {
                    self.disconnects += 1;
                    self.disconnected();
                }
                Action::Reply { request, result } => {
                    self.replies.insert(request, result);
                }
                Action::Report(result) => self.reports.push(result),
                Action::Log(line) => self.logs.push(line),
                Action::Reopen if node == 1 => self.start_replica(),
                _ => {}
            }
        }
    }

    pub fn disconnected(&mut self) {
        self.underway.clear();
        self.inputs
            .push_back(Input::Primary(primary::Event::Disconnected));
        self.inputs
            .push_back(Input::Replica(replica::Event::Disconnected));
    }

    /// Handles all that can happen without time passing.
    pub fn run(&mut self) {
        while let Some(input) = self.inputs.pop_front() {
            let mut out = Vec::new();
            match input {
                Input::Primary(event) => {
                    self.primary.step(self.now, event, &mut out);
                    self.execute(0, out);
                }
                Input::Replica(event) => {
                    self.replica.step(self.now, event, &mut out);
                    self.replica.step(self.now, replica::Event::Turn, &mut out);
                    self.execute(1, out);
                }
            }
        }
    }

    pub fn pass(&mut self, milliseconds: u64) {
        let until = self.now + milliseconds * MILLISECOND;
        while self.now < until {
            self.run();
            self.now += 20 * MILLISECOND;
            if self.is_linked && self.primary.wants_link() {
                self.inputs
                    .push_back(Input::Replica(replica::Event::Connected));
                self.inputs
                    .push_back(Input::Primary(primary::Event::Connected));
            }
            if self.now % (200 * MILLISECOND) == 0 || !self.is_slow {
                let next = self.underway.pop_front();
                self.inputs.extend(next.map(Input::Replica));
                while let Some(replica::Event::Frame(frame)) = self.underway.front() {
                    if frame.class != Class::Ping {
                        break;
                    }
                    let ping = self.underway.pop_front();
                    self.inputs.extend(ping.map(Input::Replica));
                }
            }
            let wall = 0;
            self.inputs
                .push_back(Input::Primary(primary::Event::Tick { wall }));
            self.inputs
                .push_back(Input::Replica(replica::Event::Tick { wall }));
            self.run();
        }
    }

    pub fn cut(&mut self) {
        self.is_linked = false;
        self.disconnected();
        self.run();
    }

    pub fn ask(&mut self, event: primary::Event) {
        self.inputs.push_back(Input::Primary(event));
        self.run();
    }

    pub fn set_mode(&mut self, mode: Mode) {
        self.ask(primary::Event::SetMode(mode));
        assert_eq!(self.reports.pop(), Some(Ok(())));
    }

    /// One sector, of that number.
    pub fn write(&mut self, request: u64) {
        self.ask(primary::Event::Write {
            request,
            offset: request % 40 * 512,
            data: Arc::new(request.to_le_bytes().repeat(64)),
            fua: false,
        });
    }

    pub fn flush(&mut self, request: u64) {
        self.ask(primary::Event::Flush { request });
    }

    pub fn reply(&self, request: u64) -> Option<Result<(), Failure>> {
        self.replies.get(&request).copied()
    }

    pub fn start_primary(&mut self) {
        let mut out = Vec::new();
        self.disconnected();
        self.run();
        self.primary = open_primary(&self.disks[0], &self.settings, &mut out);
        self.execute(0, out);
        self.run();
    }

    pub fn start_replica(&mut self) {
        self.disconnected();
        let mut out = Vec::new();
        self.inputs
            .retain(|each| !matches!(each, Input::Replica(replica::Event::Done { .. })));
        self.replica = open_replica(&self.disks[1], &mut out);
        self.execute(1, out);
    }
}
