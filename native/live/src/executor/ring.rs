//! Writes, reads and syncs of the image by io_uring.
//!
//! Invariant: what the kernel was given pointers to is owned by `running` and neither changed nor
//! freed before its completion was taken. The vectors' bytes do not move with the table. A `Ring`
//! that goes away with operations under way leaks them.

use super::{Answer, Job};
use io_uring::{opcode, squeue, types, IoUring, Probe};
use mirrord_live_core::io::File as Name;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Operations that the kernel has at a time. Its queues have room for as many.
const DEPTH: u32 = 256;

struct Operation {
    job: Job,
    /// Bytes that are written or read.
    done: usize,
}

impl Operation {
    fn length(&self) -> usize {
        match &self.job {
            Job::Write { data, .. } => data.len(),
            Job::Read(_, _, data) => data.len(),
            _ => 0,
        }
    }

    fn answer(self, result: io::Result<()>) -> Answer {
        match self.job {
            Job::Read(_, _, data) => Answer::read(result, data),
            _ => Answer::of(result),
        }
    }
}

pub(super) struct Ring {
    ring: IoUring,
    image: Arc<File>,
    waiting: VecDeque<(u64, Operation)>,
    running: HashMap<u64, Operation>,
}

impl Ring {
    /// Fails if the kernel or its administrator does not allow it.
    pub fn new(image: Arc<File>) -> io::Result<Ring> {
        let explain = |error: io::Error| {
            let hint = match error.raw_os_error() {
                Some(libc::ENOSYS) => "; this kernel has no io_uring",
                Some(libc::EPERM) => "; see sysctl kernel.io_uring_disabled",
                Some(libc::ENOMEM) => "; see LimitMEMLOCK=",
                _ => "",
            };
            io::Error::new(error.kind(), format!("io_uring_setup: {error}{hint}"))
        };
        let ring = IoUring::new(DEPTH).map_err(explain)?;
        let mut probe = Probe::new();
        let needed = [opcode::Write::CODE, opcode::Read::CODE, opcode::Fsync::CODE];
        let probed = ring.submitter().register_probe(&mut probe);
        if probed.is_err() || !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(io::Error::other("io_uring of Linux before 5.6"));
        }
        Ok(Ring {
            ring,
            image,
            waiting: VecDeque::new(),
            running: HashMap::new(),
        })
    }

    /// Readable while there are completions.
    pub fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    pub fn takes(job: &Job) -> bool {
        match job {
            Job::Write { file, .. } | Job::Read(file, ..) | Job::Sync(file) => *file == Name::Image,
            _ => false,
        }
    }

    pub fn queue(&mut self, number: u64, job: Job) {
        let done = match &job {
            Job::Write { done, .. } => *done,
            _ => 0,
        };
        self.waiting.push_back((number, Operation { job, done }));
    }

    /// Hands over what waits, with one system call. What the kernel has no room for now is tried
    /// again with the next call.
    pub fn submit(&mut self) {
        while self.running.len() < DEPTH as usize {
            let Some((number, operation)) = self.waiting.pop_front() else {
                break;
            };
            if !self.push(number, operation) {
                break;
            }
        }
        if !self.ring.submission().is_empty() {
            while let Err(error) = self.ring.submit() {
                if error.kind() != io::ErrorKind::Interrupted {
                    return;
                }
            }
        }
    }

    fn push(&mut self, number: u64, mut operation: Operation) -> bool {
        let (file, done) = (types::Fd(self.image.as_raw_fd()), operation.done);
        let entry: squeue::Entry = match &mut operation.job {
            Job::Write { offset, data, .. } => {
                let rest = &data[done..];
                opcode::Write::new(file, rest.as_ptr(), rest.len() as u32)
                    .offset(*offset + done as u64)
                    .build()
            }
            Job::Read(_, offset, data) => {
                let rest = &mut data[done..];
                opcode::Read::new(file, rest.as_mut_ptr(), rest.len() as u32)
                    .offset(*offset + done as u64)
                    .build()
            }
            _ => opcode::Fsync::new(file)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
        };
        let entry = entry.user_data(number);
        // In the table before the kernel can know of it.
        self.running.insert(number, operation);
        // SAFETY: the buffer belongs to an operation in `running`, which is not touched until its
        // completion was taken (`done`), nor freed by `drop`; the descriptor is open as long as
        // this ring has `image`.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            if let Some(operation) = self.running.remove(&number) {
                self.waiting.push_front((number, operation));
            }
        }
        pushed.is_ok()
    }

    /// The next operation that is done. One that was done in part goes on with the rest.
    pub fn done(&mut self) -> Option<(u64, Answer)> {
        loop {
            let completion = self.ring.completion().next()?;
            let number = completion.user_data();
            let Some(mut operation) = self.running.remove(&number) else {
                continue;
            };
            let result = match usize::try_from(completion.result()) {
                Err(_) => Err(io::Error::from_raw_os_error(-completion.result())),
                Ok(count) => Ok(count),
            };
            let result = match (result, &mut operation.job) {
                (Err(error), _) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN) => None,
                    _ => Some(Err(error)),
                },
                (Ok(0), Job::Write { .. }) => Some(Err(io::ErrorKind::WriteZero.into())),
                (Ok(0), Job::Read(_, _, data)) => {
                    // What lies after the end of the file reads as zeros.
                    data[operation.done..].fill(0);
                    Some(Ok(()))
                }
                (Ok(count), _) => {
                    operation.done += count;
                    (operation.done >= operation.length()).then_some(Ok(()))
                }
            };
            match result {
                Some(result) => return Some((number, operation.answer(result))),
                None => self.waiting.push_front((number, operation)),
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may use these buffers after this: a write would take whatever is there then.
        std::mem::forget(std::mem::take(&mut self.running));
    }
}
