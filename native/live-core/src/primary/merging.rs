//! What the link gets, and when. In semi-sync it gets no more than `merge_above` bytes that are not
//! acknowledged; what is beyond waits, and in it a write that is repeated is sent once.
//!
//! The states between the first write and the one that replaces it are never at the other end. So
//! both, and all operations between them, are a *unit*: the other end journals it in one batch. It
//! ends where a client relies on what is before (FLUSH, FUA). Once formed a unit is sent again as
//! it is: an acknowledgement covers all of it, or nothing.

use super::writes::{Sent, SentKind};
use super::{Link, Primary, State};
use crate::fault::Fault;
use crate::frame::{Class, Frame, HEADER, MORE};
use crate::hello::{COMPRESSION, MERGING};
use crate::io::Action;
use crate::types::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Operations of a unit, so that one turn does not take long.
const OPERATIONS: usize = 16 << 10;
/// Below it more is lost by small units than is gained by a link that is never idle.
const UNIT_MIN: u64 = 64 << 10;

/// A unit is acknowledged as a whole, and who waits for that waits longer: it has to save this part
/// of the link's bytes.
const WORTH: u64 = 8;

/// Bytes of the link.
pub(super) fn cost(frame: &Frame) -> u64 {
    (HEADER + frame.payload.len()) as u64
}

impl Primary {
    /// What is behind the last operation is not merged with what is before.
    pub(super) fn end_unit(&mut self) {
        if let Some(last) = self.sent.back_mut() {
            last.is_barrier = true;
        }
    }

    /// Nothing that is not acknowledged is under way.
    pub(super) fn rewind(&mut self) {
        self.transmitted = self.acked;
        self.flying = 0;
        self.held = self.sent.iter().map(|each| cost(&each.frame)).sum();
    }

    /// All of it is under way.
    pub(super) fn sent_again(&mut self) {
        self.transmitted = self.osn;
        self.flying = self.sent.iter().map(|each| cost(&each.frame)).sum();
        self.held = 0;
    }

    /// An operation was acknowledged.
    pub(super) fn landed(&mut self, sent: &Sent) {
        let bytes = match sent.frame.sequence <= self.transmitted {
            true => &mut self.flying,
            false => &mut self.held,
        };
        *bytes = bytes.saturating_sub(cost(&sent.frame));
    }

    /// Sends what can be sent now.
    pub(super) fn transmit(&mut self, out: &mut Vec<Action>) {
        if self.link != Link::Session {
            return;
        }
        let first = self.sent.front().map_or(0, |each| each.frame.sequence);
        let mut at = (self.transmitted + 1).saturating_sub(first) as usize;
        while at < self.sent.len() {
            let above = self.settings.merge_above;
            let is_more = self.is_merging() && self.flying + self.held > above;
            let mut end = at + 1;
            if is_more && !self.sent[at].is_formed {
                if self.flying > 0 && self.flying + self.unit() > above {
                    return;
                }
                end = self.form(at);
            }
            loop {
                let frame = self.sent[at].frame.clone();
                if let SentKind::Write { number, .. } = self.sent[at].kind {
                    self.note_sent(number);
                }
                self.transmitted = frame.sequence;
                self.held = self.held.saturating_sub(cost(&frame));
                self.flying += cost(&frame);
                at += 1;
                let is_last = frame.flags & MORE == 0;
                out.push(Action::Send(frame));
                if is_last && at >= end {
                    break;
                }
            }
        }
    }

    fn is_merging(&self) -> bool {
        self.state == State::Semi && self.has_merging() && self.settings.merge
    }

    pub(super) fn has_merging(&self) -> bool {
        self.features & MERGING != 0
    }

    /// Payloads are to be compressed: no client waits for them.
    pub fn is_compressing(&self) -> bool {
        matches!(self.state, State::Semi | State::Resync)
            && self.settings.compress
            && self.features & COMPRESSION != 0
    }

    fn unit(&self) -> u64 {
        self.settings
            .unit
            .min((self.settings.merge_above / 2).max(UNIT_MIN))
    }

    /// Makes a unit of what waits from `first` on, as far as it is not larger than a unit, if
    /// enough in it is replaced. Returns where what is to be sent now ends: it is not searched
    /// again.
    fn form(&mut self, first: usize) -> usize {
        let is_ignored = self.is_faulty(Fault::MergeAcrossBarrier);
        // The operations that are sent, by the range that they write.
        let mut kept: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        let mut replaced = Vec::new();
        let (mut bytes, mut saved, mut end) = (0, 0, first);
        for (at, sent) in self.sent.iter().enumerate().skip(first).take(OPERATIONS) {
            if sent.is_formed {
                break;
            }
            let range = Range::new(sent.frame.offset, sent.frame.length);
            let covered: Vec<(u64, u64)> = match sent.frame.class {
                Class::Write | Class::Zero => kept
                    .range((range.offset, 0)..(range.end(), 0))
                    .map(|(each, _)| *each)
                    .filter(|(_, end)| *end <= range.end())
                    .collect(),
                Class::Flush => Vec::new(),
                _ => break,
            };
            let less: u64 = covered
                .iter()
                .map(|each| cost(&self.sent[kept[each]].frame))
                .sum();
            let more = bytes + cost(&sent.frame) - less;
            if at > first && more > self.unit() {
                break;
            }
            (bytes, saved) = (more, saved + less);
            replaced.extend(covered.iter().filter_map(|each| kept.remove(each)));
            if sent.frame.class != Class::Flush {
                kept.insert((range.offset, range.end()), at);
            }
            end = at + 1;
            if sent.is_barrier && !is_ignored {
                break;
            }
        }
        if saved == 0 || saved * WORTH < bytes + saved {
            return end.max(first + 1);
        }
        for at in replaced {
            let frame = &mut self.sent[at].frame;
            self.held -= frame.payload.len() as u64;
            self.counts.merged_writes += 1;
            self.counts.merged_bytes += frame.payload.len() as u64;
            frame.class = Class::Merged;
            frame.payload = Arc::new(Vec::new());
        }
        for at in first..end {
            let sent = &mut self.sent[at];
            sent.is_formed = true;
            if at + 1 < end {
                sent.frame.flags |= MORE;
            }
        }
        end
    }
}
