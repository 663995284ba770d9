//! Python bindings of the ZFS stream scanner.

use crate::bytes_of;
use mirrord_core::zfs_ranges::Collected;
use mirrord_core::zfs_stream::Scanner;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

type Runs = Vec<(u64, u64)>;

/// Checks a ZFS send stream passed in pieces; ValueError describes the error.
#[pyclass]
pub struct ZfsStreamScanner {
    scanner: Scanner,
    collected: Option<Collected>,
}

#[pymethods]
impl ZfsStreamScanner {
    #[new]
    fn new(collect: bool) -> Self {
        Self {
            scanner: Scanner::default(),
            collected: collect.then(Collected::default),
        }
    }

    fn feed(&mut self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<()> {
        let bytes = bytes_of(&data)?;
        let Self { scanner, collected } = self;
        let mut work = || {
            scanner.feed(bytes, &mut |record| {
                if let Some(collected) = collected {
                    collected.take(record);
                }
            })
        };
        let result = if bytes.len() < 64 << 10 {
            work()
        } else {
            py.detach(work)
        };
        result.map_err(PyValueError::new_err)
    }

    #[getter]
    fn ended(&self) -> bool {
        self.scanner.ended()
    }

    #[getter]
    fn passable(&self) -> u64 {
        self.scanner.passable()
    }

    #[getter]
    fn stream_bytes(&self) -> u64 {
        self.scanner.bytes
    }

    /// (toguid, fromguid, toname, seconds, features, flags, type, swapped), once it is known.
    #[getter]
    #[allow(clippy::type_complexity)]
    fn begin<'py>(
        &self,
        py: Python<'py>,
    ) -> Option<(u64, u64, Bound<'py, PyBytes>, u64, u64, u32, u32, bool)> {
        let begin = self.scanner.begin.as_ref()?;
        Some((
            begin.to_guid,
            begin.from_guid,
            PyBytes::new(py, &begin.to_name),
            begin.creation_s,
            begin.features,
            begin.flags,
            begin.kind,
            begin.swapped,
        ))
    }

    /// (object, type, block size, added runs, freed runs, payload bytes) of each object; runs are
    /// (start, end) in bytes. Empties the collection.
    fn objects(&mut self) -> Vec<(u64, u32, u32, Runs, Runs, u64)> {
        let Some(collected) = &mut self.collected else {
            return Vec::new();
        };
        std::mem::take(&mut collected.objects)
            .into_iter()
            .map(|(number, object)| {
                let runs = (
                    object.added.as_slice().to_vec(),
                    object.freed.as_slice().to_vec(),
                );
                (
                    number,
                    object.kind,
                    object.block,
                    runs.0,
                    runs.1,
                    object.payload_bytes,
                )
            })
            .collect()
    }

    /// (first, end) of the numbers of objects that do not exist (any more).
    fn freed_objects(&self) -> Runs {
        self.collected
            .as_ref()
            .map_or_else(Vec::new, |found| found.freed_objects.as_slice().to_vec())
    }
}
