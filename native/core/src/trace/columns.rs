//! Records as columns, and the common part of all parsers.

use std::collections::{BTreeMap, HashMap};

/// More volumes than this are treated as a wrong column.
const VOLUMES_MAX: usize = 1 << 20;
/// Times this far from the first record's are refused, so that no difference of two overflows.
const TIME_MAX: i128 = 1 << 62;
/// How much of a malformed line is shown.
const EXCERPT_MAX: usize = 80;

/// The operation of a record; the values are those of `mirrord.traces.model.Op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    Write = 0,
    Read = 1,
    Trim = 2,
    Flush = 3,
}

/// Columns of equal length, as in `mirrord.traces.model.Batch`.
#[derive(Default, Debug, PartialEq)]
pub struct Columns {
    pub time: Vec<i64>,
    pub volume: Vec<u32>,
    pub op: Vec<u8>,
    pub offset: Vec<i64>,
    pub length: Vec<i64>,
    pub latency: Vec<i64>,
}

/// An error in a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// "record": it is malformed; "truncated": the source ends within it.
    pub kind: &'static str,
    pub what: String,
    /// The line's or the record's number, from 1.
    pub place: u64,
    /// The malformed text.
    pub excerpt: String,
}

impl Fault {
    pub fn new(what: impl Into<String>, place: u64, bytes: &[u8]) -> Self {
        let shown = &bytes[..bytes.len().min(EXCERPT_MAX)];
        Self {
            kind: "record",
            what: what.into(),
            place,
            excerpt: String::from_utf8_lossy(shown).trim_end().to_string(),
        }
    }

    pub fn truncated(mut self) -> Self {
        self.kind = "truncated";
        self
    }
}

/// One record before it is appended.
pub struct Record {
    /// Nanoseconds, from the source's time 0.
    pub time: i128,
    pub volume: u32,
    pub op: Op,
    pub offset: u64,
    pub length: u64,
    /// Nanoseconds; -1: not known.
    pub latency: i64,
}

/// The names of volumes, counts of skipped records, and the first time.
#[derive(Default)]
pub struct Shared {
    names: HashMap<Vec<u8>, u32>,
    pub volumes: Vec<String>,
    last: (Vec<u8>, u32),
    pub counts: BTreeMap<&'static str, u64>,
    pub zero: Option<i128>,
    /// Unix time in nanoseconds of the source's time 0, if the source contains it.
    pub epoch: Option<i128>,
}

impl Shared {
    /// The index of a volume's name.
    pub fn volume(&mut self, name: &[u8]) -> Result<u32, String> {
        if !self.volumes.is_empty() && self.last.0 == name {
            return Ok(self.last.1);
        }
        let known = self.names.get(name).copied();
        let index = match known {
            Some(index) => index,
            None => {
                if self.volumes.len() == VOLUMES_MAX {
                    return Err(format!(
                        "more than {VOLUMES_MAX} volumes: is that the right column?"
                    ));
                }
                let index = self.volumes.len() as u32;
                self.volumes
                    .push(String::from_utf8_lossy(name).into_owned());
                self.names.insert(name.to_vec(), index);
                index
            }
        };
        self.last.0.clear();
        self.last.0.extend_from_slice(name);
        self.last.1 = index;
        Ok(index)
    }

    /// Count something that was skipped or is unusual.
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub fn add(&mut self, what: &'static str, number: u64) {
        let counted = self.counts.entry(what).or_insert(0);
        *counted = counted.saturating_add(number);
    }

    /// The source ended, `left` bytes after the beginning of record `number`: an error, unless
    /// truncated sources are accepted.
    /// whole: the record's size, or "it" if that is unknown.
    pub fn cut_off(
        &mut self,
        left: usize,
        whole: &str,
        number: u64,
        partial: bool,
    ) -> Result<(), Fault> {
        if left == 0 {
            return Ok(());
        }
        if !partial {
            let what = format!("{left} bytes of {whole} are there");
            return Err(Fault::new(what, number, b"").truncated());
        }
        self.count("broken records left out");
        Ok(())
    }

    /// Append a record; an error with the reason if it is invalid.
    #[inline]
    pub fn push(&mut self, record: &Record, out: &mut Columns) -> Result<(), String> {
        let (Ok(offset), Ok(length)) = (i64::try_from(record.offset), i64::try_from(record.length))
        else {
            return Err("the range is beyond 2^63 bytes".into());
        };
        if offset.checked_add(length).is_none() {
            return Err("the range ends beyond 2^63 bytes".into());
        }
        let zero = *self.zero.get_or_insert(record.time);
        let time = record.time - zero;
        if !(-TIME_MAX..=TIME_MAX).contains(&time) {
            return Err("the time is more than 146 years away from the first one".into());
        }
        let time = time as i64;
        out.time.push(time);
        out.volume.push(record.volume);
        out.op.push(record.op as u8);
        out.offset.push(offset);
        out.length.push(length);
        out.latency.push(record.latency);
        Ok(())
    }
}

impl Columns {
    /// With room for this many records.
    pub fn with_room(records: usize) -> Self {
        Self {
            time: Vec::with_capacity(records),
            volume: Vec::with_capacity(records),
            op: Vec::with_capacity(records),
            offset: Vec::with_capacity(records),
            length: Vec::with_capacity(records),
            latency: Vec::with_capacity(records),
        }
    }
}
