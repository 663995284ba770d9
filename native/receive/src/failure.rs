//! Why a stream could not be applied, in the terms that the caller distinguishes.

use std::fmt;
use std::io;

/// The first word of the line that is printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The stream itself is wrong: sent again from its beginning, it may be right.
    Damaged,
    /// The stream is valid, but does not fit what it is applied to.
    Failed,
    NoSpace,
    /// The file system became read-only.
    ReadOnly,
    /// The device failed.
    Io,
    Permission,
    /// The base is missing, or was changed.
    Base,
    /// This kernel cannot do it, or cannot confine this process.
    Unsupported,
    /// The checkpoint is not usable.
    Checkpoint,
    Usage,
    /// Of this program.
    Bug,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Damaged => "damaged",
            Kind::Failed => "failed",
            Kind::NoSpace => "no-space",
            Kind::ReadOnly => "read-only",
            Kind::Io => "io",
            Kind::Permission => "permission",
            Kind::Base => "base",
            Kind::Unsupported => "unsupported",
            Kind::Checkpoint => "checkpoint",
            Kind::Usage => "usage",
            Kind::Bug => "bug",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub kind: Kind,
    pub why: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(kind: Kind, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { kind, why }
    }

    pub fn damaged(why: impl Into<String>) -> Self {
        Self::new(Kind::Damaged, why)
    }

    /// Name the command in which it happened.
    pub fn at(mut self, command: u64, name: &str) -> Self {
        self.why = format!("{} (command {command}, {name})", self.why);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}\t{}", self.kind.word(), self.why)
    }
}

/// Adds what was attempted to an error of the system.
pub trait Context<T> {
    fn or_failed(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn or_failed(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| {
            let error = error.into();
            let kind = match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => Kind::NoSpace,
                Some(libc::EROFS) => Kind::ReadOnly,
                Some(libc::EIO | libc::EUCLEAN) => Kind::Io,
                Some(libc::EPERM | libc::EACCES) => Kind::Permission,
                _ => Kind::Failed,
            };
            Failure::new(kind, format!("{}: {error}", what()))
        })
    }
}

/// From now on a panic, in whichever thread, ends the process like a failure: in one line.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let said = payload.downcast_ref::<String>().map(String::as_str);
        let said = said.or(payload.downcast_ref::<&str>().copied());
        let place = info.location().map(ToString::to_string);
        let why = format!(
            "{} ({})",
            said.unwrap_or_default(),
            place.unwrap_or_default()
        );
        let failure = Failure::new(Kind::Bug, why.replace(['\n', '\t'], " "));
        eprintln!("{failure}");
        std::process::exit(1);
    }));
}

/// A path of the stream for a message: printable, in one line, of bounded length.
pub fn shown(path: &[u8]) -> String {
    const MOST: usize = 200;
    let text = path[..path.len().min(MOST)].escape_ascii();
    let more = if path.len() > MOST { "…" } else { "" };
    format!("'{text}{more}'")
}
