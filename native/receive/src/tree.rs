//! The file tree of the staged snapshot, reached through open folders.
//!
//! A path is split into its folder, which is opened beneath the snapshot without following any link
//! and kept open, and one name, which no call follows.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    fgetxattr_query, fstat, futimens, openat2, statx, AtFlags, Mode, OFlags, ResolveFlags, Stat,
    StatxAttributes, StatxFlags, Timespec, Timestamps,
};
use rustix::io::Errno;

use crate::command::{Time, Times};
use crate::failure::{shown, Context, Result};
use crate::sys;

/// How many folders are kept open.
const OPEN_MAX: usize = 400;

/// How every path is resolved: not above the folder where it starts, and through no link.
pub const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// Open what is beneath a folder; nothing on the way may be a link.
pub fn open_beneath(start: impl AsFd, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat2(
        start,
        path,
        flags | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        RESOLVE,
    )
}

pub fn timestamps(times: &Times) -> Timestamps {
    let spec = |time: &Time| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    Timestamps {
        last_access: spec(&times.access),
        last_modification: spec(&times.change),
    }
}

fn times_of(stat: &Stat) -> Times {
    let time = |seconds, nanoseconds| Time {
        seconds,
        nanoseconds,
    };
    Times {
        access: time(stat.st_atime, stat.st_atime_nsec as u32),
        change: time(stat.st_mtime, stat.st_mtime_nsec as u32),
    }
}

/// Immutable and append-only, as bits of the file attributes.
const PROTECTED: u32 = 0x10 | 0x20;

/// Remove the attributes that keep the file or folder `path` from being changed.
fn make_changeable(fd: impl AsFd, path: &[u8]) -> Result<()> {
    let change = || match sys::file_attributes(&fd)? {
        flags if flags & PROTECTED == 0 => Ok(()),
        flags => sys::set_file_attributes(&fd, flags & !PROTECTED),
    };
    change().or_failed(|| format!("cannot remove the attributes i and a of {}", shown(path)))
}

/// The same by name, with less work when there are none. A name that is missing is left to the call
/// that needs it.
fn make_changeable_at(folder: BorrowedFd, name: &[u8], path: &[u8]) -> Result<()> {
    let protected = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    let found = statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    if !found.is_ok_and(|it| it.stx_attributes.intersects(protected)) {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd =
        open_beneath(folder, name, flags).or_failed(|| format!("cannot open {}", shown(path)))?;
    make_changeable(fd, path)
}

/// Folder and name of a path that is not empty.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// `path`, or something below it.
pub fn is_within(path: &[u8], folder: &[u8]) -> bool {
    let rest = path.strip_prefix(folder);
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

struct Folder {
    fd: OwnedFd,
    /// To be set when nothing changes in it any more, at the latest when it is closed.
    times: Option<Times>,
    /// What is created in it begins with attributes that the stream does not name.
    inherits: bool,
    used: u64,
}

pub struct Tree {
    /// By path; the snapshot's own folder has the empty one and is never closed.
    folders: BTreeMap<Vec<u8>, Folder>,
    uses: u64,
    /// It began as a snapshot of a base. If that was taken here, files may be immutable in it.
    has_base: bool,
}

impl Tree {
    /// The snapshot's own folder keeps its times unless the stream changes them: the kernel does
    /// not, when all that happened in it was that objects were there under temporary names.
    pub fn new(root: OwnedFd, has_base: bool) -> Result<Self> {
        let stat = fstat(&root).or_failed(|| "the subvolume cannot be examined".into())?;
        if has_base {
            make_changeable(&root, b"")?;
        }
        let mut tree = Self {
            folders: BTreeMap::new(),
            uses: 0,
            has_base,
        };
        tree.keep(b"", root);
        tree.defer_times(b"", times_of(&stat));
        Ok(tree)
    }

    fn keep(&mut self, path: &[u8], fd: OwnedFd) {
        let folder = Folder {
            inherits: gives_attributes(fd.as_fd()),
            fd,
            times: None,
            used: self.uses,
        };
        self.folders.insert(path.to_vec(), folder);
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.folders[&b""[..]].fd.as_fd()
    }

    fn folder(&mut self, path: &[u8]) -> Result<&mut Folder> {
        self.uses += 1;
        if !self.folders.contains_key(path) {
            if self.folders.len() >= OPEN_MAX {
                self.close_oldest()?;
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let fd = open_beneath(self.root(), path, flags)
                .or_failed(|| format!("cannot open the folder {}", shown(path)))?;
            if self.has_base {
                make_changeable(&fd, path)?;
            }
            self.keep(path, fd);
        }
        let uses = self.uses;
        match self.folders.get_mut(path) {
            Some(folder) => {
                folder.used = uses;
                Ok(folder)
            }
            None => Err(Errno::NOENT).or_failed(|| "a folder was closed".into()),
        }
    }

    /// The open folder of a path, and the name in it. What has that name can be changed.
    pub fn place<'a>(&mut self, path: &'a [u8]) -> Result<(BorrowedFd<'_>, &'a [u8])> {
        let (folder, name) = split(path);
        let has_base = self.has_base;
        let fd = self.folder(folder)?.fd.as_fd();
        if has_base {
            make_changeable_at(fd, name, path)?;
        }
        Ok((fd, name))
    }

    /// The open folders of two paths, and the names in them.
    pub fn places<'a>(
        &mut self,
        one: &'a [u8],
        other: &'a [u8],
    ) -> Result<[(BorrowedFd<'_>, &'a [u8]); 2]> {
        let (of_one, of_other) = (split(one), split(other));
        self.folder(of_one.0)?;
        self.folder(of_other.0)?;
        // Both were just used, so neither was closed for the other.
        let fd = |path: &[u8]| self.folders[path].fd.as_fd();
        let found = [(fd(of_one.0), of_one.1), (fd(of_other.0), of_other.1)];
        if self.has_base {
            for ((folder, name), path) in found.into_iter().zip([one, other]) {
                make_changeable_at(folder, name, path)?;
            }
        }
        Ok(found)
    }

    /// Whether what is created at `path` begins with attributes of its folder.
    pub fn inherits_at(&mut self, path: &[u8]) -> Result<bool> {
        Ok(self.folder(split(path).0)?.inherits)
    }

    /// The folder at `path` itself, if it is open.
    pub fn open_folder(&self, path: &[u8]) -> Option<BorrowedFd<'_>> {
        self.folders.get(path).map(|folder| folder.fd.as_fd())
    }

    /// Set a folder's times later; false when it is not open.
    pub fn defer_times(&mut self, path: &[u8], times: Times) -> bool {
        let folder = self.folders.get_mut(path);
        folder.map(|folder| folder.times = Some(times)).is_some()
    }

    /// The attributes that what is created in a folder inherits may have changed.
    pub fn look_again(&mut self, path: &[u8]) {
        if let Some(folder) = self.folders.get_mut(path) {
            folder.inherits = gives_attributes(folder.fd.as_fd());
        }
    }

    fn close_oldest(&mut self) -> Result<()> {
        let others = self.folders.iter().filter(|(path, _)| !path.is_empty());
        let oldest = others.min_by_key(|(_, folder)| folder.used);
        let Some(path) = oldest.map(|(path, _)| path.clone()) else {
            return Ok(());
        };
        match self.folders.remove(&path) {
            Some(folder) => set_times(&path, &folder),
            None => Ok(()),
        }
    }

    /// Close what is at and below `path`, because it gets another path or none.
    pub fn release(&mut self, path: &[u8]) -> Result<()> {
        let below = self.folders.range(path.to_vec()..);
        let paths: Vec<Vec<u8>> = below
            .map(|(found, _)| found)
            .take_while(|found| found.starts_with(path))
            .filter(|found| is_within(found, path))
            .cloned()
            .collect();
        for path in paths {
            if let Some(folder) = self.folders.remove(&path) {
                set_times(&path, &folder)?;
            }
        }
        Ok(())
    }

    /// Set all times that were deferred. What comes next changes those of the snapshot's own folder
    /// again, which are set once more at the end.
    pub fn flush(&mut self) -> Result<()> {
        for (path, folder) in &mut self.folders {
            set_times(path, folder)?;
            if !path.is_empty() {
                folder.times = None;
            }
        }
        Ok(())
    }
}

fn set_times(path: &[u8], folder: &Folder) -> Result<()> {
    let Some(times) = &folder.times else {
        return Ok(());
    };
    futimens(&folder.fd, &timestamps(times))
        .or_failed(|| format!("cannot set the times of {}", shown(path)))
}

/// Whether a folder has a default ACL, a compression property, or gives its group.
fn gives_attributes(fd: BorrowedFd) -> bool {
    let is_set_group = |stat: Stat| stat.st_mode & 0o2000 != 0;
    if fstat(fd).map_or(true, is_set_group) {
        return true;
    }
    [c"system.posix_acl_default", c"btrfs.compression"]
        .iter()
        .any(|name| fgetxattr_query(fd, *name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_own_folder_keeps_its_times_after_a_checkpoint() {
        let path = std::env::temp_dir().join(format!("mirrord-tree-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let time = Time {
            seconds: 1_000_000_000,
            nanoseconds: 7,
        };
        let wanted = Times {
            access: time,
            change: time,
        };
        let root = OwnedFd::from(fs::File::open(&path).unwrap());
        futimens(&root, &timestamps(&wanted)).unwrap();
        let mut tree = Tree::new(root, false).unwrap();
        let mut found = Vec::new();
        for name in ["before", "after"] {
            fs::write(path.join(name), "").unwrap();
            fs::remove_file(path.join(name)).unwrap();
            tree.flush().unwrap();
            let facts = fs::metadata(&path).unwrap();
            found.push((facts.mtime(), facts.mtime_nsec()));
        }
        fs::remove_dir(&path).unwrap();
        assert_eq!(found, [(1_000_000_000, 7); 2]);
    }
}
