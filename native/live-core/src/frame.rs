//! The frames of the replica link: a header of 64 bytes, little-endian, and a payload.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `MLF1` |
//! | 4, 5, 6..8 | class, flags, version |
//! | 8..16 | epoch |
//! | 16..24 | sequence: an operation's number, or what an acknowledgement has written |
//! | 24..32 | object: 0, the image |
//! | 32..40 | offset |
//! | 40..44, 44..48 | length of the range, length of the payload |
//! | 48..56 | released-up-to: operations up to here are durable at both ends (in an acknowledgement: durable at the sender) |
//! | 56..60, 60..64 | CRC32C of the payload, CRC32C of the header before it |

use crate::types::Payload;
use std::sync::Arc;

pub const HEADER: usize = 64;
pub const VERSION: u16 = 1;
/// The longest payload: what one NBD request can carry.
pub const PAYLOAD_MAX: u32 = 32 << 20;
const MAGIC: u32 = u32::from_le_bytes(*b"MLF1");

/// What a frame is. Those below `Hello` are numbered operations, executed in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    Write = 1,
    /// A range that reads as zeros from now on.
    Zero = 2,
    /// The primary's data for a range, in an exchange or a resync.
    Copy = 3,
    Flush = 4,
    /// The end of an exchange: the secondary may trust its memory again.
    Settle = 5,
    /// The end of a resync: the image is consistent.
    Commit = 6,
    /// Digests of a range, to be compared with the image as of this operation.
    Verify = 7,
    /// From here on operations go to a redo log.
    Stream = 8,
    /// A write that a later one of the same unit replaces; its data is not sent.
    Merged = 9,
    Hello = 16,
    Begin = 17,
    Begun = 18,
    Ack = 19,
    Ping = 20,
    Settled = 21,
    Committed = 22,
    /// Asks for a range of the secondary's image.
    Fetch = 23,
    Data = 24,
    /// Asks for the ranges that the secondary changed while it was a primary.
    MapRequest = 25,
    Map = 26,
    Refuse = 27,
    /// The runs of blocks that differ.
    Verified = 28,
    /// The redo log is open: its number; or the failure, in `length`.
    Streamed = 29,
}

impl Class {
    const ALL: [Class; 23] = [
        Class::Write,
        Class::Zero,
        Class::Copy,
        Class::Flush,
        Class::Settle,
        Class::Commit,
        Class::Verify,
        Class::Stream,
        Class::Merged,
        Class::Hello,
        Class::Begin,
        Class::Begun,
        Class::Ack,
        Class::Ping,
        Class::Settled,
        Class::Committed,
        Class::Fetch,
        Class::Data,
        Class::MapRequest,
        Class::Map,
        Class::Refuse,
        Class::Verified,
        Class::Streamed,
    ];

    pub fn is_operation(self) -> bool {
        (self as u8) < Class::Hello as u8
    }
}

/// `Zero`: the range may be freed. `Map`: this is the last one.
pub const FLAG: u8 = 1;
/// The operation's unit goes on: what the redo log gets of it, it gets with the end of the unit.
pub const MORE: u8 = 2;
/// The payload is compressed: its length as it was, in 4 bytes, and a block of LZ4.
pub const COMPRESSED: u8 = 4;

#[derive(Clone, Debug)]
pub struct Frame {
    pub class: Class,
    pub flags: u8,
    pub epoch: u64,
    pub sequence: u64,
    pub offset: u64,
    pub length: u32,
    pub released: u64,
    pub payload: Payload,
}

/// Why bytes are no frame. The connection that they came from is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    Magic,
    Version(u16),
    HeaderChecksum,
    PayloadChecksum,
    Class(u8),
    Length(u32),
    Object(u64),
    Compression,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::Magic => write!(out, "the peer does not speak mirrord's live protocol"),
            FrameError::Version(version) => write!(
                out,
                "the peer speaks version {version} of the live protocol, this end {VERSION}"
            ),
            FrameError::HeaderChecksum => write!(out, "corrupt frame header"),
            FrameError::PayloadChecksum => write!(out, "corrupt frame payload"),
            FrameError::Class(class) => write!(out, "unknown frame class {class}"),
            FrameError::Length(length) => write!(out, "frame payload of {length} bytes"),
            FrameError::Compression => write!(out, "corrupt compressed payload"),
            FrameError::Object(object) => write!(out, "unknown object {object}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// A header whose payload has yet to be received.
#[derive(Clone, Debug)]
pub struct Header {
    frame: Frame,
    pub payload_length: usize,
    payload_crc: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

impl Frame {
    pub fn new(class: Class, epoch: u64) -> Self {
        Frame {
            class,
            flags: 0,
            epoch,
            sequence: 0,
            offset: 0,
            length: 0,
            released: 0,
            payload: Arc::new(Vec::new()),
        }
    }

    pub fn with_payload(class: Class, epoch: u64, payload: Vec<u8>) -> Self {
        Frame {
            payload: Arc::new(payload),
            ..Frame::new(class, epoch)
        }
    }

    /// The header; the payload follows it on the wire.
    pub fn header(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = self.class as u8;
        out[5] = self.flags;
        out[6..8].copy_from_slice(&VERSION.to_le_bytes());
        out[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[32..40].copy_from_slice(&self.offset.to_le_bytes());
        out[40..44].copy_from_slice(&self.length.to_le_bytes());
        out[44..48].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        out[48..56].copy_from_slice(&self.released.to_le_bytes());
        out[56..60].copy_from_slice(&crc32c::crc32c(&self.payload).to_le_bytes());
        let crc = crc32c::crc32c(&out[..60]);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }
}

impl Header {
    pub fn parse(bytes: &[u8; HEADER]) -> Result<Header, FrameError> {
        if u32_at(bytes, 0) != MAGIC {
            return Err(FrameError::Magic);
        }
        if crc32c::crc32c(&bytes[..60]) != u32_at(bytes, 60) {
            return Err(FrameError::HeaderChecksum);
        }
        let version = u16::from_le_bytes([bytes[6], bytes[7]]);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let class = Class::ALL
            .into_iter()
            .find(|class| *class as u8 == bytes[4])
            .ok_or(FrameError::Class(bytes[4]))?;
        let length = u32_at(bytes, 44);
        if length > PAYLOAD_MAX {
            return Err(FrameError::Length(length));
        }
        if u64_at(bytes, 24) != 0 {
            return Err(FrameError::Object(u64_at(bytes, 24)));
        }
        Ok(Header {
            frame: Frame {
                class,
                flags: bytes[5],
                epoch: u64_at(bytes, 8),
                sequence: u64_at(bytes, 16),
                offset: u64_at(bytes, 32),
                length: u32_at(bytes, 40),
                released: u64_at(bytes, 48),
                payload: Arc::new(Vec::new()),
            },
            payload_length: length as usize,
            payload_crc: u32_at(bytes, 56),
        })
    }

    /// The frame, if `payload` is what its sender checksummed.
    pub fn complete(self, payload: Vec<u8>) -> Result<Frame, FrameError> {
        if payload.len() != self.payload_length || crc32c::crc32c(&payload) != self.payload_crc {
            return Err(FrameError::PayloadChecksum);
        }
        Ok(Frame {
            payload: Arc::new(payload),
            ..self.frame
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_the_wire() {
        let mut frame = Frame::with_payload(Class::Write, 7, vec![1, 2, 3]);
        frame.sequence = 9;
        frame.offset = 4096;
        frame.released = 5;
        let read = Header::parse(&frame.header()).unwrap();
        let read = read.complete(vec![1, 2, 3]).unwrap();
        assert_eq!(format!("{read:?}"), format!("{frame:?}"));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let frame = Frame::with_payload(Class::Write, 7, vec![1, 2, 3]);
        for bit in 0..HEADER * 8 {
            let mut header = frame.header();
            header[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&header).is_err(), "bit {bit}");
        }
        for bit in 0..24 {
            let mut payload = vec![1, 2, 3];
            payload[bit / 8] ^= 1 << (bit % 8);
            let header = Header::parse(&frame.header()).unwrap();
            assert_eq!(
                header.complete(payload).unwrap_err(),
                FrameError::PayloadChecksum
            );
        }
    }

    #[test]
    fn an_oversized_payload_is_refused_before_it_is_read() {
        let mut header = Frame::new(Class::Write, 1).header();
        header[44..48].copy_from_slice(&(PAYLOAD_MAX + 1).to_le_bytes());
        let crc = crc32c::crc32c(&header[..60]);
        header[60..64].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            Header::parse(&header).unwrap_err(),
            FrameError::Length(PAYLOAD_MAX + 1)
        );
    }
}
