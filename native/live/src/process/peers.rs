//! The link to the other end: made by the primary, accepted by the secondary.

use super::*;

/// What is read of a connection before it is known whose it is, and what it leaves unread.
const STRANGER_MAX: usize = 64 << 10;

impl Process {
    /// Closes connections that do not say what they are for.
    pub(super) fn drop_strangers(&mut self) {
        let incoming = self.incoming;
        for (key, conn) in &mut self.conns {
            let is_strange = conn.is_strange(incoming == Some(*key));
            let stream = conn.stream();
            stream.closed |= is_strange && stream.born.elapsed() > GREETING;
        }
    }

    /// Starts TLS on a new connection of the link, if there are credentials for it.
    pub(super) fn secure(&mut self, stream: &mut Stream, with: With) -> bool {
        match self.config.tls.as_ref().map(|each| each.session(with)) {
            None => true,
            Some(Ok(session)) => {
                stream.start_tls(session);
                true
            }
            Some(Err(problem)) => {
                self.complain(format!("link: TLS: {problem}"));
                self.explain(Some(problem));
                false
            }
        }
    }

    /// Why the other end cannot be reached, for the status.
    pub(super) fn explain(&mut self, problem: Option<String>) {
        if let (Machine::Primary(primary), Some(problem)) = (&mut self.machine, problem) {
            primary.explain(format!("TLS of the link: {problem}"));
        }
    }

    /// Connects to the other end, if this one is a primary without a connection.
    pub(super) fn connect(&mut self) {
        let is_wanted = match &self.machine {
            Machine::Primary(primary) => primary.wants_link(),
            _ => false,
        };
        if !is_wanted || self.outgoing.is_some() || Instant::now() < self.next_connect {
            return;
        }
        self.next_connect = Instant::now() + RECONNECT;
        let Some(peer) = self.config.peer.clone() else {
            return;
        };
        let key = self.key();
        let Ok(mut socket) = peer.connect() else {
            return;
        };
        let is_registered = socket.register(self.poll.registry(), Key(key)).is_ok();
        let mut stream = Stream::new(socket);
        if is_registered && self.secure(&mut stream, With::Accepting) {
            self.conns.insert(key, Conn::Outgoing(stream));
            self.outgoing = Some(key);
            let now = self.now();
            self.machine.connected(now, &mut self.actions);
        }
    }

    /// This end holds more than it should: of what the primary sent, or of answers that the primary
    /// does not read.
    pub(super) fn is_behind(&self) -> bool {
        match &self.machine {
            Machine::Replica(replica) => {
                let link = self.incoming.and_then(|key| self.conns.get(&key));
                let unread = match link {
                    Some(Conn::Incoming(stream)) => stream.queued,
                    _ => 0,
                };
                let held = replica.queued_bytes() + (self.executor.bytes() + unread) as u64;
                held > self.config.buffers as u64
            }
            _ => false,
        }
    }

    pub(super) fn link_input(&mut self, key: usize) {
        loop {
            let is_behind = self.incoming == Some(key) && self.is_behind();
            let Some(conn) = self.conns.get_mut(&key) else {
                return;
            };
            let stream = conn.stream();
            stream.unparsed = is_behind;
            if is_behind {
                return;
            }
            let is_known = self.outgoing == Some(key) || self.incoming == Some(key);
            if !is_known && stream.input().len().max(stream.queued) > STRANGER_MAX {
                stream.closed = true;
                return;
            }
            match link::receive(stream) {
                Ok(Some(frame)) => self.link_frame(key, frame),
                Ok(None) => return,
                Err(problem) => {
                    stream.closed = true;
                    self.complain(format!("link: {problem}; connection closed"));
                    return;
                }
            }
        }
    }

    pub(super) fn link_frame(&mut self, key: usize, frame: Frame) {
        let now = self.now();
        if self.outgoing == Some(key) || self.incoming == Some(key) {
            self.machine.frame(now, frame, &mut self.actions);
            return;
        }
        let theirs = Hello::decode(&frame.payload).filter(|_| frame.class == Class::Hello);
        let mine = self.machine.hello();
        let Some(theirs) = theirs else {
            self.close(key);
            return;
        };
        if theirs.volume != mine.volume {
            self.turn_away(
                key,
                IS_OTHER_MIRROR,
                "another mirror; correct its address of the replica",
            );
            return;
        }
        if theirs.role == Role::Primary && theirs.epoch <= mine.epoch && self.is_taken(now) {
            let problem = "this mirror, whose primary is connected already; if both are copies of \
                           one end, stop one of them";
            self.turn_away(key, IS_TAKEN, problem);
            return;
        }
        match &mut self.machine {
            Machine::Replica(replica) if theirs.role == Role::Primary => {
                // A newer connection replaces one whose end was not noticed.
                if let Some(old) = self.incoming.replace(key) {
                    self.conns.remove(&old);
                }
                let event = replica::Event::Connected;
                replica.step(now, event, &mut self.actions);
                self.machine.frame(now, frame, &mut self.actions);
            }
            Machine::Primary(primary) => {
                let event = primary::Event::Challenge(theirs);
                primary.step(now, event, &mut self.actions);
                self.answer_hello(key, &mine);
            }
            _ => self.answer_hello(key, &mine),
        }
    }

    /// A primary is connected, and was heard just now: another one does not take its place.
    fn is_taken(&mut self, now: Time) -> bool {
        let link = self.incoming.and_then(|key| self.conns.get_mut(&key));
        let is_open = link.is_some_and(|conn| !conn.stream().ended && !conn.stream().closed);
        is_open && matches!(&self.machine, Machine::Replica(it) if it.is_hearing(now))
    }

    /// Closes the connection of an end that is not this one's, and tells both why.
    fn turn_away(&mut self, key: usize, code: u64, problem: &str) {
        let mut frame = Frame::with_payload(Class::Refuse, 0, problem.as_bytes().to_vec());
        frame.released = code;
        let Some(conn) = self.conns.get_mut(&key) else {
            return;
        };
        let stream = conn.stream();
        let from = stream.socket.peer();
        link::send(stream, &frame, false, &mut self.traffic);
        stream.flush();
        stream.closed = true;
        self.complain(format!(
            "link: {from} was refused: it is an end of {problem}"
        ));
    }

    pub(super) fn answer_hello(&mut self, key: usize, mine: &Hello) {
        let frame = Frame::with_payload(Class::Hello, mine.epoch, mine.encode());
        if let Some(conn) = self.conns.get_mut(&key) {
            link::send(conn.stream(), &frame, false, &mut self.traffic);
        }
    }

    pub(super) fn link_key(&self) -> Option<usize> {
        match &self.machine {
            Machine::Primary(_) => self.outgoing,
            _ => self.incoming,
        }
    }

    pub(super) fn flush_link(&mut self) {
        if let Some(conn) = self.link_key().and_then(|key| self.conns.get_mut(&key)) {
            conn.stream().flush();
        }
    }

    /// Logs what is wrong with a connection, but not again for each further attempt, and no more than
    /// one line a second: anybody may connect.
    pub(crate) fn complain(&mut self, line: String) {
        let is_early = |(at, last): &(Instant, String)| *last == line || at.elapsed() < COMPLAINTS;
        if !self.complaint.as_ref().is_some_and(is_early) {
            self.complaint = Some((Instant::now(), line.clone()));
            self.log(line);
        }
    }
}
