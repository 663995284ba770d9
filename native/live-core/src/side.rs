//! The side file: what the image was, at its last consistent point, where a resync overwrote it.
//!
//! A header page names the number that the record has in `side`; entries follow, each with the
//! range, a checksum and the old bytes. An entry is durable before its range is overwritten, so
//! whatever follows a torn entry was not relied on either. The first entry of a block counts.

use crate::io::{Backend, File};
use crate::record::Reader;
use crate::types::{Geometry, Range};
use std::io;

const MAGIC: [u8; 8] = *b"MIRSIDE1";
pub const HEAD: u64 = 512;
const ENTRY: usize = 40;

/// The bytes that the before-image of `length` bytes needs.
pub fn needed(length: u64, block: u32) -> u64 {
    length + length.div_ceil(u64::from(block)) * ENTRY as u64
}

pub fn header(number: u64) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.resize(HEAD as usize, 0);
    out
}

/// Appends an entry to `out`.
pub fn encode(number: u64, range: Range, old: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&range.offset.to_le_bytes());
    out.extend_from_slice(&range.length.to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(old).to_le_bytes());
    let crc = crc32c::crc32c(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(old);
}

/// The entry at `at`: its range, and where its data is.
fn entry(
    backend: &dyn Backend,
    geometry: &Geometry,
    number: u64,
    at: u64,
) -> io::Result<Option<(Range, u64)>> {
    let mut head = [0; ENTRY];
    backend.read(File::Side, at, &mut head)?;
    let parsed = (|| {
        let mut from = Reader::new(&head);
        if from.array::<8>()? != MAGIC || from.u64()? != number {
            return None;
        }
        let range = Range::new(from.u64()?, from.u32()?);
        let (data_crc, head_crc) = (from.u32()?, from.u32()?);
        let is_valid = head_crc == crc32c::crc32c(&head[..32]) && geometry.contains(range);
        is_valid.then_some((range, data_crc))
    })();
    let Some((range, data_crc)) = parsed else {
        return Ok(None);
    };
    let data = at + ENTRY as u64;
    if data + u64::from(range.length) > backend.size(File::Side)? {
        return Ok(None);
    }
    let mut crc = 0;
    let mut piece = vec![0; 64 << 10];
    let mut done = 0;
    while done < range.length as usize {
        let length = piece.len().min(range.length as usize - done);
        backend.read(File::Side, data + done as u64, &mut piece[..length])?;
        crc = crc32c::crc32c_append(crc, &piece[..length]);
        done += length;
    }
    Ok((crc == data_crc).then_some((range, data)))
}

/// The before-images that a crash left.
pub struct Saved {
    /// Ranges of the image and where their old bytes are in the side file, oldest first.
    pub entries: Vec<(Range, u64)>,
    /// Where the next entry goes.
    pub end: u64,
}

/// Reads the side file of resync `number`. A header of another number means that nothing was saved.
pub fn load(backend: &dyn Backend, geometry: &Geometry, number: u64) -> io::Result<Saved> {
    let mut saved = Saved {
        entries: Vec::new(),
        end: HEAD,
    };
    if backend.size(File::Side)? < HEAD {
        return Ok(saved);
    }
    let mut head = vec![0; HEAD as usize];
    backend.read(File::Side, 0, &mut head)?;
    if head != header(number) {
        return Ok(saved);
    }
    while let Some((range, data)) = entry(backend, geometry, number, saved.end)? {
        saved.entries.push((range, data));
        saved.end = data + u64::from(range.length);
    }
    Ok(saved)
}
