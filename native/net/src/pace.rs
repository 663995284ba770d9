//! Congestion control of one stream: keeps about one second of the link's throughput in flight.
//!
//! Data queued in the buffers between two hosts delays everything behind it: other streams, answers
//! that a caller waits for, cancellations. So a sender does not fill the granted window immediately.
//! It starts with a small one, doubles it while the other end reads the data quickly, and reduces it
//! in proportion when that takes too long. No clock, threads or I/O.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The initial and the smallest window.
const FIRST: usize = 512 << 10;
const LEAST: usize = 256 << 10;
/// The window is split into at least this many pieces.
const PIECES: usize = 4;
/// The window grows if data is read within the first time, and shrinks after the second.
const SOON: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(1);

/// The send window of one stream.
pub struct Pace {
    most: usize,
    window: usize,
    /// For each piece in flight: its end position in the stream, and when it was sent.
    pieces: VecDeque<(u64, Instant)>,
    sent: u64,
    read: u64,
    /// Data before this position was sent with an older window and does not measure this one.
    since: u64,
}

impl Pace {
    /// After this time without credit from the other end the window grows: it may wait for more.
    pub const PATIENCE: Duration = Duration::from_millis(1500);

    /// most: the largest window.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            window: FIRST.min(most),
            pieces: VecDeque::new(),
            sent: 0,
            read: 0,
            since: 0,
        }
    }

    /// The maximum size of the next piece.
    pub fn piece(&self) -> usize {
        self.window / PIECES
    }

    /// Whether a piece of `count` bytes may be sent now.
    pub fn allows(&self, count: usize) -> bool {
        let in_flight = self.sent - self.read;
        in_flight == 0 || in_flight + count as u64 <= self.window as u64
    }

    /// `count` bytes were sent.
    pub fn sent(&mut self, count: usize, now: Instant) {
        self.sent += count as u64;
        self.pieces.push_back((self.sent, now));
    }

    /// The other end has read `count` more bytes, no more than were sent.
    pub fn acknowledged(&mut self, count: usize, now: Instant) {
        self.read += count as u64;
        let mut last = None;
        while self
            .pieces
            .front()
            .is_some_and(|(end, _)| *end <= self.read)
        {
            last = self.pieces.pop_front();
        }
        let Some((_, at)) = last.filter(|(end, _)| *end > self.since) else {
            return;
        };
        let took = now - at;
        if took < SOON {
            self.window = self.most.min(self.window + count);
        } else if took > LONG {
            let smaller = self.window as f64 * LONG.as_secs_f64() / took.as_secs_f64();
            self.window = LEAST.max(smaller as usize);
            self.since = self.sent;
        }
    }

    /// Nothing was read for `PATIENCE`.
    pub fn waited(&mut self) {
        self.window = self.most.min(2 * self.window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 8 << 20;

    #[test]
    fn it_doubles_while_data_is_read_soon_up_to_the_largest_window() {
        let (mut pace, now) = (Pace::new(MOST), Instant::now());
        let mut windows = Vec::new();
        for _ in 0..6 {
            let window = pace.piece() * PIECES;
            windows.push(window);
            for _ in 0..PIECES {
                assert!(pace.allows(pace.piece().min(window / PIECES)));
                pace.sent(window / PIECES, now);
            }
            assert!(!pace.allows(1));
            pace.acknowledged(window, now + SOON / 2);
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 16].map(|n| n * FIRST));
    }

    #[test]
    fn it_shrinks_once_for_what_was_read_late_and_never_stops() {
        let (mut pace, now) = (Pace::new(MOST), Instant::now());
        pace.waited();
        pace.waited();
        pace.sent(FIRST, now);
        pace.sent(FIRST, now);
        pace.acknowledged(FIRST, now + 4 * LONG);
        assert_eq!(pace.piece() * PIECES, FIRST);
        // Sent with the older window.
        pace.acknowledged(FIRST, now + 8 * LONG);
        assert_eq!(pace.piece() * PIECES, FIRST);
        pace.sent(FIRST, now);
        pace.acknowledged(FIRST, now + 100 * LONG);
        assert_eq!(pace.piece() * PIECES, LEAST);
        assert!(pace.allows(MOST), "nothing is in flight");
    }
}
