//! Who may write to a lane: one frame at a time, small frames before data.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Default)]
struct State {
    taken: bool,
    /// How many wait with a small frame.
    urgent: usize,
}

/// Serializes frames. Those that a peer waits for go before data.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the gate is usable")
    }

    /// Wait for the right to write, at most that long; whether it was given. `release` it.
    pub fn take(&self, urgent: bool, limit: Duration) -> bool {
        let mut state = self.state();
        state.urgent += usize::from(urgent);
        let closed = |state: &mut State| state.taken || (!urgent && state.urgent > 0);
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, limit, closed)
            .expect("the gate is usable");
        let given = !closed(&mut state);
        state.urgent -= usize::from(urgent);
        state.taken |= given;
        if urgent && !given {
            self.changed.notify_all(); // data may go now
        }
        given
    }

    pub fn release(&self) {
        self.state().taken = false;
        self.changed.notify_all();
    }

    /// As `take`; released when what is returned is dropped.
    pub fn enter(&self, urgent: bool, limit: Duration) -> Option<Pass<'_>> {
        self.take(urgent, limit).then_some(Pass(self))
    }
}

/// The right to write.
pub struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::sync::Arc;
    use std::thread::{sleep, spawn};

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn one_writes_at_a_time() {
        let gate = Gate::default();
        let pass = gate.enter(false, LONG);
        assert!(pass.is_some());
        assert!(!gate.take(true, SHORT));
        assert!(!gate.take(false, SHORT));
        drop(pass);
        assert!(gate.take(false, SHORT));
    }

    #[test]
    fn a_small_frame_goes_before_data_that_waited_longer() {
        let gate = Arc::new(Gate::default());
        assert!(gate.take(false, LONG));
        let (tell, told) = channel();
        for urgent in [false, true] {
            let (gate, tell) = (gate.clone(), tell.clone());
            spawn(move || {
                let _pass = gate.enter(urgent, LONG).unwrap();
                tell.send(urgent).unwrap();
            });
            sleep(SHORT);
        }
        gate.release();
        assert_eq!([told.recv(), told.recv()], [Ok(true), Ok(false)]);
    }
}
