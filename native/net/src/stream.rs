//! What both ends of the data of a call have in common (docs/wire.md, Data).

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mirrord_core::checksum::StreamChecksum;

use crate::frames;
use crate::gate::Gate;
use crate::tls::{Broken, Session};

/// The types of frames that are processed here.
pub const DATA: u8 = 5;
pub const CREDIT: u8 = 7;
/// Raw bytes that may be in flight or unread.
pub const WINDOW: usize = 8 << 20;
/// The longest piece.
pub const PIECE: usize = 512 << 10;
/// Before the payload of a data frame: number, raw length, packing.
pub const HEAD: usize = 12;
/// The packing of a payload that is not compressed.
pub const RAW: u8 = 0;
/// Minimum that a piece counts against the credit: it has overhead beyond its bytes.
const WEIGHT_LEAST: usize = 512;

/// The checksum of a complete stream.
pub type Sum = Arc<Mutex<StreamChecksum>>;

pub fn weight(raw: usize) -> usize {
    raw.max(WEIGHT_LEAST)
}

pub fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// A lane to which frames can be written.
pub struct Way<'a> {
    pub session: &'a Session,
    pub socket: BorrowedFd<'a>,
    pub gate: &'a Gate,
}

impl Way<'_> {
    /// Write a frame, if the lane accepts one by then; whether it did. Its last bytes may be left
    /// to the next writer.
    pub fn write(
        &self,
        kind: u8,
        stream: u32,
        parts: &[&[u8]],
        until: Instant,
    ) -> Result<bool, Broken> {
        let Some(_pass) = self.gate.enter(kind != DATA, left(until)) else {
            return Ok(false);
        };
        if !self.session.flush(self.socket, until)? {
            return Ok(false);
        }
        let header = frames::header(kind, stream, parts);
        let whole: Vec<&[u8]> = std::iter::once(&header[..])
            .chain(parts.iter().copied())
            .collect();
        self.session.send_within(self.socket, &whole, until)?;
        Ok(true)
    }
}
