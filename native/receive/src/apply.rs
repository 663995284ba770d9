//! Applies commands to the staged snapshot, as `btrfs receive` does, with fewer calls.
//!
//! What is folded, and why the result is the same:
//! - An object that is created under a temporary name and renamed at once is created at its place.
//! - Writes that follow one another without a gap are one write.
//! - Owner, mode and times of the open file are set when another file's turn comes, or before its
//!   data or other attributes change again.
//! - Times of folders are set at the end, as every change in a folder changes them.

use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, FallocateFlags, FileType, Mode, OFlags, RawMode, RenameFlags};
use rustix::io::Errno;
use rustix::process::fchdir;

use crate::base::Base;
use crate::command::{Command, New};
use crate::failure::{shown, Context, Failure, Result};
use crate::file::{create_file, mode_of, regular_file, OpenFile, COMPRESSION, NEW_FILE};
use crate::sys;
use crate::tree::Tree;
pub use data::Turn;
use stubs::{again_without_stub, remove_stubs_in};

mod attributes;
mod data;
mod stubs;

/// What the first command said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Identity {
    pub uuid: [u8; 16],
    pub ctransid: u64,
    pub base: Option<[u8; 16]>,
}

/// An object that is created by the next command: where, is decided by that.
enum Made {
    Plain(New<'static>),
    Link(Vec<u8>),
}

impl Made {
    fn of(new: New) -> Self {
        match new {
            New::Link { target } => Made::Link(target.to_vec()),
            New::File => Made::Plain(New::File),
            New::Folder => Made::Plain(New::Folder),
            New::Fifo => Made::Plain(New::Fifo),
            New::Socket => Made::Plain(New::Socket),
            New::Node { mode, device } => Made::Plain(New::Node { mode, device }),
        }
    }

    fn what(&self) -> New<'_> {
        match self {
            Made::Plain(new) => *new,
            Made::Link(target) => New::Link { target },
        }
    }
}

/// Where clones come from: a file that stays open.
struct Source {
    in_base: bool,
    path: Vec<u8>,
    fd: OwnedFd,
}

pub struct Applier {
    pub tree: Tree,
    identity: Identity,
    base: Base,
    made: Option<(Vec<u8>, Made)>,
    file: Option<OpenFile>,
    source: Option<Source>,
    /// Of the last file: most files have the same, and are created with it.
    usual_mode: u32,
}

impl Applier {
    pub fn new(subvolume: OwnedFd, identity: Identity, base: Base) -> Result<Self> {
        Ok(Self {
            tree: Tree::new(subvolume, identity.base.is_some())?,
            identity,
            base,
            made: None,
            file: None,
            source: None,
            usual_mode: NEW_FILE,
        })
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Apply what was put off, so that the tree is what the commands so far describe.
    pub fn settle(&mut self) -> Result<()> {
        self.make_pending()?;
        self.finish_file()?;
        self.tree.flush()
    }

    /// Leave nothing but the subvolume.
    pub fn clean(&mut self) -> Result<()> {
        self.source = None;
        self.base.clean()
    }

    /// Mark the subvolume as received, then read-only: it is complete when it is both.
    pub fn complete(&mut self) -> Result<()> {
        self.settle()?;
        self.clean()?;
        let root = self.tree.root();
        sys::set_received(root, &self.identity.uuid, self.identity.ctransid)
            .or_failed(|| "the snapshot cannot be marked as received".into())?;
        sys::set_read_only(root).or_failed(|| "the snapshot cannot be made read-only".into())
    }

    // Creating

    fn make_pending(&mut self) -> Result<()> {
        match self.made.take() {
            Some((path, made)) => self.make(&path, made.what()),
            None => Ok(()),
        }
    }

    fn make(&mut self, path: &[u8], new: New) -> Result<()> {
        if self.make_new(path, new)? {
            return Ok(());
        }
        Err(Errno::EXIST).or_failed(|| format!("cannot create {}", shown(path)))
    }

    /// False: something is there already.
    fn make_new(&mut self, path: &[u8], new: New) -> Result<bool> {
        self.finish_file()?;
        self.source = None;
        let inherits = self.tree.inherits_at(path)?;
        let (folder, name) = self.tree.place(path)?;
        let owner_only = Mode::RUSR | Mode::WUSR;
        let created = match new {
            New::File => {
                let mode = if inherits { NEW_FILE } else { self.usual_mode };
                create_file(folder, name, mode_of(mode)).map(|fd| {
                    let mut file = OpenFile::new(path, fd);
                    file.made_with = (!inherits).then_some(mode);
                    self.file = Some(file);
                })
            }
            New::Folder => fs::mkdirat(folder, name, Mode::RWXU),
            New::Link { target } => fs::symlinkat(target, folder, name),
            New::Fifo => fs::mknodat(folder, name, FileType::Fifo, owner_only, 0),
            New::Socket => fs::mknodat(folder, name, FileType::Socket, owner_only, 0),
            New::Node { mode, device } => {
                let kind = FileType::from_raw_mode(mode as RawMode);
                if !matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
                    return Err(Failure::damaged(
                        "a device is neither of characters nor blocks",
                    ));
                }
                fs::mknodat(folder, name, kind, owner_only, device.into())
            }
        };
        if created == Err(Errno::EXIST) {
            return Ok(false);
        }
        created.or_failed(|| format!("cannot create {}", shown(path)))?;
        if inherits {
            self.remove_inherited(path)?;
        }
        Ok(true)
    }

    /// The stream names all attributes that the object has at the source; it has no others here.
    fn remove_inherited(&mut self, path: &[u8]) -> Result<()> {
        let (folder, name) = self.tree.place(path)?;
        fchdir(folder).or_failed(|| "a folder cannot be entered".into())?;
        for inherited in [
            c"system.posix_acl_access",
            c"system.posix_acl_default",
            COMPRESSION,
        ] {
            match fs::lremovexattr(name, inherited) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {}
                // An inode without a compression property answers like this.
                Err(Errno::INVAL) => {}
                result => result.or_failed(|| format!("cannot clear {}", shown(path)))?,
            }
        }
        Ok(())
    }

    // The open file

    /// The file at `path`, open for writing; any other one is finished.
    fn open(&mut self, path: &[u8]) -> Result<&mut OpenFile> {
        let open = self.file.take_if(|file| file.path == path);
        let file = match open {
            Some(file) => file,
            None => {
                self.finish_file()?;
                let fd = self.open_regular(path, OFlags::RDWR)?;
                OpenFile::new(path, fd)
            }
        };
        Ok(self.file.insert(file))
    }

    fn open_regular(&mut self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let (folder, name) = self.tree.place(path)?;
        regular_file(folder, name, flags).or_failed(|| format!("cannot open {}", shown(path)))
    }

    /// The open file at `path`, its pending attributes set because something else changes now.
    fn open_settled(&mut self, path: &[u8]) -> Result<&mut OpenFile> {
        let file = self.open(path)?;
        file.settle_for_data()?;
        Ok(file)
    }

    fn is_open(&self, path: &[u8]) -> bool {
        self.file.as_ref().is_some_and(|file| file.path == path)
    }

    fn finish_file(&mut self) -> Result<()> {
        match self.file.take() {
            Some(mut file) => file.settle(),
            None => Ok(()),
        }
    }

    /// Paths are about to change: nothing may be remembered by them.
    fn forget(&mut self, paths: &[&[u8]]) -> Result<()> {
        self.finish_file()?;
        self.source = None;
        for path in paths {
            self.tree.release(path)?;
        }
        Ok(())
    }

    // Commands

    /// Everything but data for files; the data that preceded it was written.
    fn apply(&mut self, command: &Command) -> Result<()> {
        if let (Some((made, _)), Command::Rename { from, to }) = (&self.made, command) {
            if made == from {
                return self.make_at(to);
            }
        }
        self.make_pending()?;
        match *command {
            Command::Make { path, new } => {
                self.made = Some((path.to_vec(), Made::of(new)));
                Ok(())
            }
            Command::Rename { from, to } => self.rename(from, to),
            Command::HardLink { path, target } => {
                self.forget(&[])?;
                let [(folder, name), (source, original)] = self.tree.places(path, target)?;
                let link = || fs::linkat(source, original, folder, name, AtFlags::empty());
                again_without_stub(link, Errno::EXIST, folder, name)
                    .or_failed(|| format!("cannot link {} to {}", shown(path), shown(target)))
            }
            Command::Unlink { path } => {
                self.forget(&[])?;
                let (folder, name) = self.tree.place(path)?;
                fs::unlinkat(folder, name, AtFlags::empty())
                    .or_failed(|| format!("cannot remove {}", shown(path)))
            }
            Command::RemoveFolder { path } => {
                self.forget(&[path])?;
                let (folder, name) = self.tree.place(path)?;
                let mut done = fs::unlinkat(folder, name, AtFlags::REMOVEDIR);
                if done == Err(Errno::NOTEMPTY) && remove_stubs_in(folder, name) {
                    done = fs::unlinkat(folder, name, AtFlags::REMOVEDIR);
                }
                done.or_failed(|| format!("cannot remove the folder {}", shown(path)))
            }
            Command::SetXattr { path, name, value } => {
                match self.change_xattr(path, name, Some(value))? {
                    // How its data is stored is for the destination to decide: without checksums, for
                    // example, it cannot be compressed.
                    Err(Errno::INVAL) if name == COMPRESSION.to_bytes() => Ok(()),
                    result => result
                        .or_failed(|| format!("cannot set {} of {}", shown(name), shown(path))),
                }
            }
            Command::RemoveXattr { path, name } => self
                .change_xattr(path, name, None)?
                .or_failed(|| format!("cannot remove {} of {}", shown(name), shown(path))),
            Command::Clone { .. } => self.clone_data(command),
            Command::Truncate { path, size } => {
                let file = self.open_settled(path)?;
                fs::ftruncate(&file.fd, size)
                    .or_failed(|| format!("cannot set the size of {} to {size}", shown(path)))
            }
            Command::Chmod { path, mode } => self.chmod(path, mode),
            Command::Chown { path, user, group } => self.chown(path, user, group),
            Command::SetTimes { path, times } => self.set_times(path, times),
            Command::Allocate {
                path,
                mode,
                offset,
                length,
            } => {
                let file = self.open_settled(path)?;
                fs::fallocate(
                    &file.fd,
                    FallocateFlags::from_bits_retain(mode),
                    offset,
                    length,
                )
                .or_failed(|| format!("cannot allocate {length} bytes of {}", shown(path)))
            }
            Command::FileAttributes { path, flags } => self.set_file_attributes(path, flags),
            Command::EncodedWrite {
                path,
                encoding,
                data,
            } => self.write_encoded(path, &encoding, data),
            Command::EnableVerity {
                path,
                algorithm,
                block_size,
                salt,
                signature,
            } => {
                self.finish_file()?;
                // The file must not be open for writing.
                let fd = self.open_regular(path, OFlags::RDONLY)?;
                sys::enable_verity(fd, algorithm, block_size, salt, signature)
                    .or_failed(|| format!("cannot enable verity for {}", shown(path)))
            }
            Command::Write { .. } => Ok(()), // by `Turn`
            Command::Begin { .. } | Command::End => {
                Err(Failure::damaged("the command is not at its place"))
            }
        }
    }

    /// Create what is pending where its first command would move it to.
    fn make_at(&mut self, to: &[u8]) -> Result<()> {
        let Some((from, made)) = self.made.take() else {
            return Ok(());
        };
        if self.make_new(to, made.what())? {
            return Ok(());
        }
        self.make(&from, made.what())?;
        self.rename(&from, to)
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.forget(&[from, to])?;
        let [(source, old), (target, new)] = self.tree.places(from, to)?;
        let rename = || fs::renameat_with(source, old, target, new, RenameFlags::empty());
        again_without_stub(rename, Errno::ISDIR, target, new)
            .or_failed(|| format!("cannot rename {} to {}", shown(from), shown(to)))
    }
}
