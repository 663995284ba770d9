//! Reduces a plan that violates a property: operations are left out as long as it still does.

use crate::plan::Plan;
use crate::world::World;
use mirrord_live_core::fault::Fault;

/// The violation of a plan.
pub fn violation(plan: &Plan, fault: Option<Fault>) -> Option<String> {
    let mut world = World::new(plan.clone(), fault);
    world.run();
    world.violation
}

/// The smallest plan found that still violates something.
pub fn shrink(plan: &Plan, fault: Option<Fault>) -> Plan {
    let mut best = plan.clone();
    // The property is what the text begins with.
    let kind = |found: Option<String>| found.map(|text| text[..2].to_owned());
    let wanted = kind(violation(plan, fault));
    let mut size = (best.steps.len() / 2).max(1);
    loop {
        let mut at = 0;
        let mut reduced = false;
        while at < best.steps.len() {
            let mut fewer = best.clone();
            let end = (at + size).min(fewer.steps.len());
            fewer.steps.drain(at..end);
            if kind(violation(&fewer, fault)) == wanted {
                best = fewer;
                reduced = true;
            } else {
                at += size;
            }
        }
        if size == 1 && !reduced {
            return best;
        }
        size = (size / 2).max(1);
    }
}

/// What happened in a plan's run, line by line.
pub fn trace(plan: &Plan, fault: Option<Fault>) -> Vec<String> {
    let mut world = World::new(plan.clone(), fault);
    world.trace = Some(Vec::new());
    world.run();
    world.trace.unwrap_or_default()
}
