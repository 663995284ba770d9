//! The end of a run: everything is repaired, and both ends have to become equal.

use super::*;

impl World {
    pub(super) fn heal(&mut self) {
        self.healing = true;
        self.note(|| "healing".into());
        self.blocked = [false; 2];
        self.narrow = [false; 2];
        self.delay = [0; 2];
        self.corrupt = [false; 2];
        self.drag = 0;
        for node in 0..2 {
            self.nodes[node].fail_read = false;
            self.nodes[node].fail_write = false;
            self.nodes[node].fail_sync = false;
            self.nodes[node].fail_reserve = false;
            self.nodes[node].fail_records = None;
        }
        let until = self.now + HEAL_WITHIN;
        let mut next_help = self.now;
        while self.violation.is_none() && !self.is_void {
            if self.is_settled() {
                if self.flip == Flip::No {
                    self.final_checks();
                }
                if !self.plan.flipped || self.violation.is_some() {
                    return;
                }
                if self.flip_and_repair() {
                    self.final_checks();
                    return;
                }
            }
            if self.now > until {
                let state = self.describe();
                self.fail(format!(
                    "P9: not in sync after everything was repaired: {state}"
                ));
                return;
            }
            if self.now >= next_help {
                next_help = self.now + 300 * MILLISECOND;
                self.help();
            }
            if !self.turn() {
                self.fail("P9: nothing happens any more".into());
            }
        }
    }

    fn describe(&self) -> String {
        let node = |node: &Node| match &node.machine {
            Machine::Down => "down".to_owned(),
            Machine::Fenced => "fenced".to_owned(),
            Machine::Primary(primary) => format!("{:?}", primary.status()),
            Machine::Replica(replica) => format!("{:?}", replica.status()),
        };
        format!("{} / {}", node(&self.nodes[0]), node(&self.nodes[1]))
    }

    /// What an administrator does: sync mode, fenced ends become secondaries, failed ones restart.
    fn help(&mut self) {
        for node in 0..2 {
            match &self.nodes[node].machine {
                Machine::Primary(primary) => {
                    if primary.state() == State::Failed {
                        if !self.is_noting_loss(node) {
                            self.kill(node);
                            self.at(self.now, What::Start { node });
                        }
                    } else if primary
                        .status()
                        .reason
                        .contains("older copy of itself; 'mirrord break'")
                    {
                        if self.is_aged || self.has_no_image {
                            self.primary_event(node, primary::Event::Force);
                        } else {
                            self.perform(Op::Break);
                        }
                    } else if primary.record().mode != Mode::Sync {
                        self.set_mode(node, Mode::Sync);
                    }
                }
                Machine::Fenced => self.demote(node),
                _ => {}
            }
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        let is_in_sync = match &self.nodes[self.primary].machine {
            Machine::Primary(primary) => primary.state() == State::InSync && primary.is_idle(),
            _ => false,
        };
        is_in_sync
            && self.asked.is_empty()
            && self.nodes.iter().all(|node| node.inflight.is_empty())
            && match &self.nodes[1 - self.primary].machine {
                // The primary of one that has just lost its power may not know that yet.
                Machine::Replica(replica) => replica.status().session,
                _ => false,
            }
    }

    pub(super) fn final_checks(&mut self) {
        let [first, second] = [0, 1].map(|node| self.nodes[node].disk.contents(File::Image));
        if first != second {
            let at = first.iter().zip(second).position(|(a, b)| a != b);
            self.fail(format!("P4: in sync, and the images differ at byte {at:?}"));
            return;
        }
        let image = first.to_vec();
        if let Some(problem) = self.history.check(&image, Secured::Acknowledged, true) {
            self.fail(format!("P1 at the end: {problem}"));
        }
    }
}
