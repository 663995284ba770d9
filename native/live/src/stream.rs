//! Byte streams without blocking: TCP or unix, with what was received and what is to be sent.

use crate::sys;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use mirrord_live_core::types::Payload;
use mirrord_tls::Session;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::time::Instant;

/// Bytes that are asked for in one read.
const READ: usize = 256 << 10;
/// Memory for input that a connection without any keeps.
const KEPT: usize = 1 << 20;
/// Pieces that are sent in one call.
const PIECES: usize = 64;
/// Bytes that are encrypted at a time.
const SEALED: usize = 256 << 10;

pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub fn source(&mut self) -> &mut dyn Source {
        match self {
            Socket::Tcp(stream) => stream,
            Socket::Unix(stream) => stream,
        }
    }

    /// The host that it connects to.
    pub fn peer(&self) -> String {
        match self {
            Socket::Tcp(stream) => match stream.peer_addr() {
                Ok(address) => address.ip().to_canonical().to_string(),
                Err(error) => error.to_string(),
            },
            Socket::Unix(_) => "a program on this host".into(),
        }
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        if let Socket::Tcp(stream) = self {
            // Batches are formed here; the kernel need not wait for more.
            stream.set_nodelay(true).ok();
            // An idle client whose host is gone must not keep its connection for ever.
            sys::keep_alive(stream).ok();
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(self.source(), token, interest)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(into),
            Socket::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write_vectored(from),
            Socket::Unix(stream) => stream.write_vectored(from),
        }
    }
}

enum Piece {
    Own(Vec<u8>),
    Shared(Payload),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Shared(bytes) => bytes,
        }
    }
}

pub struct Stream {
    pub socket: Socket,
    /// Input is what lies between `start` and `end`; what follows is room for the next read, and
    /// not cleared for each: that took longer than everything else that is done for a write.
    received: Vec<u8>,
    start: usize,
    end: usize,
    sending: VecDeque<Piece>,
    /// How much of the first piece was sent.
    sent: usize,
    pub queued: usize,
    /// There may be more to read.
    pub readable: bool,
    /// There may be more to take from what was received, which waits for room.
    pub unparsed: bool,
    /// The peer sends no more; there may be more to read before.
    pub ended: bool,
    pub closed: bool,
    tls: Option<Box<Session>>,
    /// As it came from the socket, with TLS.
    raw: Vec<u8>,
    /// As it goes to the socket, with TLS.
    sealed: Vec<u8>,
    sealed_sent: usize,
    /// Why TLS failed.
    pub problem: Option<String>,
    pub born: Instant,
}

impl Stream {
    pub fn new(socket: Socket) -> Stream {
        Stream {
            tls: None,
            raw: Vec::new(),
            sealed: Vec::new(),
            sealed_sent: 0,
            problem: None,
            born: Instant::now(),
            socket,
            received: Vec::new(),
            start: 0,
            end: 0,
            sending: VecDeque::new(),
            sent: 0,
            queued: 0,
            readable: true,
            unparsed: false,
            ended: false,
            closed: false,
        }
    }

    /// From here on everything is encrypted, but for what was to be sent before.
    pub fn start_tls(&mut self, session: Session) {
        for piece in std::mem::take(&mut self.sending) {
            self.sealed.extend_from_slice(piece.bytes());
        }
        self.queued = 0;
        self.raw = vec![0; READ];
        self.tls = Some(Box::new(session));
    }

    /// Reads once.
    pub fn receive(&mut self) {
        let read = if self.tls.is_some() {
            self.socket.read(&mut self.raw)
        } else {
            let end = self.make_room(READ);
            self.socket.read(&mut self.received[end..end + READ])
        };
        match read {
            Ok(0) => self.closed = true,
            Ok(read) => {
                // Less than asked for: the socket is empty, and says so when it is not.
                self.readable = read == READ || self.ended;
                self.arrived(read);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.closed = true,
        }
    }

    /// Room for so many bytes behind the input, whose end is returned.
    fn make_room(&mut self, length: usize) -> usize {
        if self.start == self.end || self.start > READ {
            self.received.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let needed = self.end + length;
        if self.received.len() < needed {
            self.received.resize(needed, 0);
        }
        self.end
    }

    /// So many bytes came from the socket.
    fn arrived(&mut self, length: usize) {
        let Some(tls) = &mut self.tls else {
            self.end += length;
            return;
        };
        tls.feed(&self.raw[..length]);
        let mut plain = std::mem::take(&mut tls.plain);
        let end = self.make_room(plain.len());
        self.end += plain.len();
        self.received[end..self.end].copy_from_slice(&plain);
        plain.clear();
        let Some(tls) = &mut self.tls else {
            return;
        };
        tls.plain = plain;
        self.closed |= tls.closed;
        if let Some(error) = &tls.failed {
            self.problem = Some(error.to_string());
            // The alert that tells the peer why.
            self.flush();
            self.closed = true;
        }
    }

    /// What was received and not consumed.
    pub fn input(&self) -> &[u8] {
        &self.received[self.start..self.end]
    }

    pub fn consume(&mut self, length: usize) {
        self.start += length;
        if self.start == self.end && self.received.len() > KEPT {
            self.received = Vec::new();
            (self.start, self.end) = (0, 0);
        }
    }

    /// A place for bytes to be sent.
    pub fn output(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.queued += bytes.len();
        match self.sending.back_mut() {
            Some(Piece::Own(last)) if last.len() < 16 << 10 => last.extend_from_slice(bytes),
            _ => self.sending.push_back(Piece::Own(bytes.to_vec())),
        }
    }

    pub fn output_shared(&mut self, payload: Payload) {
        if payload.len() < 1024 {
            self.output(&payload);
        } else {
            self.queued += payload.len();
            self.sending.push_back(Piece::Shared(payload));
        }
    }

    /// Sends what the socket takes.
    pub fn flush(&mut self) {
        if self.tls.is_some() {
            self.flush_sealed();
        } else {
            self.flush_plain();
        }
    }

    fn flush_plain(&mut self) {
        while !self.sending.is_empty() && !self.closed {
            let sent = self.sent;
            let slices: Vec<IoSlice<'_>> = self
                .sending
                .iter()
                .take(PIECES)
                .enumerate()
                .map(|(at, piece)| IoSlice::new(&piece.bytes()[if at == 0 { sent } else { 0 }..]))
                .collect();
            match self.socket.write(&slices) {
                Ok(written) => self.advance(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.closed = true,
            }
        }
    }

    /// So many bytes of what was to be sent are on their way.
    fn advance(&mut self, mut written: usize) {
        self.queued -= written;
        while let Some(first) = self.sending.front() {
            let left = first.bytes().len() - self.sent;
            if written < left {
                self.sent += written;
                return;
            }
            written -= left;
            self.sent = 0;
            self.sending.pop_front();
        }
    }

    fn flush_sealed(&mut self) {
        while !self.closed {
            if self.sealed_sent == self.sealed.len() {
                self.sealed.clear();
                self.sealed_sent = 0;
                self.seal();
                if self.sealed.is_empty() {
                    return;
                }
            }
            let slice = IoSlice::new(&self.sealed[self.sealed_sent..]);
            match self.socket.write(&[slice]) {
                Ok(written) => self.sealed_sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.closed = true,
            }
        }
    }

    /// Encrypts what comes next.
    fn seal(&mut self) {
        let Some(tls) = &mut self.tls else {
            return;
        };
        // Nothing leaves before the peer is known.
        if !tls.is_handshaking() {
            let (mut sealed, mut sent) = (0, self.sent);
            for piece in &self.sending {
                let bytes = &piece.bytes()[sent..];
                let part = bytes.len().min(SEALED - sealed);
                sent = 0;
                // Into memory: it cannot fail.
                let _ = tls.write(&bytes[..part]);
                sealed += part;
                if sealed == SEALED {
                    break;
                }
            }
            tls.outgoing(&mut self.sealed);
            self.advance(sealed);
        } else {
            tls.outgoing(&mut self.sealed);
        }
    }

    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }
}
