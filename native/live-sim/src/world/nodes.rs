//! The ends: starts, kills, power cuts, and what their machines ask for.

use super::*;

impl World {
    pub(super) fn start(&mut self, node: usize) {
        if !matches!(self.nodes[node].machine, Machine::Down) {
            return;
        }
        let boot = [self.nodes[node].boot; 16];
        self.forget_cached(node, boot);
        let record = match setup::read_record(&self.nodes[node].disk) {
            Ok(record) => record,
            Err(problem) => return self.fail(format!("node {node} can't start: {problem}")),
        };
        // A takeover that was not durable, and that nobody was told of, is undone by a power cut.
        // What the client did since is not followed.
        self.is_void |= record.role == Role::Secondary && node == self.primary;
        let other = setup::read_record(&self.nodes[1 - node].disk);
        let is_newer =
            other.is_ok_and(|other| other.epoch < record.epoch || other.role == Role::Fenced);
        if record.role == Role::Primary && node != self.primary && is_newer {
            // The break was complete when the end went down.
            self.took_over(node);
        }
        self.nodes[node].life += 1;
        let life = self.nodes[node].life;
        let mut settings = settings();
        if self.plan.throttled {
            settings.copy_rate = 16 << 10;
        }
        if let Some(window) = self.plan.semi {
            settings.semi = window;
            settings.within = self.plan.within;
            settings.merge_above = self.plan.merge_above;
        }
        if node == self.primary {
            self.prefix.freeze();
        }
        let mut out = Vec::new();
        let disk = &self.nodes[node].disk;
        self.nodes[node].machine = match record.role {
            Role::Primary => {
                match Primary::open(record, boot, settings, disk, self.fault, &mut out) {
                    Ok(primary) => Machine::Primary(Box::new(primary)),
                    Err(problem) => return self.fail(format!("node {node}: {problem}")),
                }
            }
            Role::Secondary => {
                match Replica::open(record, boot, settings, disk, self.fault, &mut out) {
                    Ok(replica) => Machine::Replica(Box::new(replica)),
                    Err(problem) => return self.fail(format!("node {node}: {problem}")),
                }
            }
            Role::Fenced => Machine::Fenced,
        };
        self.note(|| format!("node {node} starts"));
        self.execute(node, out);
        self.at(self.now, What::Tick { node, life });
    }

    /// As a process does it when it begins.
    fn forget_cached(&mut self, node: usize, boot: [u8; 16]) {
        let disk = &mut self.nodes[node].disk;
        let is_lost = |disk: &Disk| setup::read_record(disk).is_ok_and(|it| it.boot != boot);
        disk.forget(File::Side);
        disk.forget(File::Log);
        if !is_lost(disk) {
            disk.forget(File::Tracking);
        }
        if is_lost(disk) {
            disk.forget(File::Image);
        }
    }

    /// A sync of the image failed, and a process that is killed now would not know (documented).
    pub(super) fn is_noting_loss(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        let record = match &node.machine {
            Machine::Primary(primary) => primary.record(),
            Machine::Replica(replica) => replica.record(),
            _ => return false,
        };
        let boot = [node.boot; 16];
        let mut disk = node.disk.clone();
        disk.forget(File::Tracking);
        record.boot != boot && setup::read_record(&disk).is_ok_and(|it| it.boot == boot)
    }

    /// The process ends; its memory is gone, the kernel's is not.
    pub(super) fn kill(&mut self, node: usize) {
        self.note(|| format!("node {node} is killed"));
        let loss = if self.plan.fixed {
            Loss::Nothing
        } else {
            Loss::Random
        };
        let inflight = std::mem::take(&mut self.nodes[node].inflight);
        for (file, offset, data) in inflight.into_values() {
            self.nodes[node]
                .disk
                .interrupt(file, offset, &data, &mut self.rng, loss);
        }
        self.nodes[node].machine = Machine::Down;
        self.nodes[node].life += 1;
        self.nodes[node].stalled_until = self.now;
        let mine: Vec<u64> = self.connections.iter().map(|each| each.number).collect();
        for connection in mine {
            self.close(connection, None);
        }
        if node == self.primary {
            self.drop_clients();
        }
    }

    pub(super) fn cut_power(&mut self, node: usize, loss: Loss) {
        self.kill(node);
        self.note(|| format!("node {node} loses power"));
        self.nodes[node].boot += 1;
        self.nodes[node].disk.cut_power(&mut self.rng, loss);
        self.lose(node);
        if node != self.primary && self.plan.semi.is_some() {
            self.peek(false);
        }
    }

    /// The end's disk is replaced by an older copy of it.
    pub(super) fn restore(&mut self, node: usize, down: Time) {
        let Some(disk) = self.nodes[node].kept.take() else {
            return;
        };
        // What was written since the last number that the other end knows is not noticed.
        let other = setup::read_record(&self.nodes[1 - node].disk);
        let is_noticed = matches!((setup::read_record(&disk), other),
            (Ok(mine), Ok(other)) if mine.asked < other.session && mine.epoch == other.epoch);
        self.is_void |= !is_noticed || self.broken;
        self.cut_power(node, Loss::All);
        self.note(|| format!("node {node} is replaced by an older copy of itself"));
        self.nodes[node].disk = disk;
        self.is_apart = true;
        self.is_aged = node != self.primary;
        if node == self.primary {
            // What was acknowledged since is lost, or at the other end.
            let image = self.nodes[node].disk.contents(File::Image).to_vec();
            self.history.adopt(&image);
        }
        self.at(self.now + down, What::Start { node });
    }

    /// Nobody knows what the medium has of the unflushed writes.
    fn lose(&mut self, node: usize) {
        let target = &self.nodes[node];
        let is_synced = match &target.machine {
            Machine::Primary(primary) => primary.record().synced,
            _ => setup::read_record(&target.disk).is_ok_and(|record| record.synced),
        };
        let is_alone = node == self.primary && !is_synced;
        if is_alone || self.lost[1 - node] {
            self.history.expose();
        }
        self.lost[node] = true;
    }

    pub(super) fn demote(&mut self, node: usize) {
        if !matches!(self.nodes[node].machine, Machine::Fenced) {
            return;
        }
        self.kill(node);
        let done = setup::become_secondary(&mut self.nodes[node].disk);
        if let Err(problem) = done {
            return self.fail(format!("demotion: {problem}"));
        }
        self.at(self.now, What::Start { node });
    }

    pub(crate) fn primary_event(&mut self, node: usize, event: primary::Event) {
        let mut out = Vec::new();
        if let Machine::Primary(primary) = &mut self.nodes[node].machine {
            primary.step(self.now, event, &mut out);
        }
        self.execute(node, out);
    }

    pub(super) fn replica_event(&mut self, node: usize, event: replica::Event) {
        let mut out = Vec::new();
        if let Machine::Replica(replica) = &mut self.nodes[node].machine {
            replica.step(self.now, event, &mut out);
            replica.step(self.now, replica::Event::Turn, &mut out);
        }
        self.execute(node, out);
    }

    pub(super) fn execute(&mut self, node: usize, out: Vec<Action>) {
        let is_primary = matches!(self.nodes[node].machine, Machine::Primary(_));
        let mut is_reopened = false;
        for action in out {
            self.order(node, &action);
            match action {
                Action::Write {
                    file,
                    offset,
                    data,
                    token,
                } => self.submit(node, token, Io::Write(file, offset, data.to_vec())),
                Action::Zero { range, token, .. } => {
                    let zeros = vec![0; range.length as usize];
                    self.submit(node, token, Io::Write(File::Image, range.offset, zeros));
                }
                Action::Read {
                    file,
                    offset,
                    length,
                    token,
                } => self.submit(node, token, Io::Read(file, offset, length)),
                Action::Sync { file, token } => {
                    let mark = self.nodes[node].disk.mark();
                    self.submit(node, token, Io::Sync(file, mark));
                }
                Action::Reserve {
                    file,
                    length,
                    token,
                } => self.submit(node, token, Io::Reserve(file, length)),
                Action::Send(frame) => {
                    let mine = self
                        .connections
                        .iter()
                        .rev()
                        .find(|each| (each.initiator == node) == is_primary);
                    if let Some(connection) = mine.map(|each| each.number) {
                        self.send(connection, node, frame);
                    }
                }
                Action::Disconnect(reason) => {
                    self.note(|| format!("node {node} hangs up: {reason:?}"));
                    let mine: Vec<u64> = self
                        .connections
                        .iter()
                        .filter(|each| (each.initiator == node) == is_primary)
                        .map(|each| each.number)
                        .collect();
                    for connection in mine {
                        self.close(connection, Some(node));
                    }
                }
                Action::Reply { request, result } => self.replied(node, request, result),
                Action::DropClients => {
                    if node == self.primary {
                        self.drop_clients();
                    }
                }
                Action::Reopen => is_reopened = true,
                Action::Report(_) => {}
                Action::Log(line) => self.note(|| format!("node {node}: {line}")),
            }
        }
        // What was ordered with it is under way then.
        if is_reopened {
            self.reopen(node);
        }
    }

    /// A machine starts again from its files. A secondary that is a primary now has taken over.
    pub(super) fn reopen(&mut self, node: usize) {
        self.kill(node);
        self.at(self.now, What::Start { node });
    }

    pub(super) fn took_over(&mut self, node: usize) {
        let old = 1 - node;
        self.reached[2] += 1;
        if self.has_no_image {
            self.fail("P3: an end without a consistent image took over".into());
        }
        let was_in_sync = match &self.nodes[old].machine {
            Machine::Primary(primary) => {
                primary.record().synced && primary.state() != State::Entering
            }
            _ => setup::read_record(&self.nodes[old].disk).is_ok_and(|record| record.synced),
        };
        let image = self.nodes[node].disk.contents(File::Image).to_vec();
        let secured = match (was_in_sync, self.lost[node]) {
            (true, false) => Secured::Acknowledged,
            (true, true) => Secured::Flushed,
            _ => Secured::Barriers,
        };
        self.note(|| format!("node {node} takes over, {secured:?}"));
        if !self.broken && !self.is_apart {
            self.check_prefix(&image, &self.nodes[node].disk.clone(), "after break");
        }
        let record = setup::read_record(&self.nodes[node].disk);
        let until = match record {
            Ok(record) if !self.lost[node] => record.since,
            _ => 0,
        };
        if !self.broken && !self.is_apart {
            for secured in [Secured::Barriers, secured, Secured::Until(until)] {
                if let Some(problem) = self.history.check(&image, secured, false) {
                    self.fail(format!("P1/P3 after break: {problem}"));
                }
            }
        }
        self.primary = node;
        self.drop_clients();
        self.history.adopt(&image);
        self.is_apart = false;
        self.broken = true;
        self.lost = [false; 2];
    }

    pub(super) fn submit(&mut self, node: usize, token: Token, io: Io) {
        self.next += 1;
        let number = self.next;
        if let Io::Write(file, offset, data) = &io {
            let entry = (*file, *offset, data.clone());
            self.nodes[node].inflight.insert(number, entry);
        }
        let drag = if node == self.primary { 0 } else { self.drag };
        let time = self.now + self.latency() + drag;
        let life = self.nodes[node].life;
        self.at(
            time,
            What::Io {
                node,
                life,
                number,
                token,
                io,
            },
        );
    }

    pub(super) fn io_done(&mut self, node: usize, number: u64, token: Token, io: Io) {
        let failed = Outcome::Failed(Failure::Io);
        self.watch_log(node, &io);
        let rng = &mut self.rng;
        let target = &mut self.nodes[node];
        target.inflight.remove(&number);
        let outcome = match io {
            Io::Write(File::Image, offset, data) if target.fail_write => {
                target.fail_write = false;
                target
                    .disk
                    .interrupt(File::Image, offset, &data, rng, Loss::Random);
                failed
            }
            Io::Write(file, offset, data) if target.fail_records == Some((file, false)) => {
                target.fail_records = None;
                target
                    .disk
                    .interrupt(file, offset, &data, rng, Loss::Random);
                failed
            }
            Io::Sync(file, _) if target.fail_records == Some((file, true)) => {
                target.fail_records = None;
                target.disk.failed(file, rng);
                if rng.once_in(2) {
                    // The kernel needs the memory.
                    target.disk.forget(file);
                }
                failed
            }
            Io::Write(file, offset, data) => match target.disk.write(file, offset, &data) {
                Ok(()) => Outcome::Done,
                Err(_) => failed,
            },
            Io::Read(File::Image, ..) if target.fail_read => {
                target.fail_read = false;
                failed
            }
            Io::Read(file, offset, length) => {
                let mut data = vec![0; length as usize];
                match target.disk.read(file, offset, &mut data) {
                    Ok(()) => Outcome::Data(data),
                    Err(_) => failed,
                }
            }
            Io::Sync(File::Image, _) if target.fail_sync => {
                target.fail_sync = false;
                target.disk.failed(File::Image, rng);
                self.lose(node);
                failed
            }
            Io::Sync(file, mark) => {
                target.disk.synced(file, mark);
                Outcome::Done
            }
            Io::Reserve(_, length) if length > 0 && target.fail_reserve => {
                target.fail_reserve = false;
                Outcome::Failed(Failure::NoSpace)
            }
            Io::Reserve(file, length) => match target.disk.reserve(file, length) {
                Ok(()) => Outcome::Done,
                Err(_) => failed,
            },
        };
        match &self.nodes[node].machine {
            Machine::Primary(_) => {
                self.primary_event(node, primary::Event::Done { token, outcome });
            }
            Machine::Replica(_) => {
                self.replica_event(node, replica::Event::Done { token, outcome });
            }
            _ => {}
        }
    }
}
