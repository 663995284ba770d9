//! Transactions on the tracking file: the record, new extents, parts of the map.

use super::{Link, Primary, State};
use crate::activity::PER_PAGE;
use crate::fault::Fault;
use crate::hello::Begin;
use crate::io::Action;
use crate::layout;
use crate::record::Record;
use crate::tracker::Needs;
use std::collections::HashSet;

/// What becomes true when a transaction is durable.
#[derive(Clone, Debug)]
pub(super) enum Commit {
    Start,
    Record(Box<Record>),
    Extents(Vec<u32>),
    Map,
}

impl Primary {
    pub(super) fn pump_tracking(&mut self, out: &mut Vec<Action>) {
        if !self.journal.is_idle() {
            return;
        }
        if self.record_changed {
            self.record_changed = false;
            self.record.serial += 1;
            let page = (
                layout::record_offset(self.record.serial),
                self.record.encode(),
            );
            let commit = Commit::Record(Box::new(self.record.clone()));
            self.start(vec![page], commit, out);
        } else if self.state == State::Failed {
        } else if matches!(self.link, Link::Beginning(Begin::Initial { .. }))
            && self.tracker.has_stale()
        {
            // The copy waits for the map, and writes that go on would be first for ever.
            self.save_stale(out);
        } else if !self.wanted.is_empty() {
            self.track_extents(out);
        } else if self.tracker.has_stale() && !matches!(self.state, State::Exchange { .. }) {
            self.save_stale(out);
        }
    }

    fn start(&mut self, pages: Vec<(u64, Vec<u8>)>, commit: Commit, out: &mut Vec<Action>) {
        self.counts.tracking_commits += 1;
        self.progress += 1;
        self.journal.start(pages, commit, out);
    }

    /// Makes the extents that writes wait for durable, and drops others to have room for them.
    fn track_extents(&mut self, out: &mut Vec<Action>) {
        let limit = PER_PAGE / 2;
        let mut seen = HashSet::new();
        let wanted = self.wanted.iter().copied();
        let mut adds: Vec<u32> = wanted.filter(|each| seen.insert(*each)).collect();
        adds.truncate(limit);
        adds.truncate(self.geometry.hot as usize);
        let mut removes = Vec::new();
        let is_semi = self.state == State::Semi;
        let is_entering = self.is_gated() && !self.is_faulty(Fault::EvictionBeforeSync);
        if self.tracker.room() < adds.len() {
            let is_settled = self.saved.synced == self.record.synced;
            let early = self.is_faulty(Fault::EarlyEviction);
            if is_settled || early {
                let wanted = (adds.len() - self.tracker.room()).max(self.geometry.hot as usize / 8);
                let wanted = wanted.min(limit);
                let needs = Needs {
                    map: !self.record.synced,
                    durable: self.record.synced || is_entering,
                    either: is_semi,
                };
                let kept = self.kept.clone();
                removes = self.tracker.evictable(wanted, kept, needs, early);
            }
            adds.truncate(self.tracker.room() + removes.len());
        }
        let is_scarce = self.tracker.room() < self.geometry.hot as usize / 4;
        let is_waiting = self.record.synced || is_entering || is_semi;
        if is_scarce && is_waiting && self.tracker.undurable() {
            self.request_barrier();
        }
        if adds.is_empty() {
            if !self.record.synced && !self.saved.synced {
                let pages = self.tracker.save_hot(self.settings.pages, is_semi);
                if !pages.is_empty() {
                    self.start(pages, Commit::Map, out);
                }
            }
            return;
        }
        let pages = self.tracker.append(&adds, &removes);
        self.start(pages, Commit::Extents(adds), out);
    }

    fn request_barrier(&mut self) {
        if !self.barrier_wanted && self.barrier.is_none() {
            self.barrier_wanted = true;
            self.progress += 1;
        }
    }

    /// Stores the progress of a resync. What is not durable at the other end keeps its bits.
    fn save_stale(&mut self, out: &mut Vec<Action>) {
        let is_due = match self.state {
            State::Finishing { barrier } => self.barriers_done >= barrier,
            State::Resync | State::Semi => {
                self.barrier.is_none() && self.barriers_done > self.stale_saved_at
            }
            _ => true,
        };
        if is_due {
            self.stale_saved_at = self.barriers_done;
            let is_semi = self.state == State::Semi;
            let pages = self.tracker.save_stale(self.settings.pages, is_semi);
            self.start(pages, Commit::Map, out);
        }
    }

    pub(super) fn committed(&mut self, commit: Commit, out: &mut Vec<Action>) {
        self.progress += 1;
        match commit {
            Commit::Start => self.started(),
            Commit::Record(record) => {
                let is_released = self.saved.bounded && !record.bounded;
                self.saved = *record;
                if is_released {
                    self.answer_waiting(out);
                }
            }
            Commit::Extents(extents) => self.tracker.admit(&extents),
            Commit::Map => {}
        }
    }
}
