//! The control socket: one command a line, one line of JSON as the answer.

use crate::address::Address;
use crate::executor::Executor;
use crate::link::Traffic;
use crate::machine::Machine;
use crate::problem::Problem;
use crate::process::{Conn, Process};
use crate::words::{is_on, patience_of, rate, window_of, within_of};
use mirrord_live_core::latency::Latency;
use mirrord_live_core::primary::{self, Event as PrimaryEvent, Progress, State, Verify};
use mirrord_live_core::replica;
use mirrord_live_core::setup;
use mirrord_live_core::types::{Mode, Time, SECOND};
use std::fmt::Write;

/// The longest command.
const LINE_MAX: usize = 4096;
/// Writes that have waited for so long beyond the local image say that the window is full. Shorter
/// waits are how the window limits clients that write faster than the link.
const FULL_AFTER: Time = SECOND / 2;

/// Something that happened, for `events`.
pub(crate) struct Event {
    pub number: u64,
    pub time: u64,
    pub text: String,
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for each in text.chars() {
        match each {
            '"' | '\\' => out.extend(['\\', each]),
            each if u32::from(each) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(each));
            }
            each => out.push(each),
        }
    }
    out.push('"');
    out
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Starting => "starting",
        State::Holding { until: None, .. } => "waiting-for-replica",
        State::Holding { failing: true, .. } => "failing",
        State::Holding { .. } => "holding",
        State::Exchange { .. } => "exchange",
        State::InSync => "in-sync",
        State::Opening { .. } => "entering-semi-sync",
        State::Semi => "semi-sync",
        State::Leaving(_) => "leaving-sync",
        State::Alone => "out-of-sync",
        State::Resync => "resync",
        State::Finishing { .. } | State::Committing | State::Entering => "entering-sync",
        State::Fenced => "fenced",
        State::Failed => "failed",
    }
}

/// Writes wait for the window of semi-sync.
fn is_full(status: &primary::Status) -> bool {
    let is_waiting = status.state == State::Semi && status.oldest.min(status.slowest) >= FULL_AFTER;
    is_waiting || status.lag.is_full
}

fn primary_status(
    status: &primary::Status,
    counts: &primary::Counts,
    latencies: &primary::Latencies,
    verify: &Verify,
    traffic: &Traffic,
    io: &str,
) -> String {
    let local = latencies.local.percentiles();
    let mut mirrored = latencies.mirrored.percentiles();
    // A write that is not answered at all is slower than all that were.
    mirrored[2] = mirrored[2].max(status.oldest);
    let state = match state_name(status.state) {
        // Out of sync the writes of semi-sync wait until a resync is complete.
        "out-of-sync" if status.lag.is_full => "holding",
        name => name,
    };
    let window = status.lag.window;
    format!(
        "{{\"role\": \"primary\", \"state\": {}, \"mode\": {}, \"epoch\": {}, \"generation\": {}, \
         \"in_sync\": {}, \"since\": {}, \"unfenced\": {}, \"connected\": {}, \"reason\": {}, \"refused\": {}, \
         \"dirty_bytes\": {}, \
         \"tracked_extents\": {}, \"outstanding_requests\": {}, \"outstanding_bytes\": {}, \
         \"oldest_us\": {}, \"writes\": {}, \"written_bytes\": {}, \"flushes\": {}, \
         \"barriers\": {}, \"sent_bytes\": {}, \"copied_bytes\": {}, \"tracking_commits\": {}, \
         \"left_sync\": {}, \"local_us\": {:?}, \"mirrored_us\": {:?}, \
         \"answered\": {:?}, \"local\": {:?}, \"received\": {:?}, \"slowest_us\": {}, \
         \"window_bytes\": {}, \"window_us\": {}, \"lag_limit_bytes\": {}, \"answer_within_us\": {}, \
         \"buffered_bytes\": {}, \"lag_bytes\": {}, \"lag_us\": {}, \
         \"merge\": {}, \"merge_above_bytes\": {}, \"merged_writes\": {}, \"merged_bytes\": {}, \"compress\": {}, \"durable\": {}, \
         \"payload_bytes\": {}, \"link_bytes\": {}, \
         \"window_full\": {}, \"recording\": {}, \"copy_rate\": {}, \"verify\": {}, {}}}",
        quoted(state),
        quoted(status.mode.name()),
        status.epoch,
        status.generation,
        status.synced,
        status.since,
        status.unfenced,
        status.connected,
        quoted(&status.reason),
        status.refused,
        status.dirty_bytes,
        status.tracked_extents,
        status.outstanding_requests,
        status.outstanding_bytes,
        status.oldest,
        counts.writes,
        counts.written_bytes,
        counts.flushes,
        counts.barriers,
        counts.sent_bytes,
        counts.copied_bytes,
        counts.tracking_commits,
        counts.left_sync,
        local,
        mirrored,
        total(&latencies.mirrored),
        total(&latencies.local),
        total(&latencies.received),
        status.slowest,
        status.lag.limit,
        if window.time == Time::MAX {
            0
        } else {
            window.time
        },
        window.bytes,
        status.lag.within,
        status.lag.buffered,
        status.lag.bytes,
        status.lag.time,
        status.merge,
        status.merge_above,
        counts.merged_writes,
        counts.merged_bytes,
        status.compress,
        status.durable,
        traffic.payload,
        traffic.sent,
        is_full(status),
        status.is_recording,
        status.copy_rate,
        verify_status(verify),
        io,
    )
}

/// What reads and writes the image.
fn io_status(executor: &Executor) -> String {
    let (kind, reason) = executor.kind();
    let (kind, reason) = (quoted(kind), quoted(reason));
    format!("\"io\": {kind}, \"io_reason\": {reason}")
}

/// Writes since the start, and microseconds in total.
fn total(latency: &Latency) -> [u64; 2] {
    [latency.count, latency.total]
}

fn verify_status(verify: &Verify) -> String {
    let state = match verify.progress {
        Progress::Never => "none",
        Progress::Running => "running",
        Progress::Stopped => "stopped",
        Progress::Complete => "complete",
    };
    let ranges: Vec<String> = verify
        .differing
        .iter()
        .map(|range| format!("[{}, {}]", range.offset, range.length))
        .collect();
    format!(
        "{{\"state\": {}, \"rate\": {}, \"checked_bytes\": {}, \"differing_bytes\": {}, \
         \"differing\": [{}], \"resynced\": {}, \"started\": {}, \"ended\": {}}}",
        quoted(state),
        verify.rate.limit(),
        verify.checked,
        verify.differing_bytes,
        ranges.join(", "),
        verify.marked,
        verify.started,
        verify.ended,
    )
}

fn replica_status(status: &replica::Status, break_problem: &str, io: &str) -> String {
    format!(
        "{{\"role\": \"secondary\", \"state\": {}, \"epoch\": {}, \"generation\": {}, \
         \"connected\": {}, \"session\": {}, \"lost_memory\": {}, \"since\": {}, \
         \"before_image_bytes\": {}, \"redo_operations\": {}, \"breaking\": {}, \
         \"rollback_left\": {}, \"break_problem\": {}, \"reason\": {}, {}}}",
        quoted(status.phase.name()),
        status.epoch,
        status.generation,
        status.connected,
        status.session,
        status.lost,
        status.since,
        status.before_image_bytes,
        status.redo.map_or("null".into(), |left| left.to_string()),
        status.breaking,
        status.rollback,
        quoted(break_problem),
        quoted(&status.problem),
        io,
    )
}

impl Process {
    pub(crate) fn control_input(&mut self, key: usize) {
        loop {
            let Some(Conn::Control(stream)) = self.conns.get_mut(&key) else {
                return;
            };
            let input = stream.input();
            let Some(length) = input.iter().position(|byte| *byte == b'\n') else {
                stream.closed |= input.len() > LINE_MAX;
                return;
            };
            let line = String::from_utf8_lossy(&input[..length]).into_owned();
            stream.consume(length + 1);
            if let Some(answer) = self.command(key, line.trim()) {
                self.answer(key, &answer);
            }
        }
    }

    pub(crate) fn answer(&mut self, key: usize, answer: &str) {
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.stream().output(answer.as_bytes());
            conn.stream().output(b"\n");
        }
    }

    /// A command's result, for the connection that has waited longest.
    pub(crate) fn report(&mut self, result: Result<(), String>) {
        if let (Machine::Replica(_), Err(problem)) = (&self.machine, &result) {
            self.break_problem.clone_from(problem);
        }
        if let Some(key) = self.waiting_reports.pop_front() {
            self.answer(key, &outcome(result.map_err(Problem::from)));
        }
    }

    /// Answers those who wait for a full window, or have waited for long enough.
    pub(crate) fn tell_full(&mut self) {
        if self.awaiting.is_empty() {
            return;
        }
        let now = self.now();
        let is_full = match &self.machine {
            Machine::Primary(primary) => is_full(&primary.status()),
            _ => false,
        };
        for (key, until) in std::mem::take(&mut self.awaiting) {
            if is_full || until <= now {
                self.answer(key, &format!("{{\"ok\": true, \"full\": {is_full}}}"));
            } else {
                self.awaiting.push((key, until));
            }
        }
    }

    /// The answer, unless it comes later.
    fn command(&mut self, key: usize, line: &str) -> Option<String> {
        let now = self.now();
        let (name, argument) = line.split_once(' ').unwrap_or((line, ""));
        let result = match (name, &mut self.machine) {
            ("status", machine) => {
                let shown = match machine {
                    Machine::Primary(primary) => primary_status(
                        &primary.status(),
                        &primary.counts,
                        &primary.latencies,
                        &primary.verify,
                        &self.traffic,
                        &io_status(&self.executor),
                    ),
                    Machine::Replica(replica) => {
                        let io = io_status(&self.executor);
                        replica_status(&replica.status(), &self.break_problem, &io)
                    }
                    Machine::Fenced(hello) => {
                        format!("{{\"role\": \"fenced\", \"epoch\": {}}}", hello.epoch)
                    }
                };
                return Some(shown);
            }
            ("events", _) => return Some(self.events_since(argument)),
            ("mode", Machine::Primary(primary)) => match Mode::named(argument) {
                Some(mode) => {
                    self.waiting_reports.push_back(key);
                    primary.step(now, PrimaryEvent::SetMode(mode), &mut self.actions);
                    return None;
                }
                None => Err(format!(
                    "unknown mode {argument}; one of async, semi-sync, sync, strict-sync"
                )
                .into()),
            },
            ("window" | "merge-above" | "compress" | "durable" | "copy-rate", _) => {
                let event = match self.setting(name, argument) {
                    Ok(event) => event,
                    Err(problem) => return Some(outcome(Err(problem.into()))),
                };
                if let Machine::Primary(primary) = &mut self.machine {
                    primary.step(now, event, &mut self.actions);
                }
                Ok(())
            }
            ("answer-within", Machine::Primary(primary)) => {
                let Some((within, limit)) = within_of(argument) else {
                    let problem = "not microseconds, or microseconds and bytes";
                    return Some(outcome(Err(format!("{argument}: {problem}").into())));
                };
                self.config.settings.within = within;
                self.waiting_reports.push_back(key);
                let event = PrimaryEvent::Adapt { within, limit };
                primary.step(now, event, &mut self.actions);
                return None;
            }
            ("merge", Machine::Primary(primary)) => is_on(argument)
                .map(|on| primary.step(now, PrimaryEvent::Merge(on), &mut self.actions))
                .map_err(Problem::from),
            ("await-full", Machine::Primary(_)) => match patience_of(argument) {
                Some(patience) => {
                    self.awaiting.push((key, now.saturating_add(patience)));
                    return None;
                }
                None => Err(format!("{argument}: not a number of milliseconds").into()),
            },
            ("record" | "recorded" | "record-end", Machine::Primary(_)) => {
                return self.recording_command(key, name);
            }
            ("hold", Machine::Primary(_)) => self.hold_back(key, argument),
            ("force", Machine::Primary(primary)) => {
                self.waiting_reports.push_back(key);
                primary.step(now, PrimaryEvent::Force, &mut self.actions);
                return None;
            }
            ("verify" | "verify-stop" | "verify-resync", Machine::Primary(primary)) => {
                let event = match (name, rate(argument)) {
                    ("verify", Ok(rate)) => PrimaryEvent::Verify { rate },
                    ("verify", Err(problem)) => return Some(outcome(Err(problem.into()))),
                    ("verify-stop", _) => PrimaryEvent::StopVerify,
                    _ => PrimaryEvent::VerifyResync,
                };
                self.waiting_reports.push_back(key);
                primary.step(now, event, &mut self.actions);
                return None;
            }
            ("resync", Machine::Primary(primary)) => {
                primary.step(now, PrimaryEvent::Resync, &mut self.actions);
                Ok(())
            }
            ("break", Machine::Replica(_)) if self.reopen => {
                Err("this end is starting again; run break again in a moment".into())
            }
            ("break", Machine::Replica(replica)) => {
                self.break_problem.clear();
                self.waiting_reports.push_back(key);
                replica.step(now, replica::Event::Break, &mut self.actions);
                return None;
            }
            ("rejoin", Machine::Fenced(_)) => {
                let done = setup::become_secondary(&mut self.files);
                self.changed_role(done)
            }
            ("reclaim", Machine::Fenced(_)) => {
                let boot = self.boot();
                let done = setup::reclaim(&mut self.files, boot);
                self.changed_role(done)
            }
            ("serve", _) => self.serve(argument),
            ("allow", _) => self.allow(argument),
            ("unserve", _) => {
                self.unserve();
                Ok(())
            }
            ("peer", _) => {
                self.config.peer = Some(Address::parse(argument));
                Ok(())
            }
            ("stop", _) => {
                self.stop = true;
                Ok(())
            }
            (
                "mode" | "answer-within" | "merge" | "await-full" | "hold" | "record" | "recorded" | "record-end" | "force" | "resync" | "break" | "rejoin" | "reclaim" | "verify" | "verify-stop"
                | "verify-resync",
                machine,
            ) => {
                let role = machine.hello().role.name();
                Err(format!("{name}: not possible while this end is {role}").into())
            }
            _ => Err(format!(
                "unknown command {name}; one of status, events N, mode MODE, window BYTES|SECONDSs, answer-within MICROSECONDS [BYTES], merge on|off, merge-above BYTES, compress on|off, durable on|off, await-full MILLISECONDS, hold MILLISECONDS, record, recorded, record-end, break, resync, \
                 copy-rate BYTES, verify [BYTES], verify-stop, verify-resync, rejoin, reclaim, force, \
                 allow NETWORK, serve ADDRESS, unserve, peer ADDRESS, stop"
            )
            .into()),
        };
        Some(outcome(result))
    }

    /// A setting that this end keeps in each role: one that becomes a primary begins with it.
    fn setting(&mut self, name: &str, argument: &str) -> Result<PrimaryEvent, String> {
        let settings = &mut self.config.settings;
        Ok(match name {
            "window" => {
                settings.semi = window_of(argument).ok_or_else(|| {
                    format!("{argument}: neither a number of bytes nor one of seconds, as in 5s")
                })?;
                PrimaryEvent::SetWindow(settings.semi)
            }
            "merge-above" => {
                let bytes = argument.parse();
                settings.merge_above =
                    bytes.map_err(|_| format!("{argument}: not a number of bytes"))?;
                PrimaryEvent::MergeAbove(settings.merge_above)
            }
            "compress" => {
                settings.compress = is_on(argument)?;
                PrimaryEvent::Compress(settings.compress)
            }
            "durable" => {
                settings.durable = is_on(argument)?;
                PrimaryEvent::Durable(settings.durable)
            }
            _ => {
                settings.copy_rate = rate(argument)?;
                PrimaryEvent::SetCopyRate(settings.copy_rate)
            }
        })
    }

    fn changed_role(&mut self, done: std::io::Result<()>) -> Result<(), Problem> {
        // Also after a failure: what the files say then is not known.
        self.open_again();
        Ok(done?)
    }

    fn events_since(&self, argument: &str) -> String {
        let from: u64 = argument.parse().unwrap_or(0);
        let events: Vec<String> = self
            .events
            .iter()
            .filter(|event| event.number > from)
            .map(|event| {
                format!(
                    "{{\"number\": {}, \"time\": {}, \"text\": {}}}",
                    event.number,
                    event.time,
                    quoted(&event.text)
                )
            })
            .collect();
        format!("[{}]", events.join(", "))
    }
}

pub(crate) fn outcome(result: Result<(), Problem>) -> String {
    match result {
        Ok(()) => "{\"ok\": true}".into(),
        Err(problem) => format!(
            "{{\"ok\": false, \"code\": {}, \"error\": {}}}",
            quoted(problem.code()),
            quoted(&problem.text)
        ),
    }
}
