//! Connections between the ends.

use super::*;

/// Payloads that a narrow path does not pass.
const LARGE: usize = 512;

impl World {
    pub(super) fn connect(&mut self, node: usize) {
        let is_reachable = !self.blocked[0] && !self.blocked[1];
        if !is_reachable || matches!(self.nodes[1 - node].machine, Machine::Down) {
            return;
        }
        self.next += 1;
        let number = self.next;
        self.connections.push(Connection {
            number,
            initiator: node,
            dead: [false; 2],
            last: [self.now; 2],
        });
        let time = self.now + self.latency() + self.delay[0] + self.delay[1];
        for node in [1 - node, node] {
            let connection = number;
            self.at(time, What::Connected { connection, node });
        }
    }

    pub(super) fn is_open(&self, connection: u64) -> bool {
        self.connections
            .iter()
            .any(|each| each.number == connection)
    }

    pub(super) fn initiator(&self, connection: u64) -> Option<usize> {
        let found = self
            .connections
            .iter()
            .find(|each| each.number == connection);
        found.map(|each| each.initiator)
    }

    pub(super) fn connected(&mut self, connection: u64, node: usize) {
        let is_initiator = self.initiator(connection) == Some(node);
        match &self.nodes[node].machine {
            Machine::Primary(_) if is_initiator => {
                self.primary_event(node, primary::Event::Connected);
            }
            Machine::Replica(_) if !is_initiator => {
                self.replica_event(node, replica::Event::Connected);
            }
            _ => {}
        }
    }

    /// Ends a connection; the ends, except `quiet`, learn it after a while.
    pub(super) fn close(&mut self, connection: u64, quiet: Option<usize>) {
        if let Some(initiator) = self.initiator(connection) {
            self.connections.retain(|each| each.number != connection);
            for node in [initiator, 1 - initiator] {
                let delay = if quiet == Some(node) {
                    0
                } else {
                    self.latency()
                };
                // `connection` tells who the initiator was.
                let connection = if node == initiator { 1 } else { 0 };
                let time = self.now + delay;
                self.at(time, What::Disconnected { connection, node });
            }
        }
    }

    pub(super) fn disconnected(&mut self, was_initiator: u64, node: usize) {
        let has_other = self
            .connections
            .iter()
            .any(|each| (each.initiator == node) == (was_initiator == 1));
        if has_other {
            return;
        }
        match &self.nodes[node].machine {
            Machine::Primary(_) if was_initiator == 1 => {
                self.primary_event(node, primary::Event::Disconnected);
            }
            Machine::Replica(_) if was_initiator == 0 => {
                self.replica_event(node, replica::Event::Disconnected);
            }
            _ => {}
        }
    }

    pub(super) fn deliver(&mut self, connection: u64, to: usize, frame: Frame) {
        let is_initiator = self.initiator(connection) == Some(to);
        let is_idle =
            frame.class == Class::Ping || frame.class == Class::Ack && frame.released == 0;
        self.note(|| {
            if is_idle {
                return format!("-> {to} {:?} #{}", frame.class, frame.sequence);
            }
            format!(
                "-> {to} {:?} #{} @{}+{} r{}",
                frame.class, frame.sequence, frame.offset, frame.length, frame.released
            )
        });
        match &self.nodes[to].machine {
            Machine::Primary(_) if is_initiator => {
                self.primary_event(to, primary::Event::Frame(frame));
            }
            Machine::Primary(primary) => {
                // Another primary asks: tell it this end's epoch, and learn its own.
                if let Some(hello) = Hello::decode(&frame.payload) {
                    let mine = primary.hello();
                    self.answer(connection, to, &mine);
                    self.primary_event(to, primary::Event::Challenge(hello));
                }
            }
            Machine::Replica(_) if !is_initiator => {
                self.replica_event(to, replica::Event::Frame(frame));
            }
            Machine::Fenced => {
                if let Ok(record) = setup::read_record(&self.nodes[to].disk) {
                    self.answer(connection, to, &Hello::of(&record, false));
                }
            }
            _ => {}
        }
    }

    pub(super) fn answer(&mut self, connection: u64, from: usize, hello: &Hello) {
        let frame = Frame::with_payload(Class::Hello, hello.epoch, hello.encode());
        self.send(connection, from, frame);
    }

    pub(super) fn send(&mut self, connection: u64, from: usize, frame: Frame) {
        let time = self.now + self.latency() + self.delay[from];
        let is_too_large = self.narrow[from] && frame.payload.len() >= LARGE;
        let is_blocked = self.blocked[from] || is_too_large;
        let corrupt = std::mem::take(&mut self.corrupt[from]);
        let found = self
            .connections
            .iter_mut()
            .find(|each| each.number == connection);
        if let Some(found) = found {
            found.dead[from] |= is_blocked;
            if !found.dead[from] {
                let time = time.max(found.last[from]);
                found.last[from] = time;
                let to = 1 - from;
                self.at(
                    time,
                    What::Frame {
                        connection,
                        to,
                        frame,
                        corrupt,
                    },
                );
            }
        }
    }
}
