//! Before-images: what a resync overwrites is saved first.

use super::{Busy, Commit, Replica};
use crate::bits::Bitmap;
use crate::fault::Fault;
use crate::frame::Class;
use crate::io::{Action, Backend, File, Outcome, Token};
use crate::journal::Journal;
use crate::side::{self, Entry};
use crate::types::{Geometry, Phase, Range};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Bytes of the image that are saved together.
const BATCH: u64 = 1 << 20;
/// What is reserved when more changes than the primary announced.
const MORE: u64 = 16 << 20;

/// What becomes true when a transaction on the side file is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Start,
    /// The header of a new resync.
    Header,
    Saved(Vec<Entry>),
}

pub(super) struct Undo {
    pub journal: Journal<Step>,
    /// Blocks whose before-image is durable.
    pub saved: Bitmap,
    pub entries: Vec<Entry>,
    /// Counts the batches of this resync.
    batch: u64,
    pub end: u64,
    pub reserved: u64,
    reserving: Option<u64>,
    reads: BTreeMap<u64, (Range, Option<Vec<u8>>)>,
}

/// Why an end without all of its before-images is not broken off.
pub(super) const LOST: &str = "before-images (file 'side') are missing or damaged: a resync has \
     overwritten a part of this end's image, which cannot be rolled back; the image is copied \
     completely once the primary is connected";

impl Undo {
    pub fn new(blocks: u64) -> Self {
        Undo {
            journal: Journal::new(File::Side, Token::Side),
            saved: Bitmap::new(blocks),
            entries: Vec::new(),
            batch: 0,
            end: side::HEAD,
            reserved: 0,
            reserving: None,
            reads: BTreeMap::new(),
        }
    }

    /// The before-images of resync `number`. None: some of them are lost.
    pub fn load(
        backend: &dyn Backend,
        geometry: &Geometry,
        number: u64,
    ) -> io::Result<Option<Undo>> {
        let Some(found) = side::load(backend, geometry, number)? else {
            return Ok(None);
        };
        let mut undo = Undo::new(geometry.blocks());
        for entry in &found.entries {
            undo.saved.set(geometry.blocks_of(entry.range));
        }
        undo.entries = found.entries;
        undo.batch = found.batch;
        undo.end = found.end;
        undo.reserved = backend.size(File::Side)?;
        Ok(Some(undo))
    }

    /// A new resync begins.
    fn begin(&mut self, blocks: u64) {
        self.saved = Bitmap::new(blocks);
        self.entries.clear();
        self.batch = 0;
        self.end = side::HEAD;
    }

    pub fn is_idle(&self) -> bool {
        self.journal.is_idle() && self.reserving.is_none() && self.reads.is_empty()
    }
}

impl Replica {
    /// Returns the record that says that the before-images are lost.
    pub(super) fn lose_undo(&mut self, out: &mut Vec<Action>) -> (u64, Vec<u8>) {
        self.record.log = 0;
        self.lose_image(LOST.into(), out)
    }

    pub(super) fn reserve(&mut self, length: u64, out: &mut Vec<Action>) {
        self.undo.reserving = Some(length);
        let length = length.max(self.undo.reserved);
        let token = Token::Side;
        out.push(Action::Reserve {
            file: File::Side,
            length,
            token,
        });
    }

    pub(super) fn drop_before_images(&mut self, out: &mut Vec<Action>) {
        self.undo.begin(self.geometry.blocks());
        self.undo.reserved = 0;
        self.undo.reserving = Some(0);
        let token = Token::Side;
        out.push(Action::Reserve {
            file: File::Side,
            length: 0,
            token,
        });
    }

    pub(super) fn side_done(&mut self, outcome: &Outcome, out: &mut Vec<Action>) {
        if let Some(length) = self.undo.reserving.take() {
            self.reserved(length, outcome, out);
            return;
        }
        match self.undo.journal.done(outcome, out) {
            Ok(Some(Step::Saved(entries))) => {
                for entry in entries {
                    self.undo.saved.set(self.geometry.blocks_of(entry.range));
                    self.undo.entries.push(entry);
                }
            }
            Ok(Some(Step::Header)) => {
                self.record.phase = Phase::Resync;
                self.save_record(Commit::Begin, out);
            }
            Ok(Some(Step::Start) | None) => {}
            Err(problem) => self.fail(&problem, out),
        }
    }

    fn reserved(&mut self, length: u64, outcome: &Outcome, out: &mut Vec<Action>) {
        let is_beginning = matches!(self.busy, Busy::Beginning(..));
        // What was not released is used by the next resync.
        if let Some(failure) = outcome.failure().filter(|_| length > 0) {
            if is_beginning {
                self.busy = Busy::No;
            }
            let need = length.saturating_sub(self.undo.reserved);
            self.refuse(
                &format!("no space for before-images ({need} bytes needed): {failure:?}"),
                out,
            );
            return;
        }
        self.undo.reserved = length.max(self.undo.reserved);
        if length == 0 {
            self.undo.reserved = 0;
        } else if is_beginning && self.record.phase == Phase::Consistent {
            self.record.side += 1;
            self.undo.begin(self.geometry.blocks());
            let header = side::header(self.record.side, 0, side::HEAD);
            self.undo.journal.start(vec![header], Step::Header, out);
        } else if is_beginning {
            self.save_record(Commit::Begin, out);
        }
    }

    /// True if a range can be overwritten; otherwise its before-image, and those of what follows
    /// in the queue, are being saved.
    pub(super) fn has_before_image(&mut self, range: Range, out: &mut Vec<Action>) -> bool {
        if self.undo.saved.all(self.geometry.blocks_of(range)) {
            return true;
        }
        if !self.undo.is_idle() {
            return false;
        }
        if self.is_faulty(Fault::BeforeImageAfterOverwrite) {
            self.read_before(self.geometry.blocks_of(range).collect(), out);
            self.undo.saved.set(self.geometry.blocks_of(range));
            return true;
        }
        let mut blocks = BTreeSet::new();
        for frame in &self.queue {
            let range = Range::new(frame.offset, frame.length);
            let is_write = matches!(frame.class, Class::Write | Class::Zero | Class::Copy);
            let is_full = blocks.len() as u64 * u64::from(self.geometry.block) >= BATCH;
            if !is_write || is_full || !self.geometry.contains(range) {
                break;
            }
            let touched = self.geometry.blocks_of(range);
            blocks.extend(touched.filter(|block| !self.undo.saved.all(*block..*block + 1)));
        }
        let bytes = blocks.len() as u64 * u64::from(self.geometry.block);
        let need = side::needed(bytes, self.geometry.block);
        if self.undo.end + need > self.undo.reserved {
            let length = self.undo.end + need + MORE.min(self.geometry.size);
            self.reserve(length, out);
        } else {
            self.read_before(blocks, out);
        }
        false
    }

    /// Reads blocks whose before-image is needed; neighbours together.
    fn read_before(&mut self, blocks: BTreeSet<u64>, out: &mut Vec<Action>) {
        let limit = u64::from(self.settings.copy_chunk);
        let mut runs: Vec<Range> = Vec::new();
        for block in blocks {
            let one = self.geometry.range_of(block..block + 1);
            match runs.last_mut() {
                Some(run) if run.end() == one.offset && u64::from(run.length) < limit => {
                    run.length += one.length;
                }
                _ => runs.push(one),
            }
        }
        for run in runs {
            self.undo.reads.insert(run.offset, (run, None));
            out.push(Action::Read {
                file: File::Image,
                offset: run.offset,
                length: run.length,
                token: Token::Before(run.offset),
            });
        }
    }

    pub(super) fn before_read(&mut self, offset: u64, outcome: Outcome, out: &mut Vec<Action>) {
        let Outcome::Data(data) = outcome else {
            self.undo.reads.clear();
            self.fail("the image can't be read for before-images", out);
            return;
        };
        if let Some(read) = self.undo.reads.get_mut(&offset) {
            read.1 = Some(data);
        }
        if self.undo.reads.is_empty() || self.undo.reads.values().any(|(_, data)| data.is_none()) {
            return;
        }
        let (number, at) = (self.record.side, self.undo.end);
        let mut entries = Vec::new();
        let mut bytes = Vec::new();
        for (range, data) in std::mem::take(&mut self.undo.reads).into_values() {
            let data = data.unwrap_or_default();
            entries.push(side::encode(number, range, &data, at, &mut bytes));
        }
        self.undo.batch += 1;
        self.undo.end += bytes.len() as u64;
        let header = side::header(number, self.undo.batch, at);
        self.undo
            .journal
            .start(vec![header, (at, bytes)], Step::Saved(entries), out);
    }
}
