//! The fast loop of semi-sync: M, the part of the window that is in force, grows so that no client
//! waits for longer than it accepts. From *Dynamic synchronous/asynchronous replication* (Natanzon,
//! Bachmat), section 3.1; the simulation has the same rules (native/core/src/modes). M gets smaller
//! only when it is told to, and then gradually: at once down to what the other end lacks, as nobody
//! waits for that, and then by half of what it acknowledges. So a client that fills the link however
//! few its requests are goes on at half of the link's rate, and need not wait until the difference
//! is sent, which would make M grow again.

use super::writes::Issued;
use super::Primary;
use crate::fault::Fault;
use crate::io::Action;
use crate::types::{Time, Window};

impl Primary {
    /// The window in force.
    pub(super) fn window(&self) -> Window {
        let semi = self.settings.semi;
        let bytes = match self.limit {
            Some(limit) if self.is_faulty(Fault::GrowthUnbounded) => limit,
            Some(limit) => limit.min(semi.bytes),
            None => semi.bytes,
        };
        Window { bytes, ..semi }
    }

    /// Lets M grow when a write has waited for `within` (0: it does not grow), and sets it.
    /// `limit` None: as it is; the window, if it does not grow.
    pub(super) fn adapt(&mut self, within: Time, limit: Option<u64>, out: &mut Vec<Action>) {
        self.settings.within = within;
        self.limit = self.limit.filter(|_| within > 0);
        if let Some(limit) = limit {
            self.lowest = limit;
            let lacking = self.sent_bytes.saturating_sub(self.arrived_bytes);
            self.limit = match self.limit {
                Some(before) if limit < before => Some(before.min(lacking).max(limit)),
                _ => Some(limit),
            };
        }
        self.answer_waiting(out);
        out.push(Action::Report(Ok(())));
    }

    /// At the change from sync M is what answers the writes that have waited for half of the time.
    pub(super) fn begin_adapting(&mut self) {
        if self.settings.within > 0 {
            self.limit = Some(0);
            self.lowest = 0;
            self.admit_aged();
        }
    }

    /// M gets smaller while the other end gets more.
    pub(super) fn lower(&mut self, arrived: u64) {
        if let Some(limit) = self.limit.filter(|limit| *limit > self.lowest) {
            self.limit = Some(limit.saturating_sub(arrived / 2).max(self.lowest));
        }
    }

    /// When the oldest write that waits for M alone will have waited for long enough.
    pub fn grows_at(&self) -> Option<Time> {
        let limit = self.limit.filter(|limit| {
            self.is_windowed() && self.settings.within > 0 && *limit < self.settings.semi.bytes
        })?;
        let is_beyond = |each: &&Issued| {
            let ahead = each.end.saturating_sub(self.arrived_bytes);
            each.local && !each.replied && !each.peer && ahead > limit
        };
        let oldest = self.issued.values().find(is_beyond)?;
        Some(oldest.arrived.saturating_add(self.settings.within))
    }

    pub(super) fn grow(&mut self, out: &mut Vec<Action>) {
        let is_due = self.grows_at().is_some_and(|at| at <= self.now);
        if is_due && !self.is_faulty(Fault::GrowthMissed) {
            self.admit_aged();
            self.answer_waiting(out);
        }
    }

    /// M becomes the bytes of all writes that the other end lacks and that arrived at least half of
    /// `within` ago.
    fn admit_aged(&mut self) {
        let before = self.now.saturating_sub(self.settings.within / 2);
        let aged = self
            .issued
            .values()
            .filter(|each| !each.replied && !each.peer && each.osn > 0 && each.arrived <= before);
        let ahead = aged.map(|each| each.end.saturating_sub(self.arrived_bytes));
        if let Some(ahead) = ahead.max().filter(|ahead| Some(*ahead) > self.limit) {
            self.limit = Some(ahead);
            self.lowest = ahead;
        }
    }
}
