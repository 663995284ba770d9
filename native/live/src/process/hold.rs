//! Holds clients back for the moment of a snapshot: meanwhile no request is begun, and no answer
//! leaves, so that no write is acknowledged. A hold ends with its connection, and at its time
//! limit closes it: whoever holds back dies or hangs, clients continue.

use super::*;

/// The longest hold.
const LONGEST: Duration = Duration::from_secs(60);

impl Process {
    /// Holds clients back for as long as the connection stays open, and for these milliseconds at
    /// most.
    pub(crate) fn hold_back(&mut self, key: usize, argument: &str) -> Result<(), String> {
        let limit = argument.parse().ok().map(Duration::from_millis);
        let limit = limit.filter(|limit| !limit.is_zero() && *limit <= LONGEST);
        let limit = limit.ok_or(format!("{argument}: not 1 to {} ms", LONGEST.as_millis()))?;
        if self.hold.is_some() {
            return Err("clients are held back already".into());
        }
        self.hold = Some((key, Instant::now() + limit));
        Ok(())
    }

    pub(super) fn hold_left(&self) -> Duration {
        self.hold.map_or(Duration::MAX, |(_, until)| {
            until.saturating_duration_since(Instant::now())
        })
    }

    /// Ends a hold whose time is over. Its connection is closed before anything is answered: one
    /// that is still open was not over.
    pub(super) fn end_hold(&mut self) {
        if let Some((key, _)) = self.hold.filter(|(_, until)| *until <= Instant::now()) {
            self.forget(key);
            self.log("clients were held back until the time limit: nobody ended that".into());
        }
    }

    /// A connection is closed; clients continue if it held them back.
    pub(super) fn released(&mut self, key: usize) {
        if self.hold.take_if(|(holding, _)| *holding == key).is_none() {
            return;
        }
        self.is_late = true;
        for conn in self.conns.values_mut() {
            if let Conn::Client(client) = conn {
                client.start_again();
            }
        }
    }
}
