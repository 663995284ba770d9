//! Transactions on one file: some writes, then a sync; only then does what they record count.

use crate::io::{Action, File, Outcome, Token};
use crate::types::Failure;
use std::sync::Arc;

/// One transaction at a time; `T` says what has to happen when it is durable.
pub struct Journal<T> {
    file: File,
    token: Token,
    writes: usize,
    failure: Option<Failure>,
    running: Option<T>,
}

impl<T> Journal<T> {
    pub fn new(file: File, token: Token) -> Self {
        Journal {
            file,
            token,
            writes: 0,
            failure: None,
            running: None,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    pub fn running(&self) -> Option<&T> {
        self.running.as_ref()
    }

    pub fn start(&mut self, writes: Vec<(u64, Vec<u8>)>, then: T, out: &mut Vec<Action>) {
        assert!(self.running.is_none(), "two transactions at a time");
        self.writes = writes.len();
        self.running = Some(then);
        for (offset, data) in writes {
            out.push(Action::Write {
                file: self.file,
                offset,
                data: Arc::new(data),
                token: self.token,
            });
        }
        self.sync_if_written(out);
    }

    fn sync_if_written(&mut self, out: &mut Vec<Action>) {
        if self.writes == 0 {
            out.push(Action::Sync {
                file: self.file,
                token: self.token,
            });
        }
    }

    /// An action of the transaction is done. What was to happen, once all are.
    pub fn done(&mut self, outcome: &Outcome, out: &mut Vec<Action>) -> Result<Option<T>, String> {
        self.failure = self.failure.or(outcome.failure());
        let was_write = self.writes > 0;
        self.writes = self.writes.saturating_sub(1);
        if let Some(failure) = self.failure {
            if self.writes > 0 {
                return Ok(None);
            }
            self.failure = None;
            self.running = None;
            return Err(format!("{:?} file: {failure:?}", self.file));
        }
        if was_write {
            self.sync_if_written(out);
            return Ok(None);
        }
        Ok(self.running.take())
    }
}
