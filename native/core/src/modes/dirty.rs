//! The blocks that are only tracked: what still has to be copied.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes of a tracked block.
pub const BLOCK: u64 = 4096;

/// Multiplies and mixes: the numbers of blocks come from a trace, not from an attacker.
#[derive(Default)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(26) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub type Hashing = BuildHasherDefault<BlockHasher>;

#[derive(Default)]
pub struct Dirty {
    blocks: HashSet<(u32, u64), Hashing>,
    /// In the order in which they are copied, with the time since when. One that was cleared
    /// meanwhile is passed over.
    order: VecDeque<(u32, u64, i64)>,
}

impl Dirty {
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Tracks the blocks that a write touches.
    pub fn mark(&mut self, volume: u32, offset: u64, length: u64, at_ns: i64) {
        for block in offset / BLOCK..offset.saturating_add(length).div_ceil(BLOCK) {
            if self.blocks.insert((volume, block)) {
                self.order.push_back((volume, block, at_ns));
            }
        }
    }

    /// Ends the tracking of the blocks that a write covers: it is sent itself.
    pub fn clear(&mut self, volume: u32, offset: u64, length: u64) {
        for block in offset.div_ceil(BLOCK)..offset.saturating_add(length) / BLOCK {
            self.blocks.remove(&(volume, block));
        }
        if self.blocks.is_empty() {
            self.order.clear();
        }
    }

    /// Since when the next block to copy is tracked, and its bytes.
    pub fn first(&mut self) -> Option<(i64, u64)> {
        while let Some(&(volume, block, at_ns)) = self.order.front() {
            if self.blocks.contains(&(volume, block)) {
                return Some((at_ns, BLOCK));
            }
            self.order.pop_front();
        }
        None
    }

    pub fn take(&mut self) {
        if let Some((volume, block, _)) = self.order.pop_front() {
            self.blocks.remove(&(volume, block));
        }
    }
}
