//! The commands of a stream, decoded; every path in them is checked.

use mirrord_core::btrfs_stream::{attribute, command, le64, Attributes};

use crate::sys::Encoding;

/// PATH_MAX of Linux, without the terminating zero.
const PATH_MAX: usize = 4095;
const NAME_MAX: usize = 255;
/// XATTR_SIZE_MAX of Linux.
const XATTR_MAX: usize = 64 << 10;

/// Seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    pub access: Time,
    pub change: Time,
}

/// What a command creates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum New<'a> {
    File,
    Folder,
    Fifo,
    Socket,
    Node { mode: u32, device: u32 },
    Link { target: &'a [u8] },
}

#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    Begin {
        uuid: [u8; 16],
        ctransid: u64,
        /// Of an increment: how the sender calls the base.
        base: Option<[u8; 16]>,
        name: &'a [u8],
    },
    Make {
        path: &'a [u8],
        new: New<'a>,
    },
    Rename {
        from: &'a [u8],
        to: &'a [u8],
    },
    HardLink {
        path: &'a [u8],
        target: &'a [u8],
    },
    Unlink {
        path: &'a [u8],
    },
    RemoveFolder {
        path: &'a [u8],
    },
    SetXattr {
        path: &'a [u8],
        name: &'a [u8],
        value: &'a [u8],
    },
    RemoveXattr {
        path: &'a [u8],
        name: &'a [u8],
    },
    Write {
        path: &'a [u8],
        offset: u64,
        data: &'a [u8],
    },
    Clone {
        path: &'a [u8],
        offset: u64,
        length: u64,
        source: [u8; 16],
        source_path: &'a [u8],
        source_offset: u64,
    },
    Truncate {
        path: &'a [u8],
        size: u64,
    },
    Chmod {
        path: &'a [u8],
        mode: u32,
    },
    Chown {
        path: &'a [u8],
        user: u32,
        group: u32,
    },
    SetTimes {
        path: &'a [u8],
        times: Times,
    },
    Allocate {
        path: &'a [u8],
        mode: u32,
        offset: u64,
        length: u64,
    },
    FileAttributes {
        path: &'a [u8],
        flags: u64,
    },
    EncodedWrite {
        path: &'a [u8],
        encoding: Encoding,
        data: &'a [u8],
    },
    EnableVerity {
        path: &'a [u8],
        algorithm: u32,
        block_size: u32,
        salt: &'a [u8],
        signature: &'a [u8],
    },
    End,
}

/// The name of a command, for messages.
pub fn name(kind: u16) -> &'static str {
    const NAMES: [&str; 27] = [
        "unknown",
        "subvol",
        "snapshot",
        "mkfile",
        "mkdir",
        "mknod",
        "mkfifo",
        "mksock",
        "symlink",
        "rename",
        "link",
        "unlink",
        "rmdir",
        "set_xattr",
        "remove_xattr",
        "write",
        "clone",
        "truncate",
        "chmod",
        "chown",
        "utimes",
        "end",
        "update_extent",
        "fallocate",
        "fileattr",
        "encoded_write",
        "enable_verity",
    ];
    NAMES.get(usize::from(kind)).copied().unwrap_or("unknown")
}

type Result<T> = std::result::Result<T, String>;

/// The attributes of one command, each at most once.
struct Fields<'a> {
    values: [Option<&'a [u8]>; attribute::LAST as usize + 1],
}

impl<'a> Fields<'a> {
    fn read(payload: &'a [u8], version: u32) -> Result<Self> {
        let mut values = [None; attribute::LAST as usize + 1];
        for item in Attributes::of(payload, version) {
            let (kind, value) = item?;
            let slot = values.get_mut(usize::from(kind)).filter(|_| kind != 0);
            let slot = slot.ok_or_else(|| format!("the unknown attribute {kind}"))?;
            if slot.replace(value).is_some() {
                return Err(format!("attribute {kind} occurs twice"));
            }
        }
        Ok(Self { values })
    }

    fn bytes(&self, kind: u16) -> Result<&'a [u8]> {
        let value = self.values[usize::from(kind)];
        value.ok_or_else(|| format!("attribute {kind} is missing"))
    }

    fn number(&self, kind: u16) -> Result<u64> {
        le64(self.bytes(kind)?).ok_or_else(|| format!("attribute {kind} is not a number"))
    }

    fn small(&self, kind: u16) -> Result<u32> {
        let number = self.number(kind)?;
        u32::try_from(number).map_err(|_| format!("attribute {kind} is too large"))
    }

    /// The largest number means "unchanged" to the kernel.
    fn owner(&self, kind: u16) -> Result<u32> {
        let id = self.small(kind)?;
        if id == u32::MAX {
            return Err(format!("attribute {kind} is not an owner"));
        }
        Ok(id)
    }

    fn word(&self, kind: u16) -> Result<u32> {
        let value = self.bytes(kind)?.try_into().map(u32::from_le_bytes);
        value.map_err(|_| format!("attribute {kind} is not a number of 32 bits"))
    }

    fn uuid(&self, kind: u16) -> Result<[u8; 16]> {
        let uuid: Option<[u8; 16]> = self.bytes(kind)?.try_into().ok();
        uuid.ok_or_else(|| format!("attribute {kind} is not a uuid"))
    }

    fn time(&self, kind: u16) -> Result<Time> {
        let bytes = self.bytes(kind)?;
        let split = bytes.split_at_checked(8).and_then(|(seconds, rest)| {
            Some((le64(seconds)?, u32::from_le_bytes(rest.try_into().ok()?)))
        });
        match split {
            Some((seconds, nanoseconds)) if nanoseconds < 1_000_000_000 => Ok(Time {
                seconds: seconds as i64,
                nanoseconds,
            }),
            _ => Err(format!("attribute {kind} is not a time")),
        }
    }

    fn path(&self, kind: u16) -> Result<&'a [u8]> {
        let path = self.bytes(kind)?;
        check_path(path)?;
        if path.is_empty() {
            return Err("a path is empty".into());
        }
        Ok(path)
    }

    /// Also the snapshot's own folder, whose path is empty.
    fn any_path(&self) -> Result<&'a [u8]> {
        let path = self.bytes(attribute::PATH)?;
        check_path(path)?;
        Ok(path)
    }

    fn xattr_name(&self) -> Result<&'a [u8]> {
        let name = self.bytes(attribute::XATTR_NAME)?;
        if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
            return Err("the name of an extended attribute is not valid".into());
        }
        Ok(name)
    }

    /// An end that the kernel's signed offsets can express.
    fn range(&self, at: u16, length: u64) -> Result<u64> {
        let offset = self.number(at)?;
        match offset.checked_add(length) {
            Some(end) if end <= i64::MAX as u64 => Ok(offset),
            _ => Err(format!(
                "{length} bytes at {offset} are beyond the largest file"
            )),
        }
    }
}

/// Every component is a name: so no path leads out of the snapshot but through a symbolic link.
pub fn check_path(path: &[u8]) -> Result<()> {
    if path.len() > PATH_MAX {
        return Err(format!("a path of {} bytes is too long", path.len()));
    }
    if path.is_empty() {
        return Ok(());
    }
    let valid = |name: &[u8]| {
        !matches!(name, b"" | b"." | b"..") && name.len() <= NAME_MAX && !name.contains(&0)
    };
    if path.split(|&byte| byte == b'/').all(valid) {
        Ok(())
    } else {
        Err("a path is outside of the volume, or not valid".into())
    }
}

/// Decode one command whose checksum was verified.
pub fn decode(kind: u16, payload: &[u8], version: u32) -> Result<Command<'_>> {
    let fields = Fields::read(payload, version)?;
    let path = || fields.path(attribute::PATH);
    let make = |new| -> Result<Command> { Ok(Command::Make { path: path()?, new }) };
    Ok(match kind {
        command::SUBVOL | command::SNAPSHOT => {
            let name = path()?;
            let base = match kind {
                command::SNAPSHOT => Some(fields.uuid(attribute::CLONE_UUID)?),
                _ => None,
            };
            Command::Begin {
                uuid: fields.uuid(attribute::UUID)?,
                ctransid: fields.number(attribute::CTRANSID)?,
                base,
                name,
            }
        }
        command::MKFILE => make(New::File)?,
        command::MKDIR => make(New::Folder)?,
        command::MKFIFO => make(New::Fifo)?,
        command::MKSOCK => make(New::Socket)?,
        command::MKNOD => make(New::Node {
            mode: fields.small(attribute::MODE)?,
            device: fields.small(attribute::RDEV)?,
        })?,
        command::SYMLINK => {
            let target = fields.bytes(attribute::PATH_LINK)?;
            if target.is_empty() || target.len() > PATH_MAX || target.contains(&0) {
                return Err("the target of a symbolic link is not valid".into());
            }
            make(New::Link { target })?
        }
        command::RENAME => Command::Rename {
            from: path()?,
            to: fields.path(attribute::PATH_TO)?,
        },
        command::LINK => Command::HardLink {
            path: path()?,
            target: fields.path(attribute::PATH_LINK)?,
        },
        command::UNLINK => Command::Unlink { path: path()? },
        command::RMDIR => Command::RemoveFolder { path: path()? },
        command::SET_XATTR => {
            let value = fields.bytes(attribute::XATTR_DATA)?;
            if value.len() > XATTR_MAX {
                return Err("an extended attribute is too long".into());
            }
            Command::SetXattr {
                path: fields.any_path()?,
                name: fields.xattr_name()?,
                value,
            }
        }
        command::REMOVE_XATTR => Command::RemoveXattr {
            path: fields.any_path()?,
            name: fields.xattr_name()?,
        },
        command::WRITE => {
            let data = fields.bytes(attribute::DATA)?;
            Command::Write {
                path: path()?,
                offset: fields.range(attribute::FILE_OFFSET, data.len() as u64)?,
                data,
            }
        }
        command::CLONE => {
            let length = fields.number(attribute::CLONE_LEN)?;
            Command::Clone {
                path: path()?,
                offset: fields.range(attribute::FILE_OFFSET, length)?,
                length,
                source: fields.uuid(attribute::CLONE_UUID)?,
                source_path: fields.path(attribute::CLONE_PATH)?,
                source_offset: fields.range(attribute::CLONE_OFFSET, length)?,
            }
        }
        command::TRUNCATE => Command::Truncate {
            path: path()?,
            size: fields.range(attribute::SIZE, 0)?,
        },
        command::CHMOD => Command::Chmod {
            path: fields.any_path()?,
            mode: fields.number(attribute::MODE)? as u32 & 0o7777,
        },
        command::CHOWN => Command::Chown {
            path: fields.any_path()?,
            user: fields.owner(attribute::UID)?,
            group: fields.owner(attribute::GID)?,
        },
        command::UTIMES => Command::SetTimes {
            path: fields.any_path()?,
            times: Times {
                access: fields.time(attribute::ATIME)?,
                change: fields.time(attribute::MTIME)?,
            },
        },
        command::FALLOCATE => {
            let length = fields.number(attribute::SIZE)?;
            Command::Allocate {
                path: path()?,
                mode: fields.word(attribute::FALLOCATE_MODE)?,
                offset: fields.range(attribute::FILE_OFFSET, length)?,
                length,
            }
        }
        command::FILEATTR => Command::FileAttributes {
            path: fields.any_path()?,
            flags: fields.number(attribute::FILEATTR)?,
        },
        command::ENCODED_WRITE => encoded_write(&fields)?,
        command::ENABLE_VERITY => Command::EnableVerity {
            path: path()?,
            algorithm: byte(fields.bytes(attribute::VERITY_ALGORITHM)?)?.into(),
            block_size: fields.word(attribute::VERITY_BLOCK_SIZE)?,
            salt: fields.bytes(attribute::VERITY_SALT_DATA)?,
            signature: fields.bytes(attribute::VERITY_SIG_DATA)?,
        },
        command::END => Command::End,
        command::UPDATE_EXTENT => return Err("it was sent without the data of its files".into()),
        _ => return Err("the command is unknown".into()),
    })
}

fn byte(value: &[u8]) -> Result<u8> {
    match value {
        [byte] => Ok(*byte),
        _ => Err("an attribute is not a single byte".into()),
    }
}

fn encoded_write<'a>(fields: &Fields<'a>) -> Result<Command<'a>> {
    let optional = |kind: u16| match fields.values[usize::from(kind)] {
        Some(_) => fields.word(kind),
        None => Ok(0),
    };
    let file_length = fields.number(attribute::UNENCODED_FILE_LEN)?;
    let encoding = Encoding {
        offset: fields.range(attribute::FILE_OFFSET, file_length)?,
        file_length,
        length: fields.number(attribute::UNENCODED_LEN)?,
        inner_offset: fields.number(attribute::UNENCODED_OFFSET)?,
        compression: optional(attribute::COMPRESSION)?,
        encryption: optional(attribute::ENCRYPTION)?,
    };
    crate::encoded::check(&encoding)?;
    Ok(Command::EncodedWrite {
        path: fields.path(attribute::PATH)?,
        encoding,
        data: fields.bytes(attribute::DATA)?,
    })
}
