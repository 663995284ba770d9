//! Writes that are merged.

use crate::pair::{Input, Pair};
use crate::HOLD;
use mirrord_live_core::frame::{Class, Frame, MORE};
use mirrord_live_core::io::File;
use mirrord_live_core::primary::{self, State};
use mirrord_live_core::replica;
use mirrord_live_core::types::Range;
use mirrord_live_sim::world::settings;
use std::time::Instant;

impl Pair {
    /// Three writes of one sector, of which the link takes the first at once.
    fn overwrite(&mut self) {
        self.ask(primary::Event::MergeAbove(0));
        self.is_slow = true;
        self.sent.clear();
        for request in [1, 41, 81] {
            self.write(request);
        }
        self.is_slow = false;
        self.pass(500);
    }
}

#[test]
fn repeated_writes_are_one_unit() {
    let mut pair = Pair::in_semi_sync();
    pair.overwrite();
    let classes: Vec<Class> = pair.sent.iter().map(|(_, class)| *class).collect();
    assert_eq!(classes[..3], [Class::Write, Class::Merged, Class::Write]);
    assert_eq!(pair.primary.counts.merged_writes, 1);
    assert_eq!(pair.primary.status().lag.buffered, 0);
    let [mine, theirs] = [0, 1].map(|node| pair.disks[node].contents(File::Image));
    assert_eq!(mine, theirs);
}

#[test]
fn an_older_replica_gets_each_write() {
    let mut pair = Pair::in_semi_sync();
    pair.is_older = true;
    pair.cut();
    pair.is_linked = true;
    pair.pass(500);
    assert_eq!(pair.primary.state(), State::Semi);
    pair.overwrite();
    assert!(pair.sent.iter().all(|(_, class)| *class != Class::Merged));
    assert_eq!(pair.primary.counts.merged_writes, 0);
    assert!(!pair.primary.is_compressing());
}

#[test]
fn a_unit_that_is_interrupted_is_sent_again() {
    let mut pair = Pair::in_semi_sync();
    pair.ask(primary::Event::MergeAbove(0));
    pair.is_slow = true;
    for request in [1, 41, 81] {
        pair.write(request);
    }
    // The first write, and of the unit of the two others all but its end.
    while pair.primary.counts.merged_writes == 0 || pair.underway.len() != 1 {
        let next = pair.underway.pop_front();
        pair.inputs.extend(next.map(Input::Replica));
        pair.run();
    }
    assert_eq!(pair.primary.status().lag.buffered, 1024);
    pair.cut();
    assert_eq!(pair.primary.status().lag.buffered, 1024);
    pair.is_slow = false;
    pair.is_linked = true;
    pair.pass(1000);
    assert_eq!(pair.primary.status().lag.buffered, 0);
    let [mine, theirs] = [0, 1].map(|node| pair.disks[node].contents(File::Image));
    assert_eq!(mine, theirs);
}

#[test]
fn a_unit_that_no_log_can_hold_is_refused() {
    let mut pair = Pair::in_semi_sync();
    let before = pair.disconnects;
    let first = pair.primary.last_operation() + 1;
    for number in 0..8 {
        let mut frame =
            Frame::with_payload(Class::Write, pair.primary.record().epoch, vec![1; 2048]);
        frame.sequence = first + number;
        frame.length = 2048;
        frame.flags = MORE;
        pair.inputs
            .push_back(Input::Replica(replica::Event::Frame(frame)));
    }
    pair.run();
    assert!(pair.disconnects > before);
}

#[test]
fn a_unit_that_takes_longer_than_hold_arrives() {
    let mut pair = Pair::in_semi_sync();
    let before = pair.disconnects;
    pair.ask(primary::Event::MergeAbove(0));
    pair.is_slow = true;
    for number in 0..15 {
        pair.write(1 + 40 * number);
    }
    while pair.primary.counts.merged_writes == 0 {
        pair.pass(20);
    }
    assert!(200 * (pair.primary.counts.merged_writes + 1) > HOLD);
    pair.pass(2 * HOLD);
    assert_eq!(pair.primary.status().lag.buffered, 0);
    assert_eq!(pair.disconnects, before);
}

#[test]
fn what_waits_is_searched_once() {
    let bytes = 1 << 20;
    let mut settings = settings();
    (settings.merge_above, settings.unit, settings.semi.bytes) = (bytes, bytes, bytes);
    let mut pair = Pair::in_semi_sync_with(settings);
    pair.cut();
    // Without data: 8,192 of them are a unit, and none replaces another.
    let began = Instant::now();
    for request in 0..30_000 {
        pair.ask(primary::Event::Zero {
            request,
            range: Range::new(request, 1),
            punch: false,
            fua: false,
        });
    }
    let asked = began.elapsed();
    pair.is_linked = true;
    pair.pass(100);
    assert!(pair.sent.len() > 8192);
    // A minute, if each of them was compared with all that follow.
    assert!(began.elapsed() < 5 * asked);
}
