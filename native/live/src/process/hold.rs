//! Holds clients back for the moment of a snapshot: meanwhile no request is begun, and no answer
//! leaves, so that no write is acknowledged. A hold ends with its connection, and at its time
//! limit closes it: whoever holds back dies or hangs, clients continue. It also does so when this
//! end ceases to serve: its image may change then without a client.

use super::*;

/// The longest hold.
const LONGEST: Duration = Duration::from_secs(60);

impl Process {
    /// Holds clients back for as long as the connection stays open, and for these milliseconds at
    /// most.
    pub(crate) fn hold_back(&mut self, key: usize, argument: &str) -> Result<(), Problem> {
        let limit = argument.parse().ok().map(Duration::from_millis);
        let limit = limit.filter(|limit| !limit.is_zero() && *limit <= LONGEST);
        let limit = limit.ok_or(format!("{argument}: not 1 to {} ms", LONGEST.as_millis()))?;
        if !self.is_serving() {
            return Err("no client is served at present: 'status' has the reason".into());
        }
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

    /// Clients read what is the mirror's.
    fn is_serving(&self) -> bool {
        matches!(&self.machine, Machine::Primary(primary) if primary.is_readable())
    }

    /// Ends a hold whose time is over. Its connection is closed before anything is answered: one
    /// that is still open was not over.
    pub(super) fn end_hold(&mut self) {
        let Some((key, until)) = self.hold else {
            return;
        };
        let line = if !self.is_serving() {
            "clients are held back no longer: this end ceased to serve"
        } else if until <= Instant::now() {
            "clients were held back until the time limit: nobody ended that"
        } else {
            return;
        };
        self.forget(key);
        self.log(line.into());
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
