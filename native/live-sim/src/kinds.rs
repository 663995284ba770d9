//! Kinds of random plans.

use crate::plan::{accident, client_op, tuning, Op, Plan, Step, MILLISECOND};
use crate::rng::Rng;
use mirrord_live_core::fault::Fault;
use mirrord_live_core::io::File;
use mirrord_live_core::types::{Mode, Time, Window};

impl Plan {
    /// A random plan, or one for `semi-sync`; what chance decides in addition; the last step.
    fn of_either_kind(seed: u64, key: u64) -> (Plan, Rng, Time) {
        let plan = match seed % 2 {
            0 => Plan::random(seed),
            _ => Plan::semi(seed),
        };
        let last = plan.steps.last().map_or(0, |step| step.at);
        (plan, Rng::new(seed ^ key), last)
    }

    /// A random plan for `semi-sync`: cuts that fill the window, and looks at the secondary.
    pub fn semi(seed: u64) -> Plan {
        let mut plan = Plan::random(seed);
        let mut rng = Rng::new(seed ^ 0x005e_3175);
        let bytes = [0, 1 << 10, 3 << 10, 8 << 10][rng.below(4) as usize];
        let time = match rng.below(3) {
            0 => (20 + rng.below(400)) * MILLISECOND,
            _ => Time::MAX,
        };
        plan.semi = Some(Window { bytes, time });
        for step in &mut plan.steps {
            if matches!(step.op, Op::SetMode(_)) {
                let modes = [Mode::Semi, Mode::Sync, Mode::Async, Mode::Strict];
                step.op = Op::SetMode(modes[rng.below(4) as usize]);
            }
        }
        let last = plan.steps.last().map_or(0, |step| step.at);
        let mut add = |at: Time, op: Op| plan.steps.push(Step { at, op });
        add(rng.below(20) * MILLISECOND, Op::SetMode(Mode::Semi));
        add(rng.below(last + 1), Op::SetMode(Mode::Semi));
        for _ in 0..8 {
            let at = rng.below(last + 1);
            let cut = rng.once_in(2);
            add(at, Op::Peek { cut });
            add(at, client_op(&mut rng));
        }
        if rng.once_in(2) {
            let at = rng.below(last + 1);
            let from = rng.below(2) as usize;
            let time = rng.below(1200) * MILLISECOND;
            add(at, Op::Block { from });
            for _ in 0..rng.below(12) {
                add(at + rng.below(time + 1), client_op(&mut rng));
            }
            add(at + time, Op::Peek { cut: true });
            add(at + time, Op::Unblock);
        }
        if rng.once_in(4) {
            // The redo log is lost; most often the primary is gone, too, or the secondary is
            // broken off.
            let at = rng.below(last + 1);
            for _ in 0..2 + rng.below(6) {
                add(
                    at - rng.below(at.min(30 * MILLISECOND) + 1),
                    client_op(&mut rng),
                );
            }
            let kept = [0, 256, 600, 9 << 10][rng.below(4) as usize];
            let down = (5 + rng.below(40)) * MILLISECOND;
            let after = at + down + rng.below(60) * MILLISECOND;
            match rng.below(4) {
                0 => {}
                1 => add(after, Op::Break),
                2 => {
                    add(at, Op::Block { from: 0 });
                    add(after, Op::Break);
                    add(after + rng.below(900) * MILLISECOND, Op::Unblock);
                }
                _ => add(at, Op::Kill { node: 0, down }),
            }
            add(at, Op::LoseLog { kept, down });
        }
        if rng.once_in(2) {
            for _ in 0..rng.below(4) {
                let bytes = rng.below(4) << 10;
                add(rng.below(last + 1), Op::Limit(bytes));
            }
            plan.within = (2 + rng.below(200)) * MILLISECOND;
        }
        plan.merge_above = [0, 1 << 10, 4 << 10, u64::MAX][rng.below(4) as usize];
        plan.steps.sort_by_key(|step| step.at);
        plan
    }

    /// A random plan of one kind or the other in which a path passes small frames only, as one with
    /// a wrong MTU does, or is slow, or is lost again and again.
    pub fn paths(seed: u64) -> Plan {
        let (mut plan, mut rng, last) = Plan::of_either_kind(seed, 0x6d_74_75);
        let start = rng.below(last + 1);
        let time = (1 + rng.below(12)) * 1000 * MILLISECOND;
        let mut add = |at: Time, op: Op| plan.steps.push(Step { at, op });
        match rng.below(4) {
            0 => {
                let every = (50 + rng.below(2500)) * MILLISECOND;
                let times = (start..start + time).step_by(every as usize);
                times.for_each(|at| add(at, Op::Reset));
            }
            kind => {
                let longest = [120, 2500][rng.below(2) as usize];
                let delay = (10 + rng.below(longest)) * MILLISECOND;
                for from in (0..2).filter(|_| !rng.once_in(3)).collect::<Vec<usize>>() {
                    let slow = Op::Delay { from, time: delay };
                    add(start, if kind == 1 { slow } else { Op::Narrow { from } });
                }
            }
        }
        for _ in 0..2 + rng.below(8) {
            let span = [50 * MILLISECOND, time][rng.below(2) as usize];
            add(start + rng.below(span), client_op(&mut rng));
        }
        if rng.once_in(2) {
            let modes = [Mode::Semi, Mode::Sync, Mode::Async, Mode::Strict];
            let mode = modes[rng.below(4) as usize];
            add(start + rng.below(500 * MILLISECOND), Op::SetMode(mode));
        }
        add(start + time, Op::Unblock);
        for _ in 0..rng.below(4) {
            add(rng.below(last + 1), tuning(&mut rng));
        }
        plan.steps.sort_by_key(|step| step.at);
        plan
    }

    /// A random plan of one kind or the other in which reads fail and the secondary's disk is slow.
    pub fn disks(seed: u64) -> Plan {
        let (mut plan, mut rng, last) = Plan::of_either_kind(seed, 0x0d_15_c5);
        let mut add = |at: Time, op: Op| plan.steps.push(Step { at, op });
        for _ in 0..rng.below(4) {
            let node = rng.below(2) as usize;
            add(rng.below(last + 1), Op::FailRead { node });
        }
        let start = rng.below(last + 1);
        let span = (1 + rng.below(9)) * 1000 * MILLISECOND;
        let longest = [20, 120, 4000][rng.below(3) as usize];
        let drag = match rng.below(longest) {
            time @ 0..=120 => time,
            // Several accesses that take less than `hold` each take too long together.
            time => time.max(1600),
        };
        add(start, Op::Drag(drag * MILLISECOND));
        for _ in 0..2 + rng.below(8) {
            add(start + rng.below(span), client_op(&mut rng));
        }
        if seed % 3 == 0 {
            // What is read for a primary that starts again takes long.
            let (node, down) = (0, 20 * MILLISECOND);
            add(
                start - start.min(rng.below(30 * MILLISECOND)),
                Op::Kill { node, down },
            );
        }
        add(start + span, Op::Drag(0));
        for _ in 0..rng.below(4) {
            add(rng.below(last + 1), tuning(&mut rng));
        }
        plan.steps.sort_by_key(|step| step.at);
        plan
    }

    /// A random plan of one kind or the other in which an end is replaced by an older copy of itself.
    pub fn copies(seed: u64) -> Plan {
        let (mut plan, mut rng, last) = Plan::of_either_kind(seed, 0x00c0_9135);
        let start = rng.below(last + 1);
        let span = (1 + rng.below(12)) * 1000 * MILLISECOND;
        let mut add = |at: Time, op: Op| plan.steps.push(Step { at, op });
        let node = usize::from(!rng.once_in(4));
        add(start, Op::Keep { node });
        for _ in 0..4 + rng.below(12) {
            add(start + rng.below(span), client_op(&mut rng));
        }
        if rng.once_in(3) {
            add(start + rng.below(span), accident(&mut rng));
        }
        let down = (20 + rng.below(2000)) * MILLISECOND;
        add(start + span, Op::Restore { node, down });
        for _ in 0..rng.below(8) {
            add(
                start + span + rng.below(3000 * MILLISECOND),
                client_op(&mut rng),
            );
        }
        plan.steps.sort_by_key(|step| step.at);
        plan
    }

    /// What makes the plans in which a seeded fault shows.
    pub fn showing(fault: Fault) -> fn(u64) -> Plan {
        match fault {
            Fault::LossForgotten => Plan::records,
            Fault::GreetingProlongs | Fault::RefusalKept => Plan::paths,
            Fault::FetchUnwatched => Plan::disks,
            Fault::OlderCopyUnseen => Plan::copies,
            _ if fault.is_of_semi() => Plan::semi,
            _ => Plan::random,
        }
    }

    /// A random plan of one kind or the other in which the records' disks fail, too.
    pub fn records(seed: u64) -> Plan {
        let (mut plan, mut rng, last) = Plan::of_either_kind(seed, 0x7e_c0_4d);
        for _ in 0..1 + rng.below(4) {
            let files = [File::Tracking, File::Tracking, File::Side, File::Log];
            let (node, file) = (rng.below(2) as usize, files[rng.below(4) as usize]);
            let (at, sync) = (rng.below(last + 1), !rng.once_in(3));
            plan.steps.push(Step {
                at,
                op: Op::FailRecords { node, file, sync },
            });
            if rng.once_in(2) {
                // One disk has both.
                let op = Op::FailSync { node };
                plan.steps.push(Step { at, op });
            }
        }
        plan.steps.sort_by_key(|step| step.at);
        plan
    }
}
