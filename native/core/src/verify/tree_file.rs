//! The file that holds the tree of one snapshot at one end: a record for each path, a folder after
//! everything in it, and the digest of all that at the end.

use super::{Digest, UNREADABLE};
use blake3::Hasher;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 16] = b"mirrord tree 1\n\0";
/// Where the first record begins.
pub const HEAD: u64 = MAGIC.len() as u64;
/// Longer paths do not occur: a folder is opened by each of its names.
const PATH_MAX: u32 = 1 << 20;

/// A path with its node. kind: 'f' file, 'd' folder, 'l' symbolic link, 'o' anything else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    pub kind: u8,
    /// It, or anything in it, cannot be read: its node proves nothing.
    pub unreadable: bool,
    /// A file of which another hard link comes first, and has the blocks.
    pub linked: bool,
    pub path: Vec<u8>,
    pub node: Digest,
    pub metadata: Digest,
    pub content: Digest,
    pub size: u64,
    /// Only of this end: the number of the inode, and when it was created.
    pub inode: u64,
    pub born_ns: u64,
    /// The digests of its blocks; empty for a hard link that is not the first.
    pub blocks: Vec<Digest>,
}

impl Record {
    pub fn parent(&self) -> &[u8] {
        let end = self.path.iter().rposition(|&byte| byte == b'/');
        &self.path[..end.unwrap_or(0)]
    }
}

pub struct Writer<W: Write> {
    to: W,
    hasher: Hasher,
}

impl<W: Write> Writer<W> {
    pub fn new(to: W) -> io::Result<Self> {
        let mut made = Self {
            to,
            hasher: Hasher::new(),
        };
        made.put(MAGIC)?;
        Ok(made)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.to.write_all(bytes)
    }

    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        let mut head = Vec::with_capacity(150 + record.path.len());
        head.push(record.kind);
        head.push(u8::from(record.unreadable) | u8::from(record.linked) << 1);
        head.extend((record.path.len() as u32).to_le_bytes());
        head.extend(&record.path);
        for digest in [&record.node, &record.metadata, &record.content] {
            head.extend(digest);
        }
        let count = record.blocks.len() as u64;
        for number in [record.size, record.inode, record.born_ns, count] {
            head.extend(number.to_le_bytes());
        }
        self.put(&head)?;
        self.put(record.blocks.as_flattened())
    }

    /// Copy complete records from another such file, as they are.
    pub fn copy(&mut self, mut from: impl Read) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 18];
        loop {
            match from.read(&mut buffer)? {
                0 => return Ok(()),
                length => self.put(&buffer[..length])?,
            }
        }
    }

    /// End the file; nothing is written after this.
    pub fn finish(mut self) -> io::Result<W> {
        self.put(&[0])?;
        let digest = *self.hasher.finalize().as_bytes();
        self.to.write_all(&digest)?;
        self.to.flush()?;
        Ok(self.to)
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is damaged or incomplete")
}

/// Call `take` with each record, in the file's order, and with the offset of its blocks in the
/// file. What it saw is right only when this returns without an error: then the digest at the end
/// matched.
pub fn read(from: impl Read, mut take: impl FnMut(Record, u64)) -> io::Result<()> {
    let mut reader = Reader {
        from,
        hasher: Hasher::new(),
        bytes: 0,
    };
    if reader.array::<16>()? != *MAGIC {
        return Err(damaged());
    }
    while let Some(record) = reader.record()? {
        let blocks_at = reader.bytes - 32 * record.blocks.len() as u64;
        take(record, blocks_at);
    }
    let wanted = *reader.hasher.finalize().as_bytes();
    let mut rest = Vec::new();
    reader.from.take(33).read_to_end(&mut rest)?;
    if rest == wanted {
        Ok(())
    } else {
        Err(damaged())
    }
}

struct Reader<R: Read> {
    from: R,
    hasher: Hasher,
    bytes: u64,
}

impl<R: Read> Reader<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.from
            .read_exact(bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => damaged(),
                _ => error,
            })?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn record(&mut self) -> io::Result<Option<Record>> {
        let [kind] = self.array()?;
        if kind == 0 {
            return Ok(None);
        }
        let [flags] = self.array()?;
        let length = u32::from_le_bytes(self.array()?);
        if length > PATH_MAX {
            return Err(damaged());
        }
        let mut path = vec![0; length as usize];
        self.fill(&mut path)?;
        let mut record = Record {
            kind,
            unreadable: flags & 1 != 0,
            linked: flags & 2 != 0,
            path,
            node: self.array()?,
            metadata: self.array()?,
            content: self.array()?,
            size: self.number()?,
            inode: self.number()?,
            born_ns: self.number()?,
            blocks: Vec::new(),
        };
        // (A damaged count allocates no more than there is to read.)
        for _ in 0..self.number()? {
            record.blocks.push(self.array()?);
        }
        Ok(Some(record))
    }
}

/// The root of a tree, and how much of it cannot be read: (node, unreadable, files).
pub fn summary(from: impl Read) -> io::Result<(Digest, bool, u64)> {
    let (mut root, mut unreadable, mut files) = (UNREADABLE, true, 0);
    read(from, |record, _| {
        files += u64::from(record.kind == b'f');
        if record.path.is_empty() {
            (root, unreadable) = (record.node, record.unreadable);
        }
    })?;
    Ok((root, unreadable, files))
}

/// What is directly in a folder ("" is the root, "." has the root itself), without blocks: at most `most`, the first of those with names
/// after `after`.
pub fn children(
    from: impl Read,
    folder: &[u8],
    after: &[u8],
    most: usize,
) -> io::Result<Vec<Record>> {
    let mut found = Vec::new();
    read(from, |mut record, _| {
        let inside = match folder {
            b"." => record.path.is_empty(),
            _ => record.parent() == folder && record.path.as_slice() > after,
        };
        if inside && found.len() < most {
            record.blocks = Vec::new();
            found.push(record);
        }
    })?;
    Ok(found)
}

/// The digests of at most `most` blocks of a file, from the block `first` on; None: no such file.
pub fn blocks(
    from: impl Read,
    path: &[u8],
    first: u64,
    most: usize,
) -> io::Result<Option<Vec<Digest>>> {
    let mut found = None;
    read(from, |record, _| {
        if record.kind == b'f' && record.path == path {
            let skip = usize::try_from(first).unwrap_or(usize::MAX);
            found = Some(record.blocks.into_iter().skip(skip).take(most).collect());
        }
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Record> {
        let made = |kind, path: &str, count: usize| Record {
            kind,
            path: path.as_bytes().to_vec(),
            node: [path.len() as u8; 32],
            size: count as u64 * 7,
            inode: 300,
            blocks: (0..count).map(|n| [n as u8; 32]).collect(),
            ..Record::default()
        };
        vec![
            made(b'f', "a/one", 3),
            made(b'l', "a/two", 0),
            made(b'd', "a", 0),
            made(b'f', "b", 1),
            made(b'd', "", 0),
        ]
    }

    fn written() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for record in sample() {
            writer.record(&record).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let file = written();
        let mut found = Vec::new();
        let mut blocks_at = 0;
        read(&file[..], |record, at| {
            if record.path == b"a/one" {
                blocks_at = at as usize;
            }
            found.push(record);
        })
        .unwrap();
        assert_eq!(file[blocks_at + 32..][..64], [[1; 32], [2; 32]].concat());
        assert_eq!(found, sample());
        assert_eq!(summary(&file[..]).unwrap(), ([0; 32], false, 2));
        let names = |folder: &[u8], after: &[u8], most| -> Vec<Vec<u8>> {
            let found = children(&file[..], folder, after, most).unwrap();
            found.into_iter().map(|one| one.path).collect()
        };
        assert_eq!(names(b"", b"", 9), [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(names(b"", b"a", 9), [b"b".to_vec()]);
        assert_eq!(names(b".", b"", 9), [b"".to_vec()]);
        assert_eq!(names(b"a", b"", 1), [b"a/one".to_vec()]);
        let digests = blocks(&file[..], b"a/one", 1, 5).unwrap().unwrap();
        assert_eq!(digests, [[1; 32], [2; 32]]);
        assert_eq!(blocks(&file[..], b"a", 0, 5).unwrap(), None);
    }

    #[test]
    fn every_damaged_byte_and_every_cut_is_found() {
        let file = written();
        for at in 0..file.len() {
            let mut wrong = file.clone();
            wrong[at] ^= 0x40;
            assert!(read(&wrong[..], |_, _| ()).is_err(), "byte {at}");
            assert!(read(&file[..at], |_, _| ()).is_err(), "cut at {at}");
        }
        assert!(read(&[&file[..], b"x"].concat()[..], |_, _| ()).is_err());
    }
}
