//! Python bindings of the data of calls: `Gate`, `Inlet`, `Outlet`, `Routes` of `mirrord-net`.
//!
//! Waits are limited by the caller, who checks between them for signals and cancellation.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mirrord_net::stream::{Way, HEAD};
use mirrord_net::{gate, inlet, outlet, routes};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::link::{borrowed, malformed, raised, Chunk, FrameSplitter, TlsSession};
use crate::{bytes_of, StreamChecksum};

/// Who may write to a lane: one frame at a time, small frames before data.
#[pyclass(frozen)]
#[derive(Default)]
pub struct WriteGate(gate::Gate);

#[pymethods]
impl WriteGate {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Wait at most `limit_s` for the right to write; whether it was given. `release` it.
    fn take(&self, py: Python<'_>, urgent: bool, limit_s: f64) -> bool {
        let take = |limit| self.0.take(urgent, limit);
        take(Duration::ZERO) || py.detach(|| take(Duration::from_secs_f64(limit_s)))
    }

    fn release(&self) {
        self.0.release();
    }
}

/// Where the frames of a session's streams go that need no one but their stream.
#[pyclass(frozen)]
#[derive(Default)]
pub struct Routes(Arc<routes::Routes>);

#[pymethods]
impl Routes {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// From now on the splitter passes such frames to their streams, not to its caller.
    fn serve(&self, splitter: &FrameSplitter) {
        splitter.splitter().routes = Some(self.0.clone());
    }

    /// From now on the data of that stream goes there.
    fn add_inlet(&self, stream: u32, inlet: &Inlet) {
        self.0.add_inlet(stream, inlet.0.clone());
    }

    /// From now on the credit of that stream goes there.
    fn add_outlet(&self, stream: u32, outlet: &Outlet) {
        self.0.add_outlet(stream, outlet.0.clone());
    }

    fn remove(&self, stream: u32) {
        self.0.remove(stream);
    }
}

/// The receiver of a stream: holds the pieces that arrive until they are read, in order. One thread
/// reads.
#[pyclass(frozen)]
pub struct Inlet(Arc<inlet::Inlet>);

#[pymethods]
impl Inlet {
    /// checksum: of the stream, if it is made here for pieces that are not compressed.
    #[new]
    fn new(checksum: Option<&StreamChecksum>) -> Self {
        let sum = checksum.map(|checksum| checksum.0.clone());
        Self(Arc::new(inlet::Inlet::new(sum)))
    }

    /// The body of a data frame has arrived. `FrameFault`.
    fn deliver(&self, py: Python<'_>, body: PyBuffer<u8>) -> PyResult<()> {
        let body = bytes_of(&body)?.to_vec();
        py.detach(|| self.0.deliver(body)).map_err(malformed)
    }

    /// The stream has that many pieces.
    fn finish(&self, pieces: u32) {
        self.0.finish(pieces);
    }

    /// No more pieces are waited for.
    fn stop(&self) {
        self.0.stop();
    }

    /// Drop what was not read.
    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.0.clear());
    }

    /// Wait at most `limit_s` until the next piece is there or none will come; whether one of these.
    fn wait(&self, py: Python<'_>, limit_s: f64) -> bool {
        py.detach(|| self.0.wait(Duration::from_secs_f64(limit_s)))
    }

    /// The next piece, if it is there: its raw length, its packing, the body of its frame and where
    /// the payload begins in it, and whether it is in the checksum. Otherwise the caller must update
    /// that before it takes the next piece.
    fn take(&self) -> Option<(usize, u8, Chunk, usize, bool)> {
        let piece = self.0.take()?;
        let (raw, packing, summed) = (piece.raw, piece.packing, piece.summed);
        Some((raw, packing, Chunk(piece.body), HEAD, summed))
    }

    /// How many pieces and raw bytes were read.
    fn read(&self) -> (u32, u64) {
        self.0.read()
    }

    /// Granted bytes that are in use.
    fn held(&self) -> usize {
        self.0.held()
    }

    /// The credit to return now, 0 for none.
    fn due(&self) -> usize {
        self.0.due()
    }

    /// Write at most `most` raw bytes to a pipe that does not block, for at most `limit_s`; how
    /// many. Returns credit over that lane. None: no piece will come, or `take` is to be used.
    #[allow(clippy::too_many_arguments)] // a call has no names to group them by
    fn pour(
        &self,
        py: Python<'_>,
        pipe: RawFd,
        tls: &TlsSession,
        socket: RawFd,
        gate: &WriteGate,
        stream: u32,
        most: usize,
        limit_s: f64,
    ) -> PyResult<Option<usize>> {
        let (pipe, way) = (borrowed(pipe)?, way(tls, socket, gate)?);
        let limit = Duration::from_secs_f64(limit_s);
        let done = py.detach(|| self.0.pour(pipe, &way, stream, most, limit));
        done.map_err(|error| std::io::Error::from(error).into())
    }
}

fn way<'a>(tls: &'a TlsSession, socket: RawFd, gate: &'a WriteGate) -> PyResult<Way<'a>> {
    Ok(Way {
        session: &tls.0,
        socket: borrowed(socket)?,
        gate: &gate.0,
    })
}

/// The sender of a stream: numbers its pieces as credit and the pace of the link permit. One thread
/// sends.
#[pyclass(frozen)]
pub struct Outlet(Arc<outlet::Outlet>);

#[pymethods]
impl Outlet {
    /// checksum: of the stream, for what `pump` sends.
    #[new]
    fn new(checksum: Option<&StreamChecksum>) -> Self {
        let sum = checksum.map(|checksum| checksum.0.clone());
        Self(Arc::new(outlet::Outlet::new(sum)))
    }

    /// The other end has read `count` more bytes. `FrameFault`.
    fn grant(&self, count: u64) -> PyResult<()> {
        self.0.grant(count).map_err(malformed)
    }

    /// No more pieces are sent: `reserve` and `pump` do not wait any more.
    fn stop(&self) {
        self.0.stop();
    }

    /// Maximum size of the next piece.
    fn piece_bytes(&self) -> usize {
        self.0.piece()
    }

    /// How many pieces and raw bytes were sent.
    fn sent(&self) -> (u32, u64) {
        self.0.sent()
    }

    /// Wait at most `limit_s` until a piece of `count` bytes may be sent: its number. None: not yet,
    /// or stopped.
    fn reserve(&self, py: Python<'_>, count: usize, limit_s: f64) -> Option<u32> {
        let now = Instant::now();
        let found = self.0.reserve(count, now);
        found.or_else(|| {
            py.detach(|| {
                self.0
                    .reserve(count, now + Duration::from_secs_f64(limit_s))
            })
        })
    }

    /// Move at most `most` bytes from a pipe to that lane, for at most `limit_s`: how many, the
    /// seconds for writing them, whether the pipe has ended; and what was read and not sent because
    /// it may be compressible (only with `sample`).
    #[allow(clippy::too_many_arguments)] // a call has no names to group them by
    fn pump(
        &self,
        py: Python<'_>,
        pipe: RawFd,
        tls: &TlsSession,
        socket: RawFd,
        gate: &WriteGate,
        stream: u32,
        most: usize,
        sample: bool,
        limit_s: f64,
    ) -> PyResult<(usize, f64, bool, Chunk)> {
        let (pipe, way) = (borrowed(pipe)?, way(tls, socket, gate)?);
        let limit = Duration::from_secs_f64(limit_s);
        let done = py.detach(|| self.0.pump(pipe, &way, stream, most, sample, limit));
        let done = done.map_err(raised)?;
        Ok((
            done.bytes,
            done.writing.as_secs_f64(),
            done.ended,
            Chunk(done.rest),
        ))
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<WriteGate>()?;
    m.add_class::<Routes>()?;
    m.add_class::<Inlet>()?;
    m.add_class::<Outlet>()
}
