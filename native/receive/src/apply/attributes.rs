//! The commands that change owner, mode, times and extended attributes.

use std::os::fd::AsFd;

use rustix::fs::{self, AtFlags, FileType, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::fchdir;

use super::Applier;
use crate::command::Times;
use crate::failure::{shown, Context, Result};
use crate::file::{change_attributes, change_owner, change_owner_at, mode_of};
use crate::tree::{open_beneath, timestamps};

impl Applier {
    /// By the descriptor of the file or folder if it is open, else by its name in its folder.
    pub(super) fn change_xattr(
        &mut self,
        path: &[u8],
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<rustix::io::Result<()>> {
        let by_descriptor = |fd| match value {
            Some(value) => fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            None => fs::fremovexattr(fd, name),
        };
        if self.is_open(path) {
            return Ok(by_descriptor(self.open_settled(path)?.fd.as_fd()));
        }
        self.finish_file()?;
        if let Some(folder) = self.tree.open_folder(path) {
            let result = by_descriptor(folder);
            self.tree.look_again(path);
            return Ok(result);
        }
        let (folder, last) = self.tree.place(path)?;
        fchdir(folder).or_failed(|| "a folder cannot be entered".into())?;
        Ok(match value {
            Some(value) => fs::lsetxattr(last, name, value, XattrFlags::empty()),
            None => fs::lremovexattr(last, name),
        })
    }

    pub(super) fn chmod(&mut self, path: &[u8], mode: u32) -> Result<()> {
        if let Some(file) = self.file.as_mut().filter(|file| file.path == path) {
            file.later.mode = Some(mode);
            if mode & 0o7000 == 0 {
                self.usual_mode = mode;
            }
            return Ok(());
        }
        self.finish_file()?;
        let done = match self.tree.open_folder(path) {
            Some(folder) => {
                let done = fs::fchmod(folder, mode_of(mode));
                self.tree.look_again(path);
                done
            }
            None => {
                let (folder, name) = self.tree.place(path)?;
                let stat = fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
                match stat {
                    // The call would follow it.
                    Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                        Err(Errno::LOOP)
                    }
                    Ok(_) => fs::chmodat(folder, name, mode_of(mode), AtFlags::empty()),
                    Err(error) => Err(error),
                }
            }
        };
        done.or_failed(|| format!("cannot set the mode of {}", shown(path)))
    }

    pub(super) fn chown(&mut self, path: &[u8], user: u32, group: u32) -> Result<()> {
        if let Some(file) = self.file.as_mut().filter(|file| file.path == path) {
            file.later.owner = Some((user, group));
            return Ok(());
        }
        self.finish_file()?;
        let done = match self.tree.open_folder(path) {
            Some(folder) => change_owner(folder, user, group),
            None => {
                let (folder, name) = self.tree.place(path)?;
                change_owner_at(folder, name, user, group)
            }
        };
        done.or_failed(|| format!("cannot set the owner of {}", shown(path)))
    }

    pub(super) fn set_times(&mut self, path: &[u8], times: Times) -> Result<()> {
        if let Some(file) = self.file.as_mut().filter(|file| file.path == path) {
            file.later.times = Some(times);
            return Ok(());
        }
        if self.tree.defer_times(path, times) {
            return Ok(());
        }
        self.finish_file()?;
        let (folder, name) = self.tree.place(path)?;
        fs::utimensat(folder, name, &timestamps(&times), AtFlags::SYMLINK_NOFOLLOW)
            .or_failed(|| format!("cannot set the times of {}", shown(path)))
    }

    pub(super) fn set_file_attributes(&mut self, path: &[u8], wanted: u64) -> Result<()> {
        let done = if let Some(folder) = self.tree.open_folder(path) {
            change_attributes(folder, wanted)
        } else if let Some(file) = self.file.as_ref().filter(|file| file.path == path) {
            change_attributes(file.fd.as_fd(), wanted)
        } else {
            self.finish_file()?;
            let (folder, name) = self.tree.place(path)?;
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            match open_beneath(folder, name, flags) {
                Ok(fd) => change_attributes(fd.as_fd(), wanted),
                // A link, a socket or a device has no such attributes.
                Err(Errno::LOOP | Errno::NXIO | Errno::ACCESS) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        done.or_failed(|| format!("cannot set the attributes of {}", shown(path)))
    }
}
