//! A snapshot that was taken here has an empty folder in the place of each subvolume inside the
//! original. A stream does not know of them: they are removed where they are in its way.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{self, AtFlags, FileType, OFlags, RawDir};
use rustix::io::{Errno, Result};

use crate::tree::open_beneath;

/// The inode number of such a folder.
const STUB: u64 = 2;

/// `work`, and again when it fails with `taken` because a stub has the name that it needs.
pub fn again_without_stub(
    work: impl Fn() -> Result<()>,
    taken: Errno,
    folder: BorrowedFd,
    name: &[u8],
) -> Result<()> {
    match work() {
        Err(error) if error == taken && remove_stub(folder, name) => work(),
        result => result,
    }
}

fn remove_stub(folder: BorrowedFd, name: &[u8]) -> bool {
    let found = fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|it| {
        it.st_ino == STUB && FileType::from_raw_mode(it.st_mode) == FileType::Directory
    }) && fs::unlinkat(folder, name, AtFlags::REMOVEDIR).is_ok()
}

/// Remove the stubs in a folder; false when there are none.
pub fn remove_stubs_in(folder: BorrowedFd, name: &[u8]) -> bool {
    let Ok(inner) = open_beneath(folder, name, OFlags::RDONLY | OFlags::DIRECTORY) else {
        return false;
    };
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&inner, &mut buffer);
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        if names.len() == 1024 {
            break; // the caller's next try fails: what is not a stub is left, too
        }
        names.push(entry.file_name().to_bytes().to_vec());
    }
    let inside = std::os::fd::AsFd::as_fd(&inner);
    let removed = names.iter().filter(|name| remove_stub(inside, name));
    removed.count() > 0
}
