//! The block layer's events, from the pages of the kernel's ring buffer (`trace_pipe_raw`).
//!
//! A page begins with the time of its first event and the number of bytes that are in use; each
//! event has the time since the previous one. `events/header_page` and `events/header_event` in
//! tracefs describe it. blktrace gets its "Q" events from the same tracepoint. The ring buffer can
//! also be read on machines whose kernel is locked down (Secure Boot), unlike blktrace's files.

const PAGE_HEADER: usize = 16;
const SECTOR: u64 = 512;
/// Flags in a page's length word: events before the page were lost; their number follows the data.
const LOST: u64 = 1 << 31;
const LOST_STORED: u64 = 1 << 30;
const LENGTH_MASK: u64 = (1 << 20) - 1;

const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// Absolute times have 59 bits.
const STAMP_BITS: u32 = 59;

/// As in `mirrord.traces.model.Op`.
pub mod op {
    pub const WRITE: u8 = 0;
    pub const READ: u8 = 1;
    pub const TRIM: u8 = 2;
    pub const FLUSH: u8 = 3;
}

/// Offsets of an event's fields, from `events/block/…/format` in tracefs.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// The event's number, in `common_type`.
    pub kind: u16,
    pub sector: usize,
    pub sectors: usize,
    pub rwbs: usize,
    pub rwbs_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Time by the trace clock.
    pub time_ns: u64,
    pub op: u8,
    /// Byte range on the device.
    pub offset: u64,
    pub length: u64,
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn le64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Passes the records of one page to `sink`; returns how many events were lost before it.
pub fn read_page(
    page: &[u8],
    fields: &Fields,
    sink: &mut dyn FnMut(Record),
) -> Result<u64, String> {
    let cut = || "a page of the kernel's buffer is cut short".to_string();
    let mut time = le64(page, 0).ok_or_else(cut)?;
    let word = le64(page, 8).ok_or_else(cut)?;
    let end = PAGE_HEADER + (word & LENGTH_MASK) as usize;
    let data = page.get(..end).ok_or_else(cut)?;
    let lost = match word & (LOST | LOST_STORED) {
        0 => 0,
        LOST => 1, // the page had no room for the number
        _ => le64(page, end).unwrap_or(1),
    };
    let mut at = PAGE_HEADER;
    while at + 4 <= data.len() {
        let header = le32(data, at).ok_or_else(cut)?;
        let (kind, delta) = (header & 31, u64::from(header >> 5));
        let more = || le32(data, at + 4).map(u64::from).ok_or_else(cut);
        let (body, length) = match kind {
            PADDING if delta == 0 => break,
            PADDING => (None, 4 + more()? as usize),
            TIME_EXTEND => {
                time = time.wrapping_add(delta + (more()? << 27));
                (None, 8)
            }
            TIME_STAMP => {
                let high = time >> STAMP_BITS << STAMP_BITS;
                time = high | ((delta + (more()? << 27)) & ((1 << STAMP_BITS) - 1));
                (None, 8)
            }
            0 => (Some(at + 8), 4 + more()? as usize),
            words => (Some(at + 4), 4 + 4 * words as usize),
        };
        let next = at + length.max(4);
        if let Some(begin) = body {
            time = time.wrapping_add(delta);
            let event = data.get(begin..next).ok_or_else(cut)?;
            if let Some(record) = read_event(event, time, fields) {
                sink(record);
            }
        }
        at = next;
    }
    Ok(lost)
}

fn read_event(event: &[u8], time_ns: u64, fields: &Fields) -> Option<Record> {
    if le16(event, 0)? != fields.kind {
        return None;
    }
    let rwbs = event.get(fields.rwbs..fields.rwbs + fields.rwbs_bytes)?;
    let length = u64::from(le32(event, fields.sectors)?) * SECTOR;
    let op = op_of(rwbs)?;
    Some(Record {
        time_ns,
        op: if length == 0 { op::FLUSH } else { op },
        offset: if length == 0 {
            0
        } else {
            le64(event, fields.sector)?.wrapping_mul(SECTOR)
        },
        length,
    })
}

/// From the kernel's flag letters of a request: a leading "F" means that a flush comes
/// first; then the operation; then its attributes ("S" sync, "M" metadata, "A" readahead, "F" FUA).
fn op_of(rwbs: &[u8]) -> Option<u8> {
    let letters = match rwbs {
        [b'F', rest @ ..] if rest.first().is_some_and(u8::is_ascii_uppercase) => rest,
        all => all,
    };
    match letters.first()? {
        b'R' => Some(op::READ),
        b'W' => Some(op::WRITE),
        b'D' => Some(op::TRIM),
        b'F' => Some(op::FLUSH),
        // Zeroes written by the device itself: new content for a mirror.
        b'N' => Some(op::WRITE),
        _ => None, // zone management
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: Fields = Fields {
        kind: 1029,
        sector: 16,
        sectors: 24,
        rwbs: 28,
        rwbs_bytes: 8,
    };

    fn event(delta: u32, kind: u16, sector: u64, sectors: u32, rwbs: &[u8]) -> Vec<u8> {
        let mut body = kind.to_le_bytes().to_vec();
        body.resize(16, 0);
        body.extend_from_slice(&sector.to_le_bytes());
        body.extend_from_slice(&sectors.to_le_bytes());
        body.extend_from_slice(rwbs);
        body.resize(52, 0);
        let mut whole = ((delta << 5) | (body.len() as u32 / 4))
            .to_le_bytes()
            .to_vec();
        whole.extend(body);
        whole
    }

    fn page(time: u64, flags: u64, parts: &[Vec<u8>]) -> Vec<u8> {
        let data = parts.concat();
        let mut page = time.to_le_bytes().to_vec();
        page.extend_from_slice(&(data.len() as u64 | flags).to_le_bytes());
        page.extend(data);
        if flags & LOST_STORED != 0 {
            page.extend_from_slice(&77u64.to_le_bytes());
        }
        page.resize(4096, 0);
        page
    }

    fn read(page: &[u8]) -> (Vec<Record>, u64) {
        let mut found = Vec::new();
        let lost = read_page(page, &FIELDS, &mut |record| found.push(record)).unwrap();
        (found, lost)
    }

    #[test]
    fn times_add_up_and_what_is_no_request_is_passed_over() {
        let extend = [
            ((5u32 << 5) | TIME_EXTEND).to_le_bytes(),
            2u32.to_le_bytes(),
        ]
        .concat();
        let padding = [
            ((1u32 << 5) | PADDING).to_le_bytes(),
            8u32.to_le_bytes(),
            [0; 4],
        ]
        .concat();
        let mut long = event(3, 1029, 1, 1, b"DS");
        let body = long.split_off(4);
        let mut long = (3u32 << 5).to_le_bytes().to_vec();
        long.extend_from_slice(&(body.len() as u32 + 4).to_le_bytes());
        long.extend(body);
        let (found, lost) = read(&page(
            1000,
            0,
            &[
                event(10, 1029, 8, 16, b"WS"),
                extend,
                event(1, 1029, 100, 8, b"RA"),
                padding,
                event(1, 7, 100, 8, b"W"),
                long,
                event(0, 1029, 0, 0, b"FF"),
                event(0, 1029, 4, 8, b"FWFS"),
            ],
        ));
        let late = 1016 + (2 << 27);
        let expected = [
            (1010, op::WRITE, 4096, 8192),
            (late, op::READ, 51_200, 4096),
            (late + 4, op::TRIM, 512, 512),
            (late + 4, op::FLUSH, 0, 0),
            (late + 4, op::WRITE, 2048, 4096),
        ];
        let as_tuple = |r: &Record| (r.time_ns, r.op, r.offset, r.length);
        assert_eq!(found.iter().map(as_tuple).collect::<Vec<_>>(), expected);
        assert_eq!(lost, 0);
    }

    #[test]
    fn lost_events_are_counted() {
        let one = [event(0, 1029, 0, 8, b"W")];
        assert_eq!(read(&page(0, LOST, &one)).1, 1);
        assert_eq!(read(&page(0, LOST | LOST_STORED, &one)).1, 77);
    }

    #[test]
    fn garbage_never_panics() {
        let mut state = 1u64;
        let good = page(0, 0, &vec![event(1, 1029, 8, 8, b"W"); 60]);
        for _ in 0..20_000 {
            let mut bad = good.clone();
            for _ in 0..8 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let at = (state >> 33) as usize % bad.len();
                bad[at] = (state >> 24) as u8;
            }
            bad.truncate((state >> 40) as usize % 4097);
            let _ = read_page(&bad, &FIELDS, &mut |_| ());
        }
    }
}
