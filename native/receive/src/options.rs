//! The command line. It is written by mirrord, not by people.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::failure::{Failure, Kind, Result};

pub const USAGE: &str = "usage: mirrord-receive --into DIR [--name NAME] [--base DIR [--near-base]]
    [--snapshot UUID:CTRANSID] [--checkpoints DIR --record FILE [--resume POSITION]]
    [--confirmed]
Applies the btrfs send stream on standard input to a new subvolume in DIR.";

#[derive(Debug, Default, PartialEq)]
pub struct Options {
    /// The folder in which the subvolume is created; nothing else can be changed.
    pub into: PathBuf,
    /// Instead of the name in the stream.
    pub name: Option<OsString>,
    /// The subvolume that an increment is applied to a snapshot of.
    pub base: Option<PathBuf>,
    /// The only identity that is accepted.
    pub snapshot: Option<([u8; 16], u64)>,
    /// The folder for the snapshots, and the file for their positions.
    pub checkpoints: Option<(PathBuf, PathBuf)>,
    /// Clone from a snapshot of the base next to the new subvolume, as is done before Linux 5.18.
    pub near_base: bool,
    /// The stream on standard input continues there.
    pub resume: Option<u64>,
    /// A byte follows the stream, from who records that the snapshot is complete. Without it that
    /// process may have been killed.
    pub confirmed: bool,
}

fn usage(why: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Usage, format!("{why}\n{USAGE}"))
}

fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|&one| one != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut uuid = [0; 16];
    for (at, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(uuid)
}

fn identity(value: &OsString) -> Option<([u8; 16], u64)> {
    let (uuid, ctransid) = value.to_str()?.split_once(':')?;
    Some((uuid_of(uuid)?, ctransid.parse().ok()?))
}

impl Options {
    pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Self> {
        let mut found = Self::default();
        let (mut checkpoints, mut record, mut into) = (None, None, None);
        let mut words = words;
        while let Some(word) = words.next() {
            let key = word.to_string_lossy().into_owned();
            let flag = match key.as_str() {
                "--near-base" => Some(&mut found.near_base),
                "--confirmed" => Some(&mut found.confirmed),
                _ => None,
            };
            if let Some(flag) = flag {
                *flag = true;
                continue;
            }
            let value = words
                .next()
                .ok_or_else(|| usage(format!("{key} needs a value")))?;
            let wrong = || usage(format!("{key} has an invalid value"));
            match key.as_str() {
                "--into" => into = Some(value.into()),
                "--name" => found.name = Some(value),
                "--base" => found.base = Some(value.into()),
                "--snapshot" => found.snapshot = Some(identity(&value).ok_or_else(wrong)?),
                "--checkpoints" => checkpoints = Some(value.into()),
                "--record" => record = Some(value.into()),
                "--resume" => {
                    let position = value.to_str().and_then(|text| text.parse().ok());
                    found.resume = Some(position.ok_or_else(wrong)?);
                }
                _ => return Err(usage(format!("unknown option {key}"))),
            }
        }
        found.into = into.ok_or_else(|| usage("--into is missing"))?;
        found.checkpoints = match (checkpoints, record) {
            (Some(folder), Some(record)) => Some((folder, record)),
            (None, None) if found.resume.is_none() => None,
            _ => return Err(usage("--checkpoints and --record belong together")),
        };
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options> {
        Options::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn what_is_needed_is_asked_for() {
        assert!(parse(&["--into", "/x"]).is_ok());
        for words in [
            &["--name", "a"][..],
            &["--into"],
            &["--into", "/x", "--other", "1"],
            &["--into", "/x", "--record", "/r"],
            &["--into", "/x", "--resume", "5"],
            &["--into", "/x", "--snapshot", "12:3"],
        ] {
            assert_eq!(parse(words).unwrap_err().kind, Kind::Usage, "{words:?}");
        }
    }

    #[test]
    fn an_identity_is_read() {
        let text = "00112233-4455-6677-8899-aabbccddeeff:77";
        let found = parse(&["--into", "/x", "--snapshot", text]).unwrap();
        let (uuid, ctransid) = found.snapshot.unwrap();
        assert_eq!((uuid[1], uuid[15], ctransid), (0x11, 0xff, 77));
    }
}
