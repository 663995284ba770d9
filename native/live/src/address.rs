//! Where to listen and what to connect to: `HOST:PORT` or `unix:PATH`.

use crate::stream::Socket;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(name) => out.write_str(name),
            Address::Unix(path) => {
                let complete = std::path::absolute(path);
                let path = complete.as_deref().unwrap_or(path);
                write!(out, "unix:{}", path.display())
            }
        }
    }
}

impl Address {
    /// Only this host can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp(name) => Address::resolve(name).is_ok_and(|it| it.ip().is_loopback()),
        }
    }

    pub fn parse(text: &str) -> Address {
        match text.strip_prefix("unix:") {
            Some(path) => Address::Unix(path.into()),
            None => Address::Tcp(text.into()),
        }
    }

    fn resolve(name: &str) -> io::Result<std::net::SocketAddr> {
        name.to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("no address"))
    }

    pub fn connect(&self) -> io::Result<Socket> {
        Ok(match self {
            Address::Tcp(name) => Socket::Tcp(TcpStream::connect(Address::resolve(name)?)?),
            Address::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
        })
    }

    pub fn listen(&self) -> io::Result<Listener> {
        let explain = |error: io::Error| io::Error::new(error.kind(), format!("{self}: {error}"));
        let socket = match self {
            Address::Tcp(name) => {
                let bound = Address::resolve(name).and_then(TcpListener::bind);
                Listening::Tcp(bound.map_err(explain)?)
            }
            Address::Unix(path) => {
                // A socket that a killed process left; one in use would answer. (A connection to
                // a file of another kind is refused, too.)
                let is_socket = path
                    .symlink_metadata()
                    .is_ok_and(|it| it.file_type().is_socket());
                let tried = UnixStream::connect(path);
                let is_refused =
                    |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                if is_socket && tried.is_err_and(is_refused) {
                    match std::fs::remove_file(path) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => {
                            return Err(explain(error));
                        }
                        _ => {}
                    }
                }
                Listening::Unix(UnixListener::bind(path).map_err(explain)?)
            }
        };
        Ok(Listener {
            address: self.clone(),
            file: self.file(),
            socket,
        })
    }

    /// Device and inode of what is at a path now.
    fn file(&self) -> Option<(u64, u64)> {
        let Address::Unix(path) = self else {
            return None;
        };
        let found = path.symlink_metadata().ok()?;
        Some((found.dev(), found.ino()))
    }
}

/// A socket that listens at an address.
pub struct Listener {
    address: Address,
    file: Option<(u64, u64)>,
    socket: Listening,
}

enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            Listening::Tcp(listener) => registry.register(listener, token, Interest::READABLE),
            Listening::Unix(listener) => registry.register(listener, token, Interest::READABLE),
        }
    }

    pub fn is_for(&self, address: &Address) -> bool {
        self.address == *address
    }

    /// Whether who connects to its address still reaches it: another file may be at its path.
    pub fn is_reached(&self) -> bool {
        self.address.file() == self.file
    }

    /// A new connection, with the address that it comes from; None if there is none waiting.
    pub fn accept(&self) -> Option<(Socket, Option<IpAddr>)> {
        match &self.socket {
            Listening::Tcp(listener) => {
                let (socket, from) = listener.accept().ok()?;
                Some((Socket::Tcp(socket), Some(from.ip().to_canonical())))
            }
            Listening::Unix(listener) => {
                let (socket, _) = listener.accept().ok()?;
                Some((Socket::Unix(socket), None))
            }
        }
    }
}

/// Addresses that begin with the same bits: `ADDRESS/BITS`, or one `ADDRESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    pub fn parse(text: &str) -> Option<Network> {
        let (address, bits) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = if bits.is_empty() && !text.contains('/') {
            most
        } else {
            bits.parse().ok().filter(|bits| *bits <= most)?
        };
        Some(Network { address, bits })
    }

    pub fn contains(&self, other: IpAddr) -> bool {
        let differing = match (self.address, other) {
            (IpAddr::V4(mine), IpAddr::V4(other)) => {
                (mine.to_bits() ^ other.to_bits()).leading_zeros()
            }
            (IpAddr::V6(mine), IpAddr::V6(other)) => {
                (mine.to_bits() ^ other.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        differing >= self.bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses() {
        let contains = |network: &str, address: &str| {
            let network = Network::parse(network).expect(network);
            network.contains(address.parse().expect(address))
        };
        assert!(contains("10.1.0.0/16", "10.1.255.3") && !contains("10.1.0.0/16", "10.2.0.0"));
        assert!(contains("10.1.0.7", "10.1.0.7") && !contains("10.1.0.7", "10.1.0.6"));
        assert!(contains("0.0.0.0/0", "1.2.3.4") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("fd00::/8", "fd12::1") && !contains("fd00::/8", "fe80::1"));
        for malformed in ["10.0.0.0/33", "10.0.0.0/", "host", "10.0.0/8", "::/129"] {
            assert_eq!(Network::parse(malformed), None, "{malformed}");
        }
    }
}
