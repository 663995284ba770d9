//! The ring on real files. Where the kernel does not allow it, there is nothing to test.

use super::*;
use std::fs::{File as Opened, OpenOptions};
use std::path::Path;
use std::thread;
use std::time::Duration;

fn ring_of(file: Opened) -> Option<Ring> {
    Ring::new(Arc::new(file)).ok()
}

fn write(offset: u64, data: Vec<u8>, done: usize) -> Job {
    Job::Write {
        file: File::Image,
        offset,
        data: Arc::new(data),
        done,
    }
}

/// Submits until so many are done; the answers by number.
fn answers(ring: &mut Ring, count: usize) -> HashMap<u64, Answer> {
    let mut found = HashMap::new();
    while found.len() < count {
        ring.submit();
        while let Some((number, answer)) = ring.done() {
            assert!(found.insert(number, answer).is_none(), "{number} twice");
        }
        thread::sleep(Duration::from_millis(1));
    }
    found
}

fn temporary() -> (std::path::PathBuf, Opened) {
    let name = format!("mirrord-ring-{:?}", thread::current().id());
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).create(true).truncate(true);
    let file = opened.open(&path).unwrap();
    (path, file)
}

#[test]
fn more_operations_than_the_ring_has_room_for() {
    let (path, file) = temporary();
    let Some(mut ring) = ring_of(file) else {
        return;
    };
    for number in 0..1000_u64 {
        ring.queue(number, write(number * 512, vec![number as u8; 512], 0));
    }
    for answer in answers(&mut ring, 1000).into_values() {
        assert!(matches!(answer, Answer::Outcome(Outcome::Done)));
    }
    ring.queue(1, Job::Sync(File::Image));
    answers(&mut ring, 1);
    let content = std::fs::read(&path).unwrap();
    let expected: Vec<u8> = (0..1000_u64).flat_map(|it| vec![it as u8; 512]).collect();
    assert!(content == expected);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_was_done_in_part_goes_on() {
    let (path, file) = temporary();
    let Some(mut ring) = ring_of(file) else {
        return;
    };
    // The first half was written by somebody else.
    ring.queue(1, write(4096, vec![7; 1000], 500));
    answers(&mut ring, 1);
    // A read ends at the end of the file, is continued, and the rest is zeros.
    ring.queue(2, Job::Read(File::Image, 4096, vec![9; 3000]));
    let Some(Answer::Outcome(Outcome::Data(data))) = answers(&mut ring, 1).remove(&2) else {
        panic!("no data");
    };
    assert!(data[..500].iter().all(|byte| *byte == 0));
    assert!(data[500..1000].iter().all(|byte| *byte == 7));
    assert!(data.len() == 3000 && data[1000..].iter().all(|byte| *byte == 0));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn errors_are_reported() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let Some(mut ring) = ring_of(full) else {
        return;
    };
    ring.queue(1, write(0, vec![1; 512], 0));
    ring.queue(2, Job::Read(File::Image, 0, vec![0; 512]));
    let found = answers(&mut ring, 2);
    let failure = |number| match &found[&number] {
        Answer::Outcome(outcome) => outcome.failure(),
        _ => None,
    };
    use mirrord_live_core::types::Failure;
    assert_eq!(failure(1), Some(Failure::NoSpace));
    assert_eq!(failure(2), Some(Failure::Io));
}

#[test]
fn a_ring_can_go_away_with_operations_under_way() {
    let (path, file) = temporary();
    let Some(mut ring) = ring_of(file) else {
        return;
    };
    for number in 0..200_u64 {
        let offset = number * 4096;
        ring.queue(number, write(offset, vec![5; 4096], 0));
    }
    ring.submit();
    drop(ring);
    // What was begun is written with its own bytes, whatever the memory is used for now.
    let _other: Vec<Vec<u8>> = (0..1000).map(|_| vec![6; 4096]).collect();
    thread::sleep(Duration::from_millis(300));
    let content = std::fs::read(&path).unwrap();
    assert!(content.iter().all(|byte| matches!(byte, 0 | 5)));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn nothing_is_written_inline_while_a_disk_is_slow() {
    let began = Instant::now();
    let later = |ms| began + Duration::from_millis(ms);
    let mut pace = Pace::default();
    pace.wrote(began, later(1));
    assert!(pace.is_quick(later(1)));
    pace.wrote(later(1), later(4));
    assert!(!pace.is_quick(later(4)) && !pace.is_quick(later(1000)));
    assert!(pace.is_quick(later(1005)));
    pace.syncs.insert(1, later(1100));
    pace.syncs.insert(2, later(1250));
    assert!(pace.is_quick(later(1300)) && !pace.is_quick(later(1301)));
    pace.syncs.remove(&1);
    assert!(pace.is_quick(later(1301)) && !pace.is_quick(later(1451)));
}

#[test]
fn a_sync_that_failed_unheard_makes_the_next_one_fail() {
    let (path, file) = temporary();
    let file = Arc::new(file);
    let files = Files {
        path: Path::new("image").into(),
        image: file.clone(),
        tracking: file.clone(),
        side: file.clone(),
        log: file,
    };
    let poll = mio::Poll::new().unwrap();
    let waker = Arc::new(Waker::new(poll.registry(), Key(0)).unwrap());
    let mut executor =
        Executor::start(&files, Choice::Auto, poll.registry(), &waker, Key(1)).unwrap();
    executor.keep_failure(Failure::Io);
    let mut found = Vec::new();
    for file in [File::Image, File::Image, File::Tracking] {
        executor.queue(For::Machine(1, Token::Sync), Job::Sync(file));
        assert_eq!(executor.is_drained(), found.is_empty());
        let before = found.len();
        while found.len() == before {
            executor.submit();
            if let Some((_, Answer::Outcome(outcome))) = executor.done() {
                found.push(outcome.failure());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(found, [Some(Failure::Io), None, None]);
    assert!(executor.is_drained());
    std::fs::remove_file(path).unwrap();
}
