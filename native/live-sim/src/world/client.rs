//! The client, and the operations of a plan.

use super::*;

impl World {
    pub(super) fn drop_clients(&mut self) {
        self.history.close();
        self.asked.clear();
        self.recovering = true;
    }

    pub(super) fn perform(&mut self, op: Op) {
        self.note(|| format!("{op:?}"));
        if !matches!(op, Op::Write { .. } | Op::Trim { .. } | Op::Flush) {
            self.calm_since = self.now;
        }
        match op {
            Op::Write {
                sector,
                sectors,
                fua,
            } => self.client_write(sector, sectors, fua, None),
            Op::Trim {
                sector,
                sectors,
                punch,
            } => self.client_write(sector, sectors, false, Some(punch)),
            Op::Flush => self.client_flush(),
            Op::Kill { node, down } => {
                let is_down = matches!(self.nodes[node].machine, Machine::Down);
                if !is_down && !self.is_noting_loss(node) {
                    self.kill(node);
                    self.at(self.now + down, What::Start { node });
                }
            }
            Op::PowerCut { node, loss, down } => {
                let was_down = matches!(self.nodes[node].machine, Machine::Down);
                self.cut_power(node, loss);
                if !was_down {
                    self.at(self.now + down, What::Start { node });
                }
            }
            Op::Block { from } => self.blocked[from] = true,
            Op::Delay { from, time } => self.delay[from] = time,
            Op::Narrow { from } => self.narrow[from] = true,
            Op::Unblock => {
                self.blocked = [false; 2];
                self.narrow = [false; 2];
                self.delay = [0; 2];
            }
            Op::Reset => {
                let all: Vec<u64> = self.connections.iter().map(|each| each.number).collect();
                for connection in all {
                    self.close(connection, None);
                }
            }
            Op::Corrupt { from } => self.corrupt[from] = true,
            Op::Stall { node, time } => {
                self.nodes[node].stalled_until = self.now + time;
            }
            Op::SetMode(mode) => self.set_mode(self.primary, mode),
            Op::Limit(bytes) => {
                let (primary, within) = (self.primary, self.plan.within);
                if matches!(self.nodes[primary].machine, Machine::Primary(_)) {
                    let limit = Some(bytes);
                    self.primary_event(primary, primary::Event::Adapt { within, limit });
                }
            }
            Op::Tune(tuning) => self.primary_event(
                self.primary,
                match tuning {
                    Tuning::Durable(is_on) => primary::Event::Durable(is_on),
                    Tuning::Merge(is_on) => primary::Event::Merge(is_on),
                    Tuning::Compress(is_on) => primary::Event::Compress(is_on),
                    Tuning::CopyRate(rate) => primary::Event::SetCopyRate(rate),
                    Tuning::StopVerify => primary::Event::StopVerify,
                    Tuning::Resync => primary::Event::Resync,
                },
            ),
            Op::Break => {
                let secondary = 1 - self.primary;
                // What it has is older than anybody knows.
                self.is_void |= self.is_aged;
                if let Machine::Replica(replica) = &self.nodes[secondary].machine {
                    self.has_no_image = replica.status().phase == Phase::Empty;
                    self.replica_event(secondary, replica::Event::Break);
                }
            }
            Op::Demote => (0..2).for_each(|node| self.demote(node)),
            Op::FailWrite { node } => self.nodes[node].fail_write = true,
            Op::FailSync { node } => self.nodes[node].fail_sync = true,
            Op::FailRecords { node, file, sync } => {
                self.nodes[node].fail_records = Some((file, sync));
            }
            Op::FailRead { node } => self.nodes[node].fail_read = true,
            Op::Drag(time) => self.drag = time,
            Op::LoseLog { kept, down } => self.lose_log(kept, down),
            Op::FailReserve => (0..2).for_each(|node| self.nodes[node].fail_reserve = true),
            Op::Keep { node } => {
                let mut disk = self.nodes[node].disk.clone();
                disk.cut_power(&mut self.rng, Loss::All);
                self.nodes[node].kept = Some(disk);
            }
            Op::Restore { node, down } => self.restore(node, down),
            Op::Peek { cut } => self.peek(cut),
            Op::Verify => self.verify(),
        }
    }

    pub(super) fn set_mode(&mut self, node: usize, mode: Mode) {
        if let Machine::Primary(primary) = &self.nodes[node].machine {
            if primary.record().mode == Mode::Semi && mode != Mode::Semi {
                self.left_semi = self.now;
            }
            self.primary_event(node, primary::Event::SetMode(mode));
        }
    }

    /// Only where the primary does not count on the secondary's data: nobody could serve then.
    fn lose_log(&mut self, kept: u64, down: Time) {
        let node = 1 - self.primary;
        let has_log = setup::read_record(&self.nodes[node].disk)
            .is_ok_and(|record| record.log != 0 && record.role == Role::Secondary);
        // In these states its record says so durably.
        let is_counted_on = match &self.nodes[self.primary].machine {
            Machine::Primary(primary) => {
                !matches!(primary.state(), State::Semi | State::Alone | State::Resync)
            }
            _ => true,
        };
        if !has_log || is_counted_on {
            return;
        }
        if !matches!(self.nodes[node].machine, Machine::Down) {
            self.kill(node);
            self.at(self.now + down, What::Start { node });
        }
        self.nodes[node].disk.lose(File::Log, kept);
        self.reached[5] += 1;
    }

    pub(super) fn client_write(
        &mut self,
        sector: u64,
        sectors: u64,
        fua: bool,
        zero: Option<bool>,
    ) {
        let node = self.primary;
        if !matches!(self.nodes[node].machine, Machine::Primary(_)) {
            return;
        }
        let request = self.next_request;
        self.next_request += 1;
        let content = if zero.is_some() { 0 } else { request };
        let range = Range::new(sector * 512, sectors as u32 * 512);
        self.history
            .start(request, range.offset, u64::from(range.length), content);
        self.asked.insert(request, Asked::Write { fua });
        let event = match zero {
            Some(punch) => primary::Event::Zero {
                request,
                range,
                punch,
                fua,
            },
            None => primary::Event::Write {
                request,
                offset: range.offset,
                data: Arc::new(content.to_le_bytes().repeat(range.length as usize / 8)),
                fua,
            },
        };
        self.primary_event(node, event);
    }

    pub(super) fn verify(&mut self) {
        let primary = self.primary;
        if matches!(self.nodes[primary].machine, Machine::Primary(_)) {
            self.primary_event(primary, primary::Event::Verify { rate: 0 });
        }
    }

    pub(super) fn client_flush(&mut self) {
        let node = self.primary;
        if !matches!(self.nodes[node].machine, Machine::Primary(_)) {
            return;
        }
        let request = self.next_request;
        self.next_request += 1;
        let start = self.history.start_flush();
        self.asked.insert(request, Asked::Flush { start });
        self.rely();
        self.primary_event(node, primary::Event::Flush { request });
    }

    pub(super) fn replied(&mut self, node: usize, request: u64, result: Result<(), Failure>) {
        if node != self.primary {
            return;
        }
        let Some(asked) = self.asked.remove(&request) else {
            return;
        };
        self.note(|| format!("request {request}: {result:?}"));
        match asked {
            Asked::Write { fua } => {
                if result.is_ok() {
                    self.check_journaled(request);
                    self.prefix.answered(request, fua, self.now);
                }
                let wall = self.now / SECOND;
                self.history.end(request, result.is_ok(), wall);
                if fua && result.is_ok() {
                    self.history.end_fua(request);
                }
            }
            Asked::Flush { start } if result.is_ok() => self.history.end_flush(start),
            Asked::Flush { .. } => {}
        }
    }

    pub(super) fn peek(&mut self, cut: bool) {
        let node = 1 - self.primary;
        if self.broken || self.is_apart {
            return;
        }
        let is_in_sync = match &self.nodes[self.primary].machine {
            Machine::Primary(primary) => primary.state() == State::InSync,
            _ => false,
        };
        let mut disk = self.nodes[node].disk.clone();
        if cut {
            disk.cut_power(&mut self.rng, Loss::Random);
        }
        let Some(image) = crate::consistent_image(&disk) else {
            return;
        };
        let secured = match (is_in_sync, cut || self.lost[node]) {
            (true, false) => Secured::Acknowledged,
            (true, true) => Secured::Flushed,
            _ => Secured::Barriers,
        };
        for secured in [Secured::Barriers, secured] {
            if let Some(problem) = self.history.check(&image, secured, false) {
                self.fail(format!("P1/P3 at the secondary (cut: {cut}): {problem}"));
            }
        }
        self.check_prefix(&image, &disk, if cut { "cut" } else { "as it is" });
        if is_in_sync {
            let mut disk = self.nodes[self.primary].disk.clone();
            disk.cut_power(&mut self.rng, Loss::Random);
            let image = disk.contents(File::Image);
            for secured in [Secured::Barriers, Secured::Flushed] {
                if let Some(problem) = self.history.check(image, secured, false) {
                    self.fail(format!("P1/P3 at the primary: {problem}"));
                }
            }
        }
    }
}
