//! The side file: what the image was, at its last consistent point, where a resync overwrote it.
//!
//! Two header pages, written in turn, name the number that the record has in `side`; entries
//! follow, each with the range, a checksum and the old bytes. The entries that are written together
//! are a batch, which is durable before its ranges are overwritten and before the next one begins.
//! With each batch, a header says where it begins: all before is durable. An entry that is missing
//! there was damaged; the last batch may be torn, and was not relied on then. The first entry of a
//! block counts.

use crate::io::{Backend, File};
use crate::record::Reader;
use crate::types::{Geometry, Range};
use std::io;

const MAGIC: [u8; 8] = *b"MIRSIDE2";
const PAGE: u64 = 4096;
/// Where the entries begin.
pub const HEAD: u64 = 2 * PAGE;
const ENTRY: usize = 40;

/// The bytes that the before-image of `length` bytes needs.
pub fn needed(length: u64, block: u32) -> u64 {
    length + length.div_ceil(u64::from(block)) * ENTRY as u64
}

/// Where a header goes, and its bytes. `batch` counts those of resync `number`; the first header
/// has 0. All before `durable` is.
pub fn header(number: u64, batch: u64, durable: u64) -> (u64, Vec<u8>) {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&batch.to_le_bytes());
    out.extend_from_slice(&durable.to_le_bytes());
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    (batch % 2 * PAGE, out)
}

/// The batch and the durable end that the newest header of resync `number` has.
fn newest_header(backend: &dyn Backend, number: u64) -> io::Result<Option<(u64, u64)>> {
    let mut newest = None;
    for slot in 0..2 {
        let mut head = [0; 36];
        backend.read(File::Side, slot * PAGE, &mut head)?;
        let parsed = (|| {
            let mut from = Reader::new(&head);
            if from.array::<8>()? != MAGIC || from.u64()? != number {
                return None;
            }
            let found = (from.u64()?, from.u64()?);
            (from.u32()? == crc32c::crc32c(&head[..32])).then_some(found)
        })();
        newest = newest.max(parsed);
    }
    Ok(newest)
}

/// A before-image in the side file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of the image.
    pub range: Range,
    /// Where the old bytes are in the side file.
    pub at: u64,
    crc: u32,
}

impl Entry {
    /// Whether `data`, read again, is what was saved.
    pub fn is_intact(&self, data: &[u8]) -> bool {
        data.len() == self.range.length as usize && crc32c::crc32c(data) == self.crc
    }
}

/// Appends an entry to `out`, which begins at `base` in the side file.
pub fn encode(number: u64, range: Range, old: &[u8], base: u64, out: &mut Vec<u8>) -> Entry {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&range.offset.to_le_bytes());
    out.extend_from_slice(&range.length.to_le_bytes());
    let crc = crc32c::crc32c(old);
    out.extend_from_slice(&crc.to_le_bytes());
    let head_crc = crc32c::crc32c(&out[start..]);
    out.extend_from_slice(&head_crc.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let at = base + out.len() as u64;
    out.extend_from_slice(old);
    Entry { range, at, crc }
}

/// The entry at `at`.
fn entry(
    backend: &dyn Backend,
    geometry: &Geometry,
    number: u64,
    at: u64,
) -> io::Result<Option<Entry>> {
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
    let found = Entry {
        range,
        at: data,
        crc,
    };
    Ok((crc == data_crc).then_some(found))
}

/// The before-images that a crash left.
pub struct Saved {
    /// Oldest first.
    pub entries: Vec<Entry>,
    /// Of the newest header.
    pub batch: u64,
    /// Where the next entry goes.
    pub end: u64,
}

/// Reads the side file of resync `number`. None: before-images that were durable are missing.
pub fn load(backend: &dyn Backend, geometry: &Geometry, number: u64) -> io::Result<Option<Saved>> {
    let Some((batch, durable)) = newest_header(backend, number)? else {
        return Ok(None);
    };
    let mut saved = Saved {
        entries: Vec::new(),
        batch,
        end: HEAD,
    };
    while let Some(found) = entry(backend, geometry, number, saved.end)? {
        saved.entries.push(found);
        saved.end = found.at + u64::from(found.range.length);
    }
    Ok((saved.end >= durable).then_some(saved))
}
