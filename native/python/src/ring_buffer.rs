//! Python bindings of the ring buffer parser.

use crate::bytes_of;
use mirrord_core::ring_buffer::{read_page, Fields};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Columns (time, op, offset, length) as little-endian bytes, and how many events were lost.
type Columns<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    u64,
);

/// The requests in pages of `trace_pipe_raw`, each of `page_bytes`. fields: the event's number,
/// then the offsets of sector, number of sectors and letters in it, and how many letters.
#[pyfunction]
pub fn block_events(
    py: Python<'_>,
    pages: PyBuffer<u8>,
    page_bytes: usize,
    fields: (u16, usize, usize, usize, usize),
) -> PyResult<Columns<'_>> {
    let fields = Fields {
        kind: fields.0,
        sector: fields.1,
        sectors: fields.2,
        rwbs: fields.3,
        rwbs_bytes: fields.4,
    };
    let (mut times, mut ops) = (Vec::new(), Vec::new());
    let (mut offsets, mut lengths) = (Vec::new(), Vec::new());
    let mut lost = 0u64;
    for page in bytes_of(&pages)?.chunks(page_bytes.max(1)) {
        lost += read_page(page, &fields, &mut |record| {
            times.extend(record.time_ns.to_le_bytes());
            ops.push(record.op);
            offsets.extend(record.offset.to_le_bytes());
            lengths.extend(record.length.to_le_bytes());
        })
        .map_err(PyValueError::new_err)?;
    }
    Ok((
        PyBytes::new(py, &times),
        PyBytes::new(py, &ops),
        PyBytes::new(py, &offsets),
        PyBytes::new(py, &lengths),
        lost,
    ))
}
