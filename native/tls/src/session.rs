//! One end of a connection.

use rustls::{Connection, Error};
use std::io::{self, Read, Write};

pub struct Session {
    connection: Connection,
    /// Decrypted data that was not read yet.
    pub plain: Vec<u8>,
    pub failed: Option<Error>,
    /// The peer has sent close_notify.
    pub closed: bool,
}

impl Session {
    pub(crate) fn new(mut connection: Connection) -> Session {
        connection.set_buffer_limit(None); // each piece is removed immediately
        Session {
            connection,
            plain: Vec::new(),
            failed: None,
            closed: false,
        }
    }

    /// Processes received bytes. What is decrypted is in `plain`, an error in `failed`.
    pub fn feed(&mut self, mut data: &[u8]) {
        while !data.is_empty() && self.failed.is_none() {
            match self.connection.read_tls(&mut data) {
                Ok(0) => break, // data after its close_notify is ignored
                Ok(_) => {}
                Err(error) => {
                    self.failed = Some(Error::General(error.to_string()));
                    break;
                }
            }
            match self.connection.process_new_packets() {
                Ok(state) => {
                    let count = state.plaintext_bytes_to_read();
                    self.closed |= state.peer_has_closed();
                    let start = self.plain.len();
                    self.plain.resize(start + count, 0);
                    if let Err(error) = self
                        .connection
                        .reader()
                        .read_exact(&mut self.plain[start..])
                    {
                        self.failed = Some(Error::General(error.to_string()));
                    }
                }
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Encrypts a piece; `outgoing` has the result.
    pub fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.connection.writer().write_all(piece)
    }

    /// Appends the bytes to be sent.
    pub fn outgoing(&mut self, sealed: &mut Vec<u8>) {
        while self.connection.wants_write() {
            // Writing to memory cannot fail.
            if self.connection.write_tls(sealed).is_err() {
                break;
            }
        }
    }

    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }
}
