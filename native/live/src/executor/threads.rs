//! Threads for what may block, where the kernel has nothing better.

use super::{Answer, Job};
use crate::files::{size_in_use, Files};
use mio::Waker;
use mirrord_live_core::io::{Backend, File};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread;

type Queue = Sender<(u64, Job)>;

/// The image has threads for its changes, for its syncs, for reads, and for questions to its file
/// system. Each other file has one for all but reads, so that none waits for another's disk.
pub(super) struct Threads {
    image: Queue,
    syncs: Queue,
    questions: Queue,
    records: HashMap<File, Queue>,
    readers: Vec<Queue>,
    next: usize,
    done: Receiver<(u64, Answer)>,
    /// The poll was woken and has not looked yet.
    is_woken: Arc<AtomicBool>,
}

const READERS: usize = 4;

fn execute(files: &mut Files, job: Job) -> Answer {
    match job {
        Job::Write {
            file,
            offset,
            data,
            done,
        } => {
            let file = files.file(file);
            Answer::of(file.write_all_at(&data[done..], offset + done as u64))
        }
        Job::Zero(range, punch) => Answer::of(files.zero(range, punch)),
        Job::Read(file, offset, mut data) => {
            let result = files.read(file, offset, &mut data);
            Answer::read(result, data)
        }
        Job::Sync(file) => Answer::of(files.sync(file)),
        Job::Reserve(file, length) => Answer::of(files.reserve(file, length)),
        Job::Size => Answer::Size(size_in_use(files).ok(), files.has_records()),
        Job::Extents(range, one) => Answer::Extents(files.extents(range, one)),
    }
}

struct Starter<'a> {
    files: &'a Files,
    report: Sender<(u64, Answer)>,
    waker: &'a Arc<Waker>,
    is_woken: Arc<AtomicBool>,
}

impl Starter<'_> {
    fn start(&self) -> io::Result<Queue> {
        let (sender, jobs) = channel::<(u64, Job)>();
        let (mut files, report) = (self.files.clone(), self.report.clone());
        let (waker, is_woken) = (self.waker.clone(), self.is_woken.clone());
        let run = move || {
            for (number, job) in jobs {
                let answer = execute(&mut files, job);
                let is_told = report.send((number, answer)).is_ok();
                let woken: io::Result<()> = match is_woken.swap(true, Ordering::AcqRel) {
                    true => Ok(()),
                    false => waker.wake(),
                };
                if !is_told || woken.is_err() {
                    return;
                }
            }
        };
        let started = thread::Builder::new().spawn(run);
        let problem = |error: io::Error| io::Error::other(format!("no thread for a disk: {error}"));
        started.map(|_| sender).map_err(problem)
    }
}

impl Threads {
    pub fn start(files: &Files, waker: &Arc<Waker>) -> io::Result<Threads> {
        let (report, done) = channel();
        let is_woken = Arc::new(AtomicBool::new(false));
        let starter = Starter {
            files,
            report,
            waker,
            is_woken: is_woken.clone(),
        };
        let records = [File::Tracking, File::Side, File::Log].into_iter();
        let records = records.map(|name| Ok((name, starter.start()?)));
        Ok(Threads {
            image: starter.start()?,
            syncs: starter.start()?,
            questions: starter.start()?,
            records: records.collect::<io::Result<_>>()?,
            readers: (0..READERS)
                .map(|_| starter.start())
                .collect::<io::Result<_>>()?,
            next: 0,
            done,
            is_woken,
        })
    }

    pub fn queue(&mut self, number: u64, job: Job) {
        let queue = match &job {
            Job::Read(..) => {
                self.next = (self.next + 1) % self.readers.len();
                &self.readers[self.next]
            }
            Job::Size | Job::Extents(..) => &self.questions,
            Job::Zero(..) => &self.image,
            Job::Write { file, .. } | Job::Reserve(file, _) => {
                self.records.get(file).unwrap_or(&self.image)
            }
            Job::Sync(file) => self.records.get(file).unwrap_or(&self.syncs),
        };
        // A thread ends only with the process.
        let _ = queue.send((number, job));
    }

    pub fn done(&self) -> Option<(u64, Answer)> {
        self.done.try_recv().ok().or_else(|| {
            // What is sent after this wakes the poll again.
            self.is_woken.swap(false, Ordering::AcqRel);
            self.done.try_recv().ok()
        })
    }
}
