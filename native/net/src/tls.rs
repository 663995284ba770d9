//! A connection by TLS 1.3. During the handshake received bytes are passed in and bytes to send are
//! returned; then a session sends to its socket and receives frames from it.

use std::io::{self, BufRead, IoSlice, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mirrord_tls::{Config, Connection, Error};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{recv, sendmsg, RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::frames::{Fault, Splitter};
use crate::pipe::wait;

/// Encrypted at once before it is sent, and received at once: small enough to stay in the
/// processor's cache between the steps.
const PIECE: usize = 256 << 10;
/// Received bytes that are no complete frame are reported after this time: the caller observes
/// whether the peer is alive.
const REPORT: Duration = Duration::from_millis(500);

struct State {
    connection: Connection,
    /// Decrypted data that was not read yet.
    plain: Vec<u8>,
    failed: Option<Error>,
    /// The peer has sent close_notify.
    closed: bool,
    /// A part of what was to be sent is not sent yet: nothing else may follow it.
    sending: bool,
}

impl State {
    /// Decrypt received bytes. An error in them is remembered: it counts after all data before it.
    fn decrypt(&mut self, mut data: &[u8], sink: &mut dyn FnMut(&[u8])) {
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
                Ok(state) => self.closed |= state.peer_has_closed(),
                Err(error) => self.failed = Some(error),
            }
            // At the end of the connection it is an error, which is known as `closed`.
            while let Ok(plain @ [_, ..]) = self.connection.reader().into_first_chunk() {
                sink(plain);
                let count = plain.len();
                self.connection.reader().consume(count);
            }
        }
    }

    /// What follows the last data: the error of the session, or whether the peer has closed it.
    fn after(&self) -> Result<bool, Error> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(self.closed),
        }
    }

    fn outgoing(&mut self) -> Vec<u8> {
        let mut sealed = Vec::new();
        while self.connection.wants_write() {
            // Writing to memory cannot fail.
            if self.connection.write_tls(&mut sealed).is_err() {
                break;
            }
        }
        sealed
    }
}

/// Why nothing more can be sent or received.
pub enum Broken {
    /// The peer has sent close_notify.
    Closed,
    Tls(Error),
    Io(io::Error),
    Frame(Fault),
}

impl From<Errno> for Broken {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// One end of a connection. One thread may receive while others send.
pub struct Session {
    state: Mutex<State>,
    /// Where received bytes are put before they are decrypted.
    received: Mutex<Vec<u8>>,
}

impl Session {
    pub fn new(config: &Config) -> Result<Self, Error> {
        let mut connection = config.connection()?;
        connection.set_buffer_limit(None); // what is sealed is sent immediately
        Ok(Self {
            state: Mutex::new(State {
                connection,
                plain: Vec::new(),
                failed: None,
                closed: false,
                sending: false,
            }),
            received: Mutex::new(Vec::new()),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // After a panic inside the session cannot be used: that is reported.
        self.state.lock().expect("the session is usable")
    }

    /// Process received bytes. An error in them is returned by `check` and, after all data before
    /// it was read, by `read`.
    pub fn feed(&self, data: &[u8]) {
        let mut state = self.state();
        let mut plain = std::mem::take(&mut state.plain);
        state.decrypt(data, &mut |found| plain.extend_from_slice(found));
        state.plain = plain;
    }

    /// The error of the session, if there is one.
    pub fn check(&self) -> Result<(), Error> {
        self.state().after().map(|_| ())
    }

    /// Whether the handshake is not complete yet.
    pub fn handshaking(&self) -> bool {
        self.state().connection.is_handshaking()
    }

    /// Bytes to send for the handshake.
    pub fn outgoing(&self) -> Vec<u8> {
        self.state().outgoing()
    }

    /// At most `most` bytes of decrypted data; None: nothing yet; empty: the peer has sent
    /// close_notify.
    pub fn read(&self, most: usize) -> Result<Option<Vec<u8>>, Error> {
        let mut state = self.state();
        let count = most.min(state.plain.len());
        let found: Vec<u8> = state.plain.drain(..count).collect();
        if found.is_empty() && most > 0 {
            return Ok(state.after()?.then_some(found));
        }
        Ok(Some(found))
    }

    /// Close this direction (close_notify); returns the bytes to send. Nothing when something is
    /// being sent.
    pub fn goodbye(&self) -> Vec<u8> {
        let mut state = self.state();
        if state.sending {
            return Vec::new();
        }
        state.connection.send_close_notify();
        state.outgoing()
    }

    /// The peer's certificate (DER), None before it was presented.
    pub fn peer_certificate(&self) -> Option<Vec<u8>> {
        let state = self.state();
        Some(state.connection.peer_certificates()?.first()?.to_vec())
    }

    /// Encrypt the parts and send them. Waits for the peer, without the lock on the session: both
    /// ends may send at the same time. One thread at a time.
    ///
    /// signal: called when a signal has interrupted the wait; false: give up.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        parts: &[&[u8]],
        signal: &mut dyn FnMut() -> bool,
    ) -> Result<(), Broken> {
        let mut patience = || match wait(socket, PollFlags::OUT, None) {
            Err(Errno::INTR) if signal() => Ok(true),
            waited => waited,
        };
        self.put(socket, parts, &mut patience).map(drop)
    }

    /// As `send`, but what the peer does not take by then is left to the next call, encrypted:
    /// whether everything is sent. At most one frame should be left: `flush` before the next one.
    pub fn send_within(
        &self,
        socket: BorrowedFd<'_>,
        parts: &[&[u8]],
        until: Instant,
    ) -> Result<bool, Broken> {
        self.put(socket, parts, &mut || writable_by(socket, until))
    }

    /// Send what an earlier call has left, by then; whether nothing is left.
    pub fn flush(&self, socket: BorrowedFd<'_>, until: Instant) -> Result<bool, Broken> {
        self.put(socket, &[], &mut || writable_by(socket, until))
    }

    /// patience: waits for the socket; false: no longer.
    fn put(
        &self,
        socket: BorrowedFd<'_>,
        parts: &[&[u8]],
        patience: &mut dyn FnMut() -> Result<bool, Errno>,
    ) -> Result<bool, Broken> {
        let mut room = PIECE;
        let mut parts = parts.iter().flat_map(|part| part.chunks(PIECE)).peekable();
        loop {
            let mut state = self.state();
            state.sending = true;
            let part = parts.next().unwrap_or_default();
            state
                .connection
                .writer()
                .write_all(part)
                .map_err(Broken::Io)?;
            room = room.saturating_sub(part.len());
            if parts.peek().is_some_and(|next| next.len() <= room) {
                continue;
            }
            room = PIECE;
            let mut sent = true;
            while sent && state.connection.wants_write() {
                match state.connection.write_tls(&mut Socket(socket)) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        drop(state);
                        sent = patience()?;
                        state = self.state();
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Broken::Io(error)),
                }
            }
            if parts.peek().is_none() {
                state.sending = !sent;
                return Ok(sent);
            }
        }
    }

    /// Receive until at least one frame without a route is complete; how many bytes of frames came.
    /// Returns without one when some of these bytes came and `REPORT` has passed since. One thread at
    /// a time.
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        splitter: &mut Splitter,
    ) -> Result<usize, Broken> {
        let mut buffer = self.received.lock().expect("the session is usable");
        buffer.resize(PIECE, 0);
        let (mut count, mut begun) = (self.split(&[], splitter)?, None);
        while splitter.frames.is_empty() {
            match recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(cut()),
                Ok((received, _)) => {
                    count += self.split(&buffer[..received], splitter)?;
                    // Not from the first byte of a record: 0 is what the end of a session gives.
                    if count > 0 {
                        let at = *begun.get_or_insert_with(Instant::now);
                        if at.elapsed() >= REPORT {
                            break;
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let limit = begun.map(|at: Instant| REPORT.saturating_sub(at.elapsed()));
                    match wait(socket, PollFlags::IN, limit) {
                        Ok(false) => break,
                        Ok(true) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }

    /// Decrypt received bytes, and split them into frames; the bytes of these.
    fn split(&self, data: &[u8], splitter: &mut Splitter) -> Result<usize, Broken> {
        let mut state = self.state();
        let (mut count, mut split) = (0, Ok(()));
        let mut take = |plain: &[u8]| {
            count += plain.len();
            if split.is_ok() {
                split = splitter.feed(plain);
            }
        };
        take(&std::mem::take(&mut state.plain)); // what came with the greeting
        state.decrypt(data, &mut take);
        split.map_err(Broken::Frame)?;
        if splitter.frames.is_empty() && state.after().map_err(Broken::Tls)? {
            return Err(Broken::Closed);
        }
        Ok(count)
    }
}

fn writable_by(socket: BorrowedFd<'_>, until: Instant) -> Result<bool, Errno> {
    let left = until.saturating_duration_since(Instant::now());
    match wait(socket, PollFlags::OUT, Some(left)) {
        Err(Errno::INTR) => Ok(!left.is_zero()),
        waited => waited,
    }
}

fn cut() -> Broken {
    let why = "the connection was closed without close_notify";
    Broken::Io(io::Error::new(io::ErrorKind::ConnectionAborted, why))
}

/// A socket that never blocks, and raises no signal.
struct Socket<'a>(BorrowedFd<'a>);

impl Write for Socket<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(
            self.0,
            parts,
            &mut SendAncillaryBuffer::default(),
            flags,
        )?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
