//! Columns between delimiters: MSR, SPC, Alibaba, FIU, blkreplay, five columns, any CSV.

use super::blkparse::operation as letters;
use super::columns::Record;
use super::lines::LineParser;
use super::number::{hexadecimal, is_huge, scaled, trimmed, whole};
use super::{Columns, Op, Shared};

/// Columns beyond these are ignored.
const FIELDS_MAX: usize = 24;

/// How the operation is written.
#[derive(Clone, Debug)]
pub enum OpRule {
    /// Every record has this operation.
    Always(Op),
    /// Words, in lower case, packed by `key`.
    Words(Vec<(u64, Op)>),
    /// A hexadecimal number whose lowest bit means read (DiskSim).
    ReadBit,
    /// Letters as printed by blkparse: W, WS, RA, D …
    Letters,
    /// A hexadecimal SCSI operation code without 0x.
    Scsi,
}

/// The column of each value (from 0) and its unit.
#[derive(Clone, Debug)]
pub struct Layout {
    /// 0: any whitespace.
    pub delimiter: u8,
    pub time: usize,
    /// Nanoseconds to add to the time, in a column of their own; they may be 10^9 and more.
    pub time_extra: Option<usize>,
    pub op: Option<usize>,
    pub offset: usize,
    pub length: usize,
    pub latency: Option<usize>,
    /// Joined by `-` they name the volume.
    pub volumes: Vec<usize>,
    pub time_ns: u64,
    pub offset_bytes: u64,
    pub length_bytes: u64,
    pub latency_ns: u64,
    pub rule: OpRule,
    /// How many lines at the beginning of each source may be headers: those are skipped whose time
    /// does not begin like a number, as sources of one trace need not all have a header.
    pub header: u64,
    /// Lines that do not begin with a digit are headers, anywhere in the source.
    pub only_digits: bool,
}

/// A word in lower case as one number: its bytes, or a hash (FNV) if they are more than eight.
#[inline]
pub fn key(word: &[u8]) -> u64 {
    let lower = word.iter().map(|byte| u64::from(byte.to_ascii_lowercase()));
    if word.len() > 8 {
        return lower.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ byte).wrapping_mul(0x100_0000_01b3)
        });
    }
    lower.fold(0, |packed, byte| packed << 8 | byte)
}

/// The operation of a SCSI command with this code.
pub fn scsi(code: u64) -> Option<Op> {
    match code {
        0x08 | 0x28 | 0x88 | 0xa8 => Some(Op::Read),
        0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e | 0xae => Some(Op::Write),
        // WRITE SAME writes data, unless its UNMAP bit is set, which no trace records.
        0x41 | 0x93 => Some(Op::Write),
        0x42 => Some(Op::Trim),
        0x35 | 0x91 => Some(Op::Flush),
        _ => None,
    }
}

pub struct Delimited {
    layout: Layout,
    line: u64,
    name: Vec<u8>,
}

impl Delimited {
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            line: 0,
            name: Vec::new(),
        }
    }

    /// None: blank, treated as no operation.
    #[inline]
    fn operation(&self, field: &[u8]) -> Result<Option<Op>, String> {
        if field.is_empty() {
            return Ok(None);
        }
        let unknown = || {
            let shown = String::from_utf8_lossy(field);
            format!("'{shown}' is not an operation of this format")
        };
        match &self.layout.rule {
            OpRule::Always(op) => Ok(Some(*op)),
            OpRule::Words(words) => {
                let wanted = key(field);
                let found = words.iter().find(|(word, _)| *word == wanted);
                Ok(Some(found.ok_or_else(unknown)?.1))
            }
            OpRule::Letters => Ok(Some(
                letters(&field.to_ascii_uppercase(), 1).ok_or_else(unknown)?,
            )),
            OpRule::ReadBit => {
                let flags = hexadecimal(field).ok_or_else(unknown)?;
                Ok(Some(if flags & 1 == 1 { Op::Read } else { Op::Write }))
            }
            OpRule::Scsi => {
                let code = hexadecimal(field).ok_or_else(unknown)?;
                Ok(Some(scsi(code).ok_or_else(unknown)?))
            }
        }
    }
}

#[inline]
fn split<'a>(line: &'a [u8], delimiter: u8, fields: &mut [&'a [u8]; FIELDS_MAX]) -> usize {
    let mut count = 0;
    if delimiter == 0 {
        for field in line.split(|&byte| byte == b' ' || byte == b'\t') {
            if !field.is_empty() && count < FIELDS_MAX {
                fields[count] = field;
                count += 1;
            }
        }
        return count;
    }
    let (mut begin, mut quoted) = (0, false);
    for (at, &byte) in line.iter().enumerate() {
        quoted ^= byte == b'"';
        if byte == delimiter && !quoted {
            if count == FIELDS_MAX {
                return count;
            }
            fields[count] = trimmed(&line[begin..at]);
            count += 1;
            begin = at + 1;
        }
    }
    if count < FIELDS_MAX {
        fields[count] = trimmed(&line[begin..]);
        count += 1;
    }
    count
}

/// Whether a field begins like a number: `12`, `-1.5`, `.5`.
fn begins_number(field: &[u8]) -> bool {
    let field = field.strip_prefix(b"-").unwrap_or(field);
    let field = field.strip_prefix(b".").unwrap_or(field);
    field.first().is_some_and(u8::is_ascii_digit)
}

fn number(field: &[u8], what: &str, unit: u64) -> Result<u64, String> {
    let value = match whole(field) {
        Some(value) => value.checked_mul(unit),
        // Some tools write 4096.0
        None => match scaled(field, unit) {
            Some(value) if value < 0 => {
                let shown = String::from_utf8_lossy(field);
                return Err(format!("the {what} '{shown}' is negative"));
            }
            Some(value) => u64::try_from(value).ok(),
            None if is_huge(field) => None,
            None => {
                let shown = String::from_utf8_lossy(field);
                return Err(format!("the {what} '{shown}' is not a number"));
            }
        },
    };
    value.ok_or_else(|| {
        let shown = String::from_utf8_lossy(field);
        format!("the {what} '{shown}' is beyond 2^63 bytes")
    })
}

impl LineParser for Delimited {
    fn line(&mut self, line: &[u8], shared: &mut Shared, out: &mut Columns) -> Result<(), String> {
        self.line += 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let begin = line.iter().find(|&&byte| byte != b' ' && byte != b'\t');
        let Some(&begin) = begin else {
            return Ok(()); // an empty line
        };
        if begin == b'#' || (self.layout.only_digits && !begin.is_ascii_digit()) {
            shared.count("header and comment lines");
            return Ok(());
        }
        let mut fields: [&[u8]; FIELDS_MAX] = [&[]; FIELDS_MAX];
        let count = split(line, self.layout.delimiter, &mut fields);
        let layout = &self.layout;
        if self.line <= layout.header
            && !(count > layout.time && begins_number(fields[layout.time]))
        {
            return Ok(());
        }
        let needed = layout
            .time
            .max(layout.offset)
            .max(layout.length)
            .max(layout.op.unwrap_or(0));
        if count <= needed {
            return Err(format!(
                "{count} columns, and at least {} are needed",
                needed + 1
            ));
        }
        let op = match layout.op {
            None => self.operation(b"-")?,
            Some(column) => self.operation(fields[column])?,
        };
        let Some(op) = op else {
            shared.count("records with a blank operation left out");
            return Ok(());
        };
        let time = fields[layout.time];
        let Some(mut time_ns) = scaled(time, layout.time_ns) else {
            let shown = String::from_utf8_lossy(time);
            return Err(format!("the time '{shown}' is not a number"));
        };
        if let Some(column) = layout.time_extra {
            let extra = number(fields[column], "nanoseconds", 1)?;
            if extra >= 1_000_000_000 {
                shared.count("nanoseconds of 10^9 and more");
            }
            time_ns += i128::from(extra);
        }
        let offset = number(fields[layout.offset], "offset", layout.offset_bytes)?;
        let length = number(fields[layout.length], "length", layout.length_bytes)?;
        let latency = match layout.latency {
            Some(column) if column < count => scaled(fields[column], layout.latency_ns)
                .and_then(|value| i64::try_from(value).ok())
                .unwrap_or(-1),
            _ => -1,
        };
        let volume = volume_of(&layout.volumes, &fields[..count], &mut self.name, shared)?;
        let record = Record {
            time: time_ns,
            volume,
            op,
            offset,
            length,
            latency,
        };
        shared.push(&record, out)
    }

    fn restart(&mut self) {
        self.line = 0;
    }
}

#[inline]
fn volume_of(
    columns: &[usize],
    fields: &[&[u8]],
    name: &mut Vec<u8>,
    shared: &mut Shared,
) -> Result<u32, String> {
    if let [column] = columns {
        let field = fields
            .get(*column)
            .ok_or("the column of the volume is missing")?;
        return shared.volume(field);
    }
    name.clear();
    for (index, &column) in columns.iter().enumerate() {
        let field = fields
            .get(column)
            .ok_or("a column of the volume is missing")?;
        if index > 0 {
            name.push(b'-');
        }
        name.extend_from_slice(field);
    }
    if columns.is_empty() {
        name.push(b'0');
    }
    shared.volume(name)
}
