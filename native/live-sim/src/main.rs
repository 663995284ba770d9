//! `live-sim [--seeds N] [--from SEED] [--fault NAME] [--plans KIND]`: random schedules; KIND is
//! `semi` (semi-sync), `records` (the disks of the records fail), `paths` (a path is slow, lost
//! again and again, or passes small frames only), `disks` (reads fail, the secondary's disk is slow)
//! or `copies` (an end is replaced by an older copy of itself); prints the first one that violates a
//! property, reduced. `--faults N`: how soon each seeded fault is noticed.
//! `--exhaustive sampled|all`: two writes, two crashes and a cut, at every event.

use mirrord_live_core::fault::Fault;
use mirrord_live_sim::exhaustive::{self, Extent};
use mirrord_live_sim::plan::Plan;
use mirrord_live_sim::shrink;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut seeds = 100_000u64;
    let mut from = 0u64;
    let mut fault = None;
    let mut random: fn(u64) -> Plan = Plan::random;
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match name.as_str() {
            "--seeds" => seeds = value.parse().unwrap_or(seeds),
            "--plans" if value == "semi" => random = Plan::semi,
            "--plans" if value == "records" => random = Plan::records,
            "--plans" if value == "paths" => random = Plan::paths,
            "--plans" if value == "copies" => random = Plan::copies,
            "--plans" if value == "disks" => random = Plan::disks,
            "--from" => from = value.parse().unwrap_or(from),
            "--faults" => {
                for fault in Fault::ALL {
                    let limit: u64 = value.parse().unwrap_or(seeds);
                    let found = (from..from + limit).find_map(|seed| {
                        let plan = Plan::showing(fault)(seed);
                        let problem = shrink::violation(&plan, Some(fault))?;
                        Some(format!("schedule {seed}: {problem}"))
                    });
                    println!("{fault:?}: {}", found.unwrap_or("NOT NOTICED".into()));
                }
                return ExitCode::SUCCESS;
            }
            "--exhaustive" => {
                let extent = if value == "all" {
                    Extent::All
                } else {
                    Extent::Sampled
                };
                let found = exhaustive::run(extent, fault);
                println!("{found:#?}");
                return ExitCode::from(u8::from(found.violation.is_some()));
            }
            "--fault" => match Fault::named(&value) {
                Some(found) => fault = Some(found),
                None => {
                    eprintln!("unknown fault {value}; one of {:?}", Fault::ALL);
                    return ExitCode::from(2);
                }
            },
            _ => {
                eprintln!("usage: live-sim [--seeds N] [--from SEED] [--fault NAME]");
                return ExitCode::from(2);
            }
        }
    }
    for seed in from..from + seeds {
        let plan = random(seed);
        if let Some(problem) = shrink::violation(&plan, fault) {
            println!("seed {seed}: {problem}");
            let small = shrink::shrink(&plan, fault);
            for line in shrink::trace(&small, fault) {
                let is_shown = std::env::var_os("LIVE_SIM_ALL").is_some();
                if is_shown
                    || ![" Ping ", " Ack ", " Hello "]
                        .iter()
                        .any(|each| line.contains(each))
                {
                    println!("{line}");
                }
            }
            println!("reduced: {small:#?}");
            return ExitCode::FAILURE;
        }
    }
    println!("{seeds} schedules from seed {from}: no violation");
    ExitCode::SUCCESS
}
