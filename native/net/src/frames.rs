//! Frames (docs/wire.md): a header of 20 bytes with a checksum, and a body.

use std::sync::Arc;

use mirrord_core::checksum::BodyChecksum;

use crate::routes::Routes;

pub const MAGIC: &[u8; 2] = b"mR";
/// Version of the frame format; the version of the protocol is agreed on by HELLO.
pub const FORMAT: u8 = 1;
pub const HEADER: usize = 20;
/// The part of a header that its checksum covers.
const HEAD: usize = 12;
/// The longest body: a data frame of 512 KiB with what compression may add to it, and more.
pub const BODY_MAX: usize = (1 << 20) + (64 << 10);
/// The types of frames are 1 to this.
pub const KIND_MAX: u8 = 12;

/// What is wrong with a frame: the message, and what to do about it.
pub type Fault = (String, &'static str);

pub struct Frame {
    pub kind: u8,
    pub stream: u32,
    pub body: Vec<u8>,
}

fn checksum(head: &[u8], parts: &[&[u8]]) -> u64 {
    let mut whole = BodyChecksum::default();
    for part in parts {
        whole.update(part);
    }
    let empty = parts.iter().all(|part| part.is_empty());
    let body = if empty { 0 } else { whole.digest() };
    let mut own = BodyChecksum::default();
    own.update(head);
    body ^ own.digest()
}

/// The header of a frame whose body consists of these parts.
pub fn header(kind: u8, stream: u32, parts: &[&[u8]]) -> [u8; HEADER] {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut made = [0; HEADER];
    made[..2].copy_from_slice(MAGIC);
    made[2] = FORMAT;
    made[3] = kind;
    made[4..8].copy_from_slice(&stream.to_le_bytes());
    made[8..HEAD].copy_from_slice(&(length as u32).to_le_bytes());
    let sum = checksum(&made[..HEAD], parts);
    made[HEAD..].copy_from_slice(&sum.to_le_bytes());
    made
}

/// The length of the body that follows this header.
fn check(header: &[u8; HEADER]) -> Result<usize, Fault> {
    let length = u32_at(header, 8) as usize;
    if header[..2] != MAGIC[..] {
        return fault("a frame does not begin with the magic bytes");
    }
    if header[2] != FORMAT {
        let what = format!(
            "a frame has the unsupported format {}, expected {FORMAT}",
            header[2]
        );
        return Err((what, "Install the same version of mirrord at both ends."));
    }
    if length > BODY_MAX {
        return fault(&format!("a frame of {length} bytes exceeds the limit"));
    }
    if !(1..=KIND_MAX).contains(&header[3]) {
        return fault(&format!("a frame has the unknown type {}", header[3]));
    }
    Ok(length)
}

fn fault<T>(what: &str) -> Result<T, Fault> {
    Err((what.to_owned(), ""))
}

fn u32_at(bytes: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Splits received bytes into frames. After the first fault it must not be used again.
#[derive(Default)]
pub struct Splitter {
    header: [u8; HEADER],
    /// How much of the header has arrived.
    known: usize,
    /// Of a frame whose header is complete: the length of its body, and what has arrived of it.
    length: usize,
    body: Vec<u8>,
    /// Complete frames, their checksums verified.
    pub frames: Vec<Frame>,
    /// Where frames go that are not wanted in `frames`.
    pub routes: Option<Arc<Routes>>,
    /// How many frames went there.
    pub routed: u64,
}

impl Splitter {
    /// Take the next bytes; complete frames are added to `frames`.
    pub fn feed(&mut self, mut data: &[u8]) -> Result<(), Fault> {
        while !data.is_empty() {
            if self.known < HEADER {
                let taken = data.len().min(HEADER - self.known);
                self.header[self.known..self.known + taken].copy_from_slice(&data[..taken]);
                self.known += taken;
                data = &data[taken..];
                if self.known < HEADER {
                    return Ok(());
                }
                self.length = check(&self.header)?;
                // At most `BODY_MAX`, whatever the header says.
                self.body = Vec::with_capacity(self.length);
            }
            let taken = data.len().min(self.length - self.body.len());
            self.body.extend_from_slice(&data[..taken]);
            data = &data[taken..];
            if self.body.len() == self.length {
                self.complete()?;
            }
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Fault> {
        let body = std::mem::take(&mut self.body);
        let mut sum = [0; 8];
        sum.copy_from_slice(&self.header[HEAD..]);
        if u64::from_le_bytes(sum) != checksum(&self.header[..HEAD], &[&body]) {
            return fault("a frame's checksum does not match");
        }
        self.known = 0;
        let frame = Frame {
            kind: self.header[3],
            stream: u32_at(&self.header, 4),
            body,
        };
        let left = match &self.routes {
            Some(routes) => routes.deliver(frame)?,
            None => Some(frame),
        };
        self.routed += u64::from(left.is_none());
        self.frames.extend(left);
        Ok(())
    }

    /// The beginning of an incomplete frame, for messages.
    pub fn pending(&self) -> Vec<u8> {
        let mut found = self.header[..self.known].to_vec();
        found.extend_from_slice(&self.body[..self.body.len().min(200)]);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u32, body: &[u8]) -> Vec<u8> {
        [&header(kind, stream, &[body])[..], body].concat()
    }

    #[test]
    fn what_is_framed_is_read_however_it_is_cut() {
        let bodies: Vec<Vec<u8>> = [0, 1, 19, 20, 21, 5000, 0].map(|n| vec![n as u8; n]).into();
        let all: Vec<u8> = (1..)
            .zip(&bodies)
            .flat_map(|(n, body)| frame(5, n, body))
            .collect();
        for piece in [1, 7, 20, 33, 5000, all.len()] {
            let mut splitter = Splitter::default();
            for piece in all.chunks(piece) {
                splitter.feed(piece).unwrap();
            }
            let found: Vec<_> = splitter.frames.iter().map(|one| one.body.clone()).collect();
            assert_eq!(found, bodies, "by {piece}");
            assert!(splitter.pending().is_empty());
        }
    }

    #[test]
    fn a_body_in_parts_has_the_checksum_of_the_joined_one() {
        assert_eq!(
            header(5, 3, &[b"one", b"", b"two"]),
            header(5, 3, &[b"onetwo"])
        );
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = frame(5, 9, b"body of a frame");
        for bit in 0..8 * good.len() {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let mut splitter = Splitter::default();
            let refused = splitter.feed(&bad).is_err();
            // A longer length leaves it incomplete: nothing is taken.
            assert!(refused || splitter.frames.is_empty(), "bit {bit}");
        }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_by_its_header() {
        let mut made = header(5, 1, &[b"x"]);
        made[8..12].copy_from_slice(&(BODY_MAX as u32 + 1).to_le_bytes());
        assert!(Splitter::default().feed(&made).is_err());
    }
}
