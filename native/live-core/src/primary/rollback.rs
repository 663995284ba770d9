//! Ends that were replaced by older copies of themselves: a snapshot or a backup was restored.
//!
//! Both ends count the sessions. A number is durable at the primary before the other end is asked to
//! begin, durable there before it answers, and then the primary's record says so. In sync, in
//! semi-sync and during a copy the number is raised from time to time, too. An end whose number
//! cannot be by that is an older copy, or the other one is: what the two differ in is not on record.

use super::writes::SentKind;
use super::{Link, Primary, State};
use crate::fault::Fault;
use crate::frame::{Class, Frame};
use crate::hello::{closing, Hello, COUNTING};
use crate::io::Action;
use crate::record::Record;
use std::ops::RangeInclusive;

pub(super) const OLDER: &str = "one of the ends is an older copy of itself; everything is copied";
pub(super) const OLDER_AND_LOST: &str =
    "one of the ends is an older copy of itself; 'mirrord break' makes the other end the primary";

impl Primary {
    pub(super) fn is_rolled_back(&self, peer: &Hello) -> bool {
        if self.is_faulty(Fault::OlderCopyUnseen) {
            return false;
        }
        let Record { session, asked, .. } = self.record;
        let is_apart =
            |theirs: &RangeInclusive<u64>| *theirs.end() < session || *theirs.start() > asked;
        peer.sessions.as_ref().is_some_and(is_apart)
    }

    /// The other end may say why it closes the connection.
    pub(super) fn turned_away(&mut self, code: u64, out: &mut Vec<Action>) {
        if let Some(reason) = closing(code) {
            self.hang_up(reason, out);
        }
    }

    /// Everything is copied, also after a restart.
    pub(super) fn disown(&mut self, peer: &Hello, out: &mut Vec<Action>) {
        self.record.generation = self.record.generation.max(peer.generation) + 2;
        // Or each further session would find the same again, until the number is reached. A session
        // of that number may be one of another copy of this end.
        let theirs = peer.sessions.as_ref().map_or(0, |it| *it.end());
        self.record.asked = self.record.asked.max(theirs + 1);
        self.record_changed = true;
        out.push(Action::Log(OLDER.into()));
    }

    /// Takes the next number; whether it is durable. One that the other end may know is not taken
    /// again: a copy of this end that was made before may take it, too.
    pub(super) fn ask_session(&mut self) -> bool {
        if self.has_sessions && self.record.asked == self.told {
            self.record.asked += 1;
            self.record_changed = true;
        }
        let (saved, record) = (&self.saved, &self.record);
        (saved.asked, saved.generation) == (record.asked, record.generation)
    }

    /// The number to send; 0: the other end does not count.
    pub(super) fn asked_session(&mut self) -> u64 {
        self.told = self.record.asked;
        match self.has_sessions {
            true => self.record.asked,
            false => 0,
        }
    }

    /// The other end has the number on disk.
    pub(super) fn count_session(&mut self) {
        self.confirming = false;
        if self.has_sessions {
            self.record_changed |= self.record.session != self.told;
            self.record.session = self.told;
        }
    }

    /// Raises the number in a session, if something was written since.
    pub(super) fn confirm_session(&mut self, out: &mut Vec<Action>) {
        let is_due = self.now.saturating_sub(self.confirmed_at) >= 2 * self.settings.hold;
        let is_possible = match self.state {
            State::InSync | State::Resync => self.has_sessions,
            State::Semi => self.features & COUNTING != 0,
            _ => false,
        };
        let is_linked = self.link == Link::Session;
        let is_changed = self.osn > self.confirmed_osn;
        if is_due
            && is_possible
            && is_linked
            && is_changed
            && !self.confirming
            && self.ask_session()
        {
            let mut frame = Frame::new(Class::Settle, self.record.epoch);
            frame.offset = self.asked_session();
            self.operation(frame, SentKind::Control, out);
            self.confirming = true;
            self.confirmed_at = self.now;
            self.confirmed_osn = self.osn;
        }
    }
}
