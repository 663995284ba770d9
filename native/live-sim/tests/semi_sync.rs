//! Semi-sync step by step: two ends whose disks answer at once, and a link that can be cut.

use mirrord_live_core::frame::{Class, Frame};
use mirrord_live_core::hello::Hello;
use mirrord_live_core::io::{Action, Backend, File, Outcome, Token};
use mirrord_live_core::primary::{self, Primary, State};
use mirrord_live_core::record::Record;
use mirrord_live_core::redo::Slot;
use mirrord_live_core::replica::{self, Replica};
use mirrord_live_core::setup;
use mirrord_live_core::types::{Failure, Mode, Phase, Range, Role, Time};
use mirrord_live_sim::disk::Disk;
use mirrord_live_sim::plan::{geometry, MILLISECOND};
use mirrord_live_sim::world::settings;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

enum Input {
    Primary(primary::Event),
    Replica(replica::Event),
}

struct Pair {
    primary: Primary,
    replica: Replica,
    disks: [Disk; 2],
    now: Time,
    inputs: VecDeque<Input>,
    is_linked: bool,
    /// Operations wait, and are delivered one every 200 ms.
    is_slow: bool,
    underway: VecDeque<replica::Event>,
    /// The replica's image takes no writes.
    is_image_broken: bool,
    /// Syncs of the primary's tracking file are not done.
    is_tracking_held: bool,
    /// They fail.
    is_tracking_broken: bool,
    replies: HashMap<u64, Result<(), Failure>>,
    reports: Vec<Result<(), String>>,
    disconnects: usize,
}

fn open_primary(disk: &Disk, out: &mut Vec<Action>) -> Primary {
    let record = setup::read_record(disk).unwrap();
    Primary::open(record, [1; 16], settings(), disk, None, out).unwrap()
}

fn open_replica(disk: &Disk, out: &mut Vec<Action>) -> Replica {
    let record = setup::read_record(disk).unwrap();
    Replica::open(record, [1; 16], settings(), disk, None, out).unwrap()
}

impl Pair {
    fn in_semi_sync() -> Pair {
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
            primary: open_primary(&disks[0], &mut first),
            replica: open_replica(&disks[1], &mut second),
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
            disconnects: 0,
        };
        pair.execute(0, first);
        pair.execute(1, second);
        pair.set_mode(Mode::Semi);
        pair.pass(500);
        assert_eq!(pair.primary.state(), State::Semi);
        pair
    }

    fn done(&mut self, node: usize, token: Token, outcome: Outcome) {
        self.inputs.push_back(match node {
            0 => Input::Primary(primary::Event::Done { token, outcome }),
            _ => Input::Replica(replica::Event::Done { token, outcome }),
        });
    }

    fn execute(&mut self, node: usize, out: Vec<Action>) {
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
                    let is_operation = frame.class.is_operation();
                    let event = replica::Event::Frame(frame);
                    if self.is_slow && is_operation {
                        self.underway.push_back(event);
                    } else {
                        self.inputs.push_back(Input::Replica(event));
                    }
                }
                Action::Send(frame) if self.is_linked => {
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
                Action::Reopen if node == 1 => self.start_replica(),
                _ => {}
            }
        }
    }

    fn disconnected(&mut self) {
        self.underway.clear();
        self.inputs
            .push_back(Input::Primary(primary::Event::Disconnected));
        self.inputs
            .push_back(Input::Replica(replica::Event::Disconnected));
    }

    /// Handles all that can happen without time passing.
    fn run(&mut self) {
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

    fn pass(&mut self, milliseconds: u64) {
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
            }
            let wall = 0;
            self.inputs
                .push_back(Input::Primary(primary::Event::Tick { wall }));
            self.inputs
                .push_back(Input::Replica(replica::Event::Tick { wall }));
            self.run();
        }
    }

    fn cut(&mut self) {
        self.is_linked = false;
        self.disconnected();
        self.run();
    }

    fn ask(&mut self, event: primary::Event) {
        self.inputs.push_back(Input::Primary(event));
        self.run();
    }

    fn set_mode(&mut self, mode: Mode) {
        self.ask(primary::Event::SetMode(mode));
        assert_eq!(self.reports.pop(), Some(Ok(())));
    }

    /// One sector, of that number.
    fn write(&mut self, request: u64) {
        self.ask(primary::Event::Write {
            request,
            offset: request % 40 * 512,
            data: Arc::new(request.to_le_bytes().repeat(64)),
            fua: false,
        });
    }

    fn flush(&mut self, request: u64) {
        self.ask(primary::Event::Flush { request });
    }

    fn reply(&self, request: u64) -> Option<Result<(), Failure>> {
        self.replies.get(&request).copied()
    }

    fn start_primary(&mut self) {
        let mut out = Vec::new();
        self.disconnected();
        self.run();
        self.primary = open_primary(&self.disks[0], &mut out);
        self.execute(0, out);
        self.run();
    }

    fn start_replica(&mut self) {
        self.disconnected();
        let mut out = Vec::new();
        self.inputs
            .retain(|each| !matches!(each, Input::Replica(replica::Event::Done { .. })));
        self.replica = open_replica(&self.disks[1], &mut out);
        self.execute(1, out);
    }
}

const HOLD: u64 = 1500;

#[test]
fn in_strict_sync_the_window_counts_no_more() {
    let mut pair = Pair::in_semi_sync();
    pair.cut();
    pair.write(1);
    assert_eq!(pair.reply(1), Some(Ok(())));
    pair.set_mode(Mode::Strict);
    pair.write(2);
    pair.flush(3);
    pair.pass(HOLD / 2);
    assert_eq!((pair.reply(2), pair.reply(3)), (None, None));
    pair.pass(HOLD);
    let failed = Some(Err(Failure::Io));
    assert_eq!((pair.reply(2), pair.reply(3)), (failed, failed));
    pair.write(4);
    assert_eq!(pair.reply(4), failed);
    pair.is_linked = true;
    pair.pass(3000);
    assert_eq!(pair.primary.state(), State::InSync);
    pair.write(5);
    assert_eq!(pair.reply(5), Some(Ok(())));
}

#[test]
fn in_sync_the_window_counts_no_more() {
    let mut pair = Pair::in_semi_sync();
    pair.cut();
    pair.set_mode(Mode::Sync);
    pair.write(1);
    pair.flush(2);
    pair.pass(HOLD / 2);
    assert_eq!((pair.reply(1), pair.reply(2)), (None, None));
    pair.pass(HOLD);
    assert_eq!(pair.primary.state(), State::Alone);
    assert_eq!((pair.reply(1), pair.reply(2)), (Some(Ok(())), Some(Ok(()))));
    assert!(!setup::read_record(&pair.disks[0]).unwrap().bounded);
}

#[test]
fn back_in_semi_sync_what_waited_is_answered() {
    let mut pair = Pair::in_semi_sync();
    pair.cut();
    pair.set_mode(Mode::Sync);
    pair.write(1);
    pair.flush(2);
    assert_eq!((pair.reply(1), pair.reply(2)), (None, None));
    pair.set_mode(Mode::Semi);
    pair.run();
    assert_eq!((pair.reply(1), pair.reply(2)), (Some(Ok(())), Some(Ok(()))));
}

#[test]
fn a_restarted_primary_in_sync_mode_waits_for_hold_only() {
    let mut pair = Pair::in_semi_sync();
    pair.cut();
    pair.set_mode(Mode::Sync);
    pair.start_primary();
    pair.write(1);
    pair.pass(HOLD / 2);
    assert_eq!(pair.reply(1), None);
    pair.pass(HOLD);
    assert_eq!(pair.reply(1), Some(Ok(())));
    assert!(!setup::read_record(&pair.disks[0]).unwrap().bounded);
}

#[test]
fn a_return_to_sync_whose_link_is_lost_waits_for_hold_only() {
    // The link of a primary that was restarted, and of one that was not, is lost when the replica was
    // told to commit.
    for is_restarted in [true, false] {
        let mut pair = Pair::in_semi_sync();
        pair.is_slow = true;
        if is_restarted {
            pair.cut();
            pair.set_mode(Mode::Sync);
            pair.start_primary();
            pair.is_linked = true;
        } else {
            pair.pass(5000);
            pair.set_mode(Mode::Sync);
        }
        let mut seen = Vec::new();
        while pair.primary.state() != State::Committing {
            seen.push(pair.primary.state());
            assert!(seen.len() < 200, "{is_restarted}: {seen:?}");
            pair.pass(20);
        }
        pair.cut();
        pair.write(1);
        pair.pass(HOLD / 2);
        assert_eq!(pair.reply(1), None, "{is_restarted}");
        pair.pass(HOLD);
        assert_eq!(pair.reply(1), Some(Ok(())));
    }
}

#[test]
fn a_slow_replica_is_not_a_stalled_one() {
    let mut pair = Pair::in_semi_sync();
    let before = pair.disconnects;
    pair.is_slow = true;
    for request in 1..12 {
        pair.write(request);
    }
    pair.pass(3 * HOLD);
    assert_eq!(pair.disconnects, before);
    assert_eq!(pair.primary.state(), State::Semi);
}

#[test]
fn a_break_whose_log_cannot_be_applied_says_so() {
    let mut pair = Pair::in_semi_sync();
    pair.is_image_broken = true;
    pair.write(1);
    pair.pass(100);
    pair.reports.clear();
    pair.inputs.push_back(Input::Replica(replica::Event::Break));
    pair.pass(1000);
    let problem = pair.reports.pop().expect("a report").unwrap_err();
    assert!(problem.contains("run break again"), "{problem}");
    assert_eq!(pair.reports, []);
    pair.is_image_broken = false;
    pair.inputs.push_back(Input::Replica(replica::Event::Break));
    pair.pass(1000);
    assert_eq!(pair.reports, [Ok(())]);
}

#[test]
fn without_its_log_an_end_is_not_broken_off() {
    let mut pair = Pair::in_semi_sync();
    pair.is_image_broken = true;
    pair.write(1);
    pair.cut();
    pair.is_image_broken = false;
    pair.disks[1].lose(File::Log, 0);
    for _ in 0..2 {
        pair.start_replica();
        pair.inputs.push_back(Input::Replica(replica::Event::Break));
        pair.run();
        let problem = pair.reports.pop().expect("a report").unwrap_err();
        assert!(problem.contains("missing or damaged"), "{problem}");
        assert_eq!(
            setup::read_record(&pair.disks[1]).unwrap().phase,
            Phase::Empty
        );
    }
    pair.is_linked = true;
    pair.pass(2000);
    assert_eq!(pair.primary.state(), State::Semi);
    assert_eq!(setup::read_record(&pair.disks[1]).unwrap().generation, 4);
    pair.set_mode(Mode::Sync);
    pair.pass(1000);
    assert_eq!(pair.primary.state(), State::InSync);
    assert_eq!(setup::read_record(&pair.disks[1]).unwrap().log, 0);
    let [mine, theirs] = [0, 1].map(|node| pair.disks[node].contents(File::Image));
    assert_eq!(mine, theirs);
}

#[test]
fn a_lost_log_is_on_record_before_anything_depends_on_it() {
    let mut pair = Pair::in_semi_sync();
    pair.is_tracking_held = true;
    pair.disks[1].lose(File::Log, 0);
    pair.start_replica();
    pair.pass(500);
    assert_eq!(pair.primary.state(), State::Leaving);
}

#[test]
fn a_log_that_the_record_does_not_name_is_not_applied() {
    let mut pair = Pair::in_semi_sync();
    pair.write(1);
    pair.cut();
    // As between the two steps of closing it; the image is ahead of it since.
    let mut record = setup::read_record(&pair.disks[1]).unwrap();
    record.log = 0;
    setup::format(&mut pair.disks[1], &record).unwrap();
    let newer = vec![9; geometry().size as usize];
    pair.disks[1].write(File::Image, 0, &newer).unwrap();
    pair.start_replica();
    pair.run();
    assert_eq!(pair.disks[1].contents(File::Image), newer);
    let mut slot = [0; 512];
    pair.disks[1].read(File::Log, 0, &mut slot).unwrap();
    assert_eq!(Slot::decode(&slot), None);
}

#[test]
fn an_end_is_not_fenced_before_its_record_says_so() {
    for is_broken in [true, false] {
        let mut pair = Pair::in_semi_sync();
        let mut record = setup::read_record(&pair.disks[1]).unwrap();
        record.role = Role::Primary;
        record.epoch += 1;
        pair.is_tracking_broken = is_broken;
        let hello = Hello::of(&record, false).encode();
        let frame = Frame::with_payload(Class::Hello, record.epoch, hello);
        pair.ask(primary::Event::Frame(frame));
        let expected = if is_broken {
            Role::Primary
        } else {
            Role::Fenced
        };
        assert_eq!(pair.primary.hello().role, expected);
    }
}
