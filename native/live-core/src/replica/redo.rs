//! The redo log of a session: operations are journaled in order, many with one sync, and applied
//! to the image afterwards.

mod apply;

use super::{Busy, Commit, Replica};
use crate::fault::Fault;
use crate::frame::{Class, Frame, FLAG, MORE, PAYLOAD_MAX};
use crate::hello::Begin;
use crate::io::{Action, Backend, File, Outcome, Token};
use crate::journal::Journal;
use crate::redo::{self, Change, Entry, Kind, Place, Slot};
use crate::types::{Failure, Geometry, Payload, Phase, Range, Time};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// Bytes of data that are journaled together, unless one operation has more.
const BATCH: u64 = 4 << 20;
/// Bytes of a unit of several operations that are held until it is complete.
const UNIT_MAX: u64 = 2 * PAYLOAD_MAX as u64;

/// What becomes true when a transaction on the log is durable.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Start,
    Opened,
    /// The operations up to `last` are journaled.
    Batch {
        last: u64,
        applies: Vec<Apply>,
    },
    Closed,
}

/// An entry to be applied, with its data as long as it is in memory.
#[derive(Clone, Debug)]
pub(super) struct Apply {
    entry: Entry,
    data: Option<Payload>,
    half: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Half {
    /// Entries that are not applied.
    left: usize,
    /// All that was applied is durable: it may be overwritten.
    clean: bool,
}

pub(super) struct Redo {
    pub journal: Journal<Step>,
    /// 0: no log is open.
    slot: Slot,
    halves: [Half; 2],
    generation: u64,
    number: u64,
    at: u64,
    /// The last operation that is durable in the log.
    pub logged: u64,
    /// Accepted, and not in a batch yet.
    collected: Vec<Change>,
    collected_bytes: u64,
    /// Of a unit that is not complete: it comes into a batch as a whole.
    unit: Vec<Change>,
    unit_bytes: u64,
    /// The last operation that was accepted; the end of a unit.
    accepted: u64,
    unapplied: VecDeque<Apply>,
    /// Bytes of data that wait in memory.
    held: u64,
    applying: HashMap<u64, Apply>,
    next_apply: u64,
    /// The half that a sync of the image in progress makes clean; true: everything was applied.
    checkpoint: Option<(usize, bool)>,
    /// The log is applied and then closed.
    pub closing: bool,
    /// The space of a log that was closed is being released.
    is_releasing: bool,
    is_drained_durable: bool,
    /// Nothing is applied before: the image failed.
    retry: Option<Time>,
    again: bool,
}

/// Why an end without its redo log is not broken off.
pub(super) fn lost(log: u64) -> String {
    format!(
        "redo log {log} (file 'redo') is missing or damaged: this end's image lacks writes that \
         were only there; it is copied completely once the primary is connected"
    )
}

impl Redo {
    /// No log is open.
    pub fn new() -> Redo {
        Redo {
            journal: Journal::new(File::Log, Token::Log),
            slot: Slot {
                log: 0,
                base: 0,
                half: 0,
            },
            halves: [Half::default(); 2],
            generation: 0,
            number: 0,
            at: 0,
            logged: 0,
            collected: Vec::new(),
            collected_bytes: 0,
            unit: Vec::new(),
            unit_bytes: 0,
            accepted: 0,
            unapplied: VecDeque::new(),
            held: 0,
            applying: HashMap::new(),
            next_apply: 0,
            checkpoint: None,
            closing: false,
            is_releasing: false,
            is_drained_durable: false,
            retry: None,
            again: false,
        }
    }

    pub fn load(backend: &dyn Backend, geometry: &Geometry) -> io::Result<Redo> {
        let mut redo = Redo::new();
        if let Some(found) = redo::load(backend, geometry)? {
            redo.slot = found.slot;
            redo.generation = found.generation;
            redo.number = found.number;
            redo.at = found.at;
            redo.logged = found.last;
            redo.accepted = found.last;
            for entry in found.entries {
                let half = usize::from(entry.at >= redo.slot.start_of(1));
                redo.halves[half].left += 1;
                redo.unapplied.push_back(Apply {
                    entry,
                    data: None,
                    half,
                });
            }
        }
        Ok(redo)
    }

    /// The log that is open; 0: none.
    pub fn log(&self) -> u64 {
        self.slot.log
    }

    pub fn closed_slot(&self) -> Vec<u8> {
        let closed = Slot {
            log: 0,
            ..self.slot
        };
        closed.encode()
    }

    /// Entries that are not in the image yet.
    pub fn left(&self) -> usize {
        self.halves[0].left + self.halves[1].left
    }

    /// What is in no batch was not acknowledged.
    pub fn forget_collected(&mut self) {
        self.collected.clear();
        self.collected_bytes = 0;
        self.unit.clear();
        self.unit_bytes = 0;
        self.accepted = match self.journal.running() {
            Some(Step::Batch { last, .. }) => *last,
            _ => self.logged,
        };
    }

    /// Nothing is written to the log.
    pub fn is_quiet(&self) -> bool {
        self.journal.is_idle() && !self.is_releasing
    }

    fn is_idle(&self) -> bool {
        self.is_quiet()
            && self.collected.is_empty()
            && self.unit.is_empty()
            && self.accepted == self.logged
            && self.checkpoint.is_none()
    }
}

impl Replica {
    /// Compares the log with the record, after a start. Without the log that the record names, no
    /// image of this end is consistent: everything is copied. Returns the record that says so.
    pub(super) fn check_log(
        &mut self,
        backend: &dyn Backend,
        out: &mut Vec<Action>,
    ) -> io::Result<Vec<(u64, Vec<u8>)>> {
        let log = self.record.log;
        if log == 0 || self.is_faulty(Fault::LostLogIgnored) {
            return Ok(Vec::new());
        }
        let is_complete = backend.size(File::Log)? >= redo::length_of(self.redo.slot.half);
        if self.redo.log() == log && is_complete {
            return Ok(Vec::new());
        }
        if self.record.phase == Phase::Empty {
            self.problem = lost(log);
            return Ok(Vec::new());
        }
        Ok(vec![self.lose_image(lost(log), out)])
    }

    /// From the next operation on, the log is used. It begins with an image that is durable.
    pub(super) fn open_log(&mut self, frame: &Frame, out: &mut Vec<Action>) -> bool {
        if !self.is_quiet() || !self.redo.is_idle() {
            return false;
        }
        self.advance(frame.sequence);
        self.busy = Busy::Opening(frame.sequence);
        let half = redo::half_of(self.settings.log);
        out.push(Action::Reserve {
            file: File::Log,
            length: redo::length_of(half),
            token: Token::Log,
        });
        true
    }

    fn log_reserved(&mut self, outcome: &Outcome, out: &mut Vec<Action>) {
        if let Some(failure) = outcome.failure() {
            self.log_refused(failure, out);
        } else {
            out.push(Action::Sync {
                file: File::Image,
                token: Token::Checkpoint,
            });
        }
    }

    /// The session goes on without a log.
    fn log_refused(&mut self, failure: Failure, out: &mut Vec<Action>) {
        self.busy = Busy::No;
        self.problem = format!("no redo log: {failure:?}");
        if self.session {
            let mut frame = Frame::new(Class::Streamed, 0);
            frame.length = failure as u32;
            self.send(frame, out);
        }
    }

    /// The number is that of the record which will say that the log is used: no log had it.
    pub(super) fn write_slot(&mut self, out: &mut Vec<Action>) {
        let Busy::Opening(base) = self.busy else {
            return;
        };
        let slot = Slot {
            log: self.record.serial + 1,
            base,
            half: redo::half_of(self.settings.log),
        };
        self.redo.slot = slot;
        self.redo.halves = [Half {
            left: 0,
            clean: true,
        }; 2];
        self.redo.generation = 0;
        self.redo.number = 0;
        self.redo.at = slot.start_of(0);
        self.redo.logged = base;
        self.redo.accepted = base;
        self.redo.closing = false;
        self.redo.is_drained_durable = false;
        let page = (0, slot.encode());
        self.redo.journal.start(vec![page], Step::Opened, out);
    }

    /// The slot is durable. Nothing is written to the log before the record names it, too.
    fn log_opened(&mut self, out: &mut Vec<Action>) {
        self.record.log = self.redo.log();
        self.save_record(Commit::Opening, out);
    }

    pub(super) fn log_in_use(&mut self, out: &mut Vec<Action>) {
        self.busy = Busy::No;
        if self.session {
            self.logging = true;
            self.flushes.clear();
            self.durable = self.redo.logged;
            self.ack_due = true;
            let mut frame = Frame::new(Class::Streamed, 0);
            frame.sequence = self.redo.log();
            self.send(frame, out);
        }
    }

    /// Takes an operation into the log. False if it has to wait.
    pub(super) fn log_operation(&mut self, frame: &Frame, out: &mut Vec<Action>) -> bool {
        let range = Range::new(frame.offset, frame.length);
        let kind = match frame.class {
            Class::Write => Some(Kind::Write),
            Class::Zero if frame.flags & FLAG != 0 => Some(Kind::Punch),
            Class::Zero => Some(Kind::Zero),
            // The primary asked once more, as it did not hear that the log is open.
            Class::Flush | Class::Stream | Class::Merged | Class::Settle => None,
            Class::Commit => {
                if self.close_log() {
                    self.logging = false;
                }
                return !self.logging && self.commit(frame, out);
            }
            _ => {
                self.hang_up("an operation that no redo log takes", out);
                return false;
            }
        };
        let is_sound = kind.is_none()
            || self.geometry.contains(range)
                && range.length <= PAYLOAD_MAX
                && (kind != Some(Kind::Write) || frame.payload.len() == range.length as usize);
        if !is_sound {
            self.hang_up("an operation outside the image", out);
            return false;
        }
        let redo = &mut self.redo;
        let unit = redo.unit_bytes + frame.payload.len() as u64;
        let size = redo::size_of(redo.unit.len() + 1, unit);
        if size > redo.slot.half || !redo.unit.is_empty() && size > UNIT_MAX {
            self.hang_up("operations that are larger than the redo log", out);
            return false;
        }
        let is_last = frame.flags & MORE == 0 || self.fault == Some(Fault::MergedUnitTorn);
        let bytes = redo.collected_bytes + unit;
        let size = redo::size_of(redo.collected.len() + redo.unit.len() + 1, bytes);
        if is_last && size > redo.slot.half.min(BATCH) && !redo.collected.is_empty() {
            return false;
        }
        if let Some(kind) = kind {
            redo.unit_bytes = unit;
            let data = match kind {
                Kind::Write => frame.payload.clone(),
                _ => Arc::new(Vec::new()),
            };
            redo.unit.push(Change {
                osn: frame.sequence,
                range,
                kind,
                data,
            });
            if kind == Kind::Write && self.is_faulty(Fault::InPlaceApply) {
                out.push(Action::Write {
                    file: File::Image,
                    offset: range.offset,
                    data: frame.payload.clone(),
                    token: Token::Redo(u64::MAX),
                });
            }
        }
        if is_last {
            let redo = &mut self.redo;
            redo.accepted = frame.sequence;
            redo.collected.append(&mut redo.unit);
            redo.collected_bytes += std::mem::take(&mut redo.unit_bytes);
        }
        true
    }

    /// True once no log is open; otherwise it is on the way.
    pub(super) fn close_log(&mut self) -> bool {
        self.redo.closing = self.redo.log() != 0;
        !self.redo.closing
    }

    pub(super) fn pump_redo(&mut self, out: &mut Vec<Action>) {
        if self.redo.log() == 0 || matches!(self.busy, Busy::Opening(_)) || self.redo.again {
            return;
        }
        self.write_batch(out);
        self.pump_apply(out);
        self.pump_checkpoint(out);
    }

    /// Journals what has been accepted, with one sync.
    fn write_batch(&mut self, out: &mut Vec<Action>) {
        if !self.redo.journal.is_idle() || self.redo.accepted == self.redo.logged {
            return;
        }
        let redo = &mut self.redo;
        let size = redo::size_of(redo.collected.len(), redo.collected_bytes);
        let half = (redo.generation % 2) as usize;
        if redo.at + size > redo.slot.start_of(half) + redo.slot.half {
            let next = redo.halves[1 - half];
            let is_early = self.fault == Some(Fault::LogReusedBeforeSync) && next.left == 0;
            if !next.clean && !is_early {
                return;
            }
            redo.generation += 1;
            redo.number = 0;
            redo.at = redo.slot.start_of(1 - half);
        }
        let half = (redo.generation % 2) as usize;
        redo.halves[half].clean = false;
        let place = Place {
            log: redo.slot.log,
            generation: redo.generation,
            number: redo.number,
            at: redo.at,
            first: redo.logged + 1,
            last: redo.accepted,
        };
        let changes = std::mem::take(&mut redo.collected);
        redo.collected_bytes = 0;
        let (bytes, entries) = redo::encode(&place, &changes);
        redo.number += 1;
        redo.at += bytes.len() as u64;
        redo.halves[half].left += entries.len();
        let mut applies = Vec::with_capacity(entries.len());
        for (entry, change) in entries.into_iter().zip(changes) {
            let is_held = redo.held < self.settings.window;
            redo.held += if is_held { change.data.len() as u64 } else { 0 };
            let data = is_held.then_some(change.data);
            applies.push(Apply { entry, data, half });
        }
        let last = place.last;
        if self.fault == Some(Fault::JournaledBeforeSync) {
            self.journaled(last);
        }
        let step = Step::Batch { last, applies };
        self.redo.journal.start(vec![(place.at, bytes)], step, out);
    }

    fn journaled(&mut self, last: u64) {
        if self.logging {
            (self.written, self.durable) = (last, last);
            self.ack_due = true;
        }
    }

    pub(super) fn log_done(&mut self, outcome: &Outcome, out: &mut Vec<Action>) {
        if self.redo.is_releasing {
            // What was not released is used by the next log.
            self.redo.is_releasing = false;
            return;
        }
        if self.redo.journal.is_idle() {
            self.log_reserved(outcome, out);
            return;
        }
        match self.redo.journal.done(outcome, out) {
            Ok(Some(Step::Batch { last, applies })) => {
                self.redo.logged = last;
                self.redo.unapplied.extend(applies);
                self.journaled(last);
            }
            Ok(Some(Step::Opened)) => self.log_opened(out),
            Ok(Some(Step::Closed)) => {
                self.redo.slot.log = 0;
                self.redo.closing = false;
                self.redo.is_releasing = true;
                out.push(Action::Reserve {
                    file: File::Log,
                    length: 0,
                    token: Token::Log,
                });
            }
            Ok(Some(Step::Start) | None) => {}
            Err(problem) => self.fail(&problem, out),
        }
    }

    pub(super) fn continues(&self, frame: &Frame) -> bool {
        let begin = Begin::decode(&frame.payload);
        matches!(begin, Some(Begin::Continue { log }) if self.can_continue(log))
    }

    /// Whether a session can go on with its log.
    pub(super) fn can_continue(&self, log: u64) -> bool {
        log != 0
            && self.redo.log() == log
            && !self.redo.closing
            && self.record.phase == Phase::Consistent
    }
}
