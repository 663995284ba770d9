//! What is done to the files, without ever making the caller wait for a disk.
//!
//! The image is written, read and synced by io_uring where the kernel allows it; threads do all
//! else, and all of it where it does not. What needs no wait is done at once.

mod ring;
#[cfg(test)]
mod tests;
mod threads;

use crate::files::{failure_of, Files};
use crate::sys;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token as Key, Waker};
use mirrord_live_core::io::{File, Outcome, Token};
use mirrord_live_core::locks::RangeLocks;
use mirrord_live_core::types::{Failure, Payload, Range};
use ring::Ring;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use threads::Threads;

/// What a job's result is for.
#[derive(Clone, Copy, Debug)]
pub enum For {
    /// The state machine of that life.
    Machine(u64, Token),
    /// A client's read.
    Read(u64),
    /// A client's question for holes.
    Extents(u64),
    /// The look at the size of the image.
    Size,
}

/// It owns its buffers until it is done.
pub enum Job {
    /// The first `done` bytes are written already.
    Write {
        file: File,
        offset: u64,
        data: Payload,
        done: usize,
    },
    Zero(Range, bool),
    /// Fills the buffer.
    Read(File, u64, Vec<u8>),
    Sync(File),
    Reserve(File, u64),
    /// Of the image, and whether the records are still there.
    Size,
    /// The holes of a range of the image; only the first extent if true.
    Extents(Range, bool),
}

pub enum Answer {
    Outcome(Outcome),
    Size(Option<u64>, bool),
    /// Length, and whether it is a hole.
    Extents(io::Result<Vec<(u32, bool)>>),
}

impl Answer {
    fn of(result: io::Result<()>) -> Answer {
        Answer::Outcome(match result {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed(failure_of(&error)),
        })
    }

    fn read(result: io::Result<()>, data: Vec<u8>) -> Answer {
        match result {
            Ok(()) => Answer::Outcome(Outcome::Data(data)),
            failed => Answer::of(failed),
        }
    }
}

/// `--io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Auto,
    Ring,
    Threads,
}

/// What is tried at once before it is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inline {
    /// The file system is in memory: nothing has to wait for a disk.
    Always,
    /// A disk here: a write goes to the page cache, and waits only if the disk does not keep up.
    WhileQuick,
    /// What the kernel does without waiting: another program or host has the data (FUSE, NFS).
    NoWait,
    /// The file system does not know writes without waiting.
    ReadsOnly,
}

/// A write that takes longer has waited for the disk.
const SLOW: Duration = Duration::from_millis(2);
/// So long after it nothing is written inline.
const AFTER_SLOW: Duration = Duration::from_secs(1);
/// A disk that has not completed a sync for so long may be hanging.
const LONG_SYNC: Duration = Duration::from_millis(200);

/// Whether the disk takes writes as they come.
#[derive(Default)]
struct Pace {
    /// When a write inline was last slow.
    slow: Option<Instant>,
    /// Syncs of the image under way, and when each began, the oldest first.
    syncs: BTreeMap<u64, Instant>,
}

impl Pace {
    fn is_quick(&self, now: Instant) -> bool {
        let is_over = |since: Option<&Instant>, limit| {
            since.is_some_and(|since| now.saturating_duration_since(*since) > limit)
        };
        (self.slow.is_none() || is_over(self.slow.as_ref(), AFTER_SLOW))
            && !is_over(self.syncs.values().next(), LONG_SYNC)
    }

    fn wrote(&mut self, began: Instant, now: Instant) {
        if now.saturating_duration_since(began) > SLOW {
            self.slow = Some(now);
        }
    }
}

/// A job under way.
struct Pending {
    what: For,
    /// The range of the image that it changes.
    range: Option<Range>,
    /// It changes a file, or makes it durable.
    is_change: bool,
    bytes: usize,
}

pub struct Executor {
    files: Files,
    ring: Option<Ring>,
    threads: Threads,
    /// Why there is no ring.
    reason: String,
    inline: Inline,
    pace: Pace,
    pending: HashMap<u64, Pending>,
    next: u64,
    /// Ranges of the image that are being changed.
    changing: RangeLocks,
    changes: usize,
    bytes: usize,
    /// Of a sync of the image that nobody has been told of: the next one fails.
    kept: Option<Failure>,
    /// Jobs that are done without being begun.
    answered: VecDeque<(For, Answer)>,
}

impl Executor {
    /// waker: what threads wake; ring: the key of the poll's events for the ring.
    pub fn start(
        files: &Files,
        choice: Choice,
        registry: &Registry,
        waker: &Arc<Waker>,
        ring: Key,
    ) -> io::Result<Executor> {
        let made = match choice {
            Choice::Threads => Err(io::Error::other("--io threads")),
            _ => Ring::new(files.image.clone()),
        };
        let (made, reason) = match made {
            Ok(made) => {
                let source = made.descriptor();
                registry.register(&mut SourceFd(&source), ring, Interest::READABLE)?;
                (Some(made), String::new())
            }
            Err(error) if choice == Choice::Ring => {
                let problem = format!("--io uring: io_uring can't be used: {error}");
                return Err(io::Error::new(error.kind(), problem));
            }
            Err(error) => (None, error.to_string()),
        };
        let inline = match sys::kind_of(&files.image) {
            sys::Kind::Memory => Inline::Always,
            sys::Kind::Disk => Inline::WhileQuick,
            sys::Kind::Other => Inline::NoWait,
        };
        Ok(Executor {
            files: files.clone(),
            ring: made,
            threads: Threads::start(files, waker)?,
            reason,
            inline,
            pace: Pace::default(),
            pending: HashMap::new(),
            next: 0,
            changing: RangeLocks::default(),
            changes: 0,
            bytes: 0,
            kept: None,
            answered: VecDeque::new(),
        })
    }

    /// What executes, and why it is not io_uring.
    pub fn kind(&self) -> (&'static str, &str) {
        match self.ring {
            Some(_) => ("io_uring", ""),
            None => ("threads", &self.reason),
        }
    }

    /// Bytes of requests under way.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Nothing changes a file any more, and no sync is under way.
    pub fn is_drained(&self) -> bool {
        self.changes == 0
    }

    /// A sync of the image failed, and who ordered it does not listen any more.
    pub fn keep_failure(&mut self, failure: Failure) {
        self.kept = Some(failure);
    }

    /// Nothing under way changes this part of the image.
    pub fn is_free(&self, range: Range) -> bool {
        self.changing.is_free(range)
    }

    /// Writes to the image what can be written without waiting; how much that was. With other
    /// changes under way the ring takes all of them with one call.
    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> usize {
        let began = Instant::now();
        let may_wait = match self.inline {
            Inline::Always => true,
            Inline::WhileQuick if self.pace.is_quick(began) => true,
            Inline::NoWait | Inline::WhileQuick if self.changing.is_empty() => false,
            _ => return 0,
        };
        let written = sys::write_some(&self.files.image, offset, data, may_wait);
        self.pace.wrote(began, Instant::now());
        written.unwrap_or_else(|error| {
            let is_unknown = error.raw_os_error() == Some(libc::EOPNOTSUPP);
            if is_unknown && self.inline == Inline::NoWait {
                self.inline = Inline::ReadsOnly;
            }
            // Whatever else it was, the queued write finds it, too.
            0
        })
    }

    /// Reads from the image what is in memory; true if that is all of it.
    pub fn try_read(&self, offset: u64, into: &mut [u8]) -> bool {
        let may_wait = self.inline == Inline::Always; // a disk may have to be read
        let read = sys::read_some(&self.files.image, offset, into, may_wait);
        read.is_ok_and(|read| read == into.len())
    }

    /// Queues a job. `submit` has to follow.
    pub fn queue(&mut self, what: For, job: Job) {
        if matches!(job, Job::Sync(File::Image)) {
            if let Some(failure) = self.kept.take() {
                let answer = Answer::Outcome(Outcome::Failed(failure));
                self.answered.push_back((what, answer));
                return;
            }
        }
        let image = |file: &File| *file == File::Image;
        let (range, is_change, bytes) = match &job {
            Job::Write {
                file, offset, data, ..
            } => {
                let range = Range::new(*offset, data.len() as u32);
                (image(file).then_some(range), true, data.len())
            }
            Job::Zero(range, _) => (Some(*range), true, 0),
            Job::Reserve(..) | Job::Sync(_) => (None, true, 0),
            Job::Read(_, _, data) => (None, false, data.len()),
            Job::Size | Job::Extents(..) => (None, false, 0),
        };
        if let Some(range) = range {
            assert!(self.changing.is_free(range), "{range:?} twice at a time");
            self.changing.lock(range);
        }
        self.changes += usize::from(is_change);
        self.bytes += bytes;
        self.next += 1;
        if matches!(job, Job::Sync(File::Image)) {
            self.pace.syncs.insert(self.next, Instant::now());
        }
        let pending = Pending {
            what,
            range,
            is_change,
            bytes,
        };
        self.pending.insert(self.next, pending);
        match &mut self.ring {
            Some(ring) if Ring::takes(&job) => ring.queue(self.next, job),
            _ => self.threads.queue(self.next, job),
        }
    }

    /// Has the kernel begin with what was queued.
    pub fn submit(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.submit();
        }
    }

    /// The next job that is done.
    pub fn done(&mut self) -> Option<(For, Answer)> {
        if let Some(answered) = self.answered.pop_front() {
            return Some(answered);
        }
        let done = self.ring.as_mut().and_then(Ring::done);
        let (number, answer) = done.or_else(|| self.threads.done())?;
        let pending = self.pending.remove(&number)?;
        self.pace.syncs.remove(&number);
        if let Some(range) = pending.range {
            self.changing.unlock(range);
        }
        self.changes -= usize::from(pending.is_change);
        self.bytes -= pending.bytes;
        Some((pending.what, answer))
    }
}
