//! Checkpoints: snapshots of what is applied, and the record of their positions in the stream.
//!
//! The record is a file with two slots that are written in turn, like the two snapshots `0` and `1`.
//! A slot counts when its digest is right and the snapshot of its number has the uuid that it
//! names. So the order (delete the older snapshot, take the new one, write its slot) leaves a valid
//! checkpoint however it is interrupted. The format is read by drivers/btrfs/checkpoints.py, too.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use mirrord_core::prefix_digest::{PrefixDigest, Value, STACK_MAX, TAIL_MAX};
use rustix::fs::{statat, AtFlags, OFlags};

use crate::apply::Identity;
use crate::failure::{Context, Failure, Kind, Result};
use crate::sys;
use crate::tree::open_beneath;

/// A checkpoint is due when both have passed since the last one.
const EVERY_BYTES: u64 = 64 << 20;
const EVERY: Duration = Duration::from_secs(2);
/// On a slow link: this time alone.
const AT_LATEST: Duration = Duration::from_secs(30);

const MAGIC: &[u8; 8] = b"mrckpt1\0";
const SLOT_BYTES: usize = 32 << 10;
const HEAD_BYTES: usize = 128;
const DIGEST_BYTES: usize = 32;
const NAMES: [&[u8]; 2] = [b"0", b"1"];
const _: () = assert!(HEAD_BYTES + STACK_MAX * 32 + TAIL_MAX + DIGEST_BYTES <= SLOT_BYTES);

/// One slot of the record.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    pub sequence: u64,
    pub version: u32,
    pub identity: Identity,
    /// Of the snapshot.
    pub uuid: [u8; 16],
    pub prefix: PrefixDigest,
}

fn invalid() -> Failure {
    Failure::new(
        Kind::Checkpoint,
        "the record of the checkpoint is not valid",
    )
}

impl Slot {
    /// Little-endian: magic, sequence, version, flags, position, digest of the prefix, uuid of the
    /// snapshot, uuid and ctransid of the stream, uuid of its base, number of values, length of the
    /// tail; the values and the tail; at the end of the slot the BLAKE3 digest of all that.
    fn encode(&self) -> Vec<u8> {
        let mut data = Vec::with_capacity(SLOT_BYTES);
        data.extend_from_slice(MAGIC);
        data.extend_from_slice(&self.sequence.to_le_bytes());
        data.extend_from_slice(&self.version.to_le_bytes());
        data.extend_from_slice(&u32::from(self.identity.base.is_some()).to_le_bytes());
        data.extend_from_slice(&self.prefix.bytes().to_le_bytes());
        data.extend_from_slice(&self.prefix.digest());
        data.extend_from_slice(&self.uuid);
        data.extend_from_slice(&self.identity.uuid);
        data.extend_from_slice(&self.identity.ctransid.to_le_bytes());
        data.extend_from_slice(&self.identity.base.unwrap_or_default());
        data.extend_from_slice(&(self.prefix.stack().len() as u32).to_le_bytes());
        data.extend_from_slice(&(self.prefix.tail().len() as u32).to_le_bytes());
        data.resize(HEAD_BYTES, 0);
        for value in self.prefix.stack() {
            data.extend_from_slice(value);
        }
        data.extend_from_slice(self.prefix.tail());
        data.resize(SLOT_BYTES - DIGEST_BYTES, 0);
        let digest = digest_of(&data);
        data.extend_from_slice(&digest);
        data
    }

    pub fn decode(data: &[u8]) -> Option<Self> {
        let (content, digest) = data.split_at_checked(SLOT_BYTES - DIGEST_BYTES)?;
        if content.get(..8)? != MAGIC || digest_of(content)[..] != *digest {
            return None;
        }
        let word = |at: usize| {
            Some(u32::from_le_bytes(
                content.get(at..at + 4)?.try_into().ok()?,
            ))
        };
        let long = |at: usize| {
            Some(u64::from_le_bytes(
                content.get(at..at + 8)?.try_into().ok()?,
            ))
        };
        let uuid = |at: usize| <[u8; 16]>::try_from(content.get(at..at + 16)?).ok();
        let (count, length) = (word(120)? as usize, word(124)? as usize);
        let (values, rest) = content[HEAD_BYTES..].split_at_checked(count.checked_mul(32)?)?;
        let values = values.chunks_exact(32);
        let stack = values
            .map(Value::try_from)
            .collect::<std::result::Result<_, _>>();
        let tail = rest.get(..length)?.to_vec();
        Some(Self {
            sequence: long(8)?,
            version: word(16)?,
            identity: Identity {
                uuid: uuid(80)?,
                ctransid: long(96)?,
                base: (word(20)? == 1).then_some(uuid(104)?),
            },
            uuid: uuid(64)?,
            prefix: PrefixDigest::restore(long(24)?, stack.ok()?, tail)?,
        })
    }
}

fn digest_of(data: &[u8]) -> Value {
    let mut digest = PrefixDigest::default();
    digest.update(data);
    digest.digest()
}

pub struct Checkpoints {
    folder: OwnedFd,
    record: File,
    sequence: u64,
    taken_at: Instant,
    position: u64,
}

impl Checkpoints {
    pub fn new(folder: OwnedFd, record: File) -> Self {
        Self {
            folder,
            record,
            sequence: 0,
            taken_at: Instant::now(),
            position: 0,
        }
    }

    /// The newest valid checkpoint, and its snapshot; what is not part of one is deleted.
    pub fn resume(&mut self, position: u64) -> Result<(Slot, OwnedFd)> {
        let mut slots: Vec<(Slot, OwnedFd)> = (0..2).filter_map(|n| self.valid(n)).collect();
        slots.sort_by_key(|(slot, _)| slot.sequence);
        let found = slots
            .pop()
            .filter(|(slot, _)| slot.prefix.bytes() == position);
        let (slot, snapshot) = found.ok_or_else(|| {
            Failure::new(
                Kind::Checkpoint,
                format!("there is no checkpoint at position {position}"),
            )
        })?;
        self.sequence = slot.sequence;
        self.position = position;
        self.delete(1 - number_of(slot.sequence))?;
        Ok((slot, snapshot))
    }

    fn valid(&self, number: usize) -> Option<(Slot, OwnedFd)> {
        let mut data = vec![0; SLOT_BYTES];
        self.record
            .read_exact_at(&mut data, (number * SLOT_BYTES) as u64)
            .ok()?;
        let slot = Slot::decode(&data).filter(|slot| number_of(slot.sequence) == number)?;
        let snapshot = self.open(number).ok()?;
        let same = sys::subvolume_uuid(&snapshot).ok()? == slot.uuid;
        (same && sys::is_read_only(&snapshot).ok()?).then_some((slot, snapshot))
    }

    fn open(&self, number: usize) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        open_beneath(&self.folder, NAMES[number], flags)
    }

    fn delete(&self, number: usize) -> Result<()> {
        if statat(&self.folder, NAMES[number], AtFlags::SYMLINK_NOFOLLOW).is_err() {
            return Ok(());
        }
        sys::delete_subvolume(&self.folder, NAMES[number])
            .or_failed(|| "an old checkpoint cannot be deleted".into())
    }

    pub fn is_due(&self, position: u64) -> bool {
        let (bytes, time) = (position - self.position, self.taken_at.elapsed());
        (bytes >= EVERY_BYTES && time >= EVERY) || (bytes > 0 && time >= AT_LATEST)
    }

    /// Whether there is anything that the last checkpoint does not include.
    pub fn is_behind(&self, position: u64) -> bool {
        position > self.position
    }

    /// Keep the state of the subvolume, to which exactly the prefix was applied; durable.
    pub fn take(
        &mut self,
        subvolume: impl AsFd,
        version: u32,
        identity: &Identity,
        prefix: &PrefixDigest,
    ) -> Result<()> {
        let sequence = self.sequence + 1;
        let number = number_of(sequence);
        self.delete(number)?;
        sys::create_snapshot(&self.folder, NAMES[number], subvolume, true)
            .or_failed(|| "a checkpoint cannot be taken".into())?;
        // Data that the disk refused is missing in the snapshot, and only this tells.
        sys::sync_filesystem(&self.folder)
            .or_failed(|| "the data of a checkpoint cannot be written to the disk".into())?;
        let snapshot = self
            .open(number)
            .or_failed(|| "a checkpoint cannot be opened".into())?;
        let slot = Slot {
            sequence,
            version,
            identity: *identity,
            uuid: sys::subvolume_uuid(&snapshot).map_err(|_| invalid())?,
            prefix: prefix.clone(),
        };
        self.record
            .write_all_at(&slot.encode(), (number * SLOT_BYTES) as u64)
            .and_then(|()| self.record.sync_data())
            .or_failed(|| "the record of a checkpoint cannot be written".into())?;
        self.sequence = sequence;
        self.position = prefix.bytes();
        self.taken_at = Instant::now();
        Ok(())
    }
}

fn number_of(sequence: u64) -> usize {
    (sequence % 2) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(bytes: usize) -> Slot {
        let mut prefix = PrefixDigest::default();
        prefix.update(&vec![7; bytes]);
        Slot {
            sequence: 5,
            version: 2,
            identity: Identity {
                uuid: [1; 16],
                ctransid: 9,
                base: Some([2; 16]),
            },
            uuid: [3; 16],
            prefix,
        }
    }

    #[test]
    fn a_slot_reads_back_as_it_was_written() {
        for bytes in [0, 1, TAIL_MAX, 3 * TAIL_MAX + 11] {
            let mut wanted = slot(bytes);
            assert_eq!(Slot::decode(&wanted.encode()), Some(wanted.clone()));
            wanted.identity.base = None;
            assert_eq!(Slot::decode(&wanted.encode()), Some(wanted));
        }
    }

    #[test]
    fn a_slot_with_a_changed_byte_does_not_count() {
        let data = slot(40_000).encode();
        for at in (0..data.len()).step_by(41) {
            let mut bad = data.clone();
            bad[at] ^= 1;
            assert_eq!(Slot::decode(&bad), None, "byte {at}");
        }
        assert_eq!(Slot::decode(&data[1..]), None);
        assert_eq!(Slot::decode(&[]), None);
    }
}
