//! The fast loop of a live mirror, as a discrete-event simulation of a recorded workload.
//!
//! Writes arrive at their recorded times. The link carries them in order, one after another, at a
//! constant rate; the replica acknowledges each a round trip after its last byte was sent. A client
//! is answered when its write is on local storage and the mode admits it: let C be the bytes of all
//! writes up to this one and A those that the replica has acknowledged, then C - A <= M, where M is
//! 0 in synchronous mode. What must react to each write is here; the policy is asked at control
//! instants and sets mode and set-points. Each write costs amortized constant time.

mod dirty;
mod lag;
mod queue;
#[cfg(test)]
mod tests;

use crate::replay::{Columns, Fault, WRITE};
use dirty::Dirty;
use lag::Lag;
use queue::Queue;
use std::collections::VecDeque;

const NEVER: i64 = i64::MAX;
/// Longer writes are an error in the trace.
const WRITE_MAX: i64 = 1 << 40;

/// When clients are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Sync,
    SemiSync,
    /// At once; what is written is only tracked, and copied when the link has nothing else to send.
    Async,
}

/// What is mirrored to where. Times in nanoseconds.
#[derive(Clone, Copy)]
pub struct Setup {
    /// Bytes per second.
    pub rate: u64,
    /// From the last byte sent to the acknowledgement: both ways, and the replica's storage.
    pub reply_ns: i64,
    pub local_ns: i64,
    /// Answers that take longer are counted as late.
    pub late_ns: i64,
    /// Between two control instants.
    pub period_ns: i64,
}

/// The set-points of a policy. They hold until the next ones.
#[derive(Clone, Copy)]
pub struct Setpoints {
    pub mode: Mode,
    /// M; None: as it is, and at the change from synchronous mode what answers all writes that
    /// arrived more than half of `within_ns` ago. Where it grows, a smaller one holds at once down
    /// to what is unacknowledged, and then gradually: by half of what is acknowledged.
    pub lag_bytes: Option<u64>,
    /// When a write has waited for so long, M grows to what answers all that have waited for half
    /// of it. None: M is fixed.
    pub within_ns: Option<i64>,
    /// M never grows beyond it.
    pub max_lag_bytes: u64,
    /// Whether the older of two writes of the same place is dropped if neither is sent yet.
    pub merge: bool,
    /// Whether tracked blocks are copied.
    pub copy: bool,
}

/// What a policy is told. Counters are totals; `slowest_ns`, `peak_buffered` and `peak_lag` are of
/// the time since the last observation.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Observed {
    pub now_ns: i64,
    pub answered: u64,
    pub answered_ns: i64,
    pub received: u64,
    /// From the arrival of writes to the replica's acknowledgement.
    pub received_ns: i64,
    /// How long the oldest unanswered write has waited.
    pub oldest_ns: i64,
    /// The longest wait for an answer beyond local storage, unanswered writes included.
    pub slowest_ns: i64,
    pub unanswered: u64,
    pub buffered: u64,
    pub peak_buffered: u64,
    pub lag_limit: u64,
    pub dirty: u64,
    pub peak_lag: u64,
}

/// The totals of a simulation.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Totals {
    pub writes: u64,
    pub bytes: u64,
    pub sent: u64,
    pub late: u64,
    /// The latencies of all writes.
    pub total_ns: i64,
    pub slowest_ns: i64,
    pub lag: lag::Totals,
}

struct Write {
    time_ns: i64,
    volume: u32,
    offset: u64,
    length: u64,
}

pub struct Simulator {
    setup: Setup,
    points: Setpoints,
    pending: VecDeque<Write>,
    fed_ns: i64,
    records: u64,
    end_ns: Option<i64>,
    /// The next control instant; None before the first write.
    next_ns: Option<i64>,
    now_ns: i64,
    link_free_ns: i64,
    queue: Queue,
    dirty: Dirty,
    lag: Lag,
    limit: u64,
    /// What it gets smaller to.
    lowest: u64,
    active: bool,
    ended: bool,
    seen: Observed,
    totals: Totals,
    /// Of each answer, if they are wanted: arrival, and latency.
    pub answers: Option<Vec<(i64, i64)>>,
}

impl Simulator {
    pub fn new(setup: Setup, points: Setpoints) -> Self {
        Self {
            setup,
            points,
            pending: VecDeque::new(),
            fed_ns: i64::MIN,
            records: 0,
            end_ns: None,
            next_ns: None,
            now_ns: 0,
            link_free_ns: i64::MIN,
            queue: Queue::default(),
            dirty: Dirty::default(),
            lag: Lag::default(),
            limit: points.lag_bytes.unwrap_or(0),
            lowest: points.lag_bytes.unwrap_or(0),
            active: false,
            ended: false,
            seen: Observed::default(),
            totals: Totals::default(),
            answers: None,
        }
    }

    /// Records that follow those fed before; only writes matter.
    pub fn feed(&mut self, columns: Columns) -> Result<(), Fault> {
        for (index, (&time_ns, &op)) in columns.time_ns.iter().zip(columns.op).enumerate() {
            let record = self.records + index as u64;
            if time_ns < self.fed_ns {
                let before_ns = self.fed_ns;
                return Err(Fault::Order {
                    record,
                    time_ns,
                    before_ns,
                });
            }
            self.fed_ns = time_ns;
            self.next_ns.get_or_insert_with(|| {
                self.now_ns = time_ns;
                self.lag.begin(time_ns);
                time_ns.saturating_add(self.setup.period_ns)
            });
            let (offset, length) = (columns.offset[index], columns.length[index]);
            if op != WRITE || length == 0 {
                continue;
            }
            if offset < 0 || !(0..=WRITE_MAX).contains(&length) {
                return Err(Fault::Range {
                    record,
                    offset,
                    length,
                });
            }
            self.pending.push_back(Write {
                time_ns,
                volume: columns.volume[index],
                offset: offset as u64,
                length: length as u64,
            });
        }
        self.records += columns.time_ns.len() as u64;
        Ok(())
    }

    /// No record follows: the last control instant is the time of the last one.
    pub fn end(&mut self) {
        self.end_ns = Some(self.fed_ns);
    }

    /// Sets the policy's set-points as of now.
    pub fn direct(&mut self, points: Setpoints) {
        let before = self.points.mode;
        self.points = points;
        if let Some(bytes) = points.lag_bytes {
            self.lowest = bytes;
            self.limit = match points.within_ns {
                Some(_) if bytes < self.limit => {
                    self.limit.min(self.queue.unacknowledged()).max(bytes)
                }
                _ => bytes,
            };
        }
        if points.mode == Mode::SemiSync && before == Mode::Sync && points.lag_bytes.is_none() {
            (self.limit, self.lowest) = (0, 0);
            if let Some(within_ns) = points.within_ns {
                self.admit_older_than(self.now_ns.saturating_sub(within_ns / 2));
            }
        }
        if points.mode == Mode::Sync {
            (self.limit, self.lowest) = (0, 0);
        }
        self.limit = self.limit.min(points.max_lag_bytes);
        self.answer(self.now_ns);
        self.refresh();
    }

    /// Runs to the next control instant at which there is something to see, or `wake_ns`, or the
    /// end. None: records must be fed first, or there are none.
    pub fn run(&mut self, wake_ns: i64) -> Option<Observed> {
        loop {
            let next_ns = self.next_ns?;
            let until_ns = self.end_ns.map_or(next_ns, |end_ns| end_ns.min(next_ns));
            let last = Some(until_ns) == self.end_ns;
            while let Some(write) = self.pending.front() {
                if write.time_ns >= until_ns && !last {
                    break;
                }
                let write = self.pending.pop_front().expect("there is a first one");
                self.arrive(&write);
            }
            if self.pending.is_empty() && self.end_ns.is_none() && self.fed_ns < next_ns {
                return None;
            }
            self.advance(until_ns);
            let waiting = !self.queue.is_empty() || (self.points.copy && !self.dirty.is_empty());
            if last || self.active || waiting || until_ns >= wake_ns {
                self.next_ns = Some(next_ns.saturating_add(self.setup.period_ns));
                self.ended = last;
                return Some(self.observe());
            }
            let arrival_ns = self.pending.front().map(|write| write.time_ns);
            let idle_to_ns = match (arrival_ns, self.end_ns) {
                (Some(at_ns), _) | (None, Some(at_ns)) => at_ns.min(wake_ns),
                // A record that is no write came last: the next ones are not known yet.
                (None, None) => self.fed_ns.min(wake_ns),
            };
            let periods = (idle_to_ns - next_ns).max(0) / self.setup.period_ns;
            self.next_ns = Some(next_ns + periods.max(1) * self.setup.period_ns);
        }
    }

    /// Whether `run` has come to the end.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// After the end: sends what is left, with the last set-points.
    pub fn drain(&mut self) {
        self.points.copy = true;
        let mut step_ns = self.setup.period_ns;
        while !(self.queue.is_empty() && self.lag.is_whole()) && step_ns < NEVER / 4 {
            self.advance(self.now_ns.saturating_add(step_ns));
            step_ns *= 2;
        }
    }

    pub fn totals(&self) -> Totals {
        Totals {
            total_ns: self.seen.answered_ns,
            lag: self.lag.totals,
            ..self.totals
        }
    }

    fn arrive(&mut self, write: &Write) {
        self.advance(write.time_ns);
        self.active = true;
        self.totals.writes += 1;
        self.totals.bytes += write.length;
        if self.points.mode == Mode::Async {
            let ahead = self.queue.unacknowledged();
            self.lag.track(write.time_ns, write.length, ahead);
            self.dirty
                .mark(write.volume, write.offset, write.length, write.time_ns);
            let answered_ns = write.time_ns + self.setup.local_ns;
            self.answered(write.time_ns, answered_ns);
        } else {
            self.lag.queue(write.length);
            if !self.dirty.is_empty() {
                self.dirty.clear(write.volume, write.offset, write.length);
            }
            let place = (write.volume, write.offset, write.length);
            self.queue.push(write.time_ns, place, self.points.merge);
            self.seen.peak_buffered = self.seen.peak_buffered.max(self.queue.buffered);
            self.answer(write.time_ns);
        }
        self.refresh();
    }

    /// All that happens up to `until_ns`.
    fn advance(&mut self, until_ns: i64) {
        self.send(until_ns);
        loop {
            let ack_ns = self.queue.next_ack_ns();
            let grow_ns = self.next_growth_ns();
            let whole_ns = self.lag.whole_at_ns(self.dirty.is_empty());
            let at_ns = ack_ns.min(grow_ns).min(whole_ns).max(self.now_ns);
            if at_ns > until_ns || at_ns == NEVER {
                break;
            }
            self.active = true;
            self.pass(at_ns);
            if ack_ns <= at_ns {
                let (arrived_ns, length) = self.queue.acknowledge();
                self.seen.received += 1;
                self.seen.received_ns += at_ns - arrived_ns;
                self.lag.acknowledged(length);
                if self.limit > self.lowest {
                    self.limit = self.limit.saturating_sub(length / 2).max(self.lowest);
                }
                self.answer(at_ns);
                self.queue.forget();
            } else if grow_ns <= at_ns {
                let within_ns = self.points.within_ns.unwrap_or(NEVER);
                self.admit_older_than(at_ns - within_ns / 2);
                self.answer(at_ns);
            } else {
                self.lag.make_whole();
            }
            self.refresh();
        }
        self.pass(until_ns);
    }

    fn pass(&mut self, to_ns: i64) {
        self.lag.pass(to_ns);
        self.now_ns = self.now_ns.max(to_ns);
    }

    /// When the oldest unanswered write makes M grow.
    fn next_growth_ns(&self) -> i64 {
        match (
            self.points.mode,
            self.points.within_ns,
            self.queue.oldest_unanswered(),
        ) {
            (Mode::SemiSync, Some(within_ns), Some(arrived_ns))
                if self.limit < self.points.max_lag_bytes =>
            {
                arrived_ns.saturating_add(within_ns)
            }
            _ => NEVER,
        }
    }

    /// M becomes the bytes of all unacknowledged writes that arrived before or at `before_ns`.
    fn admit_older_than(&mut self, before_ns: i64) {
        let aged = self.queue.unacknowledged_until(before_ns);
        let aged = aged.min(self.points.max_lag_bytes);
        if aged > self.limit {
            (self.limit, self.lowest) = (aged, aged);
        }
    }

    /// Starts to send what can start until then.
    fn send(&mut self, until_ns: i64) {
        loop {
            if let Some((arrived_ns, live)) = self.queue.next_unsent() {
                let start_ns = arrived_ns.max(self.link_free_ns);
                if start_ns > until_ns {
                    return;
                }
                self.link_free_ns = start_ns + self.sending_ns(live);
                self.totals.sent += live;
                self.queue.sent(self.link_free_ns + self.setup.reply_ns);
            } else if self.points.copy {
                let Some((dirty_ns, bytes)) = self.dirty.first() else {
                    return;
                };
                let start_ns = dirty_ns.max(self.link_free_ns).max(self.now_ns);
                if start_ns > until_ns {
                    return;
                }
                self.dirty.take();
                self.link_free_ns = start_ns + self.sending_ns(bytes);
                self.totals.sent += bytes;
                self.lag.copied(self.link_free_ns + self.setup.reply_ns);
            } else {
                return;
            }
        }
    }

    fn sending_ns(&self, bytes: u64) -> i64 {
        const SECOND: u64 = 1_000_000_000;
        let rate = self.setup.rate;
        if bytes < 1 << 33 {
            return ((bytes * SECOND + rate / 2) / rate) as i64;
        }
        (u128::from(bytes) * u128::from(SECOND) / u128::from(rate)).min(1 << 61) as i64
    }

    /// Answers the clients whose writes the mode admits.
    fn answer(&mut self, at_ns: i64) {
        let limit = match self.points.mode {
            Mode::Sync => 0,
            Mode::SemiSync => self.limit,
            Mode::Async => u64::MAX,
        };
        while let Some(arrived_ns) = self.queue.admit(limit) {
            let answered_ns = at_ns.max(arrived_ns + self.setup.local_ns);
            self.answered(arrived_ns, answered_ns);
        }
    }

    fn answered(&mut self, arrived_ns: i64, answered_ns: i64) {
        let latency_ns = answered_ns - arrived_ns;
        self.active = true;
        self.seen.answered += 1;
        self.seen.answered_ns += latency_ns;
        let beyond_ns = latency_ns - self.setup.local_ns;
        self.seen.slowest_ns = self.seen.slowest_ns.max(beyond_ns);
        self.totals.slowest_ns = self.totals.slowest_ns.max(latency_ns);
        self.totals.late += u64::from(latency_ns > self.setup.late_ns);
        if let Some(answers) = &mut self.answers {
            answers.push((arrived_ns, latency_ns));
        }
    }

    /// After each change: what a failure would lose now.
    fn refresh(&mut self) {
        let unanswered = self.queue.unanswered();
        self.lag.set(
            self.queue.unacknowledged(),
            unanswered,
            self.queue.oldest_ns(),
        );
        self.seen.peak_lag = self.seen.peak_lag.max(self.lag.bytes);
    }

    fn observe(&mut self) -> Observed {
        let oldest_ns = self
            .queue
            .oldest_unanswered()
            .map_or(0, |at| self.now_ns - at);
        let found = Observed {
            now_ns: self.now_ns,
            oldest_ns,
            slowest_ns: self.seen.slowest_ns.max(oldest_ns - self.setup.local_ns),
            unanswered: self.queue.unanswered(),
            buffered: self.queue.buffered,
            lag_limit: self.limit,
            dirty: self.dirty.bytes(),
            ..self.seen
        };
        self.active = false;
        self.seen.slowest_ns = 0;
        self.seen.peak_buffered = self.queue.buffered;
        self.seen.peak_lag = self.lag.bytes;
        found
    }
}
