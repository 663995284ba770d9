//! Walks a snapshot and computes its tree (mirrord_core::verify), in steps.
//!
//! The snapshot is read-only. Everything is opened relative to a folder that is open, and no link
//! is followed. What cannot be read is part of the result, not an error.

use super::base::Base;
use super::file::OpenFile;
use mirrord_core::verify::tree_file::{Record, Writer};
use mirrord_core::verify::{leaf, Content, Digest, Folder, Metadata, Sample};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Folders that are open at once: of a deeper tree, those further up are opened again.
const OPEN_MAX: usize = 100;
/// The number of the stub that a snapshot has in place of a nested btrfs subvolume. On other file
/// systems it is an ordinary number.
const STUB: u64 = 2;
const BTRFS: u64 = 0x9123_683e;

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// What was read so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub files: u64,
    pub blocks: u64,
    /// Blocks that were read, without holes, and their bytes.
    pub read_blocks: u64,
    pub read_bytes: u64,
    pub unreadable: u64,
}

/// An entry of a folder with what it is.
pub struct Entry {
    pub path: Vec<u8>,
    pub name_at: usize,
    pub kind: u8,
    pub size: u64,
    pub inode: u64,
    pub born_ns: u64,
    links: u32,
    pub metadata: Digest,
    pub unreadable: bool,
}

struct Frame {
    fd: Option<OwnedFd>,
    entry: Entry,
    /// The names that are left, the next one last.
    names: Vec<Vec<u8>>,
    folder: Folder,
}

/// The first of several hard links.
struct First {
    path: Vec<u8>,
    content: Digest,
    unreadable: bool,
}

pub struct Walk {
    out: Option<Writer<BufWriter<File>>>,
    frames: Vec<Frame>,
    file: Option<OpenFile>,
    device: (u32, u32),
    stub: Option<u64>,
    firsts: HashMap<u64, First>,
    sample: Option<Sample>,
    base: Option<Base>,
    rate: Option<u64>,
    free_at: Instant,
    pub counts: Counts,
    pub root: Option<(Digest, bool)>,
}

/// Errors that end the walk: of the host, and of a snapshot that is deleted while it is read.
fn fatal(error: Errno) -> Result<Errno, io::Error> {
    match error {
        Errno::NOENT | Errno::STALE | Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
            Err(error.into())
        }
        _ => Ok(error),
    }
}

impl Walk {
    pub fn new(
        root: &str,
        out: File,
        sample: Option<Sample>,
        base: Option<Base>,
        rate: Option<u64>,
    ) -> io::Result<Self> {
        let fd = fs::open(root, FOLDER, Mode::empty())?;
        let status = stat(&fd, b".")?;
        let kind = fs::fstatfs(&fd)?.f_type as u64;
        let mut walk = Self {
            out: Some(Writer::new(BufWriter::with_capacity(1 << 18, out))?),
            frames: Vec::new(),
            file: None,
            device: (status.stx_dev_major, status.stx_dev_minor),
            stub: (kind == BTRFS).then_some(STUB),
            firsts: HashMap::new(),
            sample,
            base,
            rate,
            free_at: Instant::now(),
            counts: Counts::default(),
            root: None,
        };
        let entry = walk.entry(&fd, b".", Vec::new(), 0, &status)?;
        walk.enter(fd, entry)?;
        Ok(walk)
    }

    /// Work for about that long; whether everything is done.
    pub fn step(&mut self, seconds: f64) -> io::Result<bool> {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while self.root.is_none() {
            let now = Instant::now();
            if now >= until {
                return Ok(false);
            }
            if self.free_at > now {
                std::thread::sleep(self.free_at.min(until) - now);
                continue;
            }
            let before = self.counts.read_bytes;
            match self.file.take() {
                Some(file) => self.read(file)?,
                None => self.advance()?,
            }
            if let Some(rate) = self.rate {
                let bytes = self.counts.read_bytes - before;
                self.free_at = now + Duration::from_secs_f64(bytes as f64 / rate as f64);
            }
        }
        Ok(true)
    }

    fn read(&mut self, mut file: OpenFile) -> io::Result<()> {
        if file.read(&mut self.counts, self.base.as_ref())? {
            let (entry, blocks, content) = file.finish();
            self.finish_file(entry, blocks, content)
        } else {
            self.file = Some(file);
            Ok(())
        }
    }

    /// The next entry of the innermost folder, or the folder itself when there is none.
    fn advance(&mut self) -> io::Result<()> {
        let frame = self.frames.last_mut().expect("the root ends the walk");
        let Some(name) = frame.names.pop() else {
            return self.leave();
        };
        let fd = frame.fd.take().expect("the innermost folder is open");
        let taken = self.take(&fd, &name);
        // (A folder that was entered is innermost now: this one is below it.)
        let inner = usize::from(matches!(taken, Ok(true)));
        let at = self.frames.len() - 1 - inner;
        self.frames[at].fd = Some(fd);
        if self.frames.len() > OPEN_MAX {
            let outer = self.frames.len() - 1 - OPEN_MAX;
            self.frames[outer].fd = None;
        }
        taken.map(|_| ())
    }

    /// Take one entry; whether it is a folder that was entered.
    fn take(&mut self, fd: &OwnedFd, name: &[u8]) -> io::Result<bool> {
        let mut path = self.frames.last().expect("it is open").entry.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        let name_at = path.len();
        path.extend(name);
        let status = match stat(fd, name) {
            Ok(status) => status,
            Err(error) => {
                fatal(error)?;
                return self.give_up(path, name_at).map(|()| false);
            }
        };
        let folder = is(&status, FileType::Directory);
        let device = (status.stx_dev_major, status.stx_dev_minor);
        if folder && (device != self.device || Some(status.stx_ino) == self.stub) {
            return Ok(false); // another volume: not part of this one
        }
        let entry = self.entry(fd, name, path, name_at, &status)?;
        if folder {
            if self.take_over(&entry)? {
                return Ok(false);
            }
            return match fs::openat(fd, name, FOLDER, Mode::empty()) {
                Ok(inner) => self.enter(inner, entry).map(|()| true),
                Err(error) => {
                    fatal(error)?;
                    self.give_up(entry.path, name_at).map(|()| false)
                }
            };
        }
        if let Some(first) = self.firsts.get(&entry.inode) {
            let node = leaf(&entry.metadata, &first.content, &first.path);
            let record = Record {
                unreadable: entry.unreadable || first.unreadable,
                linked: true,
                content: first.content,
                ..record_of(&entry, node)
            };
            return self.put(record, name_at).map(|()| false);
        }
        if entry.kind != b'f' {
            self.finish_file(entry, Vec::new(), [0; 32])?;
            return Ok(false);
        }
        if let Some(blocks) = self.blocks_of_base(&entry)? {
            let mut content = Content::new();
            blocks.iter().for_each(|digest| content.push(digest));
            self.counts.blocks += blocks.len() as u64;
            self.finish_file(entry, blocks, content.finish())?;
            return Ok(false);
        }
        let sample = self.sample.map(|sample| sample.of_file(&entry.path));
        let kept = self.base.as_ref().and_then(|base| base.kept(&entry));
        match OpenFile::new(fd, name, entry, sample, kept) {
            Ok(file) => self.read(file)?,
            Err((error, entry)) => {
                fatal(error)?;
                self.give_up(entry.path, name_at)?;
            }
        }
        Ok(false)
    }

    /// Take a folder in which nothing was changed from the base; whether it is one.
    fn take_over(&mut self, entry: &Entry) -> io::Result<bool> {
        let Some((base, folder)) = self
            .base
            .as_ref()
            .and_then(|base| Some((base, base.folder(entry)?)))
        else {
            return Ok(false);
        };
        let out = self.out.as_mut().expect("the walk is not over");
        out.copy(base.records(folder)?)?;
        self.counts.files += folder.files;
        self.counts.blocks += folder.blocks;
        let frame = self.frames.last_mut().expect("it is in a folder");
        frame
            .folder
            .push(&entry.path[entry.name_at..], &folder.node);
        Ok(true)
    }

    fn blocks_of_base(&self, entry: &Entry) -> io::Result<Option<Vec<Digest>>> {
        self.base
            .as_ref()
            .map_or(Ok(None), |base| base.blocks(entry))
    }

    /// Something of which not even the metadata can be read.
    fn give_up(&mut self, path: Vec<u8>, name_at: usize) -> io::Result<()> {
        self.counts.unreadable += 1;
        let record = Record {
            kind: b'o',
            unreadable: true,
            path,
            ..Record::default()
        };
        self.put(record, name_at)
    }

    fn finish_file(
        &mut self,
        entry: Entry,
        blocks: Vec<Digest>,
        content: Digest,
    ) -> io::Result<()> {
        let node = leaf(&entry.metadata, &content, b"");
        if entry.links > 1 {
            let first = First {
                path: entry.path.clone(),
                content,
                unreadable: entry.unreadable,
            };
            self.firsts.insert(entry.inode, first);
        }
        let record = Record {
            blocks,
            content,
            ..record_of(&entry, node)
        };
        self.counts.files += u64::from(entry.kind == b'f');
        self.put(record, entry.name_at)
    }

    /// Write a record, and add it to the folder that it is in.
    fn put(&mut self, record: Record, name_at: usize) -> io::Result<()> {
        let out = self.out.as_mut().expect("the walk is not over");
        out.record(&record)?;
        match self.frames.last_mut() {
            Some(frame) => {
                frame.folder.push(&record.path[name_at..], &record.node);
                frame.entry.unreadable |= record.unreadable;
            }
            None => {
                let out = self.out.take().expect("it is ended once");
                out.finish()?;
                self.root = Some((record.node, record.unreadable));
            }
        }
        Ok(())
    }

    fn enter(&mut self, fd: OwnedFd, mut entry: Entry) -> io::Result<()> {
        let mut names = Vec::new();
        let listed = Dir::read_from(&fd).and_then(|folder| {
            for found in folder {
                let name = found?.file_name().to_bytes().to_vec();
                if name != b"." && name != b".." {
                    names.push(name);
                }
            }
            Ok(())
        });
        if let Err(error) = listed {
            fatal(error)?;
            self.counts.unreadable += 1;
            entry.unreadable = true;
        }
        names.sort_unstable_by(|one, other| other.cmp(one));
        self.frames.push(Frame {
            fd: Some(fd),
            folder: Folder::new(&entry.metadata),
            entry,
            names,
        });
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let done = self.frames.pop().expect("it is open");
        if let (Some(outer), Some(fd)) = (self.frames.last_mut(), &done.fd) {
            if outer.fd.is_none() {
                let above = fs::openat(fd, "..", FOLDER, Mode::empty())?;
                if stat(&above, b".")?.stx_ino != outer.entry.inode {
                    return Err(Errno::STALE.into());
                }
                outer.fd = Some(above);
            }
        }
        let node = done.folder.finish();
        let name_at = done.entry.name_at;
        self.put(record_of(&done.entry, node), name_at)
    }

    fn entry(
        &mut self,
        fd: &OwnedFd,
        name: &[u8],
        path: Vec<u8>,
        name_at: usize,
        status: &Statx,
    ) -> io::Result<Entry> {
        let regular = is(status, FileType::RegularFile);
        let mut entry = Entry {
            path,
            name_at,
            kind: match FileType::from_raw_mode(u32::from(status.stx_mode)) {
                FileType::RegularFile => b'f',
                FileType::Directory => b'd',
                FileType::Symlink => b'l',
                _ => b'o',
            },
            size: if regular { status.stx_size } else { 0 },
            inode: status.stx_ino,
            born_ns: (status.stx_btime.tv_sec as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(u64::from(status.stx_btime.tv_nsec)),
            links: status.stx_nlink,
            metadata: [0; 32],
            unreadable: false,
        };
        if let Some(known) = self.base.as_ref().and_then(|base| base.metadata(&entry)) {
            entry.metadata = known;
            return Ok(entry);
        }
        let mut metadata = Metadata {
            mode: u32::from(status.stx_mode),
            uid: status.stx_uid,
            gid: status.stx_gid,
            mtime_s: status.stx_mtime.tv_sec,
            mtime_ns: status.stx_mtime.tv_nsec,
            size: entry.size,
            device: (status.stx_rdev_major, status.stx_rdev_minor),
            ..Metadata::default()
        };
        let read = attributes(fd, name).and_then(|found| {
            metadata.attributes = found;
            if entry.kind == b'l' {
                metadata.target = fs::readlinkat(fd, name, Vec::new())?.into_bytes();
            }
            Ok(())
        });
        if let Err(error) = read {
            fatal(error)?;
            self.counts.unreadable += 1;
            entry.unreadable = true;
        }
        entry.metadata = metadata.digest();
        Ok(entry)
    }
}

fn record_of(entry: &Entry, node: Digest) -> Record {
    Record {
        kind: entry.kind,
        unreadable: entry.unreadable,
        linked: false,
        path: entry.path.clone(),
        node,
        metadata: entry.metadata,
        content: [0; 32],
        size: entry.size,
        inode: entry.inode,
        born_ns: entry.born_ns,
        blocks: Vec::new(),
    }
}

fn is(status: &Statx, kind: FileType) -> bool {
    FileType::from_raw_mode(u32::from(status.stx_mode)) == kind
}

fn stat(fd: impl AsFd, name: &[u8]) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    fs::statx(fd, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

/// The extended attributes, by a path that works for everything, also for what cannot be opened.
fn attributes(fd: &OwnedFd, name: &[u8]) -> rustix::io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = [
        format!("/proc/self/fd/{}/", fd.as_raw_fd()).as_bytes(),
        name,
    ]
    .concat();
    let names = match grown(|buffer| fs::llistxattr(path.as_slice(), buffer)) {
        Err(Errno::OPNOTSUPP) => Vec::new(),
        other => other?,
    };
    names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let value = grown(|buffer| fs::lgetxattr(path.as_slice(), name, buffer))?;
            Ok((name.to_vec(), value))
        })
        .collect()
}

fn grown(
    mut get: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 256];
    loop {
        match get(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            // (The kernel's limit for a value and for the names of one inode.)
            Err(Errno::RANGE) if buffer.len() < 1 << 16 => buffer.resize(1 << 16, 0),
            Err(error) => return Err(error),
        }
    }
}
