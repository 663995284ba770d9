//! Recordings of a live mirror's data path: a header of 64 bytes, then records of 64 bytes
//! (native/live-core/src/primary/recording.rs).

use super::binary::{u32_at, u64_at, RecordParser};
use super::columns::Record;
use super::{Columns, Op, Shared};

const MAGIC: &[u8] = b"mirrord live 1\n\0";
const UNKNOWN: u32 = u32::MAX;

pub struct Live;

impl RecordParser for Live {
    const SIZE: usize = 64;

    fn header(&mut self, data: &[u8], shared: &mut Shared) -> Result<Option<usize>, String> {
        let shown = data.len().min(MAGIC.len());
        if data[..shown] != MAGIC[..shown] {
            return Err("the header is not that of a recording of a live mirror".into());
        }
        if data.len() < Self::SIZE {
            return Ok(None);
        }
        shared.epoch = Some(i128::from(u64_at(data, 16)));
        Ok(Some(Self::SIZE))
    }

    fn record(&mut self, b: &[u8], shared: &mut Shared, out: &mut Columns) -> Result<(), String> {
        let op = match b[0] {
            0 | 1 => Op::Write,
            2 => Op::Trim,
            16 => return Ok(()),
            17 => {
                let missing = u64_at(b, 8);
                shared.add("writes missing that were too many to be recorded", missing);
                return Ok(());
            }
            18 => return Ok(()),
            kind => return Err(format!("a record of an unknown kind: {kind}")),
        };
        let answered = u32_at(b, 52);
        let latency = match answered {
            UNKNOWN => -1,
            microseconds => i64::from(microseconds) * 1000,
        };
        let record = Record {
            time: i128::from(u64_at(b, 32)) * 1000,
            volume: shared.volume(b"image")?,
            op,
            offset: u64_at(b, 8),
            length: u64::from(u32_at(b, 4)),
            latency,
        };
        shared.push(&record, out)
    }
}
