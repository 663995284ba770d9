//! Btrfs send streams, checked command by command.
//!
//! `btrfs receive` accepts an end of file between two commands as a valid end, and a sending
//! kernel that is stopped and continued restarts its stream. So both ends of a transfer check
//! every command: a stream is complete only with its END command.

pub const MAGIC: &[u8; 13] = b"btrfs-stream\0";
const AGAIN: &str = "it begins again in its middle: the sender was stopped meanwhile";
pub const STREAM_HEADER: usize = 17;
pub const COMMAND_HEADER: usize = 10;
/// The kernel's own limit is 144 KiB (192 KiB with large pages).
pub(crate) const COMMAND_BYTES_MAX: usize = 1 << 20;

pub mod command {
    pub const SUBVOL: u16 = 1;
    pub const SNAPSHOT: u16 = 2;
    pub const MKFILE: u16 = 3;
    pub const MKDIR: u16 = 4;
    pub const MKNOD: u16 = 5;
    pub const MKFIFO: u16 = 6;
    pub const MKSOCK: u16 = 7;
    pub const SYMLINK: u16 = 8;
    pub const RENAME: u16 = 9;
    pub const LINK: u16 = 10;
    pub const UNLINK: u16 = 11;
    pub const RMDIR: u16 = 12;
    pub const SET_XATTR: u16 = 13;
    pub const REMOVE_XATTR: u16 = 14;
    pub const WRITE: u16 = 15;
    pub const CLONE: u16 = 16;
    pub const TRUNCATE: u16 = 17;
    pub const CHMOD: u16 = 18;
    pub const CHOWN: u16 = 19;
    pub const UTIMES: u16 = 20;
    pub const END: u16 = 21;
    pub const UPDATE_EXTENT: u16 = 22;
    /// The last command of version 1.
    pub const LAST_V1: u16 = UPDATE_EXTENT;
    pub const FALLOCATE: u16 = 23;
    pub const FILEATTR: u16 = 24;
    pub const ENCODED_WRITE: u16 = 25;
    pub const LAST_V2: u16 = ENCODED_WRITE;
    pub const ENABLE_VERITY: u16 = 26;
    pub const LAST: u16 = ENABLE_VERITY;
}

pub mod attribute {
    pub const UUID: u16 = 1;
    pub const CTRANSID: u16 = 2;
    pub const SIZE: u16 = 4;
    pub const MODE: u16 = 5;
    pub const UID: u16 = 6;
    pub const GID: u16 = 7;
    pub const RDEV: u16 = 8;
    pub const MTIME: u16 = 10;
    pub const ATIME: u16 = 11;
    pub const XATTR_NAME: u16 = 13;
    pub const XATTR_DATA: u16 = 14;
    pub const PATH: u16 = 15;
    pub const PATH_TO: u16 = 16;
    pub const PATH_LINK: u16 = 17;
    pub const FILE_OFFSET: u16 = 18;
    pub const DATA: u16 = 19;
    pub const CLONE_UUID: u16 = 20;
    pub const CLONE_CTRANSID: u16 = 21;
    pub const CLONE_PATH: u16 = 22;
    pub const CLONE_OFFSET: u16 = 23;
    pub const CLONE_LEN: u16 = 24;
    pub const FALLOCATE_MODE: u16 = 25;
    pub const FILEATTR: u16 = 26;
    pub const UNENCODED_FILE_LEN: u16 = 27;
    pub const UNENCODED_LEN: u16 = 28;
    pub const UNENCODED_OFFSET: u16 = 29;
    pub const COMPRESSION: u16 = 30;
    pub const ENCRYPTION: u16 = 31;
    pub const VERITY_ALGORITHM: u16 = 32;
    pub const VERITY_BLOCK_SIZE: u16 = 33;
    pub const VERITY_SALT_DATA: u16 = 34;
    pub const VERITY_SIG_DATA: u16 = 35;
    pub const LAST: u16 = VERITY_SIG_DATA;
}

pub fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub fn le64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// One command of a stream, its checksum verified.
pub struct Command<'a> {
    pub kind: u16,
    pub payload: &'a [u8],
    pub version: u32,
}

impl<'a> Command<'a> {
    /// The attributes in order; an error when a length exceeds the command.
    pub fn attributes(&self) -> Attributes<'a> {
        Attributes::of(self.payload, self.version)
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

impl<'a> Attributes<'a> {
    /// The attributes of the command with this payload.
    pub fn of(payload: &'a [u8], version: u32) -> Self {
        Self {
            rest: payload,
            version,
        }
    }
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
pub fn checksum(header: &[u8], payload: &[u8]) -> u32 {
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
#[path = "btrfs_stream_tests.rs"]
pub mod tests;
