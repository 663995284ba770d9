//! A secondary in a resync, whose before-images are damaged, is not broken off.

use mirrord_live_core::io::{Action, Backend, File, Outcome};
use mirrord_live_core::record::Record;
use mirrord_live_core::replica::{Event, Replica};
use mirrord_live_core::setup;
use mirrord_live_core::side;
use mirrord_live_core::types::{Geometry, Phase, Range, Role, Settings};
use mirrord_live_sim::disk::Disk;

const BOOT: [u8; 16] = [1; 16];
const BLOCK: u32 = 4096;
const BLOCKS: u64 = 64;
const SIDE: u64 = 3;
/// What an entry has before its old bytes.
const ENTRY: u64 = 40;

fn geometry() -> Geometry {
    Geometry::of_size(BLOCKS * u64::from(BLOCK))
}

fn block(number: u64) -> Range {
    Range::new(number * u64::from(BLOCK), BLOCK)
}

/// Where the entry of a block begins in the side file.
fn entry_of(number: u64) -> u64 {
    side::HEAD + number * (ENTRY + u64::from(BLOCK))
}

/// A secondary whose first three blocks a resync has overwritten, each with a batch of its own.
fn in_resync() -> Disk {
    let mut disk = Disk::default();
    let mut record = Record::new([3; 16], geometry(), Role::Secondary, BOOT);
    record.phase = Phase::Resync;
    record.generation = 2;
    record.side = SIDE;
    setup::format(&mut disk, &record).unwrap();
    let image = vec![1; geometry().size as usize];
    disk.write(File::Image, 0, &image).unwrap();
    let (at, header) = side::header(SIDE, 0, side::HEAD);
    disk.write(File::Side, at, &header).unwrap();
    for number in 0..3 {
        save(&mut disk, number, number + 1);
        let data = [2; BLOCK as usize];
        disk.write(File::Image, block(number).offset, &data)
            .unwrap();
    }
    disk
}

fn save(disk: &mut Disk, number: u64, batch: u64) {
    let base = entry_of(number);
    let mut bytes = Vec::new();
    side::encode(SIDE, block(number), &[1; BLOCK as usize], base, &mut bytes);
    disk.write(File::Side, base, &bytes).unwrap();
    let (at, header) = side::header(SIDE, batch, base);
    disk.write(File::Side, at, &header).unwrap();
}

fn damage(disk: &mut Disk, at: u64) {
    let mut byte = [0];
    disk.read(File::Side, at, &mut byte).unwrap();
    disk.write(File::Side, at, &[byte[0] ^ 1]).unwrap();
}

fn execute(disk: &mut Disk, action: Action) -> Option<Event> {
    let (token, outcome) = match action {
        Action::Write {
            file,
            offset,
            data,
            token,
        } => {
            disk.write(file, offset, &data).unwrap();
            (token, Outcome::Done)
        }
        Action::Read {
            file,
            offset,
            length,
            token,
        } => {
            let mut data = vec![0; length as usize];
            disk.read(file, offset, &mut data).unwrap();
            (token, Outcome::Data(data))
        }
        Action::Sync { token, .. } => (token, Outcome::Done),
        _ => return None,
    };
    Some(Event::Done { token, outcome })
}

fn open(disk: &mut Disk) -> Replica {
    let record = setup::read_record(disk).unwrap();
    let mut out = Vec::new();
    let mut replica =
        Replica::open(record, BOOT, Settings::default(), disk, None, &mut out).unwrap();
    run(&mut replica, disk, out);
    replica
}

/// Returns what was reported.
fn run(
    replica: &mut Replica,
    disk: &mut Disk,
    mut actions: Vec<Action>,
) -> Vec<Result<(), String>> {
    let mut reports = Vec::new();
    while !actions.is_empty() {
        let mut more = Vec::new();
        for action in actions {
            if let Action::Report(result) = &action {
                reports.push(result.clone());
            } else if let Some(event) = execute(disk, action) {
                replica.step(0, event, &mut more);
            }
        }
        actions = more;
    }
    reports
}

fn break_off(replica: &mut Replica, disk: &mut Disk) -> Vec<Result<(), String>> {
    let mut out = Vec::new();
    replica.step(0, Event::Break, &mut out);
    run(replica, disk, out)
}

/// It refuses to become the primary, now and after each start; everything has to be copied.
fn check_lost(mut replica: Replica, disk: &mut Disk) {
    for _ in 0..2 {
        let reports = break_off(&mut replica, disk);
        let [Err(problem)] = &reports[..] else {
            panic!("{reports:?}");
        };
        assert!(problem.starts_with("before-images"), "{problem}");
        let record = setup::read_record(disk).unwrap();
        assert_eq!(record.role, Role::Secondary);
        assert_eq!((record.phase, record.generation), (Phase::Empty, 0));
        replica = open(disk);
    }
}

fn check_rolled_back(mut disk: Disk) {
    let mut replica = open(&mut disk);
    assert_eq!(break_off(&mut replica, &mut disk), [Ok(())]);
    assert_eq!(setup::read_record(&disk).unwrap().role, Role::Primary);
    let image = disk.contents(File::Image);
    assert!(image.iter().all(|byte| *byte == 1));
}

#[test]
fn with_its_before_images_an_end_is_rolled_back() {
    check_rolled_back(in_resync());
}

#[test]
fn a_torn_batch_or_header_is_no_loss() {
    let mut torn = in_resync();
    save(&mut torn, 3, 4);
    damage(&mut torn, entry_of(3) + ENTRY + 5);
    check_rolled_back(torn);
    let mut half_written = in_resync();
    damage(&mut half_written, 0);
    check_rolled_back(half_written);
}

#[test]
fn without_its_before_images_an_end_is_not_broken_off() {
    let mut missing = in_resync();
    missing.lose(File::Side, 0);
    let mut cut = in_resync();
    cut.lose(File::Side, entry_of(1) + 9);
    let mut headless = in_resync();
    damage(&mut headless, 3);
    damage(&mut headless, side::HEAD / 2 + 3);
    let mut head = in_resync();
    damage(&mut head, entry_of(1) + 20);
    let mut data = in_resync();
    damage(&mut data, entry_of(0) + ENTRY + 100);
    for mut disk in [missing, cut, headless, head, data] {
        let replica = open(&mut disk);
        check_lost(replica, &mut disk);
    }
}

#[test]
fn a_before_image_that_was_damaged_since_the_start_is_not_written_back() {
    for number in 0..3 {
        let mut disk = in_resync();
        let replica = open(&mut disk);
        damage(&mut disk, entry_of(number) + ENTRY + 100);
        check_lost(replica, &mut disk);
    }
}
