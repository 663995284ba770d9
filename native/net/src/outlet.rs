//! The sender of a stream: pieces are numbered and sent as the other end's credit and the pace of
//! the link permit.

use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::frames::Fault;
use crate::pace::Pace;
use crate::pipe;
use crate::sample::incompressible;
use crate::stream::{left, weight, Sum, Way, DATA, PIECE, RAW, WINDOW};
use crate::tls::Broken;

/// How long what was read from a pipe may wait for more.
const PATIENCE: Duration = Duration::from_millis(20);

struct State {
    credit: usize,
    pace: Pace,
    pieces: u32,
    bytes: u64,
    /// Since when a piece has waited for credit.
    waits: Option<Instant>,
    stopped: bool,
}

/// A piece that was read from the pipe and not sent yet. number: once it may be sent.
struct Held {
    data: Vec<u8>,
    number: Option<u32>,
}

/// What `Outlet::pump` did.
#[derive(Default)]
pub struct Pumped {
    /// Bytes read from the pipe and written to the lane; how long the latter took.
    pub bytes: usize,
    pub writing: Duration,
    /// The pipe has ended.
    pub ended: bool,
    /// Read, and neither sent nor counted: it may be compressible.
    pub rest: Vec<u8>,
}

pub struct Outlet {
    state: Mutex<State>,
    changed: Condvar,
    held: Mutex<Held>,
    sum: Option<Sum>,
}

impl Outlet {
    /// sum: of all that `pump` sends.
    pub fn new(sum: Option<Sum>) -> Self {
        Self {
            state: Mutex::new(State {
                credit: WINDOW,
                pace: Pace::new(WINDOW),
                pieces: 0,
                bytes: 0,
                waits: None,
                stopped: false,
            }),
            changed: Condvar::new(),
            held: Mutex::new(Held {
                data: Vec::new(),
                number: None,
            }),
            sum,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the stream is usable")
    }

    /// The other end has read `count` more bytes.
    pub fn grant(&self, count: u64) -> Result<(), Fault> {
        let mut state = self.state();
        if count == 0 || count > (WINDOW - state.credit) as u64 {
            return Err(("malformed grant of credit".to_owned(), ""));
        }
        state.credit += count as usize;
        state.pace.acknowledged(count as usize, Instant::now());
        self.changed.notify_all();
        Ok(())
    }

    /// No more pieces are sent: `reserve` does not wait any more.
    pub fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// Maximum size of the next piece.
    pub fn piece(&self) -> usize {
        PIECE.min(self.state().pace.piece())
    }

    /// The pieces and bytes that `reserve` gave numbers.
    pub fn sent(&self) -> (u32, u64) {
        let state = self.state();
        (state.pieces, state.bytes)
    }

    /// Wait until a piece of `count` bytes may be sent: its number. None: not yet, or stopped.
    pub fn reserve(&self, count: usize, until: Instant) -> Option<u32> {
        let mut state = self.state();
        while !state.stopped {
            let now = Instant::now();
            if state.credit >= weight(count) && state.pace.allows(weight(count)) {
                state.credit -= weight(count);
                state.pace.sent(weight(count), now);
                state.waits = None;
                let number = state.pieces;
                state.pieces = number.checked_add(1)?;
                state.bytes += count as u64;
                return Some(number);
            }
            let due = *state.waits.get_or_insert(now) + Pace::PATIENCE;
            if now >= due {
                state.pace.waited();
                state.waits = None;
                continue;
            }
            if now >= until {
                break;
            }
            let limit = until.min(due) - now;
            state = self
                .changed
                .wait_timeout(state, limit)
                .expect("the stream is usable")
                .0;
        }
        None
    }

    /// Move at most `most` bytes from a pipe to a lane, for at most `limit`.
    ///
    /// sample: return data that may be compressible instead of sending it.
    pub fn pump(
        &self,
        pipe: BorrowedFd<'_>,
        way: &Way<'_>,
        stream: u32,
        most: usize,
        sample: bool,
        limit: Duration,
    ) -> Result<Pumped, Broken> {
        let until = Instant::now() + limit;
        let mut held = self.held.lock().expect("the stream is usable");
        let mut done = Pumped::default();
        while done.bytes < most {
            if held.data.is_empty() {
                match pipe::wait(pipe, PollFlags::IN, Some(left(until))) {
                    Ok(true) => {}
                    Ok(false) | Err(Errno::INTR) => break,
                    Err(error) => return Err(error.into()),
                }
                let room = self.piece().min(most - done.bytes);
                pipe::fill_into(pipe, &mut held.data, room, PATIENCE)?;
                if held.data.is_empty() {
                    done.ended = true;
                    break;
                }
                if sample && !incompressible(&held.data) {
                    done.rest = std::mem::take(&mut held.data);
                    break;
                }
                if let Some(sum) = &self.sum {
                    sum.lock().expect("the stream is usable").update(&held.data);
                }
            }
            let Held { data, number } = &mut *held;
            *number = number.or_else(|| self.reserve(data.len(), until));
            let Some(at) = *number else { break };
            let began = Instant::now();
            let mut head = [0; crate::stream::HEAD];
            head[..4].copy_from_slice(&at.to_le_bytes());
            head[4..8].copy_from_slice(&(data.len() as u32).to_le_bytes());
            head[8] = RAW;
            let written = way.write(DATA, stream, &[&head, data], until);
            done.writing += began.elapsed();
            if !written? {
                break;
            }
            done.bytes += data.len();
            data.clear();
            *number = None;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(5)
    }

    #[test]
    fn no_more_is_sent_than_was_granted_and_no_more_granted_than_was_sent() {
        let outlet = Outlet::new(None);
        assert!(outlet.grant(1).is_err());
        let mut sent = 0;
        while outlet.reserve(PIECE, soon()).is_some() {
            sent += PIECE;
            if sent < WINDOW {
                outlet.grant(PIECE as u64).unwrap();
                assert!(outlet.reserve(PIECE, soon()).is_some());
            }
        }
        assert!(sent <= WINDOW);
        assert!(outlet.grant(WINDOW as u64 + 1).is_err());
    }

    #[test]
    fn each_piece_counts_as_a_minimum() {
        let outlet = Outlet::new(None);
        assert_eq!(outlet.reserve(1, soon()), Some(0));
        assert!(outlet.grant(513).is_err());
        assert!(outlet.grant(512).is_ok());
        assert_eq!(outlet.sent(), (1, 1));
    }

    #[test]
    fn a_stopped_stream_does_not_wait() {
        let outlet = Outlet::new(None);
        let far = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| while outlet.reserve(PIECE, far).is_some() {});
            outlet.stop();
        });
        assert_eq!(outlet.reserve(1, far), None);
    }
}
