//! Python bindings of the simulation of live modes.

use mirrord_core::modes::{Mode, Setpoints, Setup, Simulator};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::replay::{columns_of, raise};

/// A simulated live mirror. It begins with the set-points of `direct`.
#[pyclass]
struct ModeSimulator(Simulator);

fn points(
    mode: u8,
    lag_bytes: Option<u64>,
    within_ns: Option<i64>,
    max_lag_bytes: Option<u64>,
    merge: bool,
    copy: bool,
) -> PyResult<Setpoints> {
    Ok(Setpoints {
        mode: match mode {
            0 => Mode::Sync,
            1 => Mode::SemiSync,
            2 => Mode::Async,
            _ => return Err(PyValueError::new_err("no such mode")),
        },
        lag_bytes,
        within_ns,
        max_lag_bytes: max_lag_bytes.unwrap_or(u64::MAX),
        merge,
        copy,
    })
}

#[pymethods]
impl ModeSimulator {
    /// rate: bytes per second. The others in nanoseconds. mode: in force at the beginning.
    #[new]
    #[pyo3(signature = (rate, reply_ns, local_ns, late_ns, period_ns, *, keep_answers=false))]
    fn new(
        rate: u64,
        reply_ns: i64,
        local_ns: i64,
        late_ns: i64,
        period_ns: i64,
        keep_answers: bool,
    ) -> PyResult<Self> {
        let durations = [reply_ns, local_ns, late_ns];
        if rate == 0 || period_ns <= 0 || durations.iter().any(|&each| each < 0) {
            return Err(PyValueError::new_err("no such link or period"));
        }
        let setup = Setup {
            rate,
            reply_ns,
            local_ns,
            late_ns,
            period_ns,
        };
        let mut made = Simulator::new(setup, points(0, None, None, None, false, true)?);
        made.answers = keep_answers.then(Vec::new);
        Ok(Self(made))
    }

    /// Records that follow those fed before; other Python threads run meanwhile.
    fn feed(
        &mut self,
        py: Python<'_>,
        time_ns: PyBuffer<i64>,
        volume: PyBuffer<u32>,
        op: PyBuffer<u8>,
        offset: PyBuffer<i64>,
        length: PyBuffer<i64>,
    ) -> PyResult<()> {
        let columns = columns_of(&time_ns, &volume, &op, &offset, &length)?;
        py.detach(|| self.0.feed(columns)).map_err(raise)
    }

    fn end(&mut self) {
        self.0.end();
    }

    /// The set-points of a policy. mode: 0 synchronous, 1 semi-synchronous, 2 asynchronous.
    fn direct(
        &mut self,
        mode: u8,
        lag_bytes: Option<u64>,
        within_ns: Option<i64>,
        max_lag_bytes: Option<u64>,
        merge: bool,
        copy: bool,
    ) -> PyResult<()> {
        let made = points(mode, lag_bytes, within_ns, max_lag_bytes, merge, copy)?;
        self.0.direct(made);
        Ok(())
    }

    /// Runs to the next control instant with something to see, or `wake_ns`, or the end. None: more
    /// records are needed.
    fn run(&mut self, wake_ns: i64) -> Option<[i64; 13]> {
        let found = self.0.run(wake_ns)?;
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Some([
            found.now_ns,
            signed(found.answered),
            found.answered_ns,
            signed(found.received),
            found.received_ns,
            found.oldest_ns,
            found.slowest_ns,
            signed(found.unanswered),
            signed(found.buffered),
            signed(found.peak_buffered),
            signed(found.lag_limit),
            signed(found.dirty),
            signed(found.peak_lag),
        ])
    }

    fn ended(&self) -> bool {
        self.0.ended()
    }

    /// Sends what is left at the end.
    fn drain(&mut self, py: Python<'_>) {
        py.detach(|| self.0.drain());
    }

    /// (writes, bytes, bytes sent, late answers, latency of all, the greatest), and of the lag (most bytes, when;
    /// greatest age, when; byte seconds, age seconds, nanoseconds with a lag).
    #[allow(clippy::type_complexity)]
    fn totals(
        &self,
    ) -> (
        (u64, u64, u64, u64, i64, i64),
        (u64, i64, i64, i64, f64, f64, i64),
    ) {
        let found = self.0.totals();
        let lag = found.lag;
        (
            (
                found.writes,
                found.bytes,
                found.sent,
                found.late,
                found.total_ns,
                found.slowest_ns,
            ),
            (
                lag.peak_bytes,
                lag.peak_bytes_at_ns,
                lag.peak_ns,
                lag.peak_at_ns,
                lag.byte_seconds,
                lag.age_seconds,
                lag.exposed_ns,
            ),
        )
    }

    /// Arrival and latency of each answer since the last call, if they are kept.
    fn answers(&mut self) -> Vec<(i64, i64)> {
        self.0
            .answers
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }
}

/// Adds the classes of this file to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<ModeSimulator>()
}
