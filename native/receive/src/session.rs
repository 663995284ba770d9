//! One stream, from its first command to the read-only snapshot.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;

use mirrord_core::checksum::hex;
use mirrord_core::prefix_digest::PrefixDigest;
use rustix::fs::OFlags;

use crate::apply::{Applier, Identity};
use crate::base::Base;
use crate::checkpoint::Checkpoints;
use crate::command::{self, Command};
use crate::confine;
use crate::failure::{shown, Context, Failure, Kind, Result};
use crate::options::Options;
use crate::stream::{self, Batch, Item, Start};
use crate::sys;
use crate::tree::open_beneath;

/// How a session ended without a failure.
#[derive(Debug, PartialEq)]
pub enum Ending {
    Complete,
    /// The stream was cut off. What preceded that is applied, and kept by a checkpoint if there may
    /// be one.
    Interrupted,
}

pub struct Session {
    options: Options,
    target: Rc<OwnedFd>,
    base: Option<Rc<OwnedFd>>,
    checkpoints: Option<Checkpoints>,
    applier: Option<Applier>,
    commands: u64,
    /// What is applied: version and position of the stream, and the digest of that prefix.
    reached: (u32, u64, Option<PrefixDigest>),
}

/// Confine this process, and apply the stream on standard input.
pub fn run(options: Options) -> Result<Ending> {
    let inherited = confine::inherited();
    let record = match &options.checkpoints {
        Some((_, path)) => Some(open_record(path)?),
        None => None,
    };
    let folders = confine::enter(
        &options.into,
        options.base.as_deref(),
        options
            .checkpoints
            .as_ref()
            .map(|(folder, _)| folder.as_path()),
    )?;
    confine::drop_privileges()?;
    sys::catch_termination().or_failed(|| "SIGTERM cannot be caught".into())?;
    let checkpoints = folders.checkpoints.zip(record);
    let mut session = Session {
        options,
        target: Rc::new(folders.target),
        base: folders.base.map(Rc::new),
        checkpoints: checkpoints.map(|(folder, record)| Checkpoints::new(folder, record)),
        applier: None,
        commands: 0,
        reached: (0, 0, None),
    };
    let start = session.start()?;
    let confirmed = session.options.confirmed;
    let input = io::stdin().as_fd().try_clone_to_owned();
    let input = File::from(input.or_failed(|| "there is no standard input".into())?);
    let batches =
        stream::read(input, start, confirmed).or_failed(|| "no thread can be started".into())?;
    confine::filter_calls(&inherited)?;
    loop {
        match batches.items.recv() {
            Ok(Item::Batch(batch)) => {
                let data = session.take(batch)?;
                // Full: the reader has enough.
                let _ = batches.spare.try_send(data);
            }
            Ok(Item::Complete) => return session.complete(),
            Ok(Item::Interrupted) => return session.interrupted(),
            Ok(Item::Failed(failure)) => return Err(failure),
            Err(_) => return Err(Failure::new(Kind::Failed, "the reading thread has ended")),
        }
    }
}

fn open_record(path: &std::path::Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .or_failed(|| format!("cannot open {}", path.display()))
}

impl Session {
    /// Where the stream on standard input begins.
    fn start(&mut self) -> Result<Start> {
        let digest = self.checkpoints.is_some().then(PrefixDigest::default);
        let (Some(position), Some(checkpoints)) = (self.options.resume, &mut self.checkpoints)
        else {
            return Ok(Start {
                version: 0,
                position: 0,
                digest,
            });
        };
        let (slot, snapshot) = checkpoints.resume(position)?;
        self.check_identity(&slot.identity)?;
        let name = self.options.name.clone();
        let name = name.ok_or_else(|| Failure::new(Kind::Usage, "--resume needs --name"))?;
        self.stage(name.as_bytes(), Some(snapshot.as_fd()), slot.identity)?;
        self.reached = (slot.version, position, Some(slot.prefix.clone()));
        Ok(Start {
            version: slot.version,
            position,
            digest: Some(slot.prefix),
        })
    }

    fn check_identity(&self, found: &Identity) -> Result<()> {
        let (uuid, ctransid) = (found.uuid, found.ctransid);
        if let Some(wanted) = self.options.snapshot {
            if wanted != (uuid, ctransid) {
                let text = |(uuid, ctransid): ([u8; 16], u64)| format!("{}:{ctransid}", hex(&uuid));
                return Err(Failure::damaged(format!(
                    "it holds the snapshot {}, not the announced {}",
                    text((uuid, ctransid)),
                    text(wanted)
                )));
            }
        }
        let kind = match (found.base.is_some(), self.base.is_some()) {
            (false, true) => "a full snapshot",
            (true, false) => "changes to another snapshot",
            _ => return Ok(()),
        };
        Err(Failure::damaged(format!(
            "it holds {kind}, which was not announced"
        )))
    }

    /// Create the subvolume that the stream is applied to.
    fn stage(&mut self, name: &[u8], start: Option<BorrowedFd>, identity: Identity) -> Result<()> {
        match start {
            Some(start) => sys::create_snapshot(&self.target, name, start, false),
            None => sys::create_subvolume(&self.target, name),
        }
        .or_failed(|| format!("cannot create the subvolume {}", shown(name)))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = open_beneath(&self.target, name, flags)
            .or_failed(|| format!("cannot open the subvolume {}", shown(name)))?;
        let mut base = Base::new(self.base.clone(), self.target.clone(), name);
        if self.options.near_base {
            base.bring_near()?;
        }
        self.applier = Some(Applier::new(folder, identity, base)?);
        Ok(())
    }

    fn begin(&mut self, name: &[u8], identity: Identity) -> Result<()> {
        self.check_identity(&identity)?;
        if let Some(base) = &self.base {
            let changed = |why: &str| Failure::new(Kind::Base, format!("the base {why}"));
            match sys::is_read_only(base) {
                Ok(true) => {}
                Ok(false) => return Err(changed("was made writable")),
                Err(error) => return Err(changed(&format!("is not a subvolume: {error}"))),
            }
        }
        let name = match &self.options.name {
            Some(name) => name.as_bytes().to_vec(),
            None => crate::tree::split(name).1.to_vec(),
        };
        if name.contains(&b'/') || command::check_path(&name).is_err() || name.is_empty() {
            return Err(Failure::new(
                Kind::Usage,
                "the name of the snapshot is not valid",
            ));
        }
        let base = self.base.clone();
        self.stage(&name, base.as_ref().map(|base| base.as_fd()), identity)
    }

    /// Apply a batch, and take a checkpoint if one is due. Returns its buffer.
    fn take(&mut self, batch: Batch) -> Result<Vec<u8>> {
        self.apply(&batch)?;
        self.reached = (batch.version, batch.position, batch.digest);
        let due = |checkpoints: &Checkpoints| checkpoints.is_due(batch.position);
        if self.checkpoints.as_ref().is_some_and(due) {
            self.checkpoint()?;
        }
        Ok(batch.data)
    }

    fn apply(&mut self, batch: &Batch) -> Result<()> {
        let mut places = batch.commands.iter();
        let mut first = None;
        if self.applier.is_none() {
            first = places.next();
        }
        if let Some(place) = first {
            self.commands += 1;
            let at = |failure: Failure| failure.at(1, command::name(place.kind));
            let payload = &batch.data[place.start..place.end];
            let decoded = command::decode(place.kind, payload, batch.version);
            match decoded.map_err(Failure::damaged).map_err(at)? {
                Command::Begin {
                    uuid,
                    ctransid,
                    base,
                    name,
                } => {
                    let identity = Identity {
                        uuid,
                        ctransid,
                        base,
                    };
                    self.begin(name, identity).map_err(at)?;
                }
                _ => return Err(at(Failure::damaged("it does not begin with its snapshot"))),
            }
        }
        let Some(applier) = &mut self.applier else {
            return Ok(());
        };
        let mut turn = applier.turn();
        for place in places {
            self.commands += 1;
            let number = self.commands;
            let at = |failure: Failure| failure.at(number, command::name(place.kind));
            let payload = &batch.data[place.start..place.end];
            let command = command::decode(place.kind, payload, batch.version)
                .map_err(|why| at(Failure::damaged(why)))?;
            if matches!(command, Command::End) {
                break;
            }
            turn.apply(&command).map_err(at)?;
        }
        turn.write_run()
    }

    fn checkpoint(&mut self) -> Result<()> {
        let (version, _, Some(prefix)) = &self.reached else {
            return Ok(());
        };
        if let (Some(applier), Some(checkpoints)) = (&mut self.applier, &mut self.checkpoints) {
            applier.settle()?;
            let identity = *applier.identity();
            checkpoints.take(applier.tree.root(), *version, &identity, prefix)?;
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<Ending> {
        match &mut self.applier {
            Some(applier) => applier.complete()?,
            None => return Err(Failure::damaged("it holds no snapshot")),
        }
        Ok(Ending::Complete)
    }

    /// The exact state is kept, for whoever sends the rest.
    fn interrupted(&mut self) -> Result<Ending> {
        let position = self.reached.1;
        let behind = |checkpoints: &Checkpoints| checkpoints.is_behind(position);
        if self.checkpoints.as_ref().is_some_and(behind) {
            self.checkpoint()?;
        }
        if let Some(applier) = &mut self.applier {
            applier.clean()?;
        }
        Ok(Ending::Interrupted)
    }
}
