//! Every schedule of two writes, two crashes and one cut, with constant latencies: the accidents
//! are placed before each event of the run, a power cut takes all or nothing of what was not
//! synced.

use crate::disk::Loss;
use crate::plan::{Op, Plan, Step, MILLISECOND};
use crate::world::World;
use mirrord_live_core::fault::Fault;

/// How many of the schedules to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Cuts before each third event, second crashes before each other one.
    Sampled,
    All,
}

#[derive(Clone, Debug, Default)]
pub struct Found {
    pub schedules: u64,
    pub violation: Option<String>,
}

/// Two writes to the same block with a flush in between, then a flush; or side by side.
fn scripts() -> Vec<Vec<Step>> {
    let write = |at: u64, sector: u64| Step {
        at: at * MILLISECOND,
        op: Op::Write {
            sector,
            sectors: 3,
            fua: false,
        },
    };
    let flush = |at: u64| Step {
        at: at * MILLISECOND,
        op: Op::Flush,
    };
    vec![
        vec![write(0, 0), flush(6), write(12, 0), flush(18)],
        vec![write(0, 0), write(1, 2), flush(3)],
    ]
}

fn crashes() -> Vec<Op> {
    let mut all = Vec::new();
    for node in 0..2 {
        let down = 30 * MILLISECOND;
        all.push(Op::Kill { node, down });
        for loss in [Loss::All, Loss::Nothing] {
            all.push(Op::PowerCut { node, loss, down });
        }
    }
    all
}

fn plan(steps: &[Step]) -> Plan {
    Plan {
        seed: 1,
        synced: true,
        steps: steps.to_vec(),
        fixed: true,
        throttled: false,
        flipped: false,
        semi: None,
        within: 0,
        merge_above: u64::MAX,
    }
}

fn run_one(steps: &[Step], accidents: Vec<(u64, Op)>, fault: Option<Fault>) -> Option<String> {
    let mut world = World::new(plan(steps), fault);
    world.accidents = accidents;
    world.run();
    world.violation
}

/// Events of the run without accidents from the first write on.
fn events(steps: &[Step]) -> (u64, u64) {
    let mut quiet = World::new(plan(&[]), None);
    quiet.run_for(58 * MILLISECOND);
    let mut world = World::new(plan(steps), None);
    world.run_for(60 * MILLISECOND + 40 * MILLISECOND);
    (quiet.steps, world.steps)
}

pub fn run(extent: Extent, fault: Option<Fault>) -> Found {
    let mut found = Found::default();
    let (second_step, cut_step) = match extent {
        Extent::Sampled => (5, 9),
        Extent::All => (1, 1),
    };
    for steps in scripts() {
        let (first, last) = events(&steps);
        for one in first..last {
            for crash in crashes() {
                for two in (one + 1..last + 30).step_by(second_step) {
                    for again in crashes() {
                        let cuts = (first..last).step_by(cut_step).map(Some);
                        for cut in std::iter::once(None).chain(cuts) {
                            let mut accidents = vec![(one, crash.clone()), (two, again.clone())];
                            if let Some(cut) = cut {
                                accidents.push((
                                    cut,
                                    Op::Block {
                                        from: (cut % 2) as usize,
                                    },
                                ));
                            }
                            found.schedules += 1;
                            if let Some(problem) = run_one(&steps, accidents.clone(), fault) {
                                found.violation = Some(format!("{accidents:?}: {problem}"));
                                return found;
                            }
                        }
                    }
                }
            }
        }
    }
    found
}
