//! The commands that change data: written, compressed, or shared with another file.

use std::os::fd::AsFd;

use rustix::fs::{self, OFlags};

use super::{Applier, Source};
use crate::command::Command;
use crate::encoded;
use crate::failure::{shown, Context, Failure, Result};
use crate::sys::{self, Encoding};

/// The most that is written by one call.
const RUN_MAX: u64 = 1 << 20;
const RUN_PARTS: usize = 256;

/// Contiguous data for the open file, as parts of the current batch.
struct Run<'a> {
    path: &'a [u8],
    offset: u64,
    length: u64,
    parts: Vec<&'a [u8]>,
}

/// The commands of one batch: data that is not written yet refers to it.
pub struct Turn<'a, 'b> {
    applier: &'a mut Applier,
    run: Option<Run<'b>>,
}

impl Applier {
    /// To apply a batch.
    pub fn turn<'b>(&mut self) -> Turn<'_, 'b> {
        Turn {
            applier: self,
            run: None,
        }
    }

    pub(super) fn write_encoded(
        &mut self,
        path: &[u8],
        encoding: &Encoding,
        data: &[u8],
    ) -> Result<()> {
        let file = self.open_settled(path)?;
        match sys::encoded_write(&file.fd, encoding, data) {
            Ok(()) => Ok(()),
            // The file has no checksums, the kernel is older than this encoding, or the like.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINVAL | libc::ENOTTY | libc::EOPNOTSUPP)
                ) =>
            {
                let plain = encoded::decode(encoding, data).map_err(Failure::damaged)?;
                file.write(encoding.offset, &[&plain])
            }
            Err(error) => Err(error).or_failed(|| format!("cannot write {}", shown(path))),
        }
    }

    pub(super) fn clone_data(&mut self, command: &Command) -> Result<()> {
        let Command::Clone {
            path,
            offset,
            length,
            source,
            source_path,
            source_offset,
        } = *command
        else {
            return Ok(());
        };
        let in_base = source != self.identity.uuid;
        if in_base && self.identity.base != Some(source) {
            return Err(Failure::damaged(
                "data is shared with a subvolume that is neither the snapshot nor its base",
            ));
        }
        self.open_settled(path)?;
        let own = !in_base && self.is_open(source_path);
        let attempt = |applier: &mut Self| -> Result<std::io::Result<()>> {
            if !own {
                applier.open_source(in_base, source_path)?;
            }
            let Some(file) = &applier.file else {
                return Ok(Ok(()));
            };
            let from = match &applier.source {
                Some(source) if !own => source.fd.as_fd(),
                _ => file.fd.as_fd(),
            };
            let cloned = sys::clone_range(&file.fd, offset, from, source_offset, length);
            Ok(cloned)
        };
        let mut cloned = attempt(self)?;
        let crosses = matches!(&cloned, Err(error) if error.raw_os_error() == Some(libc::EXDEV));
        if crosses && in_base && !self.base.is_near() {
            self.source = None;
            self.base.bring_near()?;
            cloned = attempt(self)?;
        }
        cloned.or_failed(|| {
            format!(
                "cannot share {length} bytes of {} with {}",
                shown(source_path),
                shown(path)
            )
        })
    }

    fn open_source(&mut self, in_base: bool, path: &[u8]) -> Result<()> {
        let known = self.source.as_ref();
        if known.is_some_and(|source| source.in_base == in_base && source.path == path) {
            return Ok(());
        }
        let fd = match in_base {
            true => self.base.open(path)?,
            false => self.open_regular(path, OFlags::RDONLY)?,
        };
        let path = path.to_vec();
        self.source = Some(Source { in_base, path, fd });
        Ok(())
    }
}

impl<'b> Turn<'_, 'b> {
    /// Apply one command, or put its data to that of the commands before it.
    pub fn apply(&mut self, command: &Command<'b>) -> Result<()> {
        let Command::Write { path, offset, data } = *command else {
            if let Command::Truncate { path, size } = *command {
                if self.ends_at(path, size) {
                    return self.write_end(size);
                }
            }
            self.write_run()?;
            return self.applier.apply(command);
        };
        if let Some(run) = &mut self.run {
            let length = run.length + data.len() as u64;
            let follows = run.path == path && run.offset + run.length == offset;
            if follows && length <= RUN_MAX && run.parts.len() < RUN_PARTS {
                run.parts.push(data);
                run.length = length;
                return Ok(());
            }
        }
        self.write_run()?;
        self.run = Some(Run {
            path,
            offset,
            length: data.len() as u64,
            parts: vec![data],
        });
        Ok(())
    }

    /// Whether the collected data is the end of the file.
    fn ends_at(&self, path: &[u8], size: u64) -> bool {
        let end = |run: &Run| run.offset + run.length;
        let run = self.run.as_ref();
        run.is_some_and(|run| run.path == path && end(run) == size)
    }

    /// Write the collected data, which is the end of the file. The blocks after it in a longer file
    /// go first, with the last one that is written: otherwise the kernel would read that, and wait
    /// until its new content is on the disk.
    fn write_end(&mut self, size: u64) -> Result<()> {
        let Some(run) = self.run.take() else {
            return Ok(());
        };
        self.applier.make_pending()?;
        let file = self.applier.open_settled(run.path)?;
        let failed = || format!("cannot set the size of {} to {size}", shown(run.path));
        let stat = fs::fstat(&file.fd).or_failed(failed)?;
        let is_longer = stat.st_size as u64 > size;
        let last_block = size - size % (stat.st_blksize as u64).max(1);
        // A file that is cut to nothing would be written to the disk when it is closed.
        let first = is_longer && last_block > 0 && run.offset <= last_block;
        if first {
            fs::ftruncate(&file.fd, last_block).or_failed(failed)?;
        }
        file.write(run.offset, &run.parts)?;
        if is_longer && !first {
            fs::ftruncate(&file.fd, size).or_failed(failed)?;
        }
        Ok(())
    }

    /// Write the data that was collected.
    pub fn write_run(&mut self) -> Result<()> {
        let Some(run) = self.run.take() else {
            return Ok(());
        };
        self.applier.make_pending()?;
        self.applier.open(run.path)?.write(run.offset, &run.parts)
    }
}
