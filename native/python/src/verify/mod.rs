//! Python bindings of the verification: `SnapshotTree` computes the tree of a snapshot, the
//! functions read it.

mod base;
mod blocks;
mod file;
mod mount;
mod walk;

use base::{Base, Ranges};
use mirrord_core::verify::{tree_file, Sample};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use walk::Walk;

/// The file of an older tree, the paths that were changed since, the ranges of data by inode.
type Older = (String, Vec<Vec<u8>>, HashMap<u64, Ranges>);

/// Computes the tree of the snapshot in a folder, in steps, and writes it to a file.
#[pyclass]
struct SnapshotTree(Walk);

#[pymethods]
impl SnapshotTree {
    /// rate: bytes per second. sample: (seed, blocks of a million). OSError when the file of `base`
    /// is damaged.
    #[new]
    #[pyo3(signature = (root, out, *, rate=None, sample=None, base=None))]
    fn new(
        py: Python<'_>,
        root: &str,
        out: &str,
        rate: Option<u64>,
        sample: Option<(u64, u32)>,
        base: Option<Older>,
    ) -> PyResult<Self> {
        let sample = sample.map(|(seed, parts)| Sample { seed, parts });
        let made = py.detach(|| {
            let base = match base {
                Some((tree, paths, changed)) => {
                    Some(Base::new(File::open(tree)?, &paths, changed)?)
                }
                None => None,
            };
            Walk::new(root, File::create(out)?, sample, base, rate)
        })?;
        Ok(Self(made))
    }

    /// Work for about `seconds`; whether it is done. Other threads run meanwhile.
    fn step(&mut self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        Ok(py.detach(|| self.0.step(seconds))?)
    }

    /// (node, whether anything in it is unreadable) of the root, once it is done.
    #[getter]
    fn root<'py>(&self, py: Python<'py>) -> Option<(Bound<'py, PyBytes>, bool)> {
        self.0
            .root
            .map(|(node, bad)| (PyBytes::new(py, &node), bad))
    }

    /// (files, blocks, blocks read, bytes read, unreadable) so far.
    #[getter]
    fn counts(&self) -> (u64, u64, u64, u64, u64) {
        let counts = &self.0.counts;
        (
            counts.files,
            counts.blocks,
            counts.read_blocks,
            counts.read_bytes,
            counts.unreadable,
        )
    }
}

fn opened(path: &str) -> PyResult<BufReader<File>> {
    let file = File::open(path)?;
    Ok(BufReader::with_capacity(1 << 18, file))
}

type Child<'py> = (
    Bound<'py, PyBytes>,
    char,
    bool,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    u64,
);

/// (path, kind, unreadable, node, metadata, content, size) of what is directly in a folder, at most
/// `most` after the path `after`; OSError when the tree is damaged.
#[pyfunction]
fn tree_children<'py>(
    py: Python<'py>,
    tree: &str,
    folder: Vec<u8>,
    after: Vec<u8>,
    most: usize,
) -> PyResult<Vec<Child<'py>>> {
    let from = opened(tree)?;
    let found = py.detach(|| tree_file::children(from, &folder, &after, most))?;
    Ok(found
        .iter()
        .map(|one| {
            (
                PyBytes::new(py, &one.path),
                char::from(one.kind),
                one.unreadable,
                PyBytes::new(py, &one.node),
                PyBytes::new(py, &one.metadata),
                PyBytes::new(py, &one.content),
                one.size,
            )
        })
        .collect())
}

/// The digests of at most `most` blocks of a file from `first` on, 32 bytes each; None when the
/// tree has no such file.
#[pyfunction]
fn tree_blocks<'py>(
    py: Python<'py>,
    tree: &str,
    path: Vec<u8>,
    first: u64,
    most: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let from = opened(tree)?;
    let found = py.detach(|| tree_file::blocks(from, &path, first, most))?;
    Ok(found.map(|blocks| PyBytes::new(py, blocks.as_flattened())))
}

/// (node, whether anything is unreadable, files) of the root of a tree; OSError when it is damaged.
#[pyfunction]
fn tree_root<'py>(py: Python<'py>, tree: &str) -> PyResult<(Bound<'py, PyBytes>, bool, u64)> {
    let from = opened(tree)?;
    let (node, bad, files) = py.detach(|| tree_file::summary(from))?;
    Ok((PyBytes::new(py, &node), bad, files))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<SnapshotTree>()?;
    m.add_class::<blocks::VolumeTree>()?;
    m.add_function(wrap_pyfunction!(mount::mount_detached, m)?)?;
    m.add_function(wrap_pyfunction!(tree_children, m)?)?;
    m.add_function(wrap_pyfunction!(tree_blocks, m)?)?;
    m.add_function(wrap_pyfunction!(tree_root, m)?)
}
