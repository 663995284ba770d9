//! Python bindings of the trace parsers.

use std::collections::BTreeMap;

use mirrord_core::trace::binary::{Records, Srt, Vscsi1, Vscsi2};
use mirrord_core::trace::blkparse::Blkparse;
use mirrord_core::trace::blktrace::Blktrace;
use mirrord_core::trace::dedup;
use mirrord_core::trace::delimited::{key, Delimited, Layout, OpRule};
use mirrord_core::trace::fio::Fio;
use mirrord_core::trace::lines::Lines;
use mirrord_core::trace::live::Live;
use mirrord_core::trace::survey::{Seen, Survey};
use mirrord_core::trace::{Columns, Fault, Op, Parser};
use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::bytes_of;

create_exception!(mirrord._native, TraceFault, PyValueError);

/// Columns as bytes: time, volume, op, offset, length, latency; each little-endian.
type Packed<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

#[cfg(target_endian = "big")]
compile_error!("columns are handed over in the machine's own order, which must be little-endian");

fn raw<T: Copy>(column: &[T]) -> &[u8] {
    // SAFETY: the columns hold plain integers; every byte of them is initialized.
    unsafe { std::slice::from_raw_parts(column.as_ptr().cast(), std::mem::size_of_val(column)) }
}

fn pack<'py>(py: Python<'py>, columns: &Columns) -> Packed<'py> {
    (
        PyBytes::new(py, raw(&columns.time)),
        PyBytes::new(py, raw(&columns.volume)),
        PyBytes::new(py, &columns.op),
        PyBytes::new(py, raw(&columns.offset)),
        PyBytes::new(py, raw(&columns.length)),
        PyBytes::new(py, raw(&columns.latency)),
    )
}

fn fault(fault: Fault) -> PyErr {
    TraceFault::new_err((fault.kind, fault.what, fault.place, fault.excerpt))
}

fn op_of(value: u8) -> PyResult<Op> {
    match value {
        0 => Ok(Op::Write),
        1 => Ok(Op::Read),
        2 => Ok(Op::Trim),
        3 => Ok(Op::Flush),
        _ => Err(PyValueError::new_err("no such operation")),
    }
}

/// One source's parser: pieces of bytes in, columns out; TraceFault reports an error and its place.
#[pyclass]
pub struct TraceParser(Box<dyn Parser + Send + Sync>);

#[pymethods]
impl TraceParser {
    #[staticmethod]
    fn vscsi(version: u8, skip_bad: bool) -> PyResult<Self> {
        Ok(Self(match version {
            1 => Box::new(Records::new(Vscsi1, skip_bad)),
            2 => Box::new(Records::new(Vscsi2, skip_bad)),
            _ => return Err(PyValueError::new_err("vscsi has the versions 1 and 2")),
        }))
    }

    #[staticmethod]
    fn srt(skip_bad: bool) -> Self {
        Self(Box::new(Records::new(Srt::default(), skip_bad)))
    }

    #[staticmethod]
    fn live(skip_bad: bool) -> Self {
        Self(Box::new(Records::new(Live, skip_bad)))
    }

    #[staticmethod]
    fn blktrace(action: u32) -> Self {
        Self(Box::new(Blktrace::new(action)))
    }

    #[staticmethod]
    fn blkparse(action: u8, skip_bad: bool) -> Self {
        Self(Box::new(Lines::new(Blkparse::new(action), skip_bad)))
    }

    #[staticmethod]
    fn fio(version: u8, time_ns: u64, skip_bad: bool) -> Self {
        Self(Box::new(Lines::new(Fio::new(version, time_ns), skip_bad)))
    }

    /// `operation`: "readbit", "scsi", "letters", "words" (of `words`), or "always" (`words[""]`).
    #[staticmethod]
    #[pyo3(signature = (*, delimiter, time, offset, length, volumes, op, operation, words, time_ns,
        offset_bytes, length_bytes, time_extra=None, latency=None, latency_ns=1, header=0,
        only_digits=false, skip_bad=false))]
    #[allow(clippy::too_many_arguments)] // keyword arguments in Python, each a column or its unit
    fn delimited(
        delimiter: u8,
        time: usize,
        offset: usize,
        length: usize,
        volumes: Vec<usize>,
        op: Option<usize>,
        operation: &str,
        words: BTreeMap<String, u8>,
        time_ns: u64,
        offset_bytes: u64,
        length_bytes: u64,
        time_extra: Option<usize>,
        latency: Option<usize>,
        latency_ns: u64,
        header: u64,
        only_digits: bool,
        skip_bad: bool,
    ) -> PyResult<Self> {
        let rule = match operation {
            "readbit" => OpRule::ReadBit,
            "scsi" => OpRule::Scsi,
            "letters" => OpRule::Letters,
            "always" => OpRule::Always(op_of(words.get("").copied().unwrap_or(u8::MAX))?),
            _ => {
                let packed = words
                    .iter()
                    .map(|(word, &value)| Ok((key(word.as_bytes()), op_of(value)?)));
                OpRule::Words(packed.collect::<PyResult<_>>()?)
            }
        };
        let layout = Layout {
            delimiter,
            time,
            time_extra,
            op,
            offset,
            length,
            latency,
            volumes,
            time_ns,
            offset_bytes,
            length_bytes,
            latency_ns,
            rule,
            header,
            only_digits,
        };
        Ok(Self(Box::new(Lines::new(Delimited::new(layout), skip_bad))))
    }

    fn feed<'py>(&mut self, py: Python<'py>, data: PyBuffer<u8>) -> PyResult<Packed<'py>> {
        let bytes = bytes_of(&data)?;
        let parser = &mut self.0;
        // Few formats have shorter records.
        let mut columns = Columns::with_room(bytes.len() / 40);
        py.detach(|| parser.feed(bytes, &mut columns))
            .map_err(fault)?;
        Ok(pack(py, &columns))
    }

    fn finish<'py>(&mut self, py: Python<'py>, partial: bool) -> PyResult<Packed<'py>> {
        let mut columns = Columns::default();
        self.0.finish(partial, &mut columns).map_err(fault)?;
        Ok(pack(py, &columns))
    }

    #[getter]
    fn volumes(&self) -> Vec<String> {
        self.0.shared().volumes.clone()
    }

    #[getter]
    fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.shared().counts.clone()
    }

    /// The first record's time in nanoseconds from the source's time 0; None without a record.
    #[getter]
    fn zero(&self) -> Option<i128> {
        self.0.shared().zero
    }

    /// Unix time in nanoseconds of the source's time 0, if the source contains it.
    #[getter]
    fn epoch(&self) -> Option<i128> {
        self.0.shared().epoch
    }
}

/// The columns of a batch, from contiguous buffers.
struct Borrowed {
    buffers: [PyBuffer<u8>; 6],
}

fn column<T>(buffer: &PyBuffer<u8>, count: usize) -> PyResult<&[T]> {
    let bytes = bytes_of(buffer)?;
    let pointer = bytes.as_ptr().cast::<T>();
    if bytes.len() != count * size_of::<T>() || !pointer.is_aligned() {
        return Err(PyValueError::new_err("columns of one length are needed"));
    }
    // SAFETY: aligned, of that length, plain integers; the borrow keeps the buffer exported.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

impl Borrowed {
    fn seen(&self) -> PyResult<(Seen<'_>, &[i64])> {
        let count = bytes_of(&self.buffers[2])?.len();
        let seen = Seen {
            time: column(&self.buffers[0], count)?,
            volume: column(&self.buffers[1], count)?,
            op: column(&self.buffers[2], count)?,
            offset: column(&self.buffers[3], count)?,
            length: column(&self.buffers[4], count)?,
        };
        Ok((seen, column(&self.buffers[5], count)?))
    }
}

/// A running survey of a trace, for `mirrord trace info`.
#[pyclass]
pub struct TraceSurvey(Survey);

#[pymethods]
impl TraceSurvey {
    #[new]
    fn new() -> Self {
        Self(Survey::default())
    }

    /// The six columns as buffers of bytes.
    fn feed(&mut self, py: Python<'_>, columns: [PyBuffer<u8>; 6]) -> PyResult<()> {
        let borrowed = Borrowed { buffers: columns };
        let (seen, _) = borrowed.seen()?;
        py.detach(|| self.0.feed(&seen));
        Ok(())
    }

    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        let survey = &self.0;
        found.set_item("records", survey.records.to_vec())?;
        found.set_item("bytes", survey.bytes.to_vec())?;
        found.set_item("first", survey.first)?;
        found.set_item("last", survey.last)?;
        found.set_item("end", survey.end)?;
        found.set_item("backward", survey.backward)?;
        found.set_item("backward_max", survey.backward_max)?;
        found.set_item("empty", survey.empty)?;
        found.set_item("longest", survey.longest)?;
        found.set_item("unaligned", survey.unaligned)?;
        found.set_item("touched", survey.touched.to_vec())?;
        found.set_item("round", survey.round.to_vec())?;
        found.set_item("followed_writes", survey.followed_writes)?;
        found.set_item("gaps", survey.gaps.to_vec())?;
        found.set_item("twin_reads", survey.twin_reads)?;
        found.set_item("later", survey.later.to_vec())?;
        found.set_item("peak_bytes", survey.peak_bytes)?;
        Ok(found)
    }
}

/// Drops block writes that repeat the previous one within `window_ns`.
#[pyclass]
pub struct TraceDedup(dedup::Dedup);

#[pymethods]
impl TraceDedup {
    #[new]
    fn new(window_ns: i64) -> Self {
        Self(dedup::Dedup::new(window_ns))
    }

    fn feed<'py>(&mut self, py: Python<'py>, columns: [PyBuffer<u8>; 6]) -> PyResult<Packed<'py>> {
        let borrowed = Borrowed { buffers: columns };
        let (seen, latency) = borrowed.seen()?;
        let mut kept = Columns::default();
        py.detach(|| self.0.feed(&seen, latency, &mut kept));
        Ok(pack(py, &kept))
    }
}

/// Adds the classes of this file to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<TraceParser>()?;
    m.add_class::<TraceSurvey>()?;
    m.add_class::<TraceDedup>()?;
    m.add("TraceFault", m.py().get_type::<TraceFault>())?;
    Ok(())
}
