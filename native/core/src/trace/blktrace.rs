//! The binary files of blktrace: one per processor, events of 48 bytes with optional payload.

use super::columns::Record;
use super::{Columns, Fault, Op, Parser, Shared};

const EVENT: usize = 48;
const MAGIC: u32 = 0x6561_7400;
const READ: u32 = 1 << 0;
const WRITE: u32 = 1 << 1;
const FLUSH: u32 = 1 << 2;
const NOTIFY: u32 = 1 << 10;
const DISCARD: u32 = 1 << 13;
/// The notification with the wall-clock time: seconds and nanoseconds follow.
const NOTIFY_CLOCK: u32 = 1;

pub struct Blktrace {
    shared: Shared,
    carry: Vec<u8>,
    number: u64,
    /// The action that is read: 1 queued, 8 completed.
    action: u32,
}

struct Event<'a> {
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    device: u32,
    follows: &'a [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Blktrace {
    pub fn new(action: u32) -> Self {
        Self {
            shared: Shared::default(),
            carry: Vec::new(),
            number: 0,
            action,
        }
    }

    /// One event from the beginning of `data`, and its length; None: it is incomplete.
    fn event<'a>(&self, data: &'a [u8]) -> Result<Option<(Event<'a>, usize)>, Fault> {
        if data.len() < EVENT {
            return Ok(None);
        }
        let magic = u32_at(data, 0);
        if magic & 0xffff_ff00 != MAGIC || magic & 0xff != 7 {
            let what = format!("the magic number is {magic:#010x}, not 0x65617407");
            return Err(Fault::new(what, self.number + 1, b""));
        }
        let length = EVENT + usize::from(u16::from_le_bytes([data[46], data[47]]));
        if data.len() < length {
            return Ok(None);
        }
        let event = Event {
            time: u64_at(data, 8),
            sector: u64_at(data, 16),
            bytes: u32_at(data, 24),
            action: u32_at(data, 28),
            device: u32_at(data, 36),
            follows: &data[EVENT..length],
        };
        Ok(Some((event, length)))
    }

    fn take(&mut self, event: &Event, out: &mut Columns) -> Result<(), String> {
        let category = event.action >> 16;
        if category & NOTIFY != 0 {
            if event.action & 0xffff == NOTIFY_CLOCK && event.follows.len() >= 8 {
                let seconds = i128::from(u32_at(event.follows, 0));
                let now = seconds * 1_000_000_000 + i128::from(u32_at(event.follows, 4));
                self.shared
                    .epoch
                    .get_or_insert(now - i128::from(event.time));
            }
            return Ok(());
        }
        if event.action & 0xffff != self.action {
            self.shared.count("events of other actions left out");
            return Ok(());
        }
        let op = if category & DISCARD != 0 {
            Op::Trim
        } else if category & WRITE != 0 && event.bytes > 0 {
            Op::Write
        } else if category & FLUSH != 0 && event.bytes == 0 {
            Op::Flush
        } else if category & READ != 0 {
            Op::Read
        } else {
            self.shared.count("requests of other kinds left out");
            return Ok(());
        };
        let name = format!("{},{}", event.device >> 20, event.device & 0xf_ffff);
        let flush = op == Op::Flush;
        let offset = event
            .sector
            .checked_mul(512)
            .ok_or("the offset is beyond 2^63 bytes")?;
        let record = Record {
            time: i128::from(event.time),
            volume: self.shared.volume(name.as_bytes())?,
            op,
            offset: if flush { 0 } else { offset },
            length: u64::from(event.bytes),
            latency: -1,
        };
        self.shared.push(&record, out)
    }
}

impl Parser for Blktrace {
    fn feed(&mut self, data: &[u8], out: &mut Columns) -> Result<(), Fault> {
        let mut bytes = std::mem::take(&mut self.carry);
        bytes.extend_from_slice(data);
        let mut rest = &bytes[..];
        while let Some((event, length)) = self.event(rest)? {
            self.number += 1;
            self.take(&event, out)
                .map_err(|what| Fault::new(what, self.number, b""))?;
            rest = &rest[length..];
        }
        self.carry = rest.to_vec();
        Ok(())
    }

    fn finish(&mut self, partial: bool, _out: &mut Columns) -> Result<(), Fault> {
        let left = self.carry.len();
        self.carry.clear();
        let number = std::mem::take(&mut self.number) + 1;
        self.shared.cut_off(left, "it", number, partial)
    }

    fn shared(&self) -> &Shared {
        &self.shared
    }
}
