//! The open file: its data is written at once, its attributes when its turn is over.

use std::ffi::CStr;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, RawMode, Uid, XattrFlags};
use rustix::io::Errno;

use crate::command::Times;
use crate::failure::{shown, Context, Result};
use crate::sys;
use crate::tree::{open_beneath, timestamps, RESOLVE};

/// While a large file is written, its data goes to the disk in steps of this size.
pub const WRITEBACK: u64 = 16 << 20;
/// Of a file whose mode the stream does not name.
pub const NEW_FILE: u32 = 0o600;
/// Bits of the inode flags in a stream, and what chattr(1) calls them. Of the others, immutable and
/// append-only would keep the next increment from being applied, and how data is stored (without
/// copy-on-write or compression) is for the destination to decide.
pub const ATTRIBUTES: [(u64, u32); 4] = [
    (1 << 5, 0x0000_0008),  // S: synchronous
    (1 << 8, 0x0000_0040),  // d: no dump
    (1 << 9, 0x0000_0080),  // A: no access time
    (1 << 10, 0x0001_0000), // D: synchronous folder
];
pub const COMPRESSION: &CStr = c"btrfs.compression";

/// Attributes that are set later.
#[derive(Default)]
pub struct Attributes {
    pub owner: Option<(u32, u32)>,
    pub mode: Option<u32>,
    pub times: Option<Times>,
}

impl Attributes {
    fn is_empty(&self) -> bool {
        self.owner.is_none() && self.mode.is_none() && self.times.is_none()
    }
}

pub struct OpenFile {
    pub path: Vec<u8>,
    pub fd: OwnedFd,
    pub later: Attributes,
    /// The mode with which it was created, as long as nothing else changed; it belongs to root.
    pub made_with: Option<u32>,
    /// Written since its data was last sent to the disk: from where, and how much.
    unsent: (u64, u64),
}

pub fn mode_of(bits: u32) -> Mode {
    Mode::from_raw_mode(bits as RawMode)
}

impl OpenFile {
    pub fn new(path: &[u8], fd: OwnedFd) -> Self {
        Self {
            path: path.to_vec(),
            fd,
            later: Attributes::default(),
            made_with: None,
            unsent: (0, 0),
        }
    }

    /// Set the attributes that were put off: the owner first, because that clears bits of the mode
    /// and the capabilities.
    pub fn settle(&mut self) -> Result<()> {
        let later = std::mem::take(&mut self.later);
        let failed = |what: &str, path: &[u8]| format!("cannot set the {what} of {}", shown(path));
        let made_with = self.made_with.take();
        let owner = later
            .owner
            .filter(|owner| made_with.is_none() || *owner != (0, 0));
        if let Some((user, group)) = owner {
            change_owner(self.fd.as_fd(), user, group).or_failed(|| failed("owner", &self.path))?;
        }
        let mode = match made_with {
            Some(made) => Some(later.mode.unwrap_or(NEW_FILE)).filter(|mode| *mode != made),
            None => later.mode,
        };
        if let Some(mode) = mode {
            fs::fchmod(&self.fd, mode_of(mode)).or_failed(|| failed("mode", &self.path))?;
        }
        if let Some(times) = later.times {
            fs::futimens(&self.fd, &timestamps(&times))
                .or_failed(|| failed("times", &self.path))?;
        }
        Ok(())
    }

    /// Set what precedes a change of the data: a new file has nothing that this could affect.
    pub fn settle_for_data(&mut self) -> Result<()> {
        if self.made_with.is_some() && self.later.is_empty() {
            return Ok(());
        }
        self.settle()
    }

    pub fn write(&mut self, mut offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.settle_for_data()?;
        let mut slices: Vec<IoSlice> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0); // leaves out empty ones
        while !rest.is_empty() {
            let count = rustix::io::pwritev(&self.fd, rest, offset)
                .or_failed(|| format!("cannot write {} at {offset}", shown(&self.path)))?;
            if count == 0 {
                return Err(Errno::IO).or_failed(|| format!("cannot write {}", shown(&self.path)));
            }
            IoSlice::advance_slices(&mut rest, count);
            self.sent(offset, count as u64);
            offset += count as u64;
        }
        Ok(())
    }

    fn sent(&mut self, offset: u64, count: u64) {
        let (start, length) = self.unsent;
        if start + length != offset {
            self.unsent = (offset, count);
            return;
        }
        self.unsent.1 += count;
        if self.unsent.1 >= WRITEBACK {
            sys::start_writeback(&self.fd, self.unsent.0, self.unsent.1);
            self.unsent = (offset + count, 0);
        }
    }
}

pub fn create_file(folder: BorrowedFd, name: &[u8], mode: Mode) -> rustix::io::Result<OwnedFd> {
    fs::openat2(
        folder,
        name,
        OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        mode,
        RESOLVE,
    )
}

pub fn regular_file(folder: BorrowedFd, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // Without waiting: it may be a FIFO.
    let fd = open_beneath(folder, name, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let stat = fs::fstat(&fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(fd),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

pub fn change_attributes(fd: BorrowedFd, wanted: u64) -> std::io::Result<()> {
    let kind = FileType::from_raw_mode(fs::fstat(fd)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(());
    }
    let before = sys::file_attributes(fd)?;
    let after = ATTRIBUTES
        .iter()
        .fold(before, |flags, (bit, attribute)| match wanted & bit {
            0 => flags & !attribute,
            _ => flags | attribute,
        });
    if after == before {
        return Ok(());
    }
    // The kernel resets the compression property to the file system's own with every such call.
    let mut kept = [0u8; 64];
    let kept = match fs::fgetxattr(fd, COMPRESSION, &mut kept[..]) {
        Ok(length) => Some(&kept[..length]),
        Err(_) => None,
    };
    sys::set_file_attributes(fd, after)?;
    if let Some(value) = kept {
        fs::fsetxattr(fd, COMPRESSION, value, XattrFlags::empty())?;
    }
    Ok(())
}

pub fn is_owned(stat: &fs::Stat, user: u32, group: u32) -> bool {
    stat.st_uid == user && stat.st_gid == group
}

/// The bits that a change of the owner clears; None: the mode stays.
pub fn lost_mode(stat: &fs::Stat) -> Option<Mode> {
    let bits = stat.st_mode;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && bits & 0o6000 != 0)
        .then(|| mode_of(bits & 0o7777))
}

pub fn change_owner(fd: BorrowedFd, user: u32, group: u32) -> rustix::io::Result<()> {
    let stat = fs::fstat(fd)?;
    if is_owned(&stat, user, group) {
        return Ok(());
    }
    fs::fchown(fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    lost_mode(&stat).map_or(Ok(()), |mode| fs::fchmod(fd, mode))
}

pub fn change_owner_at(
    folder: BorrowedFd,
    name: &[u8],
    user: u32,
    group: u32,
) -> rustix::io::Result<()> {
    let stat = fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if is_owned(&stat, user, group) {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    fs::chownat(
        folder,
        name,
        Some(user),
        Some(group),
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    lost_mode(&stat).map_or(Ok(()), |mode| {
        fs::chmodat(folder, name, mode, AtFlags::empty())
    })
}
