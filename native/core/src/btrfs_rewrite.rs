//! Rewrites the first command of a btrfs send stream.
//!
//! The first command contains the snapshot's name, its identity and that of its parent. Both ends
//! need values other than those of the kernel.

use crate::btrfs_stream::{
    attribute, checksum, le16, le32, Command, Scanner, COMMAND_BYTES_MAX, COMMAND_HEADER,
    STREAM_HEADER,
};

/// The values that `rewrite_beginning` writes instead of the kernel's; None: keep the kernel's.
#[derive(Default)]
pub struct Rewrite<'a> {
    pub path: Option<&'a [u8]>,
    pub ctransid: Option<u64>,
    pub parent_uuid: Option<[u8; 16]>,
}

/// `data`, the beginning of a stream, with its first command changed; None: more data is needed.
pub fn rewrite_beginning(data: &[u8], wanted: &Rewrite) -> Result<Option<Vec<u8>>, String> {
    let Some(length) = le32(data, STREAM_HEADER) else {
        return Ok(None);
    };
    if length as usize > COMMAND_BYTES_MAX {
        return Err(format!(
            "its first command claims to be {length} bytes long"
        ));
    }
    let end = STREAM_HEADER + COMMAND_HEADER + length as usize;
    let Some(whole) = data.get(..end) else {
        return Ok(None);
    };
    // Damaged data must not get a new, valid checksum.
    Scanner::default().feed(whole, &mut |_| ())?;
    let old = Command {
        kind: le16(data, STREAM_HEADER + 4).unwrap_or(0),
        payload: &whole[STREAM_HEADER + COMMAND_HEADER..],
        version: 1,
    };
    let mut payload = Vec::with_capacity(old.payload.len() + 256);
    for item in old.attributes() {
        let (kind, value) = item?;
        let ctransid = wanted.ctransid.map(u64::to_le_bytes);
        let value = match kind {
            attribute::PATH => wanted.path.unwrap_or(value),
            attribute::CTRANSID => ctransid.as_ref().map_or(value, |bytes| bytes),
            attribute::CLONE_UUID => wanted.parent_uuid.as_ref().map_or(value, |uuid| uuid),
            _ => value,
        };
        payload.extend_from_slice(&kind.to_le_bytes());
        payload.extend_from_slice(&(value.len() as u16).to_le_bytes());
        payload.extend_from_slice(value);
    }
    let mut header = Vec::with_capacity(COMMAND_HEADER);
    header.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    header.extend_from_slice(&old.kind.to_le_bytes());
    let crc = checksum(&header, &payload);
    header.extend_from_slice(&crc.to_le_bytes());
    let mut changed = data[..STREAM_HEADER].to_vec();
    changed.extend_from_slice(&header);
    changed.extend_from_slice(&payload);
    changed.extend_from_slice(&data[end..]);
    Ok(Some(changed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btrfs_stream::tests::{sample, scan};

    #[test]
    fn the_beginning_can_be_changed() {
        let stream = sample();
        let wanted = Rewrite {
            path: Some(b"another name"),
            ctransid: Some(77),
            parent_uuid: Some([9; 16]),
        };
        assert_eq!(rewrite_beginning(&stream[..40], &wanted), Ok(None));
        let changed = rewrite_beginning(&stream, &wanted).unwrap().unwrap();
        let scanner = scan(&changed, 100).unwrap();
        assert!(scanner.ended());
        let beginning = scanner.beginning.unwrap();
        assert_eq!(beginning.ctransid, 77);
        assert_eq!(beginning.parent_uuid, Some(vec![9; 16]));
        assert_eq!(beginning.uuid, vec![7; 16]);
    }
}
