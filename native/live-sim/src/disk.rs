//! A disk with a volatile cache. A power cut loses any subset of what was not synced, sector by
//! sector; a killed process leaves what it was writing partly written.

use crate::rng::Rng;
use mirrord_live_core::io::{Backend, File};
use mirrord_live_core::types::Range;
use std::collections::BTreeMap;
use std::io;

pub const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Resize(u64),
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Change::Write(offset, data) => {
                let (first, last) = (*offset as usize, *offset as usize + data.len());
                if to.len() < last {
                    to.resize(last, 0);
                }
                to[first..last].copy_from_slice(data);
            }
            Change::Resize(length) => to.resize(*length as usize, 0),
        }
    }

    /// The sectors of it that reached the medium.
    fn survivors(&self, rng: &mut Rng, loss: Loss) -> Vec<Change> {
        let keep = |rng: &mut Rng| match loss {
            Loss::All => false,
            Loss::Nothing => true,
            Loss::Random => rng.once_in(2),
        };
        match self {
            Change::Resize(_) if keep(rng) => vec![self.clone()],
            Change::Resize(_) => Vec::new(),
            Change::Write(offset, data) => {
                let is_torn = loss == Loss::Random && rng.once_in(4);
                let whole = keep(rng);
                let mut kept = Vec::new();
                let mut at = *offset as usize;
                let mut rest = &data[..];
                while !rest.is_empty() {
                    let length = (SECTOR - at % SECTOR).min(rest.len());
                    if if is_torn { rng.once_in(2) } else { whole } {
                        kept.push(Change::Write(at as u64, rest[..length].to_vec()));
                    }
                    rest = &rest[length..];
                    at += length;
                }
                kept
            }
        }
    }
}

/// What a power cut takes of the unsynced writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    All,
    Nothing,
    Random,
}

#[derive(Clone, Debug, Default)]
struct Medium {
    durable: Vec<u8>,
    cached: Vec<u8>,
    /// Applied to the cache only, oldest first, by their numbers.
    pending: BTreeMap<u64, Change>,
}

impl Medium {
    fn end_pending(&mut self, rng: &mut Rng, loss: Loss) {
        for change in std::mem::take(&mut self.pending).into_values() {
            for survivor in change.survivors(rng, loss) {
                survivor.apply(&mut self.durable);
            }
        }
    }
}

/// The disk of one end.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    files: BTreeMap<File, Medium>,
    next: u64,
}

impl Disk {
    fn change(&mut self, file: File, change: Change) {
        self.next += 1;
        let medium = self.files.entry(file).or_default();
        change.apply(&mut medium.cached);
        medium.pending.insert(self.next, change);
    }

    /// What a sync that starts now covers.
    pub fn mark(&self) -> u64 {
        self.next
    }

    /// A sync that started at `mark` is complete.
    pub fn synced(&mut self, file: File, mark: u64) {
        let medium = self.files.entry(file).or_default();
        let rest = medium.pending.split_off(&(mark + 1));
        for change in std::mem::replace(&mut medium.pending, rest).into_values() {
            change.apply(&mut medium.durable);
        }
    }

    /// A write that was under way when the process was killed.
    pub fn interrupt(&mut self, file: File, offset: u64, data: &[u8], rng: &mut Rng, loss: Loss) {
        for change in Change::Write(offset, data.to_vec()).survivors(rng, loss) {
            if let Change::Write(offset, data) = change {
                self.change(file, Change::Write(offset, data));
            }
        }
    }

    pub fn cut_power(&mut self, rng: &mut Rng, loss: Loss) {
        for medium in self.files.values_mut() {
            medium.end_pending(rng, loss);
            medium.cached = medium.durable.clone();
        }
    }

    /// A sync failed: what is not on the medium by now is cached, and never written.
    pub fn failed(&mut self, file: File, rng: &mut Rng) {
        let medium = self.files.entry(file).or_default();
        medium.end_pending(rng, Loss::Random);
    }

    /// What is not to be written is not cached any more.
    pub fn forget(&mut self, file: File) {
        let medium = self.files.entry(file).or_default();
        medium.cached = medium.durable.clone();
        for change in medium.pending.values() {
            change.apply(&mut medium.cached);
        }
    }

    /// A file is lost, all but its first `kept` bytes, as if it had been short on the medium.
    pub fn lose(&mut self, file: File, kept: u64) {
        let medium = self.files.entry(file).or_default();
        medium.pending.clear();
        medium.cached.truncate(kept as usize);
        medium.durable = medium.cached.clone();
    }

    pub fn contents(&self, file: File) -> &[u8] {
        self.files.get(&file).map_or(&[], |medium| &medium.cached)
    }
}

impl Backend for Disk {
    fn read(&self, file: File, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let contents = self.contents(file);
        for (at, byte) in into.iter_mut().enumerate() {
            *byte = contents.get(offset as usize + at).copied().unwrap_or(0);
        }
        Ok(())
    }

    fn write(&mut self, file: File, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(file, Change::Write(offset, data.to_vec()));
        Ok(())
    }

    fn zero(&mut self, range: Range, _punch: bool) -> io::Result<()> {
        self.write(File::Image, range.offset, &vec![0; range.length as usize])
    }

    fn sync(&mut self, file: File) -> io::Result<()> {
        self.synced(file, self.next);
        Ok(())
    }

    fn reserve(&mut self, file: File, length: u64) -> io::Result<()> {
        let now = self.contents(file).len() as u64;
        if length == 0 || length > now {
            self.change(file, Change::Resize(length));
        }
        Ok(())
    }

    fn size(&self, file: File) -> io::Result<u64> {
        Ok(self.contents(file).len() as u64)
    }
}
