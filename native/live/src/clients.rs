//! NBD clients: their requests to the state machine, and the answers back.

use crate::credentials::With;
use crate::executor::{For, Job};
use crate::files::failure_of;
use crate::machine::Machine;
use crate::nbd::{Kind, Parsed, Request, Security, Session};
use crate::process::{Conn, Process};
use crate::stream::Stream;
use mirrord_live_core::io::{File, Outcome};
use mirrord_live_core::primary::Event;
use mirrord_live_core::types::{Failure, Range, RequestId};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest range of one operation; longer ones are split.
const PIECE: u32 = 32 << 20;
/// Bytes of answers that a client may leave unread before its requests wait.
const UNREAD_MAX: usize = 4 << 20;
/// Bytes of a request that count for nothing: what one read of the socket brings.
const SMALL: usize = 256 << 10;
/// Operations of a client that are under way at a time: what is more waits in its connection.
const OPERATIONS_MAX: u32 = 256;
/// How long a client may take to send so much of what it has begun, or to take so much of its
/// answers, as `SMALL` is, while others wait for the buffers that it holds.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Client {
    pub stream: Stream,
    pub session: Session,
    /// Bytes of the bound on buffers that a large write, not complete yet, has been given.
    reserved: usize,
    /// Such a write waits for room.
    pub waiting: bool,
    /// Its operations under way.
    operations: u32,
    /// When enough was last received or taken, and how many bytes were left to be then.
    moved: (Instant, usize),
}

impl Client {
    /// One that has room for what it sends may always read.
    pub fn may_read(&self, is_full: bool) -> bool {
        let is_busy = self.stream.queued > UNREAD_MAX || self.operations >= OPERATIONS_MAX;
        self.reserved > 0 || !is_full && !self.waiting && !is_busy
    }

    /// It was held back: that counts against none of its time limits.
    pub fn start_again(&mut self) {
        self.moved.0 = Instant::now();
        self.stream.born = self.moved.0;
    }

    /// Bytes of the bound on buffers that it holds but for its requests.
    pub fn held(&self) -> usize {
        self.reserved + self.stream.queued
    }
}

/// One request of a client; it may have been split.
pub(crate) struct Group {
    conn: usize,
    cookie: u64,
    parts: u32,
    total: u32,
    result: Result<(), Failure>,
    /// What it counts for in the bound on buffers.
    bytes: usize,
    offset: u64,
}

/// A read that waits until reads are allowed, or fail.
pub(crate) struct Held {
    group: u64,
    range: Range,
    /// What is read is where the holes are; only the first extent if true.
    extents: Option<bool>,
}

impl Process {
    pub(crate) fn new_client(&mut self, mut stream: Stream, is_local: bool) -> Client {
        let security = match &self.config.clients_tls {
            Some(_) if !is_local => Security::Required,
            _ => Security::Plain,
        };
        let size = match &self.machine {
            Machine::Primary(primary) => primary.record().geometry.size,
            _ => 0,
        };
        let mut out = Vec::new();
        let session = Session::new(size, &self.config.export, security, &mut out);
        stream.output(&out);
        Client {
            stream,
            session,
            reserved: 0,
            waiting: false,
            operations: 0,
            moved: (Instant::now(), 0),
        }
    }

    pub(crate) fn client_input(&mut self, key: usize) {
        let mut out = Vec::new();
        loop {
            let is_full = self.buffered > self.config.buffers;
            let Some(Conn::Client(client)) = self.conns.get_mut(&key) else {
                return;
            };
            client.stream.unparsed = !client.may_read(is_full);
            if client.stream.unparsed {
                return;
            }
            out.clear();
            let parsed = client.session.parse(client.stream.input(), &mut out);
            client.stream.output(&out);
            match parsed {
                Parsed::Incomplete => return self.reserve(key),
                Parsed::Consumed(used) => client.stream.consume(used),
                Parsed::Refused(used, cookie, failure) => {
                    client.stream.consume(used);
                    out.clear();
                    client.session.answer(&mut out, cookie, Err(failure));
                    client.stream.output(&out);
                }
                Parsed::Request(used, request) => {
                    client.stream.consume(used);
                    client.reserved = 0;
                    self.request(key, request);
                }
                Parsed::StartTls(used) => {
                    client.stream.consume(used);
                    self.start_client_tls(key);
                }
                Parsed::Close => {
                    client.stream.flush();
                    client.stream.closed = true;
                    return;
                }
                Parsed::Broken(problem) => {
                    client.stream.flush();
                    client.stream.closed = true;
                    self.complain(format!("client: {problem}; connection closed"));
                    return;
                }
            }
        }
    }

    /// A large write gets room for all of it before more of it is read, so that those that have
    /// begun can always be completed.
    pub(crate) fn reserve(&mut self, key: usize) {
        let used = self.used_buffers();
        let Some(Conn::Client(client)) = self.conns.get_mut(&key) else {
            return;
        };
        let announced = client.session.announced(client.stream.input());
        if let Some(bytes) = announced.filter(|bytes| *bytes > SMALL && client.reserved == 0) {
            client.waiting = used > 0 && used + bytes > self.config.buffers;
            if !client.waiting {
                client.reserved = bytes;
            }
        }
    }

    /// Bytes of requests, of answers that are not taken, and of writes that have begun.
    pub(crate) fn used_buffers(&self) -> usize {
        let held = self.conns.values().map(|conn| match conn {
            Conn::Client(client) => client.held(),
            _ => 0,
        });
        self.buffered + held.sum::<usize>()
    }

    /// Writes that wait for room get it as soon as there is some. Those who hold it for nothing
    /// are disconnected.
    pub(crate) fn share_buffers(&mut self) {
        let waiting: Vec<usize> = self
            .conns
            .iter()
            .filter(|(_, conn)| matches!(conn, Conn::Client(client) if client.waiting))
            .map(|(key, _)| *key)
            .collect();
        for key in &waiting {
            self.reserve(*key);
        }
        let is_short = !waiting.is_empty() || self.is_full();
        let mut dropped = 0;
        for conn in self.conns.values_mut() {
            let Conn::Client(client) = conn else {
                continue;
            };
            let left = client.held().saturating_sub(client.stream.input().len());
            let is_moving = client.moved.1.abs_diff(left) >= SMALL;
            if client.held() == 0 || is_moving || !is_short {
                client.moved = (Instant::now(), left);
            } else if client.moved.0.elapsed() > PATIENCE {
                client.stream.closed = true;
                dropped += 1;
            }
        }
        if dropped > 0 {
            self.log(format!(
                "{dropped} clients disconnected: others waited for the buffers that they held"
            ));
        }
    }

    fn start_client_tls(&mut self, key: usize) {
        let made = self.config.clients_tls.as_ref();
        let made = made.map(|credentials| credentials.session(With::Client));
        match (made, self.conns.get_mut(&key)) {
            (Some(Ok(session)), Some(conn)) => conn.stream().start_tls(session),
            (made, _) => {
                self.close(key);
                if let Some(Err(problem)) = made {
                    self.complain(format!("client: TLS: {problem}"));
                }
            }
        }
    }

    fn group(&mut self, conn: usize, request: &Request, parts: u32) -> u64 {
        self.next_group += 1;
        if let Some(Conn::Client(client)) = self.conns.get_mut(&conn) {
            client.operations += parts;
        }
        let bytes = request.data.len()
            + if request.kind == Kind::Read {
                request.length as usize
            } else {
                64
            };
        self.buffered += bytes;
        self.groups.insert(
            self.next_group,
            Group {
                conn,
                cookie: request.cookie,
                parts,
                total: parts,
                result: Ok(()),
                bytes,
                offset: request.offset,
            },
        );
        self.next_group
    }

    fn request(&mut self, key: usize, request: Request) {
        let parts = match request.kind {
            Kind::Trim | Kind::WriteZeroes => request.length.div_ceil(PIECE),
            _ => 1,
        };
        let group = self.group(key, &request, parts);
        let range = Range::new(request.offset, request.length);
        match request.kind {
            Kind::Read | Kind::BlockStatus => self.read(Held {
                group,
                range,
                extents: (request.kind == Kind::BlockStatus).then_some(request.one),
            }),
            Kind::Cache => self.finish_group(group, Ok(())),
            Kind::Flush => self.submit(Event::Flush {
                request: group << 8,
            }),
            Kind::Write => self.submit(Event::Write {
                request: group << 8,
                offset: request.offset,
                data: Arc::new(request.data),
                fua: request.fua,
            }),
            Kind::Trim | Kind::WriteZeroes => {
                for part in 0..parts {
                    let done = part * PIECE;
                    let length = PIECE.min(request.length - done);
                    self.submit(Event::Zero {
                        request: group << 8 | u64::from(part),
                        range: Range::new(request.offset + u64::from(done), length),
                        punch: request.kind == Kind::Trim || !request.no_hole,
                        fua: request.fua,
                    });
                }
            }
            Kind::Disconnect => {}
        }
    }

    fn submit(&mut self, event: Event) {
        let now = self.now();
        if let Machine::Primary(primary) = &mut self.machine {
            primary.step(now, event, &mut self.actions);
        }
    }

    fn is_readable(&self) -> bool {
        match &self.machine {
            Machine::Primary(primary) => primary.is_readable(),
            _ => false,
        }
    }

    fn is_failed(&self) -> bool {
        matches!(&self.machine, Machine::Primary(primary) if primary.is_failed())
    }

    fn read(&mut self, held: Held) {
        let Held { group, range, .. } = held;
        if self.is_failed() {
            return self.finish_group(group, Err(Failure::Io));
        }
        if !self.is_readable() {
            self.held.push(held);
            return;
        }
        if let Some(one) = held.extents {
            let job = Job::Extents(range, one);
            return self.executor.queue(For::Extents(group), job);
        }
        let mut data = vec![0; range.length as usize];
        if self.executor.try_read(range.offset, &mut data) {
            self.read_done(group, Outcome::Data(data));
        } else {
            let job = Job::Read(File::Image, range.offset, data);
            self.executor.queue(For::Read(group), job);
        }
    }

    pub(crate) fn retry_held(&mut self) {
        if !self.held.is_empty() && (self.is_readable() || self.is_failed()) {
            for held in std::mem::take(&mut self.held) {
                self.read(held);
            }
        }
    }

    pub(crate) fn read_done(&mut self, number: u64, outcome: Outcome) {
        let data = match outcome {
            Outcome::Data(data) => data,
            Outcome::Failed(failure) => return self.finish_group(number, Err(failure)),
            Outcome::Done => return self.finish_group(number, Err(Failure::Io)),
        };
        let Some(group) = self.groups.remove(&number) else {
            return;
        };
        self.buffered -= group.bytes;
        if let Some(Conn::Client(client)) = self.conns.get_mut(&group.conn) {
            client.operations -= group.total;
            let mut out = Vec::with_capacity(64);
            let length = data.len() as u32;
            client
                .session
                .read_header(&mut out, group.cookie, group.offset, length);
            client.stream.output(&out);
            client.stream.output_shared(Arc::new(data));
        }
    }

    /// The state machine has answered a request.
    pub(crate) fn replied(&mut self, request: RequestId, result: Result<(), Failure>) {
        self.finish_group(request >> 8, result);
    }

    fn finish_group(&mut self, number: u64, result: Result<(), Failure>) {
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        group.result = group.result.and(result);
        group.parts -= 1;
        if group.parts > 0 {
            return;
        }
        let Some(group) = self.groups.remove(&number) else {
            return;
        };
        self.buffered -= group.bytes;
        if let Some(Conn::Client(client)) = self.conns.get_mut(&group.conn) {
            client.operations -= group.total;
            let mut out = Vec::with_capacity(64);
            client.session.answer(&mut out, group.cookie, group.result);
            client.stream.output(&out);
        }
    }

    pub(crate) fn block_status(&mut self, number: u64, extents: io::Result<Vec<(u32, bool)>>) {
        let extents = match extents {
            Ok(extents) => extents,
            Err(error) => return self.finish_group(number, Err(failure_of(&error))),
        };
        let Some(group) = self.groups.remove(&number) else {
            return;
        };
        self.buffered -= group.bytes;
        if let Some(Conn::Client(client)) = self.conns.get_mut(&group.conn) {
            client.operations -= group.total;
            let mut out = Vec::new();
            client
                .session
                .block_status(&mut out, group.cookie, &extents);
            client.stream.output(&out);
        }
    }

    /// Closes the clients' connections without an answer.
    pub(crate) fn drop_clients(&mut self) {
        for conn in self.conns.values_mut() {
            if let Conn::Client(client) = conn {
                client.stream.closed = true;
            }
        }
        self.groups.clear();
        self.held.clear();
        self.buffered = 0;
    }
}
