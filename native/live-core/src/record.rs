//! The record: what an end must know before anything else, in two slots written in turn.

use crate::types::{BootId, Geometry, Mode, Phase, Role};

pub const SLOT: usize = 4096;
const MAGIC: [u8; 8] = *b"MIRLIVE1";
/// Bits of the byte that says what a record has. A version that adds to the record adds a bit.
const SYNCED: u8 = 1;
const BOUNDED: u8 = 2;
/// The number of a redo log follows the serial number.
const LOGGED: u8 = 4;
const UNFENCED: u8 = 8;
/// The numbers of sessions follow that.
const COUNTED: u8 = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub volume: [u8; 16],
    pub geometry: Geometry,
    pub epoch: u64,
    pub role: Role,
    pub mode: Mode,
    /// The boot under which everything written to the image is known to be kept. Another one
    /// means that unflushed writes may be gone.
    pub boot: BootId,
    /// A primary's: its replica has every acknowledged write.
    pub synced: bool,
    /// A primary's: its replica lacks at most the window of `semi-sync`. Never together with
    /// `synced`.
    pub bounded: bool,
    /// A primary's: it raised the epoch alone, and the other end has not said since that it knows:
    /// it may still serve clients as a primary of an older one.
    pub unfenced: bool,
    /// Counts the times that both ends were made equal.
    pub generation: u64,
    /// Counts the sessions that both ends have begun or confirmed: by it an end notices that the
    /// other one, or itself, is an older copy. 0: none was counted.
    pub session: u64,
    /// A primary's: the other end may have counted up to here.
    pub asked: u64,
    /// A secondary's.
    pub phase: Phase,
    /// The before-images that belong to `Phase::Resync` carry this number.
    pub side: u64,
    /// A secondary's: the redo log that has operations which the image may lack; 0: none. In
    /// `Phase::Empty` it is the one that was lost.
    pub log: u64,
    /// This end's map has changes that its peer does not know of.
    pub diverged: bool,
    /// Seconds since 1970, by the primary's clock: until when it was in sync; a secondary's
    /// consistent image has every write that was acknowledged before. 0: not known.
    pub since: u64,
    /// Counts the times that the record was written.
    pub serial: u64,
}

/// Reads fields one after the other.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|field| field[0])
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

impl Record {
    /// The record of a new mirror's end. A primary's whole image has yet to be copied.
    pub fn new(volume: [u8; 16], geometry: Geometry, role: Role, boot: BootId) -> Self {
        Record {
            volume,
            geometry,
            epoch: 1,
            role,
            mode: Mode::Sync,
            boot,
            synced: false,
            bounded: false,
            unfenced: false,
            generation: 0,
            session: 0,
            asked: 0,
            phase: Phase::Empty,
            side: 0,
            log: 0,
            diverged: false,
            since: 0,
            serial: 0,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SLOT);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.volume);
        out.extend_from_slice(&self.geometry.size.to_le_bytes());
        out.extend_from_slice(&self.geometry.block.to_le_bytes());
        out.extend_from_slice(&self.geometry.extent.to_le_bytes());
        out.extend_from_slice(&self.geometry.hot.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.push(self.role as u8);
        out.push(self.mode as u8);
        out.extend_from_slice(&self.boot);
        let bit = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
        let has_log = self.log != 0;
        let ends = bit(SYNCED, self.synced) | bit(BOUNDED, self.bounded);
        let fields = bit(LOGGED, has_log) | bit(COUNTED, self.asked != 0);
        out.push(ends | fields | bit(UNFENCED, self.unfenced));
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.push(self.phase as u8);
        out.extend_from_slice(&self.side.to_le_bytes());
        out.push(u8::from(self.diverged));
        out.extend_from_slice(&self.since.to_le_bytes());
        out.extend_from_slice(&self.serial.to_le_bytes());
        if has_log {
            out.extend_from_slice(&self.log.to_le_bytes());
        }
        if self.asked != 0 {
            out.extend_from_slice(&self.session.to_le_bytes());
            out.extend_from_slice(&self.asked.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(SLOT, 0);
        out
    }

    /// The record in a slot; None if there is none, or one that was torn.
    pub fn decode(slot: &[u8]) -> Option<Record> {
        Record::parse(slot).and_then(|(record, is_known)| is_known.then_some(record))
    }

    /// The record in a slot, and whether this version knows all that it has.
    fn parse(slot: &[u8]) -> Option<(Record, bool)> {
        let mut from = Reader::new(slot);
        if from.array::<8>()? != MAGIC {
            return None;
        }
        let volume = from.array()?;
        let geometry = Geometry {
            size: from.u64()?,
            block: from.u32()?,
            extent: from.u32()?,
            hot: from.u32()?,
        };
        let epoch = from.u64()?;
        let role = Role::from_code(from.u8()?)?;
        let mode = Mode::from_code(from.u8()?)?;
        let boot = from.array()?;
        let state = from.u8()?;
        let mut record = Record {
            volume,
            geometry,
            epoch,
            role,
            mode,
            boot,
            synced: state & SYNCED != 0,
            bounded: state & BOUNDED != 0,
            unfenced: state & UNFENCED != 0,
            generation: from.u64()?,
            session: 0,
            asked: 0,
            phase: Phase::from_code(from.u8()?)?,
            side: from.u64()?,
            log: 0,
            diverged: from.u8()? != 0,
            since: from.u64()?,
            serial: from.u64()?,
        };
        if state & !(SYNCED | BOUNDED | LOGGED | UNFENCED | COUNTED) != 0 {
            return is_sound_somewhere(slot, slot.len() - from.0.len()).then_some((record, false));
        }
        if state & LOGGED != 0 {
            record.log = from.u64()?;
        }
        if state & COUNTED != 0 {
            record.session = from.u64()?;
            record.asked = from.u64()?;
        }
        let length = slot.len() - from.0.len();
        let crc = from.u32()?;
        let is_sound = crc == crc32c::crc32c(&slot[..length]) && record.geometry.is_valid();
        is_sound.then_some((record, true))
    }

    /// The newer of the records in the two slots. One that a later version wrote is never passed
    /// over for an older one, nor one that was damaged: it may be the newer one, as a record is
    /// shorter than a sector, which a disk writes completely or not at all.
    pub fn newest(first: &[u8], second: &[u8]) -> Result<Record, &'static str> {
        let found = [Record::parse(first), Record::parse(second)];
        let newest = found.iter().flatten().map(|(each, _)| each.serial).max();
        // The second slot is blank until there are two records.
        let is_blank = |slot: &[u8]| newest == Some(0) && slot.iter().all(|byte| *byte == 0);
        let is_damaged = |(slot, parsed): (&[u8], &Option<_>)| parsed.is_none() && !is_blank(slot);
        if newest.is_some() && [first, second].into_iter().zip(&found).any(is_damaged) {
            return Err("a record in the tracking file is damaged");
        }
        match found
            .into_iter()
            .flatten()
            .max_by_key(|(each, _)| each.serial)
        {
            Some((record, true)) => Ok(record),
            Some(_) => Err(
                "the tracking file was written by a later version of mirrord-live, \
                            which this one cannot read; install that version again",
            ),
            None => Err("the tracking file has no valid record"),
        }
    }
}

/// Whether a checksum of everything before it follows the first `known` bytes, or later ones. Where
/// that of a later version's record is, this one does not know.
fn is_sound_somewhere(slot: &[u8], known: usize) -> bool {
    let mut crc = crc32c::crc32c(&slot[..known]);
    slot[known..].windows(4).any(|next| {
        let is_here = next == crc.to_le_bytes();
        crc = crc32c::crc32c_append(crc, &next[..1]);
        is_here
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_slot_may_be_the_newer_one() {
        let mut record = Record::new([3; 16], Geometry::of_size(1 << 30), Role::Primary, [1; 16]);
        let old = record.encode();
        record.serial = 1;
        record.epoch = 2;
        let new = record.encode();
        assert_eq!(Record::newest(&old, &new).unwrap(), record);
        let mut torn = new.clone();
        torn[60] ^= 1;
        assert!(Record::newest(&old, &torn).is_err());
        assert!(Record::newest(&torn, &torn).is_err());
        let blank = vec![0; SLOT];
        assert_eq!(Record::newest(&old, &blank).unwrap().epoch, 1);
        assert!(Record::newest(&blank, &new).is_err());
    }

    #[test]
    fn a_redo_log_is_on_record() {
        let mut record = Record::new(
            [3; 16],
            Geometry::of_size(1 << 30),
            Role::Secondary,
            [1; 16],
        );
        let without = record.encode();
        record.log = 7;
        record.serial = 1;
        let with = record.encode();
        assert_eq!(Record::newest(&without, &with).unwrap(), record);
        assert_eq!(Record::decode(&without).unwrap().log, 0);
        let mut torn = with;
        torn[107] ^= 1;
        assert!(Record::newest(&without, &torn).is_err());
    }

    #[test]
    fn what_a_later_version_wrote_is_refused() {
        let mut record = Record::new(
            [3; 16],
            Geometry::of_size(1 << 30),
            Role::Secondary,
            [1; 16],
        );
        let old = record.encode();
        record.serial = 1;
        let mut later = record.encode();
        let state = 8 + 16 + 20 + 8 + 2 + 16;
        assert_eq!(later[state], 0);
        later[state] = COUNTED << 1;
        let is_damaged =
            |later: &[u8]| Record::newest(&old, later).is_err_and(|it| it.contains("damaged"));
        // A damaged byte, in a record of this version.
        assert!(is_damaged(&later));
        // What a later version adds comes before the checksum.
        let length = state + 1 + 8 + 1 + 8 + 1 + 8 + 8;
        later[length..length + 8].copy_from_slice(&[5; 8]);
        let crc = crc32c::crc32c(&later[..length + 8]);
        later[length + 8..length + 12].copy_from_slice(&crc.to_le_bytes());
        assert!(Record::newest(&old, &later)
            .unwrap_err()
            .contains("later version"));
        later[length] ^= 1;
        assert!(is_damaged(&later));
        later[length] ^= 1;
        // This version has written one since.
        record.serial = 2;
        assert_eq!(Record::newest(&record.encode(), &later).unwrap(), record);
    }
}
