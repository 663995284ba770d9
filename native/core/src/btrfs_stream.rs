//! Btrfs send streams, checked command by command.
//!
//! `btrfs receive` accepts an end of file between two commands as a valid end, and a sending
//! kernel that is stopped and continued restarts its stream. So both ends of a transfer check
//! every command: a stream is complete only with its END command.

pub const MAGIC: &[u8; 13] = b"btrfs-stream\0";
const AGAIN: &str = "it begins again in its middle: the sender was stopped meanwhile";
pub(crate) const STREAM_HEADER: usize = 17;
pub(crate) const COMMAND_HEADER: usize = 10;
/// The kernel's own limit is 144 KiB (192 KiB with large pages).
pub(crate) const COMMAND_BYTES_MAX: usize = 1 << 20;

pub mod command {
    pub const SUBVOL: u16 = 1;
    pub const SNAPSHOT: u16 = 2;
    pub const MKFILE: u16 = 3;
    pub const SYMLINK: u16 = 8;
    pub const RENAME: u16 = 9;
    pub const LINK: u16 = 10;
    pub const UNLINK: u16 = 11;
    pub const RMDIR: u16 = 12;
    pub const WRITE: u16 = 15;
    pub const CLONE: u16 = 16;
    pub const TRUNCATE: u16 = 17;
    pub const UTIMES: u16 = 20;
    pub const END: u16 = 21;
    pub const UPDATE_EXTENT: u16 = 22;
    pub const FALLOCATE: u16 = 23;
    pub const ENCODED_WRITE: u16 = 25;
    pub const LAST: u16 = 26;
}

pub mod attribute {
    pub const UUID: u16 = 1;
    pub const CTRANSID: u16 = 2;
    pub const SIZE: u16 = 4;
    pub const PATH: u16 = 15;
    pub const PATH_TO: u16 = 16;
    pub const PATH_LINK: u16 = 17;
    pub const DATA: u16 = 19;
    pub const CLONE_UUID: u16 = 20;
    pub const CLONE_CTRANSID: u16 = 21;
    pub const CLONE_PATH: u16 = 22;
    pub const CLONE_LEN: u16 = 24;
}

pub(crate) fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn le64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// One command of a stream, its checksum verified.
pub struct Command<'a> {
    pub kind: u16,
    pub payload: &'a [u8],
    pub(crate) version: u32,
}

impl<'a> Command<'a> {
    /// The attributes in order; an error when a length exceeds the command.
    pub fn attributes(&self) -> Attributes<'a> {
        Attributes {
            rest: self.payload,
            version: self.version,
        }
    }

    pub fn attribute(&self, kind: u16) -> Option<&'a [u8]> {
        self.attributes()
            .filter_map(Result::ok)
            .find(|(found, _)| *found == kind)
            .map(|(_, value)| value)
    }

    pub fn number(&self, kind: u16) -> Option<u64> {
        self.attribute(kind).and_then(le64)
    }
}

pub struct Attributes<'a> {
    rest: &'a [u8],
    version: u32,
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8]), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let Some(kind) = le16(rest, 0) else {
            return Some(Err("an attribute is cut short".into()));
        };
        // From version 2 on, data is the last attribute and has no length field.
        if kind == attribute::DATA && self.version >= 2 {
            return Some(Ok((kind, &rest[2..])));
        }
        let value = le16(rest, 2).and_then(|length| rest.get(4..4 + length as usize));
        let Some(value) = value else {
            return Some(Err("an attribute is longer than its command".into()));
        };
        self.rest = &rest[4 + value.len()..];
        Some(Ok((kind, value)))
    }
}

/// CRC32C as used by btrfs: seed 0, no inversions; the checksum's own field counts as zero.
pub(crate) fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(!0, &header[..6]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    !crc32c::crc32c_append(crc, payload)
}

fn has_magic(data: &[u8]) -> bool {
    data.windows(MAGIC.len()).any(|part| part == MAGIC)
}

/// The content of the first command: the snapshot, and its parent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Beginning {
    pub uuid: Vec<u8>,
    pub ctransid: u64,
    pub parent_uuid: Option<Vec<u8>>,
}

#[derive(Default, PartialEq)]
enum State {
    #[default]
    Header,
    Commands,
    Ended,
    Broken,
}

/// Checks a stream that is passed in pieces of any size.
#[derive(Default)]
pub struct Scanner {
    state: State,
    pending: Vec<u8>,
    pub version: u32,
    pub commands: u64,
    pub bytes: u64,
    pub data_bytes: u64,
    pub beginning: Option<Beginning>,
}

impl Scanner {
    pub fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Check the next piece and pass each complete command to `sink`. After an error: only errors.
    pub fn feed(&mut self, data: &[u8], sink: &mut dyn FnMut(&Command)) -> Result<(), String> {
        let past_its_beginning = &data[usize::from(self.bytes == 0).min(data.len())..];
        self.advance(data, sink).map_err(|why| {
            self.state = State::Broken;
            // The kernel restarts at any position, usually within a command.
            if has_magic(past_its_beginning) {
                return AGAIN.into();
            }
            why
        })
    }

    fn advance(&mut self, mut data: &[u8], sink: &mut dyn FnMut(&Command)) -> Result<(), String> {
        if self.state == State::Broken {
            return Err("an earlier part of it was damaged".into());
        }
        self.bytes += data.len() as u64;
        while !data.is_empty() {
            if self.pending.is_empty() {
                let length = self.unit(data)?;
                if data.len() >= length && data.len() >= COMMAND_HEADER {
                    self.take(&data[..length], sink)?;
                    data = &data[length..];
                    continue;
                }
            }
            // A command that is split over two pieces is joined.
            let wanted = self.unit(&self.pending)?;
            let taken = (wanted - self.pending.len()).min(data.len());
            self.pending.extend_from_slice(&data[..taken]);
            data = &data[taken..];
            let length = self.unit(&self.pending)?;
            if self.pending.len() >= length && self.pending.len() >= COMMAND_HEADER {
                let whole = std::mem::take(&mut self.pending);
                self.take(&whole, sink)?;
            }
        }
        Ok(())
    }

    /// The length of the unit that begins at `data`, if `data` is enough to determine it.
    fn unit(&self, data: &[u8]) -> Result<usize, String> {
        match self.state {
            State::Header => return Ok(STREAM_HEADER),
            State::Ended => return Err("something follows its end".into()),
            State::Broken => return Err("an earlier part of it was damaged".into()),
            State::Commands => {}
        }
        let known = data.len().min(MAGIC.len());
        if known >= 4 && data[..known] == MAGIC[..known] {
            return Err(AGAIN.into());
        }
        let Some(length) = le32(data, 0) else {
            return Ok(COMMAND_HEADER);
        };
        if length as usize > COMMAND_BYTES_MAX {
            return Err(format!(
                "command {} claims to be {length} bytes long",
                self.commands + 1
            ));
        }
        Ok(COMMAND_HEADER + length as usize)
    }

    fn take(&mut self, unit: &[u8], sink: &mut dyn FnMut(&Command)) -> Result<(), String> {
        if self.state == State::Header {
            if unit[..13] != MAGIC[..] {
                return Err("it does not begin as a btrfs stream".into());
            }
            self.version = le32(unit, 13).unwrap_or(0);
            if !(1..=2).contains(&self.version) {
                return Err(format!("it has the unknown version {}", self.version));
            }
            self.state = State::Commands;
            return Ok(());
        }
        let (header, payload) = unit.split_at(COMMAND_HEADER);
        let number = self.commands + 1;
        if le32(header, 6) != Some(checksum(header, payload)) {
            if has_magic(unit) {
                return Err(AGAIN.into());
            }
            return Err(format!("the checksum of command {number} is wrong"));
        }
        let kind = le16(header, 4).unwrap_or(0);
        let command = Command {
            kind,
            payload,
            version: self.version,
        };
        self.check(&command)
            .map_err(|why| format!("{why} (command {number}, type {kind})"))?;
        self.commands = number;
        if kind == command::END {
            self.state = State::Ended;
        }
        sink(&command);
        Ok(())
    }

    fn check(&mut self, command: &Command) -> Result<(), String> {
        let begins = matches!(command.kind, command::SUBVOL | command::SNAPSHOT);
        if begins != self.beginning.is_none() {
            return Err("a command after the first names the snapshot".into());
        }
        if command.kind == 0 || command.kind > command::LAST {
            return Err("the command is unknown".into());
        }
        for item in command.attributes() {
            let (kind, value) = item?;
            let link = kind == attribute::PATH_LINK && command.kind == command::LINK;
            let path = matches!(
                kind,
                attribute::PATH | attribute::PATH_TO | attribute::CLONE_PATH
            );
            if (path || link) && !is_inside(value) {
                return Err("a path is outside of the volume".into());
            }
            if kind == attribute::DATA {
                self.data_bytes += value.len() as u64;
            }
        }
        if begins {
            let uuid = command.attribute(attribute::UUID).unwrap_or_default();
            let ctransid = command.number(attribute::CTRANSID);
            let parent = command.attribute(attribute::CLONE_UUID);
            if uuid.len() != 16 || parent.is_some_and(|uuid| uuid.len() != 16) {
                return Err("the snapshot has no identity".into());
            }
            self.beginning = Some(Beginning {
                uuid: uuid.to_vec(),
                ctransid: ctransid.ok_or("the snapshot has no transaction")?,
                parent_uuid: parent.map(<[u8]>::to_vec),
            });
        }
        Ok(())
    }
}

fn is_inside(path: &[u8]) -> bool {
    !path.contains(&0)
        && path.first() != Some(&b'/')
        && path.split(|&byte| byte == b'/').all(|part| part != b"..")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub type Attribute<'a> = (u16, &'a [u8]);

    pub fn encode(kind: u16, attributes: &[Attribute]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (kind, value) in attributes {
            payload.extend_from_slice(&kind.to_le_bytes());
            payload.extend_from_slice(&(value.len() as u16).to_le_bytes());
            payload.extend_from_slice(value);
        }
        let mut unit = (payload.len() as u32).to_le_bytes().to_vec();
        unit.extend_from_slice(&kind.to_le_bytes());
        let crc = checksum(&unit, &payload);
        unit.extend_from_slice(&crc.to_le_bytes());
        unit.extend_from_slice(&payload);
        unit
    }

    pub fn begin() -> Vec<u8> {
        let mut stream = MAGIC.to_vec();
        stream.extend_from_slice(&1u32.to_le_bytes());
        stream.extend(encode(
            command::SNAPSHOT,
            &[
                (attribute::PATH, b"snap"),
                (attribute::UUID, &[7; 16]),
                (attribute::CTRANSID, &9u64.to_le_bytes()),
                (attribute::CLONE_UUID, &[8; 16]),
                (attribute::CLONE_CTRANSID, &5u64.to_le_bytes()),
            ],
        ));
        stream
    }

    pub fn sample() -> Vec<u8> {
        let mut stream = begin();
        for n in 0..50usize {
            let data = vec![n as u8; n * 37];
            stream.extend(encode(
                command::WRITE,
                &[(attribute::PATH, b"dir/file"), (attribute::DATA, &data)],
            ));
        }
        stream.extend(encode(command::END, &[]));
        stream
    }

    pub fn scan(stream: &[u8], piece: usize) -> Result<Scanner, String> {
        let mut scanner = Scanner::default();
        for piece in stream.chunks(piece) {
            scanner.feed(piece, &mut |_| ())?;
        }
        Ok(scanner)
    }

    #[test]
    fn a_stream_reads_the_same_however_it_is_cut() {
        let stream = sample();
        for piece in [1, 2, 3, 9, 10, 11, 17, 100, 4096, stream.len()] {
            let scanner = scan(&stream, piece).unwrap();
            assert!(scanner.ended());
            assert_eq!(scanner.commands, 52);
            assert_eq!(scanner.data_bytes, (0..50).map(|n| n * 37).sum::<u64>());
            let beginning = scanner.beginning.unwrap();
            assert_eq!(beginning.ctransid, 9);
            assert_eq!(beginning.parent_uuid, Some(vec![8; 16]));
        }
    }

    #[test]
    fn every_flipped_bit_is_found_or_leaves_no_end() {
        let stream = sample();
        for at in 0..stream.len() {
            let mut bad = stream.clone();
            bad[at] ^= 1 << (at % 8);
            if let Ok(scanner) = scan(&bad, 1000) {
                // Versions 1 and 2 differ in a single bit pattern; nothing else may be accepted.
                assert!(!scanner.ended() || at == 13, "byte {at}");
            }
        }
    }

    #[test]
    fn a_part_is_never_whole() {
        let stream = sample();
        for length in 0..stream.len() {
            assert!(!scan(&stream[..length], 512).unwrap().ended());
        }
    }

    #[test]
    fn what_begins_again_or_goes_on_after_the_end_is_refused() {
        let stream = sample();
        let mut again = stream[..stream.len() - 10].to_vec();
        again.extend_from_slice(&stream);
        assert!(scan(&again, 64).err().unwrap().contains("begins again"));
        let end = stream.len();
        for stopped in (STREAM_HEADER..200)
            .chain((200..end).step_by(997))
            .chain(end - 99..end)
        {
            let again = [&stream[..stopped], &stream[..]].concat();
            for piece in [stopped, stopped + 40, again.len()] {
                assert_eq!(
                    scan(&again, piece).err().unwrap(),
                    AGAIN,
                    "{stopped} {piece}"
                );
            }
        }
        let mut damaged = stream.clone();
        damaged[40] ^= 1;
        assert!(scan(&damaged, 4096).err().unwrap().contains("checksum"));
        let mut long = stream.clone();
        long.push(0);
        assert!(scan(&long, 64).err().unwrap().contains("follows its end"));
    }

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        for path in [&b"../x"[..], b"/etc/passwd", b"a/../../b", b"a\0b"] {
            let mut stream = begin();
            stream.extend(encode(command::UNLINK, &[(attribute::PATH, path)]));
            assert!(scan(&stream, 64).is_err());
        }
    }

    #[test]
    fn garbage_never_panics() {
        let mut state = 99u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) as usize
        };
        let stream = sample();
        for _ in 0..2000 {
            let mut bad = if random() % 2 == 0 {
                stream.clone()
            } else {
                begin()
            };
            for _ in 0..random() % 20 {
                let at = random() % bad.len();
                bad[at] = random() as u8;
            }
            bad.extend((0..random() % 100).map(|_| random() as u8));
            let _ = scan(&bad, 1 + random() % 300);
            let _ = crate::btrfs_rewrite::rewrite_beginning(&bad, &Default::default());
        }
    }
}
