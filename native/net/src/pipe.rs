//! Reading and writing a pipe in large pieces.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{read, retry_on_intr, write, Errno};
use rustix::pipe::{splice, SpliceFlags};

/// A writer of much data fills the pipe meanwhile, instead of waking its reader for each step.
const NAP: Duration = Duration::from_micros(200);
const NAP_FROM: usize = 32 << 10;

/// Wait until one of the events, an error or the end. None: no limit. False: the time is over.
/// `Errno::INTR`: there was a signal.
pub fn wait(fd: BorrowedFd<'_>, events: PollFlags, limit: Option<Duration>) -> Result<bool, Errno> {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    Ok(poll(&mut [PollFd::new(&fd, events)], limit.as_ref())? > 0)
}

/// Read until `most` bytes are there, the pipe has ended, or `patience` has passed since the first
/// byte. A writer fills a pipe in small steps: each alone would be a piece of its own on the way.
///
/// Waits without a limit for the first byte. Nothing: the pipe has ended.
pub fn fill(fd: BorrowedFd<'_>, most: usize, patience: Duration) -> Result<Vec<u8>, Errno> {
    let mut data = Vec::with_capacity(most);
    fill_into(fd, &mut data, most, patience)?;
    Ok(data)
}

/// Append what one read returns, up to a length of `most`; how much.
fn read_some(fd: BorrowedFd<'_>, data: &mut Vec<u8>, most: usize) -> Result<usize, Errno> {
    data.reserve_exact(most - data.len());
    let room = data.capacity();
    if room <= most {
        return retry_on_intr(|| read(fd, spare_capacity(data)));
    }
    // A buffer of an earlier, longer piece.
    let known = data.len();
    data.resize(most, 0);
    let count = retry_on_intr(|| read(fd, &mut data[known..]));
    data.truncate(known + count.as_ref().map_or(0, |count| *count));
    count
}

/// As `fill`, into a buffer that is used again.
pub fn fill_into(
    fd: BorrowedFd<'_>,
    data: &mut Vec<u8>,
    most: usize,
    patience: Duration,
) -> Result<(), Errno> {
    data.clear();
    let mut until = None;
    while data.len() < most {
        let limit = until.map(|until: Instant| until.saturating_duration_since(Instant::now()));
        // The pipe has one reader: what poll has seen is still there.
        if !retry_on_intr(|| wait(fd, PollFlags::IN, limit))? || read_some(fd, data, most)? == 0 {
            break;
        }
        until = until.or_else(|| Some(Instant::now() + patience));
        if (NAP_FROM..most).contains(&data.len()) {
            std::thread::sleep(NAP);
        }
    }
    Ok(())
}

/// Write to a pipe that does not block until all is written or `limit` has passed; how much was
/// written. None: no limit. Less than all also when there was a signal.
pub fn drain(fd: BorrowedFd<'_>, data: &[u8], limit: Option<Duration>) -> Result<usize, Errno> {
    let until = limit.map(|limit| Instant::now() + limit);
    let mut done = 0;
    while done < data.len() {
        match retry_on_intr(|| write(fd, &data[done..])) {
            Ok(count) => done += count,
            Err(Errno::AGAIN) => {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                match wait(fd, PollFlags::OUT, left) {
                    Ok(true) => {}
                    Ok(false) | Err(Errno::INTR) => break,
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Move bytes from one pipe to another, without a copy, until there are `most`, the first pipe has
/// ended, or `limit` has passed. None: nothing in that time, or a signal. 0: it has ended.
pub fn pass(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    most: usize,
    limit: Duration,
) -> Result<Option<usize>, Errno> {
    let until = Instant::now() + limit;
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    let mut done = 0;
    while done < most {
        match splice(from, None, to, None, most - done, flags) {
            Ok(0) => return Ok(Some(done)),
            Ok(count) => done += count,
            Err(Errno::AGAIN) => {
                // It does not tell which of the two is not ready.
                for (fd, events) in [(from, PollFlags::IN), (to, PollFlags::OUT)] {
                    let left = until.saturating_duration_since(Instant::now());
                    match wait(fd, events, Some(left)) {
                        Ok(true) => {}
                        Ok(false) | Err(Errno::INTR) => return Ok((done > 0).then_some(done)),
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some(done))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn small_writes_are_read_as_one_piece_up_to_the_end() {
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        let mut writing = std::fs::File::from(writing);
        let writer = std::thread::spawn(move || {
            for _ in 0..100 {
                writing.write_all(&[7; 1000]).unwrap();
            }
        });
        let patience = Duration::from_secs(10);
        assert_eq!(
            fill(reading.as_fd(), 60_000, patience).unwrap().len(),
            60_000
        );
        assert_eq!(
            fill(reading.as_fd(), 60_000, patience).unwrap().len(),
            40_000
        );
        assert!(fill(reading.as_fd(), 60_000, patience).unwrap().is_empty());
        writer.join().unwrap();
    }

    #[test]
    fn what_a_full_pipe_does_not_take_is_not_counted() {
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writing, true).unwrap();
        let limit = Some(Duration::from_millis(5));
        let data = vec![7; 1 << 20];
        let first = drain(writing.as_fd(), &data, limit).unwrap();
        assert!(0 < first && first < data.len());
        assert_eq!(drain(writing.as_fd(), &data[first..], limit).unwrap(), 0);
        drop(reading);
        assert_eq!(drain(writing.as_fd(), &data, limit), Err(Errno::PIPE));
    }

    #[test]
    fn what_is_passed_on_arrives_in_order_with_its_end() {
        let (source, writing) = rustix::pipe::pipe().unwrap();
        let (reading, sink) = rustix::pipe::pipe().unwrap();
        let limit = Duration::from_millis(5);
        let passed = |most| pass(source.as_fd(), sink.as_fd(), most, limit);
        assert_eq!(passed(100), Ok(None));
        rustix::io::write(&writing, b"one two").unwrap();
        assert_eq!(passed(4), Ok(Some(4)));
        assert_eq!(passed(100), Ok(Some(3)), "the time is over");
        assert_eq!(fill(reading.as_fd(), 7, limit).unwrap(), b"one two");
        rustix::io::write(&writing, b"three").unwrap();
        drop(writing);
        assert_eq!(passed(100), Ok(Some(5)));
        assert_eq!(passed(100), Ok(Some(0)));
    }

    #[test]
    fn a_slow_writer_does_not_hold_back_what_it_wrote() {
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writing, b"begun").unwrap();
        let found = fill(reading.as_fd(), 4096, Duration::from_millis(5)).unwrap();
        assert_eq!(found, b"begun");
    }
}
