//! Reads one file in pieces, block by block, from the disk and not from the page cache.

use super::base::{Base, Kept};
use super::walk::{Counts, Entry};
use mirrord_core::verify::{block, Content, Digest, FileSample, BLOCK, SKIPPED, UNREADABLE};
use rustix::fs::{self, Advice, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

/// Bytes that are read at once.
const PIECE: u64 = 8 * BLOCK;
/// Bytes after which the page cache is relieved of what was read.
const DROP: u64 = 32 << 20;
/// Blocks of one step, also if nothing is read.
const STEP: u64 = 1 << 14;

static HOLE: LazyLock<Digest> = LazyLock::new(|| block(&[0; BLOCK as usize]));

pub struct OpenFile {
    fd: OwnedFd,
    entry: Entry,
    count: u64,
    blocks: Vec<Digest>,
    content: Content,
    sample: Option<FileSample>,
    kept: Option<Kept>,
    buffer: Vec<u8>,
    ahead: u64,
    dropped: u64,
}

impl OpenFile {
    pub fn new(
        folder: &OwnedFd,
        name: &[u8],
        entry: Entry,
        sample: Option<FileSample>,
        kept: Option<Kept>,
    ) -> Result<Self, (Errno, Entry)> {
        // (O_NOATIME: a snapshot is read-only, but a test's folder may not be.)
        let flags = OFlags::RDONLY
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOATIME
            | OFlags::CLOEXEC;
        let fd = match fs::openat(folder, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(error) => return Err((error, entry)),
        };
        Ok(Self {
            fd,
            count: entry.size.div_ceil(BLOCK),
            entry,
            blocks: Vec::new(),
            content: Content::new(),
            sample,
            kept,
            buffer: Vec::new(),
            ahead: 0,
            dropped: 0,
        })
    }

    /// Read a piece; whether the file is done.
    pub fn read(&mut self, counts: &mut Counts, base: Option<&Base>) -> io::Result<bool> {
        let mut number = self.blocks.len() as u64;
        let most = (number + STEP).min(self.count);
        while number < most {
            if !self.sample.is_none_or(|sample| sample.includes(number)) {
                self.push(SKIPPED);
            } else if let Some(kept) = self.kept.as_ref().filter(|kept| kept.has(number)) {
                let digest = base.expect("it has it").block(kept, number)?;
                self.push(digest);
            } else {
                let run = self.run(number, most);
                self.read_run(number, run, counts);
                counts.blocks += run;
                break;
            }
            counts.blocks += 1;
            number += 1;
        }
        let done = self.blocks.len() as u64 == self.count;
        if done && self.ahead > 0 {
            self.advise(0, 0, Advice::DontNeed);
        }
        Ok(done)
    }

    pub fn finish(self) -> (Entry, Vec<Digest>, Digest) {
        (self.entry, self.blocks, self.content.finish())
    }

    fn push(&mut self, digest: Digest) {
        self.content.push(&digest);
        self.blocks.push(digest);
    }

    /// How many blocks from this one on are to be read, at most a piece.
    fn run(&self, number: u64, most: u64) -> u64 {
        let wanted = |&number: &u64| {
            self.sample.is_none_or(|sample| sample.includes(number))
                && !self.kept.as_ref().is_some_and(|kept| kept.has(number))
        };
        (number..most.min(number + PIECE / BLOCK))
            .take_while(wanted)
            .count() as u64
    }

    fn read_run(&mut self, number: u64, run: u64, counts: &mut Counts) {
        let start = number * BLOCK;
        let end = (start + run * BLOCK).min(self.entry.size);
        let data_at = match fs::seek(&self.fd, SeekFrom::Data(start)) {
            Ok(at) => at,
            Err(Errno::NXIO) => self.entry.size, // only a hole is left
            Err(_) => start,
        };
        let holes = (data_at.min(end) - start) / BLOCK;
        for _ in 0..holes {
            self.push(*HOLE);
        }
        if data_at >= end {
            for at in (start + holes * BLOCK..end).step_by(BLOCK as usize) {
                self.push(block(&vec![0; (end - at) as usize]));
            }
            return;
        }
        let start = start + holes * BLOCK;
        self.read_ahead(start, end);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize((end - start) as usize, 0);
        let whole = self.fill(start, &mut buffer);
        for (at, part) in (start..end)
            .step_by(BLOCK as usize)
            .zip(buffer.chunks_mut(BLOCK as usize))
        {
            counts.read_blocks += 1;
            counts.read_bytes += part.len() as u64;
            if whole || self.fill(at, part) {
                self.push(block(part));
            } else {
                counts.unreadable += 1;
                self.entry.unreadable = true;
                self.push(UNREADABLE);
            }
        }
        self.buffer = buffer;
    }

    /// Drop what the page cache has of the file, which may differ from what the disk has, and let
    /// the disk work ahead.
    fn read_ahead(&mut self, start: u64, end: u64) {
        if self.ahead == 0 {
            self.advise(0, 0, Advice::DontNeed);
            self.advise(0, 0, Advice::Sequential);
        }
        if start >= self.dropped + DROP {
            // (Not what the kernel has read ahead of this.)
            self.advise(self.dropped, start - self.dropped, Advice::DontNeed);
            self.dropped = start;
        }
        self.ahead = self.ahead.max(end);
    }

    fn advise(&self, at: u64, length: u64, advice: Advice) {
        // It is only advice; without it the result is the same.
        let _ = fs::fadvise(&self.fd, at, NonZeroU64::new(length), advice);
    }

    /// Whether all of it could be read.
    fn fill(&self, at: u64, buffer: &mut [u8]) -> bool {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(&self.fd, &mut buffer[done..], at + done as u64) {
                Ok(0) => return false,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}
