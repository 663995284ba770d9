//! The redo log: what a secondary has received in `semi-sync` and not yet applied to its image.
//!
//! A slot names the log (0: none is open) and the operation that it begins after. Two halves
//! follow, written in turn, each from its begin with the next generation. A half holds batches: a
//! header, an entry for each operation that changes the image, then the data. A batch is written
//! and synced as a whole, and counts as a whole: its end is a consistent point. One that is torn
//! was not acknowledged, and nothing follows it. The image and the log together are the image as
//! of the last batch, whatever part of the log was applied.

use crate::io::{Backend, File};
use crate::record::Reader;
use crate::types::{Geometry, Payload, Range};
use std::io;

const SLOT_MAGIC: [u8; 8] = *b"MIRLOG01";
const MAGIC: [u8; 8] = *b"MIRBATCH";
/// Bytes before the first half.
const HEAD: u64 = 4096;
const SLOT: usize = 512;
const HEADER: usize = 64;
const ENTRY: usize = 40;
/// Batches begin at multiples of it, so that none shares a sector with another one.
const ALIGN: u64 = 512;

/// What names a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub log: u64,
    /// The image has every operation up to this one.
    pub base: u64,
    /// Bytes of a half.
    pub half: u64,
}

impl Slot {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = SLOT_MAGIC.to_vec();
        out.extend_from_slice(&self.log.to_le_bytes());
        out.extend_from_slice(&self.base.to_le_bytes());
        out.extend_from_slice(&self.half.to_le_bytes());
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(SLOT, 0);
        out
    }

    /// None if no log is open. A torn slot is one that was being opened or closed.
    pub fn decode(bytes: &[u8]) -> Option<Slot> {
        let mut from = Reader::new(bytes);
        if from.array::<8>()? != SLOT_MAGIC {
            return None;
        }
        let slot = Slot {
            log: from.u64()?,
            base: from.u64()?,
            half: from.u64()?,
        };
        let is_sound = from.u32()? == crc32c::crc32c(&bytes[..32]);
        (is_sound && slot.log != 0 && slot.half > 0).then_some(slot)
    }

    pub fn start_of(&self, half: usize) -> u64 {
        HEAD + half as u64 * self.half
    }
}

/// Bytes of a half in a log file of `length` bytes.
pub fn half_of(length: u64) -> u64 {
    length.saturating_sub(HEAD) / 2 / ALIGN * ALIGN
}

pub fn length_of(half: u64) -> u64 {
    HEAD + 2 * half
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write = 1,
    Zero = 2,
    /// The range may be freed.
    Punch = 3,
}

/// An operation that changes the image.
#[derive(Clone, Debug)]
pub struct Change {
    pub osn: u64,
    pub range: Range,
    pub kind: Kind,
    /// Empty unless it is a write.
    pub data: Payload,
}

/// A change in the log: where its data is.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub osn: u64,
    pub range: Range,
    pub kind: Kind,
    pub at: u64,
}

/// Where a batch is, and which operations it has.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub log: u64,
    pub generation: u64,
    /// Within its half, from 0 on.
    pub number: u64,
    pub at: u64,
    pub first: u64,
    pub last: u64,
}

/// Bytes that a batch takes.
pub fn size_of(changes: usize, data: u64) -> u64 {
    (HEADER as u64 + (changes * ENTRY) as u64 + data).next_multiple_of(ALIGN)
}

/// A batch as it is written, and its entries.
pub fn encode(place: &Place, changes: &[Change]) -> (Vec<u8>, Vec<Entry>) {
    let data: u64 = changes.iter().map(|each| each.data.len() as u64).sum();
    let mut out = Vec::with_capacity(size_of(changes.len(), data) as usize);
    out.extend_from_slice(&MAGIC);
    for field in [
        place.log,
        place.generation,
        place.number,
        place.first,
        place.last,
        data,
    ] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out.extend_from_slice(&(changes.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let mut at = place.at + (HEADER + changes.len() * ENTRY) as u64;
    let mut entries = Vec::with_capacity(changes.len());
    for change in changes {
        out.extend_from_slice(&change.osn.to_le_bytes());
        out.extend_from_slice(&change.range.offset.to_le_bytes());
        out.extend_from_slice(&change.range.length.to_le_bytes());
        out.extend_from_slice(&(change.kind as u32).to_le_bytes());
        out.extend_from_slice(&at.to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&change.data).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        entries.push(Entry {
            osn: change.osn,
            range: change.range,
            kind: change.kind,
            at,
        });
        at += change.data.len() as u64;
    }
    let crc = crc32c::crc32c(&out);
    out[60..64].copy_from_slice(&crc.to_le_bytes());
    for change in changes {
        out.extend_from_slice(&change.data);
    }
    out.resize(out.len().next_multiple_of(ALIGN as usize), 0);
    (out, entries)
}

fn crc_at(backend: &dyn Backend, mut at: u64, length: u64) -> io::Result<u32> {
    let mut piece = vec![0; length.min(256 << 10) as usize];
    let end = at + length;
    let mut crc = 0;
    while at < end {
        let take = piece.len().min((end - at) as usize);
        backend.read(File::Log, at, &mut piece[..take])?;
        crc = crc32c::crc32c_append(crc, &piece[..take]);
        at += take as u64;
    }
    Ok(crc)
}

/// The batch at `at`: its place, its entries, and where the next one is. None if there is no
/// complete one, or one of another log.
fn batch(
    backend: &dyn Backend,
    geometry: &Geometry,
    slot: &Slot,
    (at, end): (u64, u64),
) -> io::Result<Option<(Place, Vec<Entry>, u64)>> {
    if at + HEADER as u64 > end {
        return Ok(None);
    }
    let mut head = vec![0; HEADER];
    backend.read(File::Log, at, &mut head)?;
    let parsed = (|| {
        let mut from = Reader::new(&head);
        if from.array::<8>()? != MAGIC {
            return None;
        }
        let place = Place {
            log: from.u64()?,
            generation: from.u64()?,
            number: from.u64()?,
            at,
            first: from.u64()?,
            last: from.u64()?,
        };
        let (data, count, crc) = (from.u64()?, from.u32()?, from.u32()?);
        let bytes = (u64::from(count) * ENTRY as u64 + HEADER as u64).checked_add(data)?;
        let is_possible = place.log == slot.log && bytes <= end - at;
        is_possible.then_some((place, data, count as usize, crc))
    })();
    let Some((place, data, count, crc)) = parsed else {
        return Ok(None);
    };
    head.resize(HEADER + count * ENTRY, 0);
    backend.read(File::Log, at + HEADER as u64, &mut head[HEADER..])?;
    head[60..64].fill(0);
    if crc32c::crc32c(&head) != crc {
        return Ok(None);
    }
    let mut from = Reader::new(&head[HEADER..]);
    let mut entries = Vec::with_capacity(count);
    while let Some((entry, crc)) = entry(&mut from) {
        let length = match entry.kind {
            Kind::Write => u64::from(entry.range.length),
            _ => 0,
        };
        let is_within = geometry.contains(entry.range)
            && entry.at >= at
            && entry.at.checked_add(length).is_some_and(|last| last <= end);
        if !is_within || crc_at(backend, entry.at, length)? != crc {
            return Ok(None);
        }
        entries.push(entry);
    }
    let next = at + size_of(count, data);
    Ok((entries.len() == count).then_some((place, entries, next)))
}

fn entry(from: &mut Reader<'_>) -> Option<(Entry, u32)> {
    let osn = from.u64()?;
    let range = Range::new(from.u64()?, from.u32()?);
    let kind = match from.u32()? {
        1 => Kind::Write,
        2 => Kind::Zero,
        3 => Kind::Punch,
        _ => return None,
    };
    let (at, crc) = (from.u64()?, from.u32()?);
    from.u32()?;
    let entry = Entry {
        osn,
        range,
        kind,
        at,
    };
    Some((entry, crc))
}

/// One half as a crash left it.
struct Half {
    generation: u64,
    number: u64,
    next: u64,
    first: u64,
    last: u64,
    entries: Vec<Entry>,
}

fn read_half(
    backend: &dyn Backend,
    geometry: &Geometry,
    slot: &Slot,
    half: usize,
) -> io::Result<Option<Half>> {
    let mut found: Option<Half> = None;
    let mut at = slot.start_of(half);
    let end = at + slot.half;
    while let Some((place, entries, next)) = batch(backend, geometry, slot, (at, end))? {
        match &mut found {
            None if place.number == 0 && place.generation % 2 == half as u64 => {
                found = Some(Half {
                    generation: place.generation,
                    number: 0,
                    next,
                    first: place.first,
                    last: place.last,
                    entries,
                });
            }
            Some(half)
                if place.generation == half.generation
                    && place.number == half.number + 1
                    && place.first == half.last + 1 =>
            {
                half.number += 1;
                half.next = next;
                half.last = place.last;
                half.entries.extend(entries);
            }
            _ => break,
        }
        at = next;
    }
    Ok(found)
}

/// Bytes of the batch that a sector begins, as it says.
fn claimed(sector: &[u8]) -> Option<u64> {
    let mut from = Reader::new(sector.get(48..HEADER)?);
    let (data, count) = (from.u64()?, from.u32()?);
    data.checked_add(HEADER as u64 + u64::from(count) * ENTRY as u64)
}

/// The newest generation of the batches between `at` and `end`, wherever they begin. The data of a
/// batch may look like another one; if that would have more read than there is, the answer is the
/// highest number.
fn newest(
    backend: &dyn Backend,
    geometry: &Geometry,
    slot: &Slot,
    (mut at, end): (u64, u64),
) -> io::Result<Option<u64>> {
    let mut newest = None;
    let mut budget = 2 * (end - at);
    let mut piece = vec![0; 1 << 20];
    while at < end {
        let length = piece.len().min((end - at) as usize);
        backend.read(File::Log, at, &mut piece[..length])?;
        let sectors = piece[..length].chunks(ALIGN as usize).enumerate();
        for (index, sector) in sectors.filter(|(_, sector)| sector.starts_with(&MAGIC)) {
            let place = (at + index as u64 * ALIGN, end);
            let Some(left) = budget.checked_sub(claimed(sector).unwrap_or(0).min(end - place.0))
            else {
                return Ok(Some(u64::MAX));
            };
            budget = left;
            let found = batch(backend, geometry, slot, place)?;
            newest = newest.max(found.map(|(place, ..)| place.generation));
        }
        at += length as u64;
    }
    Ok(newest)
}

/// Something was written to a half after what was read of it: a batch that is written once those
/// before it are durable. `other` is the generation of the other half.
fn is_damaged(
    backend: &dyn Backend,
    geometry: &Geometry,
    slot: &Slot,
    (index, half): (usize, &Option<Half>),
    other: Option<u64>,
) -> io::Result<bool> {
    let start = slot.start_of(index);
    let at = half.as_ref().map_or(start, |half| half.next);
    let newest = newest(backend, geometry, slot, (at, start + slot.half))?;
    Ok(newest.is_some_and(|generation| match half {
        Some(half) => generation >= half.generation,
        None => other.is_none_or(|other| generation > other),
    }))
}

/// What a crash left.
pub struct Found {
    pub slot: Slot,
    /// What has to be applied, in order, again if it was already.
    pub entries: Vec<Entry>,
    pub generation: u64,
    /// Of the next batch.
    pub number: u64,
    pub at: u64,
    /// The last operation in the log.
    pub last: u64,
}

/// Reads the log. None if none is open, or if batches that were durable are missing.
pub fn load(backend: &dyn Backend, geometry: &Geometry) -> io::Result<Option<Found>> {
    let mut bytes = vec![0; SLOT];
    backend.read(File::Log, 0, &mut bytes)?;
    let Some(slot) = Slot::decode(&bytes) else {
        return Ok(None);
    };
    let halves = [0, 1].map(|half| read_half(backend, geometry, &slot, half));
    let [first, second] = halves;
    let halves = [first?, second?];
    for (index, half) in halves.iter().enumerate() {
        let other = halves[1 - index].as_ref().map(|other| other.generation);
        if is_damaged(backend, geometry, &slot, (index, half), other)? {
            return Ok(None);
        }
    }
    let mut halves: Vec<Half> = halves.into_iter().flatten().collect();
    halves.sort_by_key(|half| half.generation);
    // The newer one goes on where the older one ends.
    if let [older, newer] = &halves[..] {
        if newer.generation != older.generation + 1 || newer.first != older.last + 1 {
            return Ok(None);
        }
    }
    let mut found = Found {
        slot,
        entries: Vec::new(),
        generation: 0,
        number: 0,
        at: slot.start_of(0),
        last: slot.base,
    };
    for half in halves {
        found.generation = half.generation;
        found.number = half.number + 1;
        found.at = half.next;
        found.last = half.last;
        found.entries.extend(half.entries);
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests;
