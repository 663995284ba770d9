//! What happens in a run: a list of operations with their times, made from a seed.

use crate::disk::Loss;
use crate::rng::Rng;
use mirrord_live_core::io::File;
use mirrord_live_core::types::{Geometry, Mode, Time, Window};

pub const MILLISECOND: Time = 1000;

#[derive(Clone, Debug)]
pub enum Op {
    Write {
        sector: u64,
        sectors: u64,
        fua: bool,
    },
    Trim {
        sector: u64,
        sectors: u64,
        punch: bool,
    },
    Flush,
    /// The process is killed, and started again after a while.
    Kill {
        node: usize,
        down: Time,
    },
    /// The same with a power cut.
    PowerCut {
        node: usize,
        loss: Loss,
        down: Time,
    },
    /// Frames from `from` vanish.
    Block {
        from: usize,
    },
    /// Large frames from `from` vanish, and all that follow one on its connection.
    Narrow {
        from: usize,
    },
    /// Frames from `from` take so much longer.
    Delay {
        from: usize,
        time: Time,
    },
    Unblock,
    Reset,
    Corrupt {
        from: usize,
    },
    Stall {
        node: usize,
        time: Time,
    },
    SetMode(Mode),
    /// So much of the window is in force.
    Limit(u64),
    /// Changes one of the primary's other settings, or asks for something.
    Tune(Tuning),
    Break,
    /// A fenced end becomes the secondary.
    Demote,
    FailWrite {
        node: usize,
    },
    FailSync {
        node: usize,
    },
    /// The next write to one of the records, or their next sync, fails.
    FailRecords {
        node: usize,
        file: File,
        sync: bool,
    },
    FailReserve,
    /// The next read of the image fails.
    FailRead {
        node: usize,
    },
    /// What the secondary's disk does takes so much longer.
    Drag(Time),
    /// The secondary's redo log is lost, all but its first bytes; its process starts again.
    LoseLog {
        kept: u64,
        down: Time,
    },
    /// A copy of an end's disk is made, as of its medium.
    Keep {
        node: usize,
    },
    /// An end's disk is replaced by the copy.
    Restore {
        node: usize,
        down: Time,
    },
    /// Looks at the secondary's image, as it is or as a power cut would leave it.
    Peek {
        cut: bool,
    },
    /// The images are compared while everything goes on.
    Verify,
}

#[derive(Clone, Copy, Debug)]
pub enum Tuning {
    Durable(bool),
    Merge(bool),
    Compress(bool),
    CopyRate(u64),
    StopVerify,
    Resync,
}

pub(crate) fn tuning(rng: &mut Rng) -> Op {
    let (is_on, number) = (rng.once_in(2), rng.below(5));
    Op::Tune(match rng.below(7) {
        0..=1 => Tuning::Durable(is_on),
        2 => Tuning::Merge(is_on),
        3 => Tuning::Compress(is_on),
        4 => Tuning::CopyRate(number << 13),
        5 => Tuning::StopVerify,
        _ => Tuning::Resync,
    })
}

#[derive(Clone, Debug)]
pub struct Step {
    pub at: Time,
    pub op: Op,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// The ends are in sync at the start.
    pub synced: bool,
    pub steps: Vec<Step>,
    /// Latencies are constant, and a power cut takes what its step says.
    pub fixed: bool,
    /// A resync may copy a few blocks a second only.
    pub throttled: bool,
    /// At the end a bit of the secondary's image is flipped, found and repaired.
    pub flipped: bool,
    /// The mode is `semi-sync` most of the time, with this window.
    pub semi: Option<Window>,
    /// How long a write may wait in it before more of the window is used; 0: all of it is.
    pub within: Time,
    /// Bytes on the link above which writes are merged.
    pub merge_above: u64,
}

pub fn geometry() -> Geometry {
    Geometry {
        size: 24 * 1024 + 512,
        block: 1024,
        extent: 4096,
        hot: 4,
    }
}

fn range(rng: &mut Rng) -> (u64, u64) {
    let total = geometry().size / 512;
    let longest = if rng.once_in(6) { 8 } else { 3 };
    let sectors = 1 + rng.below(longest);
    // Half of the writes go to a few blocks, so that they meet.
    let sector = if rng.once_in(2) {
        rng.below(6)
    } else {
        rng.below(total - sectors + 1)
    };
    (sector, sectors)
}

pub(crate) fn client_op(rng: &mut Rng) -> Op {
    let (sector, sectors) = range(rng);
    match rng.below(12) {
        0..=2 => Op::Flush,
        3 => Op::Trim {
            sector,
            sectors,
            punch: rng.once_in(2),
        },
        4 => Op::Write {
            sector,
            sectors,
            fua: true,
        },
        _ => Op::Write {
            sector,
            sectors,
            fua: false,
        },
    }
}

pub(crate) fn accident(rng: &mut Rng) -> Op {
    let node = rng.below(2) as usize;
    let down = (20 + rng.below(200)) * MILLISECOND * if rng.once_in(4) { 15 } else { 1 };
    match rng.below(27) {
        0..=3 => Op::Kill { node, down },
        4..=8 => Op::PowerCut {
            node,
            loss: Loss::Random,
            down,
        },
        9..=11 => Op::Block { from: node },
        12..=14 => Op::Unblock,
        15 => Op::Reset,
        16 => Op::Corrupt { from: node },
        17 => Op::Stall {
            node,
            time: (100 + rng.below(4000)) * MILLISECOND,
        },
        18 => Op::SetMode([Mode::Async, Mode::Sync, Mode::Strict][rng.below(3) as usize]),
        19 => Op::FailWrite { node },
        20 => Op::Break,
        21 => Op::Demote,
        22 if rng.once_in(3) => Op::FailSync { node },
        24..=26 => Op::Verify,
        _ => Op::FailReserve,
    }
}

/// Adds what chance alone brings about too seldom.
fn themed(rng: &mut Rng, synced: bool, steps: &mut Vec<Step>) {
    let last = steps.last().map_or(0, |step| step.at);
    let start = rng.below(last + 1);
    let mut add = |at: Time, op: Op| steps.push(Step { at, op });
    match rng.below(8) {
        0 => {
            // A break, most often in the middle of a copy.
            let mut at = if synced { start } else { 0 };
            if synced && !rng.once_in(4) {
                add(at, Op::Block { from: 0 });
                for _ in 0..rng.below(6) {
                    add(at + rng.below(2000) * MILLISECOND, client_op(rng));
                }
                at += (1700 + rng.below(400)) * MILLISECOND;
                add(at, Op::Unblock);
                at += rng.below(50) * MILLISECOND;
            }
            let at = at + rng.below(120) * MILLISECOND;
            add(at, Op::Break);
            for _ in 0..rng.below(8) {
                add(at + rng.below(800) * MILLISECOND, client_op(rng));
            }
            add(at + rng.below(1000) * MILLISECOND, Op::Demote);
        }
        1 => {
            // A power cut of the primary at the moment at which it leaves the other end behind.
            add(start, Op::Block { from: 1 });
            for _ in 0..1 + rng.below(4) {
                add(start + rng.below(1400) * MILLISECOND, client_op(rng));
            }
            let at = start + 1380 * MILLISECOND + rng.below(160 * MILLISECOND);
            let (loss, down) = (Loss::All, 20 * MILLISECOND);
            add(
                at,
                Op::PowerCut {
                    node: 0,
                    loss,
                    down,
                },
            );
            add(at + rng.below(10 * MILLISECOND), Op::Unblock);
        }
        2 => {
            // A power cut of the primary just after it got in sync, and more extents than can be
            // tracked.
            for _ in 0..12 {
                add((30 + rng.below(50)) * MILLISECOND, client_op(rng));
            }
            let (node, loss, down) = (0, Loss::All, 20 * MILLISECOND);
            let at = (50 + rng.below(60)) * MILLISECOND;
            add(at, Op::PowerCut { node, loss, down });
        }
        3 => {
            // The images are compared while acknowledgements are lost.
            add(start, Op::Verify);
            for _ in 0..2 + rng.below(8) {
                add(start + rng.below(40) * MILLISECOND, client_op(rng));
            }
            add(start + rng.below(40 * MILLISECOND), Op::Block { from: 1 });
            add(start + 400 * MILLISECOND, Op::Unblock);
        }
        _ => {}
    }
}

impl Plan {
    pub fn random(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        let mut at = 0;
        let count = 10 + rng.below(50);
        let accidents = 2 + rng.below(6);
        let mut steps = Vec::new();
        for _ in 0..count {
            at += match rng.below(10) {
                0..=5 => rng.below(3) * MILLISECOND,
                6..=8 => rng.below(40) * MILLISECOND,
                _ => rng.below(900) * MILLISECOND,
            };
            let op = if rng.below(10) < accidents {
                if rng.once_in(3) {
                    Op::Peek {
                        cut: rng.once_in(2),
                    }
                } else if rng.once_in(2) {
                    accident(&mut rng)
                } else {
                    client_op(&mut rng)
                }
            } else {
                client_op(&mut rng)
            };
            steps.push(Step { at, op });
        }
        let synced = !rng.once_in(4);
        themed(&mut rng, synced, &mut steps);
        steps.sort_by_key(|step| step.at);
        Plan {
            seed,
            synced,
            steps,
            fixed: false,
            throttled: rng.once_in(4),
            flipped: rng.once_in(4),
            semi: None,
            within: 0,
            merge_above: u64::MAX,
        }
    }
}
