//! The default text output of blkparse (without `-f`).
//!
//! `8,16 2 41103 9.378419363 16766 Q W 3428327242 + 8 [flush-8:16]`: device, processor, sequence,
//! seconds, process, action, kind of request, sector, number of sectors. Each request appears
//! several times (queued, merged, issued, completed): one action is read, all others are skipped.

use super::columns::Record;
use super::lines::LineParser;
use super::number::{is_huge, scaled, whole};
use super::{Columns, Op, Shared};

const SECTOR: u64 = 512;

pub struct Blkparse {
    /// `Q` for queued, `C` for completed.
    action: u8,
}

impl Blkparse {
    pub fn new(action: u8) -> Self {
        Self { action }
    }
}

/// Removes the next word from a line.
#[inline]
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut at = 0;
    let bytes = *rest;
    while at < bytes.len() && bytes[at] == b' ' {
        at += 1;
    }
    let begin = at;
    while at < bytes.len() && bytes[at] != b' ' {
        at += 1;
    }
    *rest = &bytes[at..];
    (at > begin).then(|| &bytes[begin..at])
}

/// The meaning of the letters: D discard, E secure erase, W write, R read, F alone flush.
pub fn operation(kind: &[u8], sectors: u64) -> Option<Op> {
    if kind.contains(&b'D') || kind.contains(&b'E') {
        return Some(Op::Trim);
    }
    if kind.contains(&b'W') && sectors > 0 {
        return Some(Op::Write);
    }
    if kind.contains(&b'R') {
        return Some(Op::Read);
    }
    // "FWS" without sectors: only a cache flush.
    kind.starts_with(b"F").then_some(Op::Flush)
}

impl LineParser for Blkparse {
    fn line(&mut self, line: &[u8], shared: &mut Shared, out: &mut Columns) -> Result<(), String> {
        let mut rest = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(device) = word(&mut rest) else {
            return Ok(());
        };
        // The summary at the end, and messages, do not begin with "major,minor".
        if !device[0].is_ascii_digit() || !device.contains(&b',') {
            shared.count("lines of the summary left out");
            return Ok(());
        }
        let (_, _) = (word(&mut rest), word(&mut rest));
        let time = word(&mut rest).ok_or("the time is missing")?;
        let _ = word(&mut rest);
        let action = word(&mut rest).ok_or("the action is missing")?;
        if action != [self.action] {
            shared.count("events of other actions left out");
            return Ok(());
        }
        let kind = word(&mut rest).ok_or("the kind of request is missing")?;
        let time = scaled(time, 1_000_000_000).ok_or_else(|| {
            format!(
                "the time '{}' is not a number",
                String::from_utf8_lossy(time)
            )
        })?;
        let (sector, sectors) = range(&mut rest)?;
        let Some(op) = operation(kind, sectors) else {
            shared.count("requests of other kinds left out");
            return Ok(());
        };
        let flush = op == Op::Flush;
        let beyond = || "the range is beyond 2^63 bytes".to_string();
        let record = Record {
            time,
            volume: shared.volume(device)?,
            op,
            offset: if flush {
                0
            } else {
                sector.checked_mul(SECTOR).ok_or_else(beyond)?
            },
            length: if flush {
                0
            } else {
                sectors.checked_mul(SECTOR).ok_or_else(beyond)?
            },
            latency: -1,
        };
        shared.push(&record, out)
    }
}

/// `3428327242 + 8`; nothing, or a process in brackets, is an empty range (a flush).
#[inline]
fn range(rest: &mut &[u8]) -> Result<(u64, u64), String> {
    let Some(sector) = word(rest) else {
        return Ok((0, 0));
    };
    if sector[0] == b'[' {
        return Ok((0, 0));
    }
    let wrong = |field: &[u8]| {
        let shown = String::from_utf8_lossy(field).into_owned();
        if is_huge(field) {
            return format!("the sector '{shown}' is beyond 2^63 bytes");
        }
        format!("'{shown}' is not a number of sectors")
    };
    let first = whole(sector).ok_or_else(|| wrong(sector))?;
    match word(rest) {
        Some(b"+") => {}
        // A flush of some kernels: "0 [kworker]".
        Some([b'[', ..]) if first == 0 => return Ok((0, 0)),
        _ => return Err("the number of sectors is missing".into()),
    }
    let count = word(rest).ok_or("the number of sectors is missing")?;
    Ok((first, whole(count).ok_or_else(|| wrong(count))?))
}
