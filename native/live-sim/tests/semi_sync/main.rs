//! Semi-sync step by step.

mod merging;
mod pair;

use mirrord_live_core::frame::{Class, Frame};
use mirrord_live_core::hello::Hello;
use mirrord_live_core::io::{Backend, File};
use mirrord_live_core::primary::{self, State};
use mirrord_live_core::redo::Slot;
use mirrord_live_core::replica;
use mirrord_live_core::setup;
use mirrord_live_core::types::{Failure, Mode, Phase, Role};
use mirrord_live_sim::disk::Loss;
use mirrord_live_sim::plan::{geometry, MILLISECOND};
use mirrord_live_sim::rng::Rng;

use pair::{Input, Pair};

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
fn a_durable_acknowledgement_survives_a_power_cut_of_both_ends() {
    for is_durable in [false, true] {
        let mut pair = Pair::in_semi_sync();
        pair.set_mode(Mode::Sync);
        pair.pass(3000);
        assert_eq!(pair.primary.state(), State::InSync);
        pair.ask(primary::Event::Durable(is_durable));
        pair.write(7);
        assert_eq!(pair.reply(7), Some(Ok(())));
        for disk in &mut pair.disks {
            disk.cut_power(&mut Rng::new(1), Loss::All);
            let mut sector = [0; 512];
            disk.read(File::Image, 7 * 512, &mut sector).unwrap();
            assert_eq!(sector[0] == 7, is_durable);
        }
    }
}

#[test]
fn a_durable_acknowledgement_counts_when_it_is_given() {
    let mut pair = Pair::in_semi_sync();
    pair.set_mode(Mode::Sync);
    pair.pass(3000);
    pair.ask(primary::Event::Durable(true));
    let before = pair.primary.latencies.mirrored.clone();
    let began = pair.now;
    pair.is_slow = true;
    pair.write(7);
    while pair.reply(7).is_none() {
        let status = pair.primary.status();
        assert_eq!(status.oldest, pair.now - began);
        assert!(status.outstanding_requests > 0);
        pair.pass(20);
    }
    let after = &pair.primary.latencies.mirrored;
    assert_eq!(after.count, before.count + 1);
    assert!(after.total - before.total >= 200 * MILLISECOND);
    assert_eq!(after.total - before.total, pair.now - began);
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
    assert_eq!(pair.primary.state(), State::Leaving(None));
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
fn an_older_copy_of_an_end_is_noticed() {
    for (node, is_restarted) in [(0, true), (1, false), (1, true)] {
        let mut pair = Pair::in_semi_sync();
        pair.write(1);
        pair.pass(100);
        let older = pair.disks[node].clone();
        pair.write(2);
        pair.pass(3 * HOLD);
        pair.cut();
        pair.disks[node] = older;
        pair.start_replica();
        if is_restarted {
            pair.start_primary();
        }
        pair.is_linked = true;
        pair.pass(2000);
        let is_noticed = |line: &String| line.contains("is an older copy of itself");
        assert!(pair.logs.iter().any(is_noticed), "{node} {is_restarted}");
        assert_eq!(pair.primary.state(), State::Semi);
        pair.set_mode(Mode::Sync);
        pair.pass(1000);
        let [mine, theirs] = [0, 1].map(|each| pair.disks[each].contents(File::Image));
        assert_eq!(mine, theirs);
    }
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
