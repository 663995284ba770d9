//! Digests of ranges: of each block, so that what differs is named exactly.

use crate::types::{Geometry, Range};

/// Bytes of a block's digest.
pub const DIGEST: usize = 16;

/// The digests of the blocks of `data`; the last block may be short.
pub fn digests(data: &[u8], block: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len().div_ceil(block as usize) * DIGEST);
    for piece in data.chunks(block as usize) {
        out.extend_from_slice(&blake3::hash(piece).as_bytes()[..DIGEST]);
    }
    out
}

/// The runs of blocks of `range` whose digests differ: first block and number, as bytes.
pub fn differing(geometry: &Geometry, range: Range, mine: &[u8], theirs: &[u8]) -> Vec<u8> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let digests = mine.chunks(DIGEST).zip(theirs.chunks(DIGEST));
    for (block, (mine, theirs)) in geometry.blocks_of(range).zip(digests) {
        if mine == theirs {
            continue;
        }
        match runs.last_mut() {
            Some((first, count)) if *first + *count == block => *count += 1,
            _ => runs.push((block, 1)),
        }
    }
    let bytes = |(first, count): (u64, u64)| [first.to_le_bytes(), count.to_le_bytes()];
    runs.into_iter().flat_map(bytes).flatten().collect()
}
