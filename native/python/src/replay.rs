//! Python bindings of the replay kernels.

use mirrord_core::replay::{Columns, Cuts, Fault, Link, Replayer as Kernel};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The elements behind a buffer object, for as long as `buffer` is borrowed.
pub fn elements_of<T: Element>(buffer: &PyBuffer<T>) -> PyResult<&[T]> {
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("a contiguous buffer is needed"));
    }
    if buffer.item_count() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is contiguous and its format was checked to be T's; an aligned address is
    // part of that check. The borrow of `buffer` keeps it alive and exported.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr() as *const T, buffer.item_count()) })
}

/// The columns of records; they need one length.
pub fn columns_of<'a>(
    time_ns: &'a PyBuffer<i64>,
    volume: &'a PyBuffer<u32>,
    op: &'a PyBuffer<u8>,
    offset: &'a PyBuffer<i64>,
    length: &'a PyBuffer<i64>,
) -> PyResult<Columns<'a>> {
    let columns = Columns {
        time_ns: elements_of(time_ns)?,
        volume: elements_of(volume)?,
        op: elements_of(op)?,
        offset: elements_of(offset)?,
        length: elements_of(length)?,
    };
    let records = columns.time_ns.len();
    let others = [columns.volume.len(), columns.op.len()];
    let ranges = [columns.offset.len(), columns.length.len()];
    if [others, ranges]
        .concat()
        .iter()
        .any(|&each| each != records)
    {
        return Err(PyBufferError::new_err("columns of one length are needed"));
    }
    Ok(columns)
}

fn packed(py: Python<'_>, values: impl Iterator<Item = i64>) -> Bound<'_, PyBytes> {
    let flat: Vec<u8> = values.flat_map(i64::to_le_bytes).collect();
    PyBytes::new(py, &flat)
}

/// A fault as an exception whose arguments are its kind and three numbers.
pub fn raise(fault: Fault) -> PyErr {
    PyValueError::new_err(match fault {
        Fault::Order {
            record,
            time_ns,
            before_ns,
        } => ("order", record, time_ns, before_ns),
        Fault::Range {
            record,
            offset,
            length,
        } => ("range", record, offset, length),
        Fault::Volume { record, volume } => ("volume", record, i64::from(volume), 0),
        Fault::Intervals { record } => ("intervals", record, 0, 0),
    })
}

/// A replay, or some of its parts.
#[pyclass]
struct Replayer(Kernel);

#[pymethods]
impl Replayer {
    /// grids: nanoseconds of fixed intervals, or the ascending instants of updates as int64.
    /// bounds_ns: of semi-synchronous mirrors, whose links the totals tell.
    #[new]
    fn new(
        block_bits: u32,
        grids: Vec<Bound<'_, PyAny>>,
        bounds_ns: Vec<i64>,
        first: u32,
        here: u32,
        of: u32,
    ) -> PyResult<Self> {
        let mut cuts = Vec::new();
        for grid in grids {
            cuts.push(match grid.extract::<i64>() {
                Ok(period_ns) if period_ns > 0 => Cuts::Every(period_ns),
                Ok(_) => return Err(PyValueError::new_err("an interval must be positive")),
                Err(_) => Cuts::At(elements_of(&PyBuffer::<i64>::get(&grid)?)?.to_vec()),
            });
        }
        if !(9..=20).contains(&block_bits) || here == 0 || first + here > of {
            return Err(PyValueError::new_err("no such blocks or parts"));
        }
        if bounds_ns.iter().any(|&bound_ns| bound_ns <= 0) {
            return Err(PyValueError::new_err("a bound must be positive"));
        }
        Ok(Self(Kernel::new(
            block_bits, &cuts, &bounds_ns, first, here, of,
        )))
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

    /// Ends a grid's interval; its block writes, blocks in place, and blocks in the active map.
    fn cut(&mut self, grid: usize, at_ns: i64) -> (i64, i64, i64) {
        self.0.cut(grid, at_ns)
    }

    /// Each grid's columns of rows (volume, interval, written, in place, active, live, end), and of the
    /// volumes (volume, written, unique, live), as int64.
    #[allow(clippy::type_complexity)]
    fn finish<'py>(
        &mut self,
        py: Python<'py>,
    ) -> (Vec<Vec<Bound<'py, PyBytes>>>, Vec<Bound<'py, PyBytes>>) {
        let (grids, volumes) = self.0.finish();
        let grids = grids
            .iter()
            .map(|rows| {
                vec![
                    packed(py, rows.iter().map(|row| i64::from(row.volume))),
                    packed(py, rows.iter().map(|row| row.interval)),
                    packed(py, rows.iter().map(|row| row.written)),
                    packed(py, rows.iter().map(|row| row.in_place)),
                    packed(py, rows.iter().map(|row| row.active)),
                    packed(py, rows.iter().map(|row| row.live)),
                    packed(py, rows.iter().map(|row| row.end)),
                ]
            })
            .collect();
        let volumes = vec![
            packed(py, volumes.iter().map(|whole| i64::from(whole.volume))),
            packed(py, volumes.iter().map(|whole| whole.written)),
            packed(py, volumes.iter().map(|whole| whole.unique)),
            packed(py, volumes.iter().map(|whole| whole.live)),
        ];
        (grids, volumes)
    }

    /// (first ns, last ns, records, writes, trims, bytes written, nanoseconds of a bin, most
    /// bytes within a second), for each bound the bytes per second of its link, and as
    /// int64 the bins, the ends of the volumes, and each grid's intervals with their bytes.
    /// None: these are not the first parts.
    #[allow(clippy::type_complexity)]
    fn totals<'py>(
        &self,
        py: Python<'py>,
    ) -> Option<(
        (i64, i64, u64, u64, u64, u64, i64, i64),
        Vec<f64>,
        Bound<'py, PyBytes>,
        Bound<'py, PyBytes>,
        Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>,
    )> {
        let totals = self.0.totals.as_ref()?;
        let counts = (
            totals.first_ns,
            totals.last_ns,
            totals.records,
            totals.writes,
            totals.trims,
            totals.bytes_written,
            totals.bin_ns,
            totals.busiest.peak,
        );
        let grids = totals
            .grids
            .iter()
            .map(|rows| {
                let intervals = packed(py, rows.iter().map(|row| row.0));
                (intervals, packed(py, rows.iter().map(|row| row.1)))
            })
            .collect();
        let bins = packed(py, totals.bins.iter().copied());
        let links = totals.links.iter().map(Link::per_second).collect();
        Some((
            counts,
            links,
            bins,
            packed(py, totals.ends.iter().copied()),
            grids,
        ))
    }
}

/// Adds the classes of this file to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Replayer>()
}
