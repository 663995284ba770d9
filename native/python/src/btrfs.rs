//! Python bindings of the btrfs parsers.

use crate::{bytes_of, unlocked};
use mirrord_core::btrfs_blocks::{Blocks, Changed};
use mirrord_core::btrfs_changes::Changes;
use mirrord_core::btrfs_rewrite::{rewrite_beginning, Rewrite};
use mirrord_core::btrfs_search::Extents;
use mirrord_core::btrfs_stream::Scanner;
use mirrord_core::checksum::hex;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

fn value_error(why: String) -> PyErr {
    PyValueError::new_err(why)
}

/// Checks a btrfs send stream passed in pieces; ValueError describes the error.
#[pyclass]
#[derive(Default)]
pub struct BtrfsStreamScanner(Scanner);

#[pymethods]
impl BtrfsStreamScanner {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn feed(&mut self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<()> {
        let bytes = bytes_of(&data)?;
        unlocked(py, bytes.len(), || self.0.feed(bytes, &mut |_| ())).map_err(value_error)
    }

    #[getter]
    fn ended(&self) -> bool {
        self.0.ended()
    }

    #[getter]
    fn stream_bytes(&self) -> u64 {
        self.0.bytes
    }

    /// (uuid in hex, ctransid, parent's uuid in hex or None), once it is known.
    #[getter]
    fn beginning(&self) -> Option<(String, u64, Option<String>)> {
        let beginning = self.0.beginning.as_ref()?;
        Some((
            hex(&beginning.uuid),
            beginning.ctransid,
            beginning.parent_uuid.as_deref().map(hex),
        ))
    }
}

/// Collects the changed files of a stream without data.
#[pyclass]
#[derive(Default)]
pub struct BtrfsChanges {
    scanner: Scanner,
    changes: Changes,
}

#[pymethods]
impl BtrfsChanges {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn feed(&mut self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<()> {
        let Self { scanner, changes } = self;
        let bytes = bytes_of(&data)?;
        unlocked(py, bytes.len(), || {
            scanner.feed(bytes, &mut |command| changes.take(command))
        })
        .map_err(value_error)
    }

    /// (path, kind, data bytes) of each change, ordered by path; empties the collection.
    fn finish<'py>(&mut self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, &'static str, u64)> {
        let changes = std::mem::take(&mut self.changes);
        py.detach(|| changes.finish())
            .into_iter()
            .map(|(path, kind, bytes)| (PyBytes::new(py, &path), kind.name(), bytes))
            .collect()
    }

    /// (path, changed ranges of its data) of everything that was changed and exists; empties the
    /// collection.
    #[allow(clippy::type_complexity)]
    fn ranges<'py>(&mut self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, Vec<(u64, u64)>)> {
        let changes = std::mem::take(&mut self.changes);
        py.detach(|| changes.ranges())
            .into_iter()
            .map(|(path, ranges)| (PyBytes::new(py, &path), ranges))
            .collect()
    }
}

/// `data`, the beginning of a stream, with its first command changed; None: more data is needed.
#[pyfunction]
#[pyo3(signature = (data, *, path=None, ctransid=None, parent_uuid=None))]
pub fn btrfs_rewrite_beginning(
    py: Python<'_>,
    data: PyBuffer<u8>,
    path: Option<Vec<u8>>,
    ctransid: Option<u64>,
    parent_uuid: Option<[u8; 16]>,
) -> PyResult<Option<Bound<'_, PyBytes>>> {
    let wanted = Rewrite {
        path: path.as_deref(),
        ctransid,
        parent_uuid,
    };
    let changed = rewrite_beginning(bytes_of(&data)?, &wanted).map_err(value_error)?;
    Ok(changed.map(|bytes| PyBytes::new(py, &bytes)))
}

/// The extents of one tree, from the buffers of a tree search.
#[pyclass]
pub struct BtrfsExtents(Extents);

#[pymethods]
impl BtrfsExtents {
    #[new]
    #[pyo3(signature = (newer_than, encoded, *, part=0, parts=1))]
    fn new(newer_than: u64, encoded: bool, part: u64, parts: u64) -> Self {
        Self(Extents::of_part(newer_than, encoded, part, parts))
    }

    /// The number of parts of the tree's extents, after the tree was read completely.
    #[getter]
    fn parts(&self) -> u64 {
        self.0.parts()
    }

    /// Keep only what belongs to this part of a larger number of parts.
    fn divide(&mut self, parts: u64) {
        self.0.divide(parts);
    }

    /// Process `count` items; the key (object, type, offset) of the last of them.
    fn feed(
        &mut self,
        py: Python<'_>,
        data: PyBuffer<u8>,
        count: usize,
    ) -> PyResult<Option<(u64, u32, u64)>> {
        let bytes = bytes_of(&data)?;
        py.detach(|| self.0.feed(bytes, count)).map_err(value_error)
    }

    /// Blocks of 4 KiB of all these extents, each extent counted once.
    fn blocks(&mut self, py: Python<'_>) -> u64 {
        py.detach(|| {
            self.0.settle();
            self.0.blocks()
        })
    }

    /// (unchanged, deleted, added) blocks between this tree, the base, and `incremental`.
    fn compare(&mut self, py: Python<'_>, incremental: &mut Self) -> (u64, u64, u64) {
        let (older, newer) = (&mut self.0, &mut incremental.0);
        let states = py.detach(|| {
            older.settle();
            newer.settle();
            older.compare(newer)
        });
        (states.unchanged, states.deleted, states.added)
    }

    #[getter]
    fn send_bytes(&self) -> u64 {
        self.0.send_bytes
    }
}

/// The blocks referenced by the files of one tree, from the buffers of a tree search.
#[pyclass]
#[derive(Default)]
pub struct BtrfsBlocks {
    blocks: Blocks,
    settled: bool,
}

impl BtrfsBlocks {
    fn settle(&mut self) {
        if !self.settled {
            self.blocks.settle();
            self.settled = true;
        }
    }
}

#[pymethods]
impl BtrfsBlocks {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Process `count` items; the key (object, type, offset) of the last of them.
    fn feed(
        &mut self,
        py: Python<'_>,
        data: PyBuffer<u8>,
        count: usize,
    ) -> PyResult<Option<(u64, u32, u64)>> {
        self.settled = false;
        let bytes = bytes_of(&data)?;
        py.detach(|| self.blocks.feed(bytes, count))
            .map_err(value_error)
    }

    /// (allocated, freed) between this tree, the base, and `newer`: triples of little-endian u64,
    /// (object, offset, length), object 0 the disk, 1 inline content in the tree.
    /// Freed ranges are complete blocks.
    fn changes<'py>(
        &mut self,
        py: Python<'py>,
        newer: &mut Self,
    ) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        let (allocated, freed) = py.detach(|| {
            self.settle();
            newer.settle();
            let (allocated, freed) = self.blocks.changes(&newer.blocks);
            (triples(&allocated, 1), triples(&freed, 4096))
        });
        (PyBytes::new(py, &allocated), PyBytes::new(py, &freed))
    }
}

/// (object, offset, length), lengths rounded up to multiples of `unit`.
fn triples(changed: &Changed, unit: u64) -> Vec<u8> {
    let whole = |bytes: u64| bytes.div_ceil(unit) * unit;
    let disk = changed
        .disk
        .iter()
        .map(|&(first, end)| [0, first, whole(end - first)]);
    let inline = changed
        .inline
        .iter()
        .map(|&(inode, _, bytes)| [1, inode.saturating_mul(4096), whole(bytes)]);
    disk.chain(inline)
        .flatten()
        .flat_map(u64::to_le_bytes)
        .collect()
}
