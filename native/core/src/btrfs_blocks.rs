//! The blocks on disk referenced by the files of a btrfs subvolume, and their changes.
//!
//! While a snapshot references an extent, its place on disk is not reused, so the references of
//! two snapshots differ exactly by what was allocated and freed between them: the allocation and
//! deallocation records of SnapMirror's traces (FAST'02, section 4). Finer than `btrfs_search`: of
//! an extent that files reference in part, only that part counts; btrfs keeps the rest, but it
//! cannot be read, and no send stream contains it.

use crate::btrfs_search::{each_item, le64, Key, BLOCK, EXTENT_DATA, INODE_ITEM};
use std::collections::BTreeSet;

const REGULAR: u8 = 1;
const INLINE: u8 = 0;

/// A range of bytes (first, end). The first is block-aligned; the end need not be, where a
/// file ends within its last block.
pub type Range = (u64, u64);

/// Inline content in the tree: (inode, generation, bytes).
pub type Inline = (u64, u64, u64);

/// The difference of two trees: ranges on disk and inodes with inline content.
#[derive(Debug, Default, PartialEq)]
pub struct Changed {
    pub disk: Vec<Range>,
    pub inline: Vec<Inline>,
}

/// The ranges referenced by the files of one tree.
#[derive(Default)]
pub struct Blocks {
    inode: (u64, u64),
    disk: Vec<Range>,
    inline: Vec<Inline>,
    /// How many ranges there were after the last `settle`.
    settled: usize,
}

/// Below this number, duplicate references are only removed at the end.
const SETTLE_FROM: usize = 1 << 20;

impl Blocks {
    /// Process `count` items of the search's buffer; the key of the last, to continue after it.
    pub fn feed(&mut self, buffer: &[u8], count: usize) -> Result<Option<Key>, String> {
        each_item(buffer, count, |key, item| match key.1 {
            INODE_ITEM if item.len() >= 24 => self.inode = (key.0, le64(item, 16)),
            EXTENT_DATA if item.len() >= 21 => self.take_extent(key, item),
            _ => {}
        })
    }

    fn take_extent(&mut self, key: Key, item: &[u8]) {
        let (compressed, kind) = (item[16] != 0, item[20]);
        if kind == INLINE {
            let bytes = le64(item, 8).clamp(1, BLOCK);
            self.inline.push((key.0, le64(item, 0), bytes));
            return;
        }
        // Preallocated space has no content and is never sent.
        if kind != REGULAR || item.len() < 53 || le64(item, 21) == 0 {
            return;
        }
        let (place, on_disk) = (le64(item, 21), le64(item, 29));
        let (skipped, in_file) = (le64(item, 37), le64(item, 45));
        let size = match self.inode {
            (inode, size) if inode == key.0 => size,
            _ => u64::MAX,
        };
        if size <= key.2 {
            return; // beyond the end of the file
        }
        let range = if compressed {
            // No part of a compressed extent corresponds to a part of the file.
            (place, place.saturating_add(on_disk))
        } else {
            let first = place.saturating_add(skipped);
            (first, first.saturating_add(in_file.min(size - key.2)))
        };
        // Rounded up to a block below: damaged numbers must not overflow there.
        if range.0 < range.1 && range.1 < u64::MAX - BLOCK {
            if self.disk.len() >= SETTLE_FROM.max(2 * self.settled) {
                self.settle(); // so that memory grows with ranges, not with references
            }
            self.disk.push(range);
        }
    }

    /// Sort, each block once: several files, or parts of one file, may reference the same block.
    pub fn settle(&mut self) {
        self.disk.sort_unstable();
        let mut settled: Vec<Range> = Vec::with_capacity(self.disk.len());
        for &(first, end) in &self.disk {
            match settled.last_mut() {
                // The end of a file is not merged: its last block is not full.
                Some(last) if first < aligned(last.1) || (first == last.1) => {
                    last.1 = last.1.max(end);
                }
                _ => settled.push((first, end)),
            }
        }
        settled.shrink_to_fit();
        self.settled = settled.len();
        self.disk = settled;
        self.inline.sort_unstable();
        self.inline.dedup_by_key(|one| one.0);
    }

    /// What `newer` references and this tree, the base, does not, and vice versa: allocated, freed.
    /// Call `settle` on both first.
    pub fn changes(&self, newer: &Self) -> (Changed, Changed) {
        let allocated = Changed {
            disk: without(&newer.disk, &self.disk),
            inline: inline_without(&newer.inline, |one| self.inline.binary_search(one).is_ok()),
        };
        let there: BTreeSet<u64> = allocated.inline.iter().map(|one| one.0).collect();
        let freed = Changed {
            disk: without(&self.disk, &newer.disk),
            inline: inline_without(&self.inline, |one| {
                there.contains(&one.0) || newer.inline.binary_search(one).is_ok()
            }),
        };
        (allocated, freed)
    }
}

fn aligned(end: u64) -> u64 {
    end.div_ceil(BLOCK) * BLOCK
}

fn inline_without(from: &[Inline], known: impl Fn(&Inline) -> bool) -> Vec<Inline> {
    from.iter().filter(|one| !known(one)).copied().collect()
}

/// The blocks of `from` that are not in `taken`; both settled. A range that includes the end of its
/// file ends there, within the block.
fn without(from: &[Range], taken: &[Range]) -> Vec<Range> {
    let mut left = Vec::new();
    let mut next = 0;
    for &(first, end) in from {
        let (mut at, border) = (first, aligned(end));
        while next < taken.len() && aligned(taken[next].1) <= at {
            next += 1;
        }
        let mut look = next;
        while at < border {
            let Some(&(begin, over)) = taken.get(look).filter(|range| range.0 < border) else {
                left.push((at, end));
                break;
            };
            if at < begin {
                left.push((at, begin));
            }
            at = at.max(aligned(over));
            look += 1;
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btrfs_search::tests::item;

    /// (inode, place in the file, place of the extent, skipped of it, bytes, compressed, kind)
    type Extent = (u64, u64, u64, u64, u64, u8, u8);

    fn extent((inode, offset, place, skipped, bytes, compressed, kind): Extent) -> Vec<u8> {
        let mut data = 5u64.to_le_bytes().to_vec();
        data.extend_from_slice(&bytes.to_le_bytes());
        data.extend_from_slice(&[compressed, 0, 0, 0, kind]);
        for number in [place, 1 << 17, skipped, bytes] {
            data.extend_from_slice(&number.to_le_bytes());
        }
        item(inode, EXTENT_DATA, offset, &data)
    }

    fn inode(number: u64, size: u64) -> Vec<u8> {
        let mut data = vec![0; 16];
        data.extend_from_slice(&size.to_le_bytes());
        item(number, INODE_ITEM, 0, &data)
    }

    fn read(items: &[Vec<u8>]) -> Blocks {
        let mut blocks = Blocks::default();
        blocks.feed(&items.concat(), items.len()).unwrap();
        blocks.settle();
        blocks
    }

    #[test]
    fn only_the_parts_that_files_name_count() {
        // 128 KiB, of which the second file block was overwritten elsewhere.
        let blocks = read(&[
            inode(256, 1 << 17),
            extent((256, 0, 1 << 20, 0, 4096, 0, 1)),
            extent((256, 4096, 1 << 21, 0, 4096, 0, 1)),
            extent((256, 8192, 1 << 20, 8192, (1 << 17) - 8192, 0, 1)),
            inode(257, 5000),
            extent((257, 0, 1 << 22, 0, 8192, 0, 1)),
            extent((257, 8192, 1 << 23, 0, 8192, 0, 2)),
            inode(258, 1 << 20),
            extent((258, 0, 1 << 24, 0, 1 << 18, 1, 1)),
        ]);
        let expected = [
            (1 << 20, (1 << 20) + 4096),
            ((1 << 20) + 8192, (1 << 20) + (1 << 17)),
            (1 << 21, (1 << 21) + 4096),
            (1 << 22, (1 << 22) + 5000),
            (1 << 24, (1 << 24) + (1 << 17)),
        ];
        assert_eq!(blocks.disk, expected);
    }

    #[test]
    fn small_files_change_by_generation() {
        let inline = |inode: u64, generation: u64, bytes: u64| {
            let mut data = generation.to_le_bytes().to_vec();
            data.extend_from_slice(&bytes.to_le_bytes());
            data.extend_from_slice(&[0, 0, 0, 0, 0, 7, 7]);
            item(inode, EXTENT_DATA, 0, &data)
        };
        let base = read(&[inline(256, 5, 100), inline(257, 5, 10), inline(258, 5, 1)]);
        let newer = read(&[inline(256, 5, 100), inline(257, 9, 20), inline(260, 9, 0)]);
        let (allocated, freed) = base.changes(&newer);
        assert_eq!(allocated.inline, [(257, 9, 20), (260, 9, 1)]);
        assert_eq!(freed.inline, [(258, 5, 1)]);
    }

    /// Against sets of blocks, on thousands of random trees.
    #[test]
    fn changes_are_the_differences_of_sets() {
        let mut state = 3u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        };
        let blocks_of = |ranges: &[Range]| -> BTreeSet<u64> {
            let each = ranges
                .iter()
                .flat_map(|&(first, end)| first / BLOCK..end.div_ceil(BLOCK));
            each.collect()
        };
        for _ in 0..3000 {
            let mut trees = [Blocks::default(), Blocks::default()];
            for tree in &mut trees {
                for _ in 0..random(12) {
                    let first = random(60) * BLOCK;
                    let bytes = random(8 * BLOCK) + 1;
                    tree.disk.push((first, first + bytes));
                }
                let named = blocks_of(&tree.disk);
                tree.settle();
                assert_eq!(blocks_of(&tree.disk), named);
                let apart = |pair: &[Range]| aligned(pair[0].1) <= pair[1].0;
                assert!(tree.disk.windows(2).all(apart), "{:?}", tree.disk);
            }
            let [base, newer] = &trees;
            let (old, new) = (blocks_of(&base.disk), blocks_of(&newer.disk));
            let (allocated, freed) = base.changes(newer);
            assert_eq!(blocks_of(&allocated.disk), &new - &old);
            assert_eq!(blocks_of(&freed.disk), &old - &new);
        }
    }

    #[test]
    fn garbage_never_panics() {
        let mut state = 11u64;
        for _ in 0..5000 {
            let mut buffer = inode(256, 9000);
            for _ in 0..3 {
                buffer.extend(extent((256, 0, 4096, 0, 8192, 0, 1)));
            }
            for _ in 0..12 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let at = (state >> 33) as usize % buffer.len();
                buffer[at] = (state >> 24) as u8;
            }
            let mut blocks = Blocks::default();
            let _ = blocks.feed(&buffer, 4);
            blocks.settle();
            let _ = Blocks::default().changes(&blocks);
        }
    }
}
