//! The tree of a volume that is one sequence of bytes: a single file, the root itself.

use mirrord_core::verify::tree_file::{Record, Writer};
use mirrord_core::verify::{
    block, leaf, Content, Digest, FileSample, Metadata, Sample, BLOCK, SKIPPED, UNREADABLE,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::fs::File;
use std::io::BufWriter;

/// Takes the blocks of a volume in their order, and writes its tree to a file.
#[pyclass]
pub struct VolumeTree {
    out: Option<File>,
    size: u64,
    sample: Option<FileSample>,
    blocks: Vec<Digest>,
    unreadable: bool,
    hole: Digest,
}

impl VolumeTree {
    fn count(&self) -> u64 {
        self.size.div_ceil(BLOCK)
    }

    fn push(&mut self, digest: Digest) -> PyResult<()> {
        if self.blocks.len() as u64 >= self.count() {
            return Err(PyValueError::new_err("more blocks than the volume has"));
        }
        self.blocks.push(digest);
        Ok(())
    }
}

#[pymethods]
impl VolumeTree {
    #[new]
    #[pyo3(signature = (out, size, *, sample=None))]
    fn new(out: &str, size: u64, sample: Option<(u64, u32)>) -> PyResult<Self> {
        let sample = sample.map(|(seed, parts)| Sample { seed, parts }.of_file(b""));
        Ok(Self {
            out: Some(File::create(out)?),
            size,
            sample,
            blocks: Vec::new(),
            unreadable: false,
            hole: block(&[0; BLOCK as usize]),
        })
    }

    /// The number of the next block that is to be read; those before it are not in the sample.
    /// None: there is none.
    fn next(&mut self) -> Option<u64> {
        while (self.blocks.len() as u64) < self.count() {
            let number = self.blocks.len() as u64;
            if self.sample.is_none_or(|sample| sample.includes(number)) {
                return Some(number);
            }
            self.blocks.push(SKIPPED);
        }
        None
    }

    /// The next block, complete or the last one.
    fn add(&mut self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<()> {
        let bytes = crate::bytes_of(&data)?;
        let number = self.blocks.len() as u64;
        let wanted = BLOCK.min(self.size.saturating_sub(number * BLOCK));
        if bytes.len() as u64 != wanted {
            return Err(PyValueError::new_err("a block has another length"));
        }
        let digest = crate::unlocked(py, bytes.len(), || block(bytes));
        self.push(digest)
    }

    /// The next block is a complete one of zeros.
    fn add_hole(&mut self) -> PyResult<()> {
        self.push(self.hole)
    }

    /// The next block cannot be read.
    fn add_unreadable(&mut self) -> PyResult<()> {
        self.unreadable = true;
        self.push(UNREADABLE)
    }

    /// Write the tree; the node of its root.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let out = self.out.take();
        let out = out.ok_or_else(|| PyValueError::new_err("it is finished"))?;
        let mut content = Content::new();
        self.blocks.iter().for_each(|digest| content.push(digest));
        let metadata = Metadata {
            size: self.size,
            ..Metadata::default()
        }
        .digest();
        let content = content.finish();
        let record = Record {
            kind: b'f',
            unreadable: self.unreadable,
            node: leaf(&metadata, &content, b""),
            metadata,
            content,
            size: self.size,
            blocks: std::mem::take(&mut self.blocks),
            ..Record::default()
        };
        let mut writer = Writer::new(BufWriter::new(out))?;
        writer.record(&record)?;
        writer.finish()?;
        Ok(PyBytes::new(py, &record.node))
    }
}
