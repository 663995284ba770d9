//! Binary records of a fixed size: vscsi of VMware, SRT of HP.

use super::columns::Record;
use super::delimited::scsi;
use super::{Columns, Fault, Op, Parser, Shared};

/// Parses the records of one format.
pub trait RecordParser {
    const SIZE: usize;
    /// How many bytes before the first record; None: not known yet.
    fn header(&mut self, _data: &[u8], _shared: &mut Shared) -> Result<Option<usize>, String> {
        Ok(Some(0))
    }
    fn record(
        &mut self,
        bytes: &[u8],
        shared: &mut Shared,
        out: &mut Columns,
    ) -> Result<(), String>;
}

/// Splits a source into records.
pub struct Records<P> {
    inner: P,
    shared: Shared,
    carry: Vec<u8>,
    begun: bool,
    number: u64,
    skip_bad: bool,
}

impl<P: RecordParser> Records<P> {
    pub fn new(inner: P, skip_bad: bool) -> Self {
        Self {
            inner,
            shared: Shared::default(),
            carry: Vec::new(),
            begun: false,
            number: 0,
            skip_bad,
        }
    }

    fn take(&mut self, bytes: &[u8], out: &mut Columns) -> Result<(), Fault> {
        self.number += 1;
        match self.inner.record(bytes, &mut self.shared, out) {
            Ok(()) => Ok(()),
            Err(_) if self.skip_bad => {
                self.shared.count("bad records left out");
                Ok(())
            }
            Err(what) => Err(Fault::new(what, self.number, b"")),
        }
    }
}

impl<P: RecordParser> Parser for Records<P> {
    fn feed(&mut self, data: &[u8], out: &mut Columns) -> Result<(), Fault> {
        self.carry.extend_from_slice(data);
        let bytes = std::mem::take(&mut self.carry);
        let mut rest = &bytes[..];
        if !self.begun {
            let header = self
                .inner
                .header(rest, &mut self.shared)
                .map_err(|what| Fault::new(what, 1, b""))?;
            match header {
                Some(length) if length <= rest.len() => {
                    rest = &rest[length..];
                    self.begun = true;
                }
                _ => {
                    self.carry = bytes;
                    return Ok(());
                }
            }
        }
        let records = rest.chunks_exact(P::SIZE);
        let tail = records.remainder().to_vec();
        for record in records {
            self.take(record, out)?;
        }
        self.carry = tail;
        Ok(())
    }

    fn finish(&mut self, partial: bool, _out: &mut Columns) -> Result<(), Fault> {
        let left = self.carry.len();
        self.carry.clear();
        if !self.begun && left > 0 {
            return Err(Fault::new("the header does not end", 1, b"").truncated());
        }
        self.begun = false;
        let number = std::mem::take(&mut self.number) + 1;
        self.shared
            .cut_off(left, &P::SIZE.to_string(), number, partial)
    }

    fn shared(&self) -> &Shared {
        &self.shared
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn big_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// VMware's vscsiStats, version 1: 32 bytes little-endian.
pub struct Vscsi1;

/// Version 2: 40 bytes, with the response time.
pub struct Vscsi2;

struct Vscsi {
    version: u16,
    command: u16,
    length: u32,
    sector: u64,
    time_us: u64,
    latency_ns: i64,
}

impl Vscsi {
    fn push(&self, wanted: u16, shared: &mut Shared, out: &mut Columns) -> Result<(), String> {
        if self.version >> 8 != wanted {
            let found = self.version >> 8;
            return Err(format!("the record has version {found}, not {wanted}"));
        }
        let Some(op) = scsi(u64::from(self.command & 0xff)) else {
            shared.count("SCSI commands without data left out");
            return Ok(());
        };
        let offset = self
            .sector
            .checked_mul(512)
            .ok_or("the offset is beyond 2^63 bytes")?;
        let record = Record {
            time: i128::from(self.time_us) * 1000,
            volume: shared.volume(b"0")?,
            op,
            offset,
            length: u64::from(self.length),
            latency: self.latency_ns,
        };
        shared.push(&record, out)
    }
}

impl RecordParser for Vscsi1 {
    const SIZE: usize = 32;

    fn record(&mut self, b: &[u8], shared: &mut Shared, out: &mut Columns) -> Result<(), String> {
        let read = Vscsi {
            version: u16_at(b, 14),
            command: u16_at(b, 12),
            length: u32_at(b, 4),
            sector: u64_at(b, 16),
            time_us: u64_at(b, 24),
            latency_ns: -1,
        };
        read.push(1, shared, out)
    }
}

impl RecordParser for Vscsi2 {
    const SIZE: usize = 40;

    fn record(&mut self, b: &[u8], shared: &mut Shared, out: &mut Columns) -> Result<(), String> {
        let read = Vscsi {
            version: u16_at(b, 2),
            command: u16_at(b, 0),
            length: u32_at(b, 8),
            sector: u64_at(b, 16),
            time_us: u64_at(b, 24),
            latency_ns: i64::try_from(u128::from(u64_at(b, 32)) * 1000).unwrap_or(-1),
        };
        read.push(2, shared, out)
    }
}

/// HP's SRT 1.3: a header of text up to a form feed, then records of 56 bytes big-endian.
#[derive(Default)]
pub struct Srt {
    sector_bytes: u64,
}

/// The header of an SRT file is a few kilobytes.
const SRT_HEADER_MAX: usize = 1 << 20;

impl RecordParser for Srt {
    const SIZE: usize = 56;

    fn header(&mut self, data: &[u8], _shared: &mut Shared) -> Result<Option<usize>, String> {
        let begin = b"$$TR_IOREC-1";
        if !data.starts_with(&begin[..data.len().min(begin.len())]) {
            return Err("the header does not begin with $$TR_IOREC-1".into());
        }
        let Some(end) = data.iter().position(|&byte| byte == 0x0c) else {
            if data.len() > SRT_HEADER_MAX {
                return Err("the header does not end".into());
            }
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&data[..end]);
        let size = text.split("sectorsize").nth(1).and_then(|rest| {
            let digits = rest.trim_start_matches([' ', '\t', '=']);
            digits
                .split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        });
        self.sector_bytes = size.ok_or("the header has no sectorsize")?;
        Ok(Some(end + 1))
    }

    fn record(&mut self, b: &[u8], shared: &mut Shared, out: &mut Columns) -> Result<(), String> {
        if big_at(b, 0) != 56 || big_at(b, 4) != 0x0004_0001 {
            return Err("it is not a short record of version 4".into());
        }
        // ioflags, lowest bit: read.
        let op = if big_at(b, 44) & 1 == 1 {
            Op::Read
        } else {
            Op::Write
        };
        let (started_us, stopped_us) = (i64::from(big_at(b, 16)), i64::from(big_at(b, 20)));
        let record = Record {
            time: i128::from(big_at(b, 8)) * 1_000_000_000 + i128::from(big_at(b, 12)) * 1000,
            volume: shared.volume(format!("{:08x}", big_at(b, 32)).as_bytes())?,
            op,
            offset: u64::from(big_at(b, 28)) * self.sector_bytes,
            length: u64::from(big_at(b, 24)),
            latency: if stopped_us >= started_us {
                stopped_us * 1000
            } else {
                -1
            },
        };
        shared.push(&record, out)
    }
}
