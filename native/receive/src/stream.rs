//! Reads a stream and cuts it into batches of whole commands, their checksums verified.
//!
//! This runs in a thread of its own, ahead of the one that applies the commands by `AHEAD` batches.

use std::fs::File;
use std::io::{self, Read};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::thread;

use mirrord_core::btrfs_stream::{
    checksum, command, le16, le32, COMMAND_HEADER, MAGIC, STREAM_HEADER,
};
use mirrord_core::prefix_digest::PrefixDigest;

use crate::failure::{Context, Failure, Result};
use crate::sys;

/// Of version 1: the kernel's buffer. Of later versions: with pages of 64 KiB it is 192 KiB.
const COMMAND_MAX_V1: usize = 64 << 10;
const COMMAND_MAX: usize = 256 << 10;
/// Bytes per batch, and how many there are.
const BATCH: usize = 1 << 20;
const AHEAD: usize = 3;
/// How much is read after SIGTERM: what a pipe holds.
const LAST_BYTES: usize = 4 << 20;
const AGAIN: &str = "it begins again in its middle: the sender was stopped meanwhile";

/// One command in the data of its batch.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub kind: u16,
    pub start: usize,
    pub end: usize,
}

/// Whole commands; `position`: where the last one ends in the stream.
pub struct Batch {
    pub version: u32,
    pub data: Vec<u8>,
    pub commands: Vec<Place>,
    pub position: u64,
    pub digest: Option<PrefixDigest>,
}

/// What the reading thread passes on.
pub enum Item {
    Batch(Batch),
    /// END was the last command, and nothing follows it.
    Complete,
    /// The input ended before END, or SIGTERM came.
    Interrupted,
    Failed(Failure),
}

/// What follows a stream that somebody waits for.
const CONFIRMED: &[u8] = b"\n";

/// Where a stream begins or goes on.
pub struct Start {
    /// 0: unknown, the stream begins with its header.
    pub version: u32,
    pub position: u64,
    /// Whether the prefix is digested.
    pub digest: Option<PrefixDigest>,
}

/// The batches of a stream, and where their buffers are given back.
pub struct Batches {
    pub items: Receiver<Item>,
    pub spare: SyncSender<Vec<u8>>,
}

/// Start the thread that reads. It has made the system calls with which a thread begins.
/// confirmed: `CONFIRMED` has to follow the stream; otherwise it counts as interrupted.
pub fn read(input: File, start: Start, confirmed: bool) -> io::Result<Batches> {
    let (sending, items) = sync_channel(AHEAD);
    let (spare, used) = sync_channel(AHEAD + 2);
    let (begun, started) = sync_channel(0);
    let mut reader = Reader {
        cutter: Cutter {
            confirmed: confirmed.then_some(false),
            ..Cutter::new(start)
        },
        used,
    };
    thread::Builder::new()
        .name("reader".into())
        .stack_size(256 << 10)
        .spawn(move || {
            let _ = begun.send(());
            let last = match reader.run(input, &sending) {
                Ok(item) => item,
                Err(failure) => Item::Failed(failure),
            };
            // Nobody listens any more: applying has failed.
            let _ = sending.send(last);
        })?;
    let _ = started.recv();
    Ok(Batches { items, spare })
}

struct Reader {
    cutter: Cutter,
    used: Receiver<Vec<u8>>,
}

impl Reader {
    fn run(&mut self, mut input: File, sending: &SyncSender<Item>) -> Result<Item> {
        let mut data = self.buffer();
        let mut filled = 0;
        let mut left = LAST_BYTES;
        loop {
            if !sys::wait_readable(&input).or_failed(|| "the stream cannot be read".into())? {
                return Ok(Item::Interrupted);
            }
            let count = match input.read(&mut data[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.or_failed(|| "the stream cannot be read".into())?,
            };
            match count {
                0 if self.cutter.is_complete() && !sys::is_terminated() => {
                    return Ok(Item::Complete)
                }
                0 => return Ok(Item::Interrupted),
                _ if sys::is_terminated() => {
                    left = left.saturating_sub(count);
                    if left == 0 {
                        return Ok(Item::Interrupted);
                    }
                }
                _ => {}
            }
            filled += count;
            let mut commands = Vec::new();
            let cut = self.cutter.cut(&data[..filled], &mut commands);
            let end = match &cut {
                Ok(end) => *end,
                // What precedes the damage is applied, so that a checkpoint includes it.
                Err(_) => commands.last().map_or(0, |place: &Place| place.end),
            };
            if end > 0 {
                let mut next = self.buffer();
                next[..filled - end].copy_from_slice(&data[end..filled]);
                filled -= end;
                let batch = Batch {
                    version: self.cutter.version,
                    data: std::mem::replace(&mut data, next),
                    commands,
                    position: self.cutter.position,
                    digest: self.cutter.digest.clone(),
                };
                if sending.send(Item::Batch(batch)).is_err() {
                    return Ok(Item::Interrupted);
                }
            }
            cut?;
        }
    }

    fn buffer(&self) -> Vec<u8> {
        let used = self.used.try_recv().ok();
        used.unwrap_or_else(|| vec![0; BATCH + COMMAND_MAX])
    }
}

/// Finds the commands in a stream that arrives in pieces.
pub struct Cutter {
    pub version: u32,
    pub position: u64,
    pub ended: bool,
    pub digest: Option<PrefixDigest>,
    commands: u64,
    /// Whether `CONFIRMED` came; None: it is not expected.
    confirmed: Option<bool>,
}

impl Cutter {
    pub fn new(start: Start) -> Self {
        Self {
            version: start.version,
            position: start.position,
            ended: false,
            digest: start.digest,
            commands: 0,
            confirmed: None,
        }
    }

    fn is_complete(&self) -> bool {
        self.ended && self.confirmed != Some(false)
    }

    /// Append the whole commands in `data` to `commands`; how many bytes they take.
    pub fn cut(&mut self, data: &[u8], commands: &mut Vec<Place>) -> Result<usize> {
        let mut at = 0;
        let result = self.advance(data, &mut at, commands);
        // END does not count: who goes on after it would have nothing to read.
        let counted = match commands.last() {
            Some(last) if self.ended && last.end == at => last.start - COMMAND_HEADER,
            _ => at,
        };
        if let Some(digest) = &mut self.digest {
            digest.update(&data[..counted]);
        }
        self.position += counted as u64;
        let restarted = |bytes: &[u8]| bytes.windows(MAGIC.len()).any(|part| part == MAGIC);
        match result {
            // The kernel restarts at any position, usually within a command.
            Err(_) if self.position > 0 && restarted(&data[at..]) => Err(Failure::damaged(AGAIN)),
            Err(why) => Err(Failure::damaged(why)),
            Ok(()) => Ok(at),
        }
    }

    fn advance(
        &mut self,
        data: &[u8],
        at: &mut usize,
        commands: &mut Vec<Place>,
    ) -> std::result::Result<(), String> {
        if self.version == 0 {
            let Some(header) = data.get(..STREAM_HEADER) else {
                return Ok(());
            };
            if header[..MAGIC.len()] != MAGIC[..] {
                return Err("it does not begin as a btrfs stream".into());
            }
            self.version = le32(header, MAGIC.len()).unwrap_or(0);
            if !(1..=3).contains(&self.version) {
                let version = std::mem::take(&mut self.version);
                return Err(format!("it has the unknown version {version}"));
            }
            *at = STREAM_HEADER;
        }
        let (most, last) = match self.version {
            1 => (COMMAND_MAX_V1, command::LAST_V1),
            2 => (COMMAND_MAX, command::LAST_V2),
            _ => (COMMAND_MAX, command::LAST),
        };
        loop {
            let rest = &data[*at..];
            if self.ended && self.confirmed.is_some() && rest == CONFIRMED {
                self.confirmed = Some(true);
                return Ok(());
            }
            if self.ended && !rest.is_empty() {
                return Err("something follows its end".into());
            }
            let number = self.commands + 1;
            let Some(length) = le32(rest, 0) else {
                return Ok(());
            };
            let length = length as usize;
            if length > most - COMMAND_HEADER {
                return Err(format!("command {number} claims to be {length} bytes long"));
            }
            let Some(unit) = rest.get(..COMMAND_HEADER + length) else {
                return Ok(());
            };
            let (header, payload) = unit.split_at(COMMAND_HEADER);
            if le32(header, 6) != Some(checksum(header, payload)) {
                return Err(format!("the checksum of command {number} is wrong"));
            }
            let kind = le16(header, 4).unwrap_or(0);
            if kind == 0 || kind > last {
                return Err(format!("command {number} has the unknown type {kind}"));
            }
            commands.push(Place {
                kind,
                start: *at + COMMAND_HEADER,
                end: *at + unit.len(),
            });
            *at += unit.len();
            self.commands = number;
            self.ended = kind == command::END;
        }
    }
}
