//! What is known from the tree of an older snapshot of the same volume.

use super::walk::Entry;
use mirrord_core::verify::tree_file::{self, Record};
use mirrord_core::verify::{Digest, BLOCK};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::os::unix::fs::FileExt;

/// The data of a file that was written since, as (offset, length).
pub type Ranges = Vec<(u64, u64)>;

pub struct Base {
    file: File,
    known: HashMap<u64, Known>,
    /// By the number of the inode: everything that was changed since.
    changed: HashMap<u64, Ranges>,
    folders: HashMap<Vec<u8>, Folder>,
    /// Folders that may have another node now: something in them was changed, or is a hard link.
    dirty: HashSet<Vec<u8>>,
}

/// A folder with everything in it, as consecutive records in the file.
pub struct Folder {
    inode: u64,
    born_ns: u64,
    start: u64,
    end: u64,
    pub node: Digest,
    pub files: u64,
    pub blocks: u64,
}

struct Known {
    born_ns: u64,
    size: u64,
    blocks_at: u64,
    count: u64,
    metadata: Digest,
}

/// What can be taken over of one file.
pub struct Kept {
    blocks_at: u64,
    /// Blocks of the base that are the same unless they are in a range.
    count: u64,
    /// Ranges of blocks (first, end), in order.
    changed: Ranges,
}

impl Kept {
    pub fn has(&self, number: u64) -> bool {
        if number >= self.count {
            return false;
        }
        let after = self.changed.partition_point(|&(first, _)| first <= number);
        after == 0 || self.changed[after - 1].1 <= number
    }
}

/// The state while the file is read.
#[derive(Default)]
struct Reading {
    /// Where the last record ended, and the files and blocks so far.
    end: u64,
    files: u64,
    blocks: u64,
    /// What is not in a folder that was seen: its path, and the state above before it.
    open: Vec<(Vec<u8>, u64, u64, u64)>,
    /// The path of each inode that is a file.
    first: HashMap<u64, Vec<u8>>,
}

impl Reading {
    fn take(&mut self, base: &mut Base, record: Record, blocks_at: u64) {
        let count = record.blocks.len() as u64;
        let mut begin = (self.end.max(tree_file::HEAD), self.files, self.blocks);
        self.end = blocks_at + 32 * count;
        self.files += u64::from(record.kind == b'f' && !record.linked);
        self.blocks += count;
        if base.changed.contains_key(&record.inode) {
            base.taint(&record.path);
        }
        if record.kind == b'd' {
            while self
                .open
                .last()
                .is_some_and(|(path, ..)| is_in(path, &record.path))
            {
                let (_, start, files, blocks) = self.open.pop().expect("it is there");
                begin = (start, files, blocks);
            }
            if record.unreadable {
                base.dirty.insert(record.path.clone());
            }
            let folder = Folder {
                inode: record.inode,
                born_ns: record.born_ns,
                start: begin.0,
                end: self.end,
                node: record.node,
                files: self.files - begin.1,
                blocks: self.blocks - begin.2,
            };
            base.folders.insert(record.path.clone(), folder);
        } else {
            if let Some(path) = self.first.insert(record.inode, record.path.clone()) {
                base.taint(&path);
                base.taint(&record.path);
            }
            if !record.linked && !record.unreadable {
                let found = Known {
                    born_ns: record.born_ns,
                    size: record.size,
                    blocks_at,
                    count,
                    metadata: record.metadata,
                };
                base.known.insert(record.inode, found);
            }
        }
        self.open.push((record.path, begin.0, begin.1, begin.2));
    }
}

fn is_in(path: &[u8], folder: &[u8]) -> bool {
    folder.is_empty() || (path.starts_with(folder) && path.get(folder.len()) == Some(&b'/'))
}

impl Base {
    /// paths: of everything that was changed since. `InvalidData` when the file is damaged.
    pub fn new(file: File, paths: &[Vec<u8>], changed: HashMap<u64, Ranges>) -> io::Result<Self> {
        let mut made = Self {
            file: file.try_clone()?,
            known: HashMap::new(),
            changed,
            folders: HashMap::new(),
            dirty: HashSet::new(),
        };
        for path in paths {
            made.dirty.insert(path.clone());
            made.taint(path);
        }
        let mut reading = Reading::default();
        tree_file::read(
            BufReader::with_capacity(1 << 18, &file),
            |record, blocks_at| reading.take(&mut made, record, blocks_at),
        )?;
        Ok(made)
    }

    /// Note that something in all folders above a path was changed.
    fn taint(&mut self, path: &[u8]) {
        let mut path = path;
        while let Some(at) = path.iter().rposition(|&byte| byte == b'/') {
            path = &path[..at];
            if !self.dirty.insert(path.to_vec()) {
                return; // and so those above it
            }
        }
    }

    /// A folder in which nothing was changed, with everything in it.
    pub fn folder(&self, entry: &Entry) -> Option<&Folder> {
        if self.dirty.contains(&entry.path) || self.changed.contains_key(&entry.inode) {
            return None;
        }
        self.folders
            .get(&entry.path)
            .filter(|folder| (folder.inode, folder.born_ns) == (entry.inode, entry.born_ns))
    }

    /// The records of a folder and of everything in it.
    pub fn records(&self, folder: &Folder) -> io::Result<impl io::Read + '_> {
        let mut file = &self.file;
        file.seek(io::SeekFrom::Start(folder.start))?;
        Ok(file.take(folder.end - folder.start))
    }

    /// The blocks of a file that was not changed at all.
    pub fn blocks(&self, entry: &Entry) -> io::Result<Option<Vec<Digest>>> {
        let Some(known) = self.known(entry) else {
            return Ok(None);
        };
        if known.size != entry.size || self.changed.contains_key(&entry.inode) {
            return Ok(None);
        }
        let mut blocks = vec![[0; 32]; known.count as usize];
        self.file
            .read_exact_at(blocks.as_flattened_mut(), known.blocks_at)?;
        Ok(Some(blocks))
    }

    fn known(&self, entry: &Entry) -> Option<&Known> {
        self.known
            .get(&entry.inode)
            .filter(|known| known.born_ns == entry.born_ns && entry.kind != b'd')
    }

    /// The metadata of something that was not changed at all.
    pub fn metadata(&self, entry: &Entry) -> Option<Digest> {
        if self.changed.contains_key(&entry.inode) {
            return None;
        }
        self.known(entry).map(|known| known.metadata)
    }

    pub fn kept(&self, entry: &Entry) -> Option<Kept> {
        let known = self.known(entry)?;
        let mut count = known.count;
        if known.size != entry.size {
            // The last block of the shorter one has another length in the longer one.
            count = known.size.min(entry.size) / BLOCK;
        }
        let ranges = self
            .changed
            .get(&entry.inode)
            .map_or(&[][..], Vec::as_slice);
        let mut changed: Ranges = ranges
            .iter()
            .map(|&(at, length)| (at / BLOCK, at.saturating_add(length).div_ceil(BLOCK)))
            .collect();
        changed.sort_unstable();
        let mut merged: Ranges = Vec::new();
        for (first, end) in changed {
            match merged.last_mut() {
                Some(last) if first <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((first, end)),
            }
        }
        Some(Kept {
            blocks_at: known.blocks_at,
            count,
            changed: merged,
        })
    }

    pub fn block(&self, kept: &Kept, number: u64) -> io::Result<Digest> {
        let mut digest = [0; 32];
        self.file
            .read_exact_at(&mut digest, kept.blocks_at + 32 * number)?;
        Ok(digest)
    }
}
