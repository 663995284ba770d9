//! Why a command or the process fails: a text for people, and a code for programs.

use std::fmt;
use std::io::{self, ErrorKind};

/// What can be done about it. `drivers/image/process.py` has the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Anything else.
    Refused,
    AddressInUse,
    /// Other hosts can reach an address for clients, and none are named.
    AddressOpen,
    FileMissing,
    ImageInUse,
    ImageReplaced,
    ImageResized,
    NoSpace,
    RecordsDamaged,
    RecordsReplaced,
}

impl Code {
    fn name(self) -> &'static str {
        match self {
            Code::Refused => "refused",
            Code::AddressInUse => "address-in-use",
            Code::AddressOpen => "address-open",
            Code::FileMissing => "file-missing",
            Code::ImageInUse => "image-in-use",
            Code::ImageReplaced => "image-replaced",
            Code::ImageResized => "image-resized",
            Code::NoSpace => "no-space",
            Code::RecordsDamaged => "records-damaged",
            Code::RecordsReplaced => "records-replaced",
        }
    }

    pub(crate) fn because(self, text: String) -> Problem {
        Problem { code: self, text }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    code: Code,
    pub text: String,
}

impl Problem {
    pub(crate) fn code(&self) -> &'static str {
        self.code.name()
    }
}

/// As the log has it.
impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "error[{}]: {}", self.code(), self.text)
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Problem {
        Code::Refused.because(text)
    }
}

impl From<&str> for Problem {
    fn from(text: &str) -> Problem {
        text.to_string().into()
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        let code = match error.kind() {
            ErrorKind::AddrInUse => Code::AddressInUse,
            ErrorKind::InvalidData => Code::RecordsDamaged,
            ErrorKind::NotFound => Code::FileMissing,
            ErrorKind::ResourceBusy => Code::ImageInUse,
            ErrorKind::StorageFull => Code::NoSpace,
            _ => Code::Refused,
        };
        code.because(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_has_the_code_of_its_kind() {
        let full = Problem::from(io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(full.code(), "no-space");
        assert!(full
            .to_string()
            .starts_with("error[no-space]: No space left"));
        let taken = io::Error::new(ErrorKind::AddrInUse, "127.0.0.1:1: Address already in use");
        assert_eq!(Problem::from(taken).code(), "address-in-use");
        assert_eq!(Problem::from(io::Error::other("?")).code(), "refused");
    }

    #[test]
    fn a_text_alone_is_a_refusal() {
        assert_eq!(
            Problem::from("not now").to_string(),
            "error[refused]: not now"
        );
    }
}
