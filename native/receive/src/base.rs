//! The base, of which the staged subvolume is a snapshot, and whose files clones read.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{statat, AtFlags, OFlags};

use crate::failure::{shown, Context, Failure, Kind, Result};
use crate::file::regular_file;
use crate::sys;
use crate::tree::{open_beneath, split};

/// Before Linux 5.18 data is only shared within one mount, and the base is on another one than the
/// staged subvolume. Then the clones read a snapshot of it, which is next to the subvolume for the
/// time being.
pub struct Base {
    folder: Option<Rc<OwnedFd>>,
    target: Rc<OwnedFd>,
    near_name: Vec<u8>,
    is_near: bool,
}

impl Base {
    /// target: the folder of the staged subvolume `name`.
    pub fn new(folder: Option<Rc<OwnedFd>>, target: Rc<OwnedFd>, name: &[u8]) -> Self {
        let near_name = [name, b"~base"].concat();
        Self {
            folder,
            target,
            near_name,
            is_near: false,
        }
    }

    pub fn is_near(&self) -> bool {
        self.is_near
    }

    /// Read from a snapshot next to the staged subvolume from now on.
    pub fn bring_near(&mut self) -> Result<()> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let failed = || "a snapshot of the base cannot be taken".to_string();
        sys::create_snapshot(&self.target, &self.near_name, folder, true).or_failed(failed)?;
        self.is_near = true;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let near = open_beneath(&self.target, &self.near_name, flags).or_failed(failed)?;
        self.folder = Some(Rc::new(near));
        Ok(())
    }

    /// Delete that snapshot.
    pub fn clean(&mut self) -> Result<()> {
        if !self.is_near {
            return Ok(());
        }
        self.is_near = false;
        self.folder = None;
        match statat(&self.target, &self.near_name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => sys::delete_subvolume(&self.target, &self.near_name)
                .or_failed(|| "the snapshot of the base cannot be deleted".into()),
            Err(_) => Ok(()),
        }
    }

    /// A file of the base, to read from.
    pub fn open(&self, path: &[u8]) -> Result<OwnedFd> {
        let Some(base) = &self.folder else {
            return Err(Failure::new(Kind::Base, "no base was given"));
        };
        let (folder, name) = split(path);
        let opened = if folder.is_empty() {
            regular_file(base.as_fd(), name, OFlags::RDONLY)
        } else {
            open_beneath(base, folder, OFlags::RDONLY | OFlags::DIRECTORY)
                .and_then(|folder| regular_file(folder.as_fd(), name, OFlags::RDONLY))
        };
        opened.or_failed(|| format!("cannot open {} in the base", shown(path)))
    }
}
