//! `mirrord._native`: Python bindings of `mirrord-core` and `mirrord-net`. Only `mirrord.system.native` imports it.

mod btrfs;
mod link;
mod modes;
mod replay;
mod ring_buffer;
mod streams;
mod trace;
mod verify;
mod zfs;

use std::sync::MutexGuard;

use mirrord_core::{bitmap, checksum, msgpack, pointers};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The bytes behind a buffer object, for as long as `buffer` is borrowed.
fn bytes_of(buffer: &PyBuffer<u8>) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("a contiguous buffer is needed"));
    }
    // SAFETY: the buffer is contiguous, and the borrow of `buffer` keeps it alive and exported.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr() as *const u8, buffer.len_bytes()) })
}

/// From this many bytes on, the GIL is released: below, releasing it costs more than the work.
const LONG: usize = 64 << 10;

/// Do some work on `bytes` bytes, with the GIL released if that is long enough.
fn unlocked<T: Send>(py: Python<'_>, bytes: usize, work: impl Send + FnOnce() -> T) -> T {
    if bytes < LONG {
        work()
    } else {
        py.detach(work)
    }
}

/// A running XXH3-128 checksum of a stream; other threads run meanwhile.
#[pyclass(frozen)]
#[derive(Default)]
struct StreamChecksum(mirrord_net::stream::Sum);

#[pymethods]
impl StreamChecksum {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn update(&self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<()> {
        let bytes = bytes_of(&data)?;
        unlocked(py, bytes.len(), || self.sum().update(bytes));
        Ok(())
    }

    fn hexdigest(&self) -> String {
        checksum::hex(&self.sum().digest())
    }
}

impl StreamChecksum {
    fn sum(&self) -> MutexGuard<'_, checksum::StreamChecksum> {
        self.0.lock().expect("the checksum is usable")
    }
}

/// A running BLAKE3 digest of a stream; other threads run meanwhile.
#[pyclass]
struct StreamDigest(checksum::StreamDigest);

#[pymethods]
impl StreamDigest {
    #[new]
    fn new() -> Self {
        Self(checksum::StreamDigest::default())
    }

    fn update(&mut self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<()> {
        let bytes = bytes_of(&data)?;
        unlocked(py, bytes.len(), || self.0.update(bytes));
        Ok(())
    }

    fn hexdigest(&self) -> String {
        checksum::hex(&self.0.digest())
    }
}

/// XXH3-64 of each block of `data`, as little-endian u64 in one bytes object.
#[pyfunction]
fn block_checksums(
    py: Python<'_>,
    data: PyBuffer<u8>,
    block_size: usize,
) -> PyResult<Bound<'_, PyBytes>> {
    let bytes = bytes_of(&data)?;
    let flat: Vec<u8> = unlocked(py, bytes.len(), || {
        let sums = checksum::block_checksums(bytes, block_size);
        sums.iter().flat_map(|sum| sum.to_le_bytes()).collect()
    });
    Ok(PyBytes::new(py, &flat))
}

/// The memory that a msgpack value will take as objects; ValueError when it is malformed, is nested
/// more than `depth` deep, or would take more than `bytes_max`. Other threads run meanwhile.
#[pyfunction]
fn msgpack_weight(
    py: Python<'_>,
    data: PyBuffer<u8>,
    depth: usize,
    bytes_max: u64,
) -> PyResult<u64> {
    let bytes = bytes_of(&data)?;
    let bounds = msgpack::Bounds {
        depth,
        bytes: bytes_max,
    };
    unlocked(py, bytes.len(), || msgpack::weigh(bytes, &bounds)).map_err(PyValueError::new_err)
}

/// The runs (first, length) of set bits of a flat bitmap.
#[pyfunction]
fn bitmap_runs(bits: PyBuffer<u8>) -> PyResult<Vec<(u64, u64)>> {
    Ok(bitmap::runs(bytes_of(&bits)?))
}

/// The ranges (begin, end) of consecutive addresses, and of holes.
#[pyfunction]
fn pointer_runs(py: Python<'_>, addresses: PyBuffer<u64>) -> PyResult<Vec<(usize, usize)>> {
    let runs = pointers::runs(&addresses.to_vec(py)?);
    Ok(runs.into_iter().map(|run| (run.start, run.end)).collect())
}

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("Panic", m.py().get_type::<pyo3::panic::PanicException>())?;
    m.add_class::<StreamChecksum>()?;
    m.add_class::<StreamDigest>()?;
    m.add_function(wrap_pyfunction!(block_checksums, m)?)?;
    m.add_function(wrap_pyfunction!(bitmap_runs, m)?)?;
    m.add_function(wrap_pyfunction!(pointer_runs, m)?)?;
    m.add_function(wrap_pyfunction!(msgpack_weight, m)?)?;
    m.add_class::<btrfs::BtrfsStreamScanner>()?;
    m.add_class::<btrfs::BtrfsChanges>()?;
    m.add_class::<btrfs::BtrfsExtents>()?;
    m.add_class::<btrfs::BtrfsBlocks>()?;
    m.add_function(wrap_pyfunction!(btrfs::btrfs_rewrite_beginning, m)?)?;
    link::register(m)?;
    streams::register(m)?;
    m.add_class::<zfs::ZfsStreamScanner>()?;
    m.add_function(wrap_pyfunction!(ring_buffer::block_events, m)?)?;
    trace::register(m)?;
    modes::register(m)?;
    replay::register(m)?;
    verify::register(m)?;
    Ok(())
}
