//! The extents of a btrfs subvolume, from the buffers of BTRFS_IOC_TREE_SEARCH_V2.
//!
//! While a snapshot references an extent, its place on disk is not reused: the set of extents
//! that a snapshot's tree references is its active map (SnapMirror, FAST'02, section 3.1).

const ITEM_HEADER: usize = 32;
pub(crate) const INODE_ITEM: u32 = 1;
pub(crate) const EXTENT_DATA: u32 = 108;
pub(crate) const BLOCK: u64 = 4096;

/// Overhead of a send stream in bytes: per new and per changed inode (names, owner,
/// mode, times), per extent, and per stream.
const NEW_INODE_BYTES: u64 = 420;
const CHANGED_INODE_BYTES: u64 = 150;
const EXTENT_BYTES: u64 = 60;
const STREAM_BYTES: u64 = 200;
/// Maximum number of extents held in memory (64 MiB).
pub const EXTENTS_MAX: usize = 4 << 20;
/// The kernel splits data into writes of this size, each with a header and the path.
const WRITE_BYTES: u64 = 48 << 10;

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

/// A tree key: (object, type, offset).
pub type Key = (u64, u32, u64);

/// Pass `count` items of a search's buffer to `sink`; the key of the last.
pub(crate) fn each_item(
    buffer: &[u8],
    count: usize,
    mut sink: impl FnMut(Key, &[u8]),
) -> Result<Option<Key>, String> {
    let mut rest = buffer;
    let mut last = None;
    for _ in 0..count {
        if rest.len() < ITEM_HEADER {
            return Err("a tree item is cut short".into());
        }
        let (header, after) = rest.split_at(ITEM_HEADER);
        let key = (le64(header, 8), le32(header, 24), le64(header, 16));
        let length = le32(header, 28) as usize;
        let item = after
            .get(..length)
            .ok_or("a tree item is longer than the buffer")?;
        rest = &after[length..];
        last = Some(key);
        sink(key, item);
    }
    Ok(last)
}

/// The extents of one tree that are newer than a generation (0: all); of a large tree, only a part.
///
/// Extents must be kept in memory, because other files may reference them again, and a tree may
/// reference hundreds of millions. So at most `EXTENTS_MAX` are kept: if there are more, only those
/// of one part of `parts`, selected by their place, and the tree is read again for each other part.
#[derive(Default)]
pub struct Extents {
    newer_than: u64,
    encoded: bool,
    part: u64,
    parts: u64,
    held_max: usize,
    inode: (u64, u64),
    /// (place on disk, length on disk), of data and of preallocated space.
    disk: Vec<(u64, u64)>,
    /// (inode, generation) of files with inline data.
    inline: Vec<(u64, u64)>,
    pub send_bytes: u64,
}

/// Counts of 4 KiB blocks by state; `unused` also requires the size of the file system.
#[derive(Debug, PartialEq)]
pub struct States {
    pub unchanged: u64,
    pub deleted: u64,
    pub added: u64,
}

impl Extents {
    /// newer_than: generation up to which extents are old. encoded: compressed data is sent as is.
    pub fn new(newer_than: u64, encoded: bool) -> Self {
        Self {
            newer_than,
            encoded,
            parts: 1,
            held_max: EXTENTS_MAX,
            send_bytes: STREAM_BYTES,
            ..Self::default()
        }
    }

    /// The same for one part of `parts`, a power of two. Part 0 is divided further if necessary, so
    /// read it first: the others then have a similar number of extents.
    pub fn of_part(newer_than: u64, encoded: bool, part: u64, parts: u64) -> Self {
        assert!(parts.is_power_of_two() && part < parts, "{part} of {parts}");
        Self {
            part,
            parts,
            ..Self::new(newer_than, encoded)
        }
    }

    /// The number of parts of which this is one.
    pub fn parts(&self) -> u64 {
        self.parts
    }

    /// Keep only what belongs to this part of a larger number of parts.
    pub fn divide(&mut self, parts: u64) {
        assert!(parts.is_power_of_two() && parts >= self.parts, "{parts}");
        self.parts = parts;
        let (part, mask) = (self.part, parts - 1);
        self.disk
            .retain(|extent| scattered(extent.0) & mask == part);
        self.inline.retain(|file| scattered(file.0) & mask == part);
    }

    fn mine(&self, number: u64) -> bool {
        scattered(number) & (self.parts - 1) == self.part
    }

    /// Make room if it is full: duplicates are removed first.
    fn make_room(&mut self) {
        if self.disk.len() + self.inline.len() < self.held_max {
            return;
        }
        self.settle();
        while self.part == 0 && self.disk.len() + self.inline.len() > self.held_max / 2 {
            self.divide(2 * self.parts);
        }
    }

    /// Process `count` items of the search's buffer; the key of the last, to continue after it.
    pub fn feed(&mut self, buffer: &[u8], count: usize) -> Result<Option<Key>, String> {
        each_item(buffer, count, |key, item| match key.1 {
            INODE_ITEM => self.take_inode(key.0, item),
            EXTENT_DATA => self.take_extent(key, item),
            _ => {}
        })
    }

    fn take_inode(&mut self, inode: u64, item: &[u8]) {
        if item.len() < 24 {
            return;
        }
        self.inode = (inode, le64(item, 16));
        if le64(item, 0) > self.newer_than {
            self.send_bytes += NEW_INODE_BYTES;
        } else if le64(item, 8) > self.newer_than {
            self.send_bytes += CHANGED_INODE_BYTES;
        }
    }

    fn take_extent(&mut self, key: Key, item: &[u8]) {
        if item.len() < 21 || le64(item, 0) <= self.newer_than {
            return;
        }
        let (generation, compression, kind) = (le64(item, 0), item[16], item[20]);
        if kind == 0 {
            self.make_room();
            if self.mine(key.0) {
                self.inline.push((key.0, generation));
            }
            self.send_bytes += EXTENT_BYTES + le64(item, 8).min(BLOCK);
            return;
        }
        if item.len() < 53 || le64(item, 21) == 0 {
            return; // a hole
        }
        let (place, on_disk, in_file) = (le64(item, 21), le64(item, 29), le64(item, 45));
        self.make_room();
        if self.mine(place) {
            self.disk.push((place, on_disk));
        }
        if kind != 1 {
            return; // preallocated: no content
        }
        // The last block of a file is not sent beyond the file's size.
        let length = match self.inode {
            (inode, size) if inode == key.0 => in_file.min(size.saturating_sub(key.2)),
            _ => in_file,
        };
        let sent = if compression != 0 && self.encoded {
            on_disk.min(length)
        } else {
            length
        };
        self.send_bytes = self
            .send_bytes
            .saturating_add(sent)
            .saturating_add(EXTENT_BYTES * (1 + sent / WRITE_BYTES));
    }

    /// Remove duplicates: several files, or parts of one file, may reference the same extent.
    pub fn settle(&mut self) {
        self.disk.sort_unstable();
        self.disk.dedup();
        self.inline.sort_unstable();
        self.inline.dedup();
    }

    /// Blocks of all these extents, each extent counted once. Call `settle` first.
    pub fn blocks(&self) -> u64 {
        let disk: u64 = self.disk.iter().map(|extent| blocks_of(extent.1)).sum();
        disk + self.inline.len() as u64
    }

    /// The blocks of `self` (base) and `incremental` by state. Call `settle` on both first.
    pub fn compare(&self, incremental: &Self) -> States {
        assert_eq!(
            (self.part, self.parts),
            (incremental.part, incremental.parts)
        );
        let unchanged = common(&self.disk, &incremental.disk, |extent| blocks_of(extent.1))
            + common(&self.inline, &incremental.inline, |_| 1);
        States {
            unchanged,
            deleted: self.blocks() - unchanged,
            added: incremental.blocks() - unchanged,
        }
    }
}

fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK)
}

/// Hashes a number, so that close numbers are far apart.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// The sum over the common items of two sorted lists without duplicates.
fn common(one: &[(u64, u64)], other: &[(u64, u64)], value: impl Fn(&(u64, u64)) -> u64) -> u64 {
    let mut rest = other.iter().peekable();
    let mut sum = 0;
    for pair in one {
        while rest.next_if(|candidate| *candidate < pair).is_some() {}
        if rest.next_if_eq(&pair).is_some() {
            sum += value(pair);
        }
    }
    sum
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn item(inode: u64, kind: u32, offset: u64, data: &[u8]) -> Vec<u8> {
        let mut item = 1u64.to_le_bytes().to_vec();
        item.extend_from_slice(&inode.to_le_bytes());
        item.extend_from_slice(&offset.to_le_bytes());
        item.extend_from_slice(&kind.to_le_bytes());
        item.extend_from_slice(&(data.len() as u32).to_le_bytes());
        item.extend_from_slice(data);
        item
    }

    fn extent(inode: u64, generation: u64, kind: u8, place: u64, on_disk: u64) -> Vec<u8> {
        let mut data = generation.to_le_bytes().to_vec();
        data.extend_from_slice(&on_disk.to_le_bytes());
        data.extend_from_slice(&[0, 0, 0, 0, kind]);
        for number in [place, on_disk, 0, on_disk] {
            data.extend_from_slice(&number.to_le_bytes());
        }
        item(inode, EXTENT_DATA, 0, &data)
    }

    fn read(items: &[Vec<u8>], newer_than: u64) -> Extents {
        let mut extents = Extents::new(newer_than, false);
        let key = extents.feed(&items.concat(), items.len()).unwrap();
        assert!(key.is_some() || items.is_empty());
        extents.settle();
        extents
    }

    #[test]
    fn shared_extents_count_once_and_holes_not_at_all() {
        let extents = read(
            &[
                extent(256, 5, 1, 4096, 8192),
                extent(257, 5, 1, 4096, 8192),
                extent(258, 5, 1, 0, 8192),
                extent(259, 5, 2, 65536, 4096),
                extent(260, 5, 0, 0, 0),
            ],
            0,
        );
        assert_eq!(extents.blocks(), 2 + 1 + 1);
    }

    #[test]
    fn states_are_those_of_the_paper() {
        let base = read(
            &[
                extent(256, 5, 1, 4096, 8192),
                extent(257, 5, 1, 1 << 20, 4096),
            ],
            0,
        );
        let items = [
            extent(256, 5, 1, 4096, 8192),
            extent(258, 9, 1, 1 << 21, 12288),
        ];
        let incremental = read(&items, 0);
        let states = base.compare(&incremental);
        assert_eq!(
            states,
            States {
                unchanged: 2,
                deleted: 1,
                added: 3
            }
        );
        assert_eq!(read(&items, 5).blocks(), 3);
    }

    #[test]
    fn a_large_tree_is_counted_part_by_part_with_few_extents_held() {
        let tree = |shift: u64| -> Vec<Vec<u8>> {
            (1..4000u64)
                .map(|n| extent(256 + n, 5, (n % 7 != 0).into(), (n + shift % n) << 14, 8192))
                .collect()
        };
        let (older, newer) = (tree(0), tree(3));
        let expected = read(&older, 0).compare(&read(&newer, 0));
        let limited = |items: &[Vec<u8>], part, parts| {
            let mut found = Extents::of_part(0, false, part, parts);
            found.held_max = 1000;
            for item in items {
                found.feed(item, 1).unwrap();
                assert!(found.disk.len() + found.inline.len() <= 1000);
            }
            found.settle();
            found
        };
        let mut old = limited(&older, 0, 1);
        let new = limited(&newer, 0, old.parts());
        assert!(new.parts() >= 8, "{}", new.parts());
        old.divide(new.parts());
        let mut found = old.compare(&new);
        for part in 1..new.parts() {
            let old = limited(&older, part, new.parts());
            let states = old.compare(&limited(&newer, part, new.parts()));
            found.unchanged += states.unchanged;
            found.deleted += states.deleted;
            found.added += states.added;
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn garbage_never_panics() {
        let mut state = 7u64;
        for _ in 0..5000 {
            let mut buffer: Vec<u8> = Vec::new();
            for _ in 0..3 {
                buffer.extend(extent(256, 5, 1, 4096, 8192));
            }
            for _ in 0..10 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let at = (state >> 33) as usize % buffer.len();
                buffer[at] = (state >> 24) as u8;
            }
            let mut extents = Extents::new(0, true);
            let _ = extents.feed(&buffer, 4);
            extents.settle();
            let _ = extents.blocks();
        }
    }
}
