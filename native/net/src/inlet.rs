//! The receiver of a stream: holds the pieces that arrive until they are read, in order.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::frames::Fault;
use crate::pipe;
use crate::stream::{left, weight, Sum, Way, CREDIT, HEAD, PIECE, RAW, WINDOW};

/// Credit is returned after this many bytes were read, or after this time: the sender measures the
/// link by it. While further pieces wait, after more bytes.
const GRANT: usize = WINDOW / 32;
const GRANT_BUSY: usize = WINDOW / 8;
const GRANT_AFTER: Duration = Duration::from_millis(400);
/// Maximum that compression may add to a piece, in addition to 1/128 of it.
const PACKING: usize = 64;

/// A piece of data. summed: whether its bytes are in the checksum of the stream.
pub struct Piece {
    pub raw: usize,
    pub packing: u8,
    /// The body of its frame.
    pub body: Vec<u8>,
    pub summed: bool,
}

impl Piece {
    pub fn payload(&self) -> &[u8] {
        &self.body[HEAD..]
    }

    /// Whether the payload consists of the raw bytes.
    fn plain(&self) -> bool {
        self.packing == RAW && self.payload().len() == self.raw
    }
}

struct State {
    pieces: HashMap<u32, Piece>,
    /// The number of the next piece to be read; raw bytes that were read before it.
    next: u32,
    bytes: u64,
    /// Pieces before this number are in the checksum.
    summed: u32,
    /// Granted bytes that are in use: those that wait, and those read since the last grant.
    held: usize,
    consumed: usize,
    granted: Instant,
    /// How many pieces the stream has, once that is known.
    end: Option<u32>,
    stopped: bool,
}

/// What `pour` is writing: the piece, and how much of it is written.
type Pouring = Option<(Piece, usize)>;

pub struct Inlet {
    state: Mutex<State>,
    changed: Condvar,
    pouring: Mutex<Pouring>,
    sum: Option<Sum>,
}

impl Inlet {
    /// sum: of all raw bytes, if it is made here where possible.
    pub fn new(sum: Option<Sum>) -> Self {
        Self {
            state: Mutex::new(State {
                pieces: HashMap::new(),
                next: 0,
                bytes: 0,
                summed: 0,
                held: 0,
                consumed: 0,
                granted: Instant::now(),
                end: None,
                stopped: false,
            }),
            changed: Condvar::new(),
            pouring: Mutex::new(None),
            sum,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the stream is usable")
    }

    /// The body of a data frame has arrived.
    pub fn deliver(&self, body: Vec<u8>) -> Result<(), Fault> {
        let fault = |what: &str| Err((what.to_owned(), ""));
        let Some((head, payload)) = body.split_first_chunk::<HEAD>() else {
            return fault("a data frame is too short");
        };
        let number = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let raw = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (packing, length) = (head[8], payload.len());
        let mut state = self.state();
        if raw == 0
            || raw > PIECE
            || state.held + weight(raw) > WINDOW
            || length > raw + (raw >> 7) + PACKING
        {
            return fault("the other end sent more data than it may");
        }
        if number < state.next || state.pieces.contains_key(&number) {
            return fault("a piece of data was received twice");
        }
        state.held += weight(raw);
        // Here it is still in the processor's cache.
        let mut piece = Piece {
            raw,
            packing,
            body,
            summed: false,
        };
        if number == state.summed && piece.plain() {
            if let Some(sum) = &self.sum {
                sum.lock()
                    .expect("the stream is usable")
                    .update(piece.payload());
                (piece.summed, state.summed) = (true, number + 1);
            }
        }
        state.pieces.insert(number, piece);
        self.changed.notify_all();
        Ok(())
    }

    /// The stream has that many pieces.
    pub fn finish(&self, pieces: u32) {
        self.state().end = Some(pieces);
        self.changed.notify_all();
    }

    /// No more pieces are waited for.
    pub fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// Drop what was not read.
    pub fn clear(&self) {
        self.state().pieces.clear();
        *self.pouring.lock().expect("the stream is usable") = None;
    }

    /// Wait until the next piece is there or none will come. False: the time is over.
    pub fn wait(&self, limit: Duration) -> bool {
        let waits = |state: &mut State| !state.ready();
        let found = self
            .changed
            .wait_timeout_while(self.state(), limit, waits)
            .expect("the stream is usable");
        !found.1.timed_out()
    }

    /// The next piece, if it is there. It counts as read; all before it must be in the checksum.
    pub fn take(&self) -> Option<Piece> {
        let mut state = self.state();
        let piece = state.take()?;
        state.consumed += weight(piece.raw);
        Some(piece)
    }

    /// How many pieces and raw bytes were read.
    pub fn read(&self) -> (u32, u64) {
        let state = self.state();
        (state.next, state.bytes)
    }

    /// Granted bytes that are in use.
    pub fn held(&self) -> usize {
        self.state().held
    }

    /// The credit to return now, 0 for none.
    pub fn due(&self) -> usize {
        let mut state = self.state();
        let busy = state.pieces.contains_key(&state.next);
        let enough = if busy { GRANT_BUSY } else { GRANT };
        let overdue = state.consumed > 0 && state.granted.elapsed() >= GRANT_AFTER;
        if state.consumed < enough && !overdue {
            return 0;
        }
        state.granted = Instant::now();
        let granted = std::mem::take(&mut state.consumed);
        state.held -= granted;
        granted
    }

    /// The credit of `due` could not be sent.
    fn keep(&self, count: usize) {
        let mut state = self.state();
        state.consumed += count;
        state.held += count;
    }

    /// Write at most `most` raw bytes to a pipe that does not block, for at most `limit`; how many.
    /// Returns credit over `way`. None: no piece will come, or `take` is to be used, because the
    /// next one is compressed (or malformed).
    pub fn pour(
        &self,
        pipe: BorrowedFd<'_>,
        way: &Way<'_>,
        stream: u32,
        most: usize,
        limit: Duration,
    ) -> Result<Option<usize>, Errno> {
        let until = Instant::now() + limit;
        let mut pouring = self.pouring.lock().expect("the stream is usable");
        let mut done = 0;
        loop {
            let granted = self.due();
            if granted > 0 {
                let mut value = [0xce; 5]; // msgpack: 32 bits, the high byte first
                value[1..].copy_from_slice(&(granted as u32).to_be_bytes());
                // A lane that is broken is reported by the thread that reads it.
                if !way.write(CREDIT, stream, &[&value], until).unwrap_or(true) {
                    self.keep(granted);
                }
            }
            if done == most {
                break;
            }
            if pouring.is_none() {
                if !self.wait(left(until)) {
                    break;
                }
                let mut state = self.state();
                let next = state.next;
                if !state.pieces.get(&next).is_some_and(Piece::plain) {
                    return Ok((done > 0).then_some(done));
                }
                *pouring = state.take().map(|piece| (piece, 0));
            }
            let Some((piece, at)) = pouring.as_mut() else {
                break;
            };
            if let Some(sum) = self.sum.as_ref().filter(|_| !piece.summed) {
                sum.lock()
                    .expect("the stream is usable")
                    .update(piece.payload());
                piece.summed = true;
                let mut state = self.state();
                state.summed = state.next;
            }
            let part = &piece.payload()[*at..];
            let part = &part[..part.len().min(most - done)];
            let count = pipe::drain(pipe, part, Some(left(until)))?;
            (done, *at) = (done + count, *at + count);
            if *at == piece.raw {
                self.state().consumed += weight(piece.raw);
                *pouring = None;
            } else if count < part.len() {
                break;
            }
        }
        Ok(Some(done))
    }
}

impl State {
    fn ready(&self) -> bool {
        let ended = self.end.is_some_and(|pieces| self.next >= pieces);
        self.stopped || ended || self.pieces.contains_key(&self.next)
    }

    fn take(&mut self) -> Option<Piece> {
        self.summed = self.summed.max(self.next);
        let piece = self.pieces.remove(&self.next)?;
        self.next += 1;
        self.bytes += piece.raw as u64;
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrord_core::checksum::StreamChecksum;

    fn body(number: u32, raw: usize, packing: u8, payload: &[u8]) -> Vec<u8> {
        let mut made = number.to_le_bytes().to_vec();
        made.extend((raw as u32).to_le_bytes());
        made.extend([packing, 0, 0, 0]);
        made.extend(payload);
        made
    }

    #[test]
    fn pieces_are_read_in_order_and_each_is_in_the_checksum_once() {
        let sum = Sum::default();
        let inlet = Inlet::new(Some(sum.clone()));
        let parts: [&[u8]; 5] = [b"zero", b"one", b"two", b"three", b"four"];
        for number in [0, 2, 1, 4, 3] {
            let part = parts[number];
            let packing = u8::from(number == 3); // as if it was compressed
            let made = body(number as u32, part.len(), packing, part);
            inlet.deliver(made).unwrap();
        }
        inlet.finish(5);
        let mut read = Vec::new();
        while inlet.wait(Duration::ZERO) {
            let Some(piece) = inlet.take() else { break };
            if !piece.summed {
                sum.lock().unwrap().update(piece.payload());
            }
            read.push(piece.payload().to_vec());
        }
        assert_eq!(read, parts);
        let mut whole = StreamChecksum::default();
        whole.update(&parts.concat());
        assert_eq!(sum.lock().unwrap().digest(), whole.digest());
        assert_eq!(inlet.read(), (5, 19));
    }

    #[test]
    fn what_a_peer_may_not_send_is_refused_before_it_is_held() {
        let inlet = Inlet::new(None);
        assert!(inlet.deliver(vec![0; HEAD - 1]).is_err());
        assert!(inlet.deliver(body(0, 0, RAW, b"")).is_err());
        assert!(inlet.deliver(body(0, PIECE + 1, RAW, b"x")).is_err());
        assert!(inlet.deliver(body(0, 1, RAW, &[0; 66])).is_err());
        assert!(inlet.deliver(body(3, 1, RAW, b"x")).is_ok());
        assert!(inlet.deliver(body(3, 1, RAW, b"x")).is_err());
        assert_eq!(inlet.held(), 512);
        for number in 4..19 {
            assert!(inlet.deliver(body(number, PIECE, 1, b"x")).is_ok());
        }
        assert!(inlet.deliver(body(19, PIECE, 1, b"x")).is_err());
        assert!(inlet.held() <= WINDOW);
    }

    #[test]
    fn credit_is_due_for_what_was_read() {
        let inlet = Inlet::new(None);
        for number in 0..2 {
            inlet.deliver(body(number, PIECE, 1, b"x")).unwrap();
            assert_eq!(inlet.due(), 0);
            assert!(inlet.take().is_some());
        }
        assert_eq!(inlet.due(), 2 * PIECE);
        assert_eq!((inlet.due(), inlet.held()), (0, 0));
    }
}
