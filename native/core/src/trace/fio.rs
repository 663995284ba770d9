//! fio's iolog, versions 2 and 3.

use super::columns::Record;
use super::lines::LineParser;
use super::number::{is_huge, scaled, trimmed, whole};
use super::{Columns, Op, Shared};

/// Version 2 has `wait` lines instead of times; version 3 begins each line with a time.
pub struct Fio {
    version: u8,
    /// Nanoseconds of a unit of time (fio itself: microseconds).
    time_ns: u64,
    line: u64,
    waited: i128,
}

impl Fio {
    pub fn new(version: u8, time_ns: u64) -> Self {
        Self {
            version,
            time_ns,
            line: 0,
            waited: 0,
        }
    }
}

fn bytes_of(field: Option<&[u8]>, what: &str) -> Result<u64, String> {
    let field = field.ok_or_else(|| format!("the {what} is missing"))?;
    whole(field).ok_or_else(|| {
        let shown = String::from_utf8_lossy(field);
        if is_huge(field) {
            format!("the {what} '{shown}' is beyond 2^63 bytes")
        } else {
            format!("the {what} '{shown}' is not a number")
        }
    })
}

impl LineParser for Fio {
    fn line(&mut self, line: &[u8], shared: &mut Shared, out: &mut Columns) -> Result<(), String> {
        self.line += 1;
        let line = trimmed(line);
        if self.line == 1 {
            let wanted = format!("fio version {} iolog", self.version);
            if line != wanted.as_bytes() {
                return Err(format!("the first line is not '{wanted}'"));
            }
            return Ok(());
        }
        if line.is_empty() {
            return Ok(());
        }
        let mut words = line
            .split(|&byte| byte == b' ')
            .filter(|word| !word.is_empty());
        let mut time = self.waited;
        if self.version == 3 {
            let field = words.next().ok_or("the time is missing")?;
            time = scaled(field, self.time_ns).ok_or_else(|| {
                format!(
                    "the time '{}' is not a number",
                    String::from_utf8_lossy(field)
                )
            })?;
        }
        let file = words.next().ok_or("the file is missing")?;
        let action = words.next().ok_or("the action is missing")?;
        let op = match action {
            b"write" => Op::Write,
            b"read" => Op::Read,
            b"trim" => Op::Trim,
            b"sync" | b"datasync" => Op::Flush,
            b"wait" => {
                let pause = i128::from(bytes_of(words.next(), "pause")?);
                self.waited += pause * i128::from(self.time_ns);
                return Ok(());
            }
            b"add" | b"open" | b"close" => return Ok(()),
            _ => {
                let shown = String::from_utf8_lossy(action);
                return Err(format!("'{shown}' is not an action of fio"));
            }
        };
        let flush = op == Op::Flush;
        let (offset, length) = match flush {
            true => (0, 0),
            false => (
                bytes_of(words.next(), "offset")?,
                bytes_of(words.next(), "length")?,
            ),
        };
        let volume = shared.volume(file)?;
        shared.push(
            &Record {
                time,
                volume,
                op,
                offset,
                length,
                latency: -1,
            },
            out,
        )
    }

    fn restart(&mut self) {
        self.line = 0;
    }
}
