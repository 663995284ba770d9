//! Certificates and keys for TLS. The files are read for each connection, so that renewed ones count
//! without a restart; with systemd they are credentials of the unit.

use mirrord_tls::{Config, Malformed, Session};
use std::fs;
use std::path::{Path, PathBuf};

/// This end's certificate and key, and the certificates of those that it accepts.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub trusted: PathBuf,
}

/// Whom a session is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    /// The other end, which this one connects to.
    Accepting,
    /// The other end, which has connected.
    Connecting,
    /// A client: one of several.
    Client,
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Credentials {
    pub fn session(&self, with: With) -> Result<Session, String> {
        let (certificate, key) = (read(&self.certificate)?, read(&self.key)?);
        let trusted = read(&self.trusted)?;
        let made = match with {
            With::Client => Config::server_for_all(&certificate, &key, &trusted),
            _ => Config::new(with == With::Connecting, &certificate, &key, &trusted),
        };
        let config = made.map_err(|malformed| match malformed {
            Malformed::Own(why) => {
                let (certificate, key) = (self.certificate.display(), self.key.display());
                format!("{certificate} with {key}: {why}")
            }
            Malformed::Trusted(why) => format!("{}: {why}", self.trusted.display()),
        })?;
        config.session().map_err(|error| error.to_string())
    }
}
