//! What the ends tell each other when a connection is made, and how a session begins.

use crate::record::{Reader, Record};
use crate::types::{Phase, Role};
use std::ops::RangeInclusive;

/// One end's account of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub volume: [u8; 16],
    pub size: u64,
    pub block: u32,
    pub epoch: u64,
    pub role: Role,
    pub phase: Phase,
    pub generation: u64,
    /// Unflushed writes of this end may be gone.
    pub lost: bool,
    /// This end has changed blocks as a primary that its peer does not know of.
    pub diverged: bool,
    /// A secondary's redo log that is open; 0: none. None: it does not know redo logs.
    pub log: Option<u64>,
    /// What it understands beyond that: `MERGING`, `COMPRESSION`, `COUNTING`.
    pub features: u8,
    /// From `Record.session` to `Record.asked`. None: it does not count sessions.
    pub sessions: Option<RangeInclusive<u64>>,
}

/// No end counts this far in its life.
const AHEAD_MAX: u64 = 1 << 32;

/// What is said of an end that sends one which is not possible.
pub const IMPOSSIBLE: &str = "the other end's epoch, generation or session number is too high";

/// Why an end closes a connection after the greeting, as the end that made it says it.
pub const OTHER_MIRROR: &str =
    "the other end belongs to another mirror; give this one the address of its own replica";
const TAKEN: &str =
    "the replica is connected to another primary of this mirror; if that is a copy \
                     of this end, stop one of them";
/// In `released` of a `Refuse`. 0 there: something that a session asked for is refused.
pub const IS_OTHER_MIRROR: u64 = 1;
pub const IS_TAKEN: u64 = 2;

pub fn closing(code: u64) -> Option<&'static str> {
    match code {
        IS_OTHER_MIRROR => Some(OTHER_MIRROR),
        IS_TAKEN => Some(TAKEN),
        _ => None,
    }
}

/// Whether another end can have counted to this. Otherwise, if it were taken over, there might be no
/// higher number.
pub fn is_possible(theirs: u64, mine: u64) -> bool {
    theirs <= mine.saturating_add(AHEAD_MAX)
}

/// Units of which a part is not sent.
pub const MERGING: u8 = 1;
/// Payloads that are compressed.
pub const COMPRESSION: u8 = 2;
/// A session is confirmed while its operations are logged, too.
pub const COUNTING: u8 = 4;

impl Hello {
    pub fn of(record: &Record, lost: bool) -> Self {
        Hello {
            volume: record.volume,
            size: record.geometry.size,
            block: record.geometry.block,
            epoch: record.epoch,
            role: record.role,
            phase: record.phase,
            generation: record.generation,
            lost,
            diverged: record.diverged,
            log: Some(0),
            features: MERGING | COMPRESSION | COUNTING,
            sessions: Some(record.session..=record.asked),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(&self.volume);
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.block.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.push(self.role as u8);
        out.push(self.phase as u8);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.push(u8::from(self.lost));
        out.push(u8::from(self.diverged));
        if let Some(log) = self.log {
            out.extend_from_slice(&log.to_le_bytes());
            out.push(self.features);
            if let Some(sessions) = &self.sessions {
                out.extend_from_slice(&sessions.start().to_le_bytes());
                out.extend_from_slice(&sessions.end().to_le_bytes());
            }
        }
        out
    }

    /// Whether the numbers of this greeting are possible for the other end of one with this record.
    pub fn is_possible(&self, mine: &Record) -> bool {
        let sessions = self.sessions.as_ref().map_or(0, |it| *it.end());
        is_possible(self.epoch, mine.epoch)
            && is_possible(self.generation, mine.generation)
            && is_possible(sessions, mine.asked)
    }

    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let mut from = Reader::new(bytes);
        Some(Hello {
            volume: from.array()?,
            size: from.u64()?,
            block: from.u32()?,
            epoch: from.u64()?,
            role: Role::from_code(from.u8()?)?,
            phase: Phase::from_code(from.u8()?)?,
            generation: from.u64()?,
            lost: from.u8()? != 0,
            diverged: from.u8()? != 0,
            log: from.u64(),
            features: from.u8().unwrap_or(0),
            sessions: match (from.u64(), from.u64()) {
                (Some(session), asked) => Some(session..=asked.unwrap_or(session)),
                _ => None,
            },
        })
    }
}

/// What a session is for. The operations that follow are numbered from `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Unacknowledged operations are sent again.
    Resume,
    /// The primary's data replaces the secondary's in the tracked regions.
    Push,
    /// The other way around.
    Pull,
    /// Copies of what changed, with before-images for `bytes` of the image.
    Resync { bytes: u64 },
    /// The first copy of the image, known by the generation that it leads to.
    Initial { generation: u64 },
    /// The redo log of this number is continued: what it has not is sent again.
    Continue { log: u64 },
}

impl Begin {
    pub fn encode(self) -> Vec<u8> {
        let (code, value) = match self {
            Begin::Resume => (1u8, 0),
            Begin::Push => (2, 0),
            Begin::Pull => (3, 0),
            Begin::Resync { bytes } => (4, bytes),
            Begin::Initial { generation } => (5, generation),
            Begin::Continue { log } => (6, log),
        };
        let mut out = vec![code];
        out.extend_from_slice(&value.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Begin> {
        let mut from = Reader::new(bytes);
        let (code, value) = (from.u8()?, from.u64()?);
        Some(match code {
            1 => Begin::Resume,
            2 => Begin::Push,
            3 => Begin::Pull,
            4 => Begin::Resync { bytes: value },
            5 => Begin::Initial { generation: value },
            6 => Begin::Continue { log: value },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Geometry;

    #[test]
    fn an_end_without_redo_logs_is_understood() {
        let record = Record::new(
            [3; 16],
            Geometry::of_size(1 << 30),
            Role::Secondary,
            [1; 16],
        );
        let hello = Hello::of(&record, false);
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello.clone()));
        for (cut, log, features) in [
            (16, Some(0), hello.features),
            (17, Some(0), 0),
            (25, None, 0),
        ] {
            let older = Hello::decode(&bytes[..bytes.len() - cut]);
            let hello = hello.clone();
            assert_eq!(
                older,
                Some(Hello {
                    log,
                    features,
                    sessions: None,
                    ..hello
                })
            );
        }
    }
}
