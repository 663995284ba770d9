//! Verification: what the image holds as of an operation is compared with the primary's digests.

use super::Replica;
use crate::digest::{differing, digests, DIGEST};
use crate::fault::Fault;
use crate::frame::{Class, Frame};
use crate::io::{Action, File, Outcome, Token};
use crate::types::{Failure, Range};

impl Replica {
    /// Reads a range when everything before is executed, and before anything that follows.
    pub(super) fn verify(&mut self, frame: &Frame, out: &mut Vec<Action>) -> bool {
        let range = Range::new(frame.offset, frame.length);
        let is_sound = self.geometry.contains(range) && {
            let blocks = self.geometry.blocks_of(range);
            let is_short = range.length <= self.settings.copy_chunk.max(self.geometry.block);
            is_short && frame.payload.len() as u64 == (blocks.end - blocks.start) * DIGEST as u64
        };
        if !is_sound || range.offset % u64::from(self.geometry.block) != 0 {
            self.hang_up("digests of a range outside the image", out);
            return false;
        }
        if !self.locks.is_free(range) {
            return false;
        }
        self.locks.lock(range);
        self.inflight.insert(frame.sequence, range);
        self.verifying.insert(frame.sequence, frame.payload.clone());
        out.push(Action::Read {
            file: File::Image,
            offset: range.offset,
            length: range.length,
            token: Token::Verify(frame.sequence),
        });
        true
    }

    pub(super) fn compared(&mut self, osn: u64, outcome: Outcome, out: &mut Vec<Action>) {
        let theirs = self.verifying.remove(&osn);
        let (Some(range), Some(theirs)) = (self.inflight.remove(&osn), theirs) else {
            return;
        };
        self.locks.unlock(range);
        match outcome {
            Outcome::Data(data) if self.session => {
                let mine = digests(&data, self.geometry.block);
                let mut runs = differing(&self.geometry, range, &mine, &theirs);
                if self.is_faulty(Fault::VerifyBlind) {
                    runs.clear();
                }
                let mut frame = Frame::with_payload(Class::Verified, 0, runs);
                frame.sequence = osn;
                (frame.offset, frame.length) = (range.offset, range.length);
                self.send(frame, out);
                self.advance(osn);
            }
            Outcome::Data(_) => {}
            _ => {
                self.problem = format!("the image can't be read at {}", range.offset);
                self.report_failure(Failure::Io, out);
            }
        }
    }
}
