//! `mirrord-receive`: see docs/btrfs-receiver.md.

use std::process::ExitCode;

use mirrord_receive::failure;
use mirrord_receive::options::Options;
use mirrord_receive::session::{self, Ending};

/// The stream ended too early.
const INTERRUPTED: u8 = 3;

fn main() -> ExitCode {
    failure::report_panics();
    let ended = Options::parse(std::env::args_os().skip(1)).and_then(session::run);
    match ended {
        Ok(Ending::Complete) => ExitCode::SUCCESS,
        Ok(Ending::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
