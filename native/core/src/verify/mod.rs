//! The Merkle tree of a snapshot's logical content: what two copies must have in common.
//!
//! Leaves are aligned blocks of 128 KiB. A file's content is the digest of its blocks' digests; a
//! node is the digest of the metadata and of the content, or of the names and nodes inside a
//! folder. Each kind of input begins with a byte of its own, so that none passes for another.

pub mod tree_file;

use blake3::Hasher;

pub type Digest = [u8; 32];

/// Bytes of a block. Also a part of the definition of the digests: it never changes.
pub const BLOCK: u64 = 128 * 1024;
/// The digest of a block that a sample does not include.
pub const SKIPPED: Digest = [0; 32];
/// The digest of a block that cannot be read. Equal to no other, not even to itself: see
/// `Record::unreadable`.
pub const UNREADABLE: Digest = [0xff; 32];

pub fn block(data: &[u8]) -> Digest {
    *blake3::hash(data).as_bytes()
}

/// The content of a file from its blocks.
#[derive(Clone)]
pub struct Content(Hasher);

impl Content {
    pub fn new() -> Self {
        let mut hasher = Hasher::new();
        hasher.update(b"C");
        Self(hasher)
    }

    pub fn push(&mut self, block: &Digest) {
        self.0.update(block);
    }

    pub fn finish(&self) -> Digest {
        *self.0.finalize().as_bytes()
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::new()
    }
}

/// What a file, a folder or anything else is, apart from its content and its name. Times of access
/// and of the last change of the inode, inode numbers and the size of folders are no part of it.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// The type and the permissions, as in `st_mode`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime_s: i64,
    pub mtime_ns: u32,
    /// Of a file; 0 for anything else.
    pub size: u64,
    /// Of a device; 0 for anything else.
    pub device: (u32, u32),
    /// Of a symbolic link.
    pub target: Vec<u8>,
    /// Names with their values.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Metadata {
    pub fn digest(&mut self) -> Digest {
        let mut hasher = Hasher::new();
        hasher.update(b"M");
        for number in [self.mode, self.uid, self.gid, self.mtime_ns] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&self.mtime_s.to_le_bytes());
        hasher.update(&self.size.to_le_bytes());
        hasher.update(&self.device.0.to_le_bytes());
        hasher.update(&self.device.1.to_le_bytes());
        text(&mut hasher, &self.target);
        self.attributes.sort();
        for (name, value) in &self.attributes {
            text(&mut hasher, name);
            text(&mut hasher, value);
        }
        *hasher.finalize().as_bytes()
    }
}

fn text(hasher: &mut Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

/// The node of anything but a folder. first: the path of the first of several hard links, empty
/// for that one itself.
pub fn leaf(metadata: &Digest, content: &Digest, first: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.update(b"F");
    hasher.update(metadata);
    hasher.update(content);
    text(&mut hasher, first);
    *hasher.finalize().as_bytes()
}

/// The node of a folder, from its children in the order of their names.
#[derive(Clone)]
pub struct Folder(Hasher);

impl Folder {
    pub fn new(metadata: &Digest) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(b"D");
        hasher.update(metadata);
        Self(hasher)
    }

    pub fn push(&mut self, name: &[u8], node: &Digest) {
        text(&mut self.0, name);
        self.0.update(node);
    }

    pub fn finish(&self) -> Digest {
        *self.0.finalize().as_bytes()
    }
}

/// A random sample of blocks, the same at both ends: it depends on the seed and on what both ends
/// have, path and position.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub seed: u64,
    /// Of a million blocks.
    pub parts: u32,
}

impl Sample {
    /// The choice for one file.
    pub fn of_file(&self, path: &[u8]) -> FileSample {
        let mut hasher = Hasher::new();
        hasher.update(b"S");
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(path);
        let mut key = [0; 8];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        FileSample {
            key: u64::from_le_bytes(key),
            parts: self.parts,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct FileSample {
    key: u64,
    parts: u32,
}

impl FileSample {
    /// Whether the block with that number is in the sample.
    pub fn includes(&self, block: u64) -> bool {
        // SplitMix64: each number of a block gives an independent, evenly distributed value.
        let mut x = self
            .key
            .wrapping_add(block.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        u128::from(x) * 1_000_000 < u128::from(self.parts) << 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_metadata_counts() {
        let plain = Metadata {
            mode: 0o100_644,
            ..Metadata::default()
        };
        let attribute = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        let mut all = vec![plain.clone()];
        for change in [
            |m: &mut Metadata| m.mode = 0o100_600,
            |m: &mut Metadata| m.uid = 1,
            |m: &mut Metadata| m.gid = 1,
            |m: &mut Metadata| m.mtime_s = 1,
            |m: &mut Metadata| m.mtime_ns = 1,
            |m: &mut Metadata| m.size = 1,
            |m: &mut Metadata| m.device = (1, 0),
            |m: &mut Metadata| m.device = (0, 1),
            |m: &mut Metadata| m.target = b"x".to_vec(),
        ] {
            let mut other = plain.clone();
            change(&mut other);
            all.push(other);
        }
        for attributes in [
            vec![attribute(b"ab", b"c")],
            vec![attribute(b"a", b"bc")],
            vec![attribute(b"a", b""), attribute(b"b", b"c")],
        ] {
            all.push(Metadata {
                attributes,
                ..plain.clone()
            });
        }
        let digests: std::collections::BTreeSet<_> = all.iter_mut().map(Metadata::digest).collect();
        assert_eq!(digests.len(), all.len());
        let (one, two) = (attribute(b"a", b"1"), attribute(b"b", b"2"));
        let mut first = Metadata {
            attributes: vec![one.clone(), two.clone()],
            ..plain.clone()
        };
        let mut second = Metadata {
            attributes: vec![two, one],
            ..plain
        };
        assert_eq!(first.digest(), second.digest());
    }

    #[test]
    fn names_and_nodes_of_a_folder_cannot_be_shifted() {
        let made = |children: &[(&[u8], Digest)]| {
            let mut folder = Folder::new(&[7; 32]);
            for (name, node) in children {
                folder.push(name, node);
            }
            folder.finish()
        };
        assert_ne!(
            made(&[(b"a", [1; 32]), (b"b", [2; 32])]),
            made(&[(b"a", [2; 32]), (b"b", [1; 32])])
        );
        assert_ne!(made(&[(b"a", [1; 32])]), made(&[(b"aa", [1; 32])]));
        assert_ne!(
            leaf(&[1; 32], &[2; 32], b""),
            leaf(&[1; 32], &[2; 32], b"a")
        );
    }

    #[test]
    fn a_sample_has_about_its_share_and_is_repeatable() {
        for (parts, least, most) in [(10_000, 900, 1_100), (500_000, 49_000, 51_000)] {
            let sample = Sample { seed: 5, parts }.of_file(b"some/file");
            let taken = (0..100_000).filter(|&n| sample.includes(n)).count();
            assert!((least..most).contains(&taken), "{taken}");
            let again = Sample { seed: 5, parts }.of_file(b"some/file");
            assert!((0..1_000).all(|n| again.includes(n) == sample.includes(n)));
            let other = Sample { seed: 6, parts }.of_file(b"some/file");
            assert!((0..1_000).any(|n| other.includes(n) != sample.includes(n)));
        }
        let all = Sample {
            seed: 1,
            parts: 1_000_000,
        };
        assert!((0..10_000).all(|n| all.of_file(b"x").includes(n)));
    }
}
