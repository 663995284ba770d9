//! The files of one end: the image, and in the state directory `tracking`, `side` and `redo`.

use crate::problem::{Code, Problem};
use crate::sys;
use mirrord_live_core::io::{Backend, File as Name};
use mirrord_live_core::setup;
use mirrord_live_core::types::{BootId, Failure, Range};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// QEMU's permissions: to read consistently, to write, to resize; its locks lie on these bytes.
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;
const USED: i64 = 100;
const UNSHARED: i64 = 200;

#[derive(Clone)]
pub struct Files {
    /// Where the image was opened.
    pub path: Arc<Path>,
    pub image: Arc<File>,
    pub tracking: Arc<File>,
    pub side: Arc<File>,
    pub log: Arc<File>,
}

pub(crate) fn explain(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The size of a file or block device.
fn size_of(file: &File) -> io::Result<u64> {
    let mut file = file;
    file.seek(SeekFrom::End(0))
}

/// The kernel knows no name of it any more. Some FUSE file systems count no links of any file.
fn is_deleted(file: &File) -> io::Result<bool> {
    if file.metadata()?.nlink() > 0 {
        return Ok(false);
    }
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(name.as_os_str().as_bytes().ends_with(b" (deleted)"))
}

/// The same of an image in use: an error also if it was deleted, as what is written to it then is
/// gone when this process ends; and if another file is at its path, which the next start would open.
pub fn size_in_use(files: &Files) -> io::Result<u64> {
    let facts = files.image.metadata()?;
    if facts.is_file() && (is_deleted(&files.image)? || files.is_replaced(&facts)) {
        return Err(io::ErrorKind::NotFound.into());
    }
    size_of(&files.image)
}

type Identity = [u128; 2];

/// What tells a file from every other one that was or will be at its path: the number of its inode,
/// and when it was created (0: the file system does not say). None where that may change: another
/// program or host has the files, or it is a device.
fn identity(file: &File) -> Option<Identity> {
    let facts = file.metadata().ok()?;
    if !facts.is_file() || sys::kind_of(file) == sys::Kind::Other {
        return None;
    }
    let created = facts.created().ok();
    let created = created.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Some([
        facts.ino().into(),
        created.map_or(0, |since| since.as_nanos()),
    ])
}

/// A kernel may tell the time of creation that the one before did not.
fn is_same([inode, created]: Identity, known: Identity) -> bool {
    inode == known[0] && (created == known[1] || created == 0 || known[1] == 0)
}

/// Which files the image and the tracking were, if that was recorded.
fn recorded(state: &Path) -> io::Result<Option<[Identity; 2]>> {
    let path = state.join("identity");
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| explain(&path, &error))?,
    };
    let words: Result<Vec<u128>, _> = text.split_whitespace().map(str::parse).collect();
    let Ok([image, created, tracking, since]) = <[u128; 4]>::try_from(words.unwrap_or_default())
    else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{}: damaged; delete it if image and records are the newest ones",
                path.display()
            ),
        ));
    };
    Ok(Some([[image, created], [tracking, since]]))
}

fn beside(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Writes a small file durably; after a crash it is there completely or not at all.
fn record(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(beside(path))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(beside(path), path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Takes the locks that QEMU would take to write to an image that nobody else writes to.
fn lock(image: &File, path: &Path) -> io::Result<()> {
    let used = [READ, WRITE, RESIZE].map(|permission| USED + permission);
    let unshared = [WRITE, RESIZE].map(|permission| UNSHARED + permission);
    for at in used.into_iter().chain(unshared) {
        sys::lock_byte(image, at).map_err(|error| explain(path, &error))?;
    }
    let theirs = [READ, WRITE, RESIZE].map(|permission| UNSHARED + permission);
    let ours = [WRITE, RESIZE].map(|permission| USED + permission);
    for at in theirs.into_iter().chain(ours) {
        if sys::is_byte_locked(image, at).map_err(|error| explain(path, &error))? {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!(
                    "{}: another program has the image open for writing",
                    path.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Refuses an image that a loop device shows, or that is mounted.
fn check_unused(path: &Path) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let busy = |what: String| Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing = entry.path().join("loop/backing_file");
        if fs::read_to_string(backing).is_ok_and(|backing| Path::new(backing.trim_end()) == path) {
            return busy(format!(
                "{}: in use by loop device {}; detach it first (losetup -d)",
                path.display(),
                entry.file_name().to_string_lossy()
            ));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let is_mounted = |line: &str| {
        line.split(' ')
            .next()
            .is_some_and(|it| Path::new(it) == path)
    };
    if mounts.lines().any(is_mounted) {
        return busy(format!("{}: mounted; unmount it first", path.display()));
    }
    Ok(())
}

/// How long to wait for the last process to let go of the image: the kernel may keep the file open,
/// and its locks, after a process with io_uring is gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens an image that nothing else uses, or will not after this time.
fn open_image(path: &Path, patience: Duration) -> io::Result<File> {
    check_unused(path).map_err(|error| explain(path, &error))?;
    let begun = Instant::now();
    loop {
        match open_locked(path) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < patience =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
}

fn open_locked(path: &Path) -> io::Result<File> {
    let is_device = fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if is_device {
        // The kernel knows of a mount by any name, of RAID, LVM and swap, also on a partition.
        options.custom_flags(libc::O_EXCL);
    }
    let image = options
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) if is_device => io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!(
                    "{}: in use by a mount, RAID, LVM, swap or another program (lsblk shows which)",
                    path.display()
                ),
            ),
            _ => explain(path, &error),
        })?;
    lock(&image, path)?;
    Ok(image)
}

/// The redo log. An end that was created before semi-sync has none yet.
fn open_log(state: &Path) -> io::Result<File> {
    let path = state.join("redo");
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).create(true).truncate(false);
    opened.open(&path).map_err(|error| explain(&path, &error))
}

/// Extents in one answer to a block status request.
const EXTENTS_MAX: usize = 1024;

impl Files {
    pub fn open(image: &Path, state: &Path) -> Result<Files, Problem> {
        let open = |path: &Path| {
            let opened = OpenOptions::new().read(true).write(true).open(path);
            opened.map_err(|error| explain(path, &error))
        };
        let files = Files {
            path: image.into(),
            image: Arc::new(open_image(image, PATIENCE)?),
            tracking: Arc::new(open(&state.join("tracking"))?),
            side: Arc::new(open(&state.join("side"))?),
            log: Arc::new(open_log(state)?),
        };
        files.check_identity(state)?;
        Ok(files)
    }

    /// Which files the image and the tracking are; None where that cannot be told.
    fn identities(&self) -> Option<[Identity; 2]> {
        Some([identity(&self.image)?, identity(&self.tracking)?])
    }

    /// Refuses another file in the place of the image, and other records of it, such as a backup's:
    /// they do not have what was written since. If both are others, they were copied together.
    fn check_identity(&self, state: &Path) -> Result<(), Problem> {
        let (Some([image, tracking]), Some(known)) = (self.identities(), recorded(state)?) else {
            return Ok(());
        };
        let (is_image, is_tracking) = (is_same(image, known[0]), is_same(tracking, known[1]));
        if is_image == is_tracking {
            return Ok(());
        }
        if is_image {
            return Err(Code::RecordsReplaced.because(format!(
                "{state}/tracking: another file has taken the place of the records, as \
                 {state}/identity shows, and the image is the same; put the newest records back",
                state = state.display()
            )));
        }
        Err(Code::ImageReplaced.because(format!(
            "{}: another file has taken the place of the image, as {}/identity shows; \
             move the image back",
            self.path.display(),
            state.display()
        )))
    }

    /// Records which files they are, once the image is known to be the right one. On a full file
    /// system it is served all the same.
    pub fn remember(&self, state: &Path) {
        let path = state.join("identity");
        let is_new = |found: &[Identity; 2]| recorded(state).is_ok_and(|it| it != Some(*found));
        let Some(found) = self.identities().filter(is_new) else {
            return;
        };
        let words = found
            .concat()
            .iter()
            .map(u128::to_string)
            .collect::<Vec<_>>();
        if let Err(error) = record(&path, &(words.join(" ") + "\n")) {
            let _ = fs::remove_file(beside(&path));
            let path = path.display();
            crate::say(&format!(
                "{path}: not written, the next start tries again: {error}"
            ));
        }
    }

    /// The size of the image.
    pub fn image_size(&self) -> io::Result<u64> {
        size_of(&self.image).map_err(|error| explain(&self.path, &error))
    }

    /// False once a file of the records was deleted; an error does not tell that.
    pub fn has_records(&self) -> bool {
        let records = [&self.tracking, &self.side, &self.log];
        !records.iter().any(|file| is_deleted(file).unwrap_or(false))
    }

    /// Another file is at the path of the image.
    fn is_replaced(&self, opened: &Metadata) -> bool {
        let is_other = |it: Metadata| (it.dev(), it.ino()) != (opened.dev(), opened.ino());
        sys::kind_of(&self.image) != sys::Kind::Other
            && fs::metadata(&self.path).is_ok_and(is_other)
    }

    /// Drops clean cached pages, so that the next read comes from the disk: after a failed
    /// write-back such pages are readable, and count as written. Of the image, which may be large,
    /// only if writes to it may be lost. A record that says so is kept: it may not be on the disk.
    pub fn forget_cached(&self, boot: &BootId) {
        let is_lost = || setup::read_record(self).is_ok_and(|record| record.boot != *boot);
        sys::forget_cached(&self.side);
        sys::forget_cached(&self.log);
        if !is_lost() {
            sys::forget_cached(&self.tracking);
        }
        if is_lost() {
            sys::forget_cached(&self.image);
        }
    }

    /// Checks that no other program uses the image.
    pub fn check(image: &Path) -> io::Result<()> {
        open_image(image, Duration::ZERO).map(|_| ())
    }

    /// Creates the files of the state directory, which must not have them yet.
    pub fn create(image: &Path, state: &Path) -> Result<Files, Problem> {
        fs::create_dir_all(state).map_err(|error| explain(state, &error))?;
        for name in ["tracking", "side", "redo"] {
            let path = state.join(name);
            let created = OpenOptions::new().write(true).create_new(true).open(&path);
            created.map_err(|error| explain(&path, &error))?;
        }
        Files::open(image, state)
    }

    /// What of a range of the image is data and what are holes (true); only the first if `one`.
    pub fn extents(&self, range: Range, one: bool) -> io::Result<Vec<(u32, bool)>> {
        let mut found = Vec::new();
        let (mut at, end) = (range.offset, range.end());
        while at < end && found.len() < if one { 1 } else { EXTENTS_MAX } {
            let data = sys::seek(&self.image, at, false)?.unwrap_or(u64::MAX);
            let (next, is_hole) = if data > at {
                (data, true)
            } else {
                (sys::seek(&self.image, at, true)?.unwrap_or(end), false)
            };
            let next = next.min(end).max(at + 1);
            found.push(((next - at) as u32, is_hole));
            at = next;
        }
        Ok(found)
    }

    pub fn file(&self, name: Name) -> &Arc<File> {
        match name {
            Name::Image => &self.image,
            Name::Tracking => &self.tracking,
            Name::Side => &self.side,
            Name::Log => &self.log,
        }
    }
}

impl Backend for Files {
    fn read(&self, file: Name, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let file = self.file(file);
        let mut done = 0;
        while done < into.len() {
            match file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        into[done..].fill(0);
        Ok(())
    }

    fn write(&mut self, file: Name, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file(file).write_all_at(data, offset)
    }

    fn zero(&mut self, range: Range, punch: bool) -> io::Result<()> {
        let (offset, length) = (range.offset, u64::from(range.length));
        let done = if punch {
            sys::punch_hole(&self.image, offset, length)
        } else {
            sys::zero_range(&self.image, offset, length)
        };
        if done.is_ok() {
            return Ok(());
        }
        // A file system without holes: the bytes are written.
        let zeros = vec![0; range.length.min(1 << 20) as usize];
        let mut at = offset;
        while at < range.end() {
            let piece = zeros.len().min((range.end() - at) as usize);
            self.image.write_all_at(&zeros[..piece], at)?;
            at += piece as u64;
        }
        Ok(())
    }

    fn sync(&mut self, file: Name) -> io::Result<()> {
        self.file(file).sync_data()
    }

    fn reserve(&mut self, file: Name, length: u64) -> io::Result<()> {
        if length == 0 {
            return self.file(file).set_len(0);
        }
        let (file, before) = (self.file(file), self.size(file)?);
        sys::allocate(file, length).inspect_err(|_| {
            // Some file systems keep the part for which there was space.
            let _ = file.set_len(before);
        })
    }

    fn size(&self, file: Name) -> io::Result<u64> {
        size_of(self.file(file))
    }
}

/// The boot of this kernel.
pub fn boot_id() -> io::Result<BootId> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|error| explain(path, &error))?;
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let malformed = || io::Error::other(format!("{}: no boot id", path.display()));
    parse_id(&String::from_utf8_lossy(&digits)).ok_or_else(malformed)
}

/// 32 hexadecimal digits.
pub fn parse_id(text: &str) -> Option<[u8; 16]> {
    let value = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| value.to_be_bytes())
}

/// What a client or the other end is told of a failed operation.
pub fn failure_of(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Failure::NoSpace,
        _ => Failure::Io,
    }
}
