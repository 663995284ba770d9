//! What a driver executes for a state machine, and what it reports back.

use crate::frame::Frame;
use crate::types::{Failure, Payload, Range, RequestId};
use std::io;

/// The files of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum File {
    Image,
    /// The record, the activity log and the change map.
    Tracking,
    /// Before-images of a resync.
    Side,
    /// The redo log.
    Log,
}

/// The files of one end as a driver has them; the simulation puts disks that fail in its place.
pub trait Backend {
    /// Fills `into`; what lies after the file's end reads as zeros.
    fn read(&self, file: File, offset: u64, into: &mut [u8]) -> io::Result<()>;
    fn write(&mut self, file: File, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes a range of the image read as zeros, and frees it if `punch`.
    fn zero(&mut self, range: Range, punch: bool) -> io::Result<()>;
    /// Returns when everything written to `file` is durable.
    fn sync(&mut self, file: File) -> io::Result<()>;
    /// Allocates `length` bytes of the side file or the log; 0 empties it.
    fn reserve(&mut self, file: File, length: u64) -> io::Result<()>;
    fn size(&self, file: File) -> io::Result<u64>;
}

/// What an action belongs to; its report carries it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Token {
    /// A write to the image, by the number it was issued under.
    Write(u64),
    /// A read of the image for a copy.
    Copy(u64),
    /// A read of the image for its digests.
    Verify(u64),
    /// A range that the other end's data overwrites.
    Pull(u64),
    /// The sync of the image in progress.
    Sync,
    /// Part of the transaction on the tracking file in progress.
    Tracking,
    /// A read for a before-image.
    Before(u64),
    /// Part of the transaction on the side file in progress.
    Side,
    /// Part of a rollback.
    Rollback,
    /// Part of the transaction on the redo log in progress.
    Log,
    /// An entry of the redo log that is being applied.
    Redo(u64),
    /// The sync of the image that the redo log waits for.
    Checkpoint,
}

#[derive(Clone, Debug)]
pub enum Action {
    Write {
        file: File,
        offset: u64,
        data: Payload,
        token: Token,
    },
    Zero {
        range: Range,
        punch: bool,
        token: Token,
    },
    Read {
        file: File,
        offset: u64,
        length: u32,
        token: Token,
    },
    Sync {
        file: File,
        token: Token,
    },
    Reserve {
        file: File,
        length: u64,
        token: Token,
    },
    Send(Frame),
    /// The link is of no use any more. None: for the same reason as at the last attempt.
    Disconnect(Option<&'static str>),
    Reply {
        request: RequestId,
        result: Result<(), Failure>,
    },
    /// Close the clients' connections without an answer.
    DropClients,
    /// The record has another role now: start again from the files.
    Reopen,
    /// A command's result.
    Report(Result<(), String>),
    Log(String),
}

/// The outcome of an action.
#[derive(Clone, Debug)]
pub enum Outcome {
    Done,
    Data(Vec<u8>),
    Failed(Failure),
}

impl Outcome {
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Outcome::Failed(failure) => Some(*failure),
            _ => None,
        }
    }
}
