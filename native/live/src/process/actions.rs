//! Executes what the state machine asks for.

use super::*;

impl Process {
    /// Executes actions until there are none: first what goes to the other end, so that it works
    /// while this one writes. Where clients are answered without it, they are answered first.
    pub(crate) fn settle(&mut self) {
        loop {
            for action in std::mem::take(&mut self.actions) {
                self.execute(action);
            }
            if !self.machine.answers_alone() {
                self.flush_link();
            }
            self.write_image();
            self.executor.submit();
            self.collect();
            while let Some((token, outcome)) = self.backlog.pop_front() {
                self.keep_failure(token, &outcome);
                let now = self.now();
                self.machine.done(now, token, outcome, &mut self.actions);
            }
            if self.actions.is_empty() {
                break;
            }
        }
        // What was done in part goes on.
        self.executor.submit();
    }

    /// Sends what is left: the answers first, as what the other end is sent costs more time. While
    /// clients are held back they get none.
    pub(super) fn flush_all(&mut self) {
        for is_client in [true, false] {
            if is_client && self.hold.is_some() {
                continue;
            }
            let conns = self.conns.values_mut();
            for conn in conns.filter(|conn| matches!(conn, Conn::Client(_)) == is_client) {
                conn.stream().flush();
            }
        }
    }

    /// The kernel says only once that a sync of the image failed. What is about to be started again
    /// from the files does not listen any more: the next sync has to fail.
    fn keep_failure(&mut self, token: Token, outcome: &Outcome) {
        let is_sync = matches!(token, Token::Sync | Token::Checkpoint);
        let is_reopen = |action: &Action| matches!(action, Action::Reopen);
        let is_over = self.reopen || self.actions.iter().any(is_reopen);
        if let Some(failure) = outcome.failure().filter(|_| is_sync && is_over) {
            self.executor.keep_failure(failure);
        }
    }

    /// Writes what does not have to wait, and queues the rest. One that overlaps another under
    /// way waits for it, with all that follow.
    fn write_image(&mut self) {
        while let Some((_, job)) = self.image_writes.front() {
            let range = match job {
                Job::Write { offset, data, .. } => Range::new(*offset, data.len() as u32),
                Job::Zero(range, _) => *range,
                _ => Range::new(0, 0),
            };
            if !self.executor.is_free(range) {
                return;
            }
            let Some((token, mut job)) = self.image_writes.pop_front() else {
                return;
            };
            if let Job::Write {
                offset, data, done, ..
            } = &mut job
            {
                *done = self.executor.try_write(*offset, data);
                if *done == data.len() {
                    self.backlog.push_back((token, Outcome::Done));
                    continue;
                }
            }
            self.executor.queue(For::Machine(self.life, token), job);
        }
    }

    /// Notices that somebody has changed the size of the image while it is in use. What was cut off
    /// is gone, and a larger one is of no use: only the first bytes are served and mirrored. Without
    /// its records an end that is started again would not know what it has acknowledged.
    pub(super) fn check_size(&mut self) {
        if !std::mem::replace(&mut self.is_looking, true) {
            self.executor.queue(For::Size, Job::Size);
        }
    }

    pub(super) fn size_found(&mut self, size: Option<u64>, has_records: bool) {
        self.is_looking = false;
        if !has_records {
            self.log("the records of this end were deleted; stopped".into());
            self.stop = true;
        }
        let had = self.size;
        if size == Some(had) || Some(size) == self.odd_size {
            return;
        }
        self.odd_size = Some(size);
        if let Some(now) = size.filter(|size| *size > had) {
            self.log(format!(
                "the image has grown to {now} bytes; the first {had} are served and mirrored; \
                 restore its size, or the next start is refused"
            ));
            return;
        }
        let problem = match size {
            Some(now) => format!("the image was truncated: it has {now} bytes, and had {had}"),
            None => "the image was deleted or replaced, or its size cannot be read".into(),
        };
        let time = self.now();
        match &mut self.machine {
            Machine::Primary(primary) => {
                let event = primary::Event::Damaged(problem);
                primary.step(time, event, &mut self.actions);
            }
            _ => {
                self.log(format!("{problem}; stopped"));
                self.stop = true;
            }
        }
    }

    pub(super) fn execute(&mut self, action: Action) {
        let life = self.life;
        let mut queue = |token, job| self.executor.queue(For::Machine(life, token), job);
        match action {
            Action::Write {
                file,
                offset,
                data,
                token,
            } => {
                let job = Job::Write {
                    file,
                    offset,
                    data,
                    done: 0,
                };
                match file {
                    File::Image => self.image_writes.push_back((token, job)),
                    _ => queue(token, job),
                }
            }
            Action::Zero {
                range,
                punch,
                token,
            } => self
                .image_writes
                .push_back((token, Job::Zero(range, punch))),
            Action::Read {
                file,
                offset,
                length,
                token,
            } => queue(token, Job::Read(file, offset, vec![0; length as usize])),
            Action::Sync { file, token } => queue(token, Job::Sync(file)),
            Action::Reserve {
                file,
                length,
                token,
            } => queue(token, Job::Reserve(file, length)),
            Action::Send(frame) => {
                let link = self.link_key();
                let compress = match &self.machine {
                    Machine::Primary(primary) => primary.is_compressing(),
                    _ => false,
                };
                if let Some(conn) = link.and_then(|key| self.conns.get_mut(&key)) {
                    link::send(conn.stream(), &frame, compress, &mut self.traffic);
                }
            }
            Action::Disconnect(reason) => {
                self.flush_link();
                let outgoing = self.outgoing.take();
                if let Some(reason) = reason {
                    let peer = self.config.peer.as_ref().filter(|_| outgoing.is_some());
                    let to = peer.map_or(String::new(), |peer| format!(" to {peer}"));
                    self.log(format!("link{to}: disconnected: {reason}"));
                }
                for key in outgoing.into_iter().chain(self.incoming.take()) {
                    self.close(key);
                }
            }
            Action::Reply { request, result } => self.replied(request, result),
            Action::DropClients => self.drop_clients(),
            Action::Reopen => self.reopen = true,
            Action::Report(result) => self.report(result),
            Action::Log(line) => self.log(line),
        }
    }
}
