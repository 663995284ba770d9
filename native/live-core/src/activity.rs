//! The activity log: which extents may differ between the ends if this one crashes.
//!
//! Each half starts with a checkpoint, the complete list, in a fixed number of pages; each further
//! page adds and removes extents. A half that is full is continued by a checkpoint in the other
//! one, with the next generation. A page is written once and synced before it counts, so a crash
//! can only tear a page that nobody relied on.

use crate::layout::PAGE;
use crate::types::Geometry;
use std::collections::BTreeSet;

const MAGIC: u32 = u32::from_le_bytes(*b"MLAL");
const HEAD: usize = 32;
/// Extents that one page can name.
pub const PER_PAGE: usize = (PAGE - HEAD) / 4;

fn checkpoint_pages(geometry: &Geometry) -> u32 {
    geometry.hot.div_ceil(PER_PAGE as u32)
}

/// Pages of one half.
pub fn pages(geometry: &Geometry) -> u32 {
    checkpoint_pages(geometry) + (geometry.hot / 16).clamp(3, 256)
}

/// Where the next page goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub generation: u64,
    next: u32,
}

/// A page to write: its number within the half, and its bytes.
pub type Page = (u64, Vec<u8>);

fn encode(generation: u64, index: u32, adds: &[u32], removes: &[u32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PAGE);
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&index.to_le_bytes());
    out.extend_from_slice(&generation.to_le_bytes());
    out.extend_from_slice(&(adds.len() as u32).to_le_bytes());
    out.extend_from_slice(&(removes.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    for extent in adds.iter().chain(removes) {
        out.extend_from_slice(&extent.to_le_bytes());
    }
    out.resize(PAGE, 0);
    let crc = crc32c::crc32c(&out);
    out[24..28].copy_from_slice(&crc.to_le_bytes());
    out
}

fn decode(page: &[u8], generation: Option<u64>, index: u32) -> Option<(u64, Vec<u32>, Vec<u32>)> {
    let field =
        |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
    let found = u64::from(field(8)) | u64::from(field(12)) << 32;
    let (adds, removes) = (field(16) as usize, field(20) as usize);
    if field(0) != MAGIC
        || field(4) != index
        || generation.is_some_and(|wanted| wanted != found)
        || adds.checked_add(removes)? > PER_PAGE
    {
        return None;
    }
    let mut plain = page.to_vec();
    plain[24..28].fill(0);
    if crc32c::crc32c(&plain) != field(24) {
        return None;
    }
    let number = |at: usize| field(HEAD + 4 * at);
    Some((
        found,
        (0..adds).map(number).collect(),
        (adds..adds + removes).map(number).collect(),
    ))
}

/// The extents that a half names, and where it goes on. None without a complete checkpoint.
fn read_half(geometry: &Geometry, half: &[u8]) -> Option<(Cursor, BTreeSet<u32>)> {
    let mut extents = BTreeSet::new();
    let mut generation = None;
    let mut next = 0;
    for (index, page) in half.chunks_exact(PAGE).enumerate() {
        let Some((found, adds, removes)) = decode(page, generation, index as u32) else {
            break;
        };
        generation = Some(found);
        for extent in removes {
            extents.remove(&extent);
        }
        extents.extend(adds);
        next = index as u32 + 1;
    }
    extents.retain(|extent| u64::from(*extent) < geometry.extents());
    let generation = generation.filter(|_| next >= checkpoint_pages(geometry))?;
    Some((Cursor { generation, next }, extents))
}

/// What the two halves say. None if neither has a checkpoint.
pub fn read(geometry: &Geometry, halves: [&[u8]; 2]) -> Option<(Cursor, BTreeSet<u32>)> {
    let found = halves.map(|half| read_half(geometry, half));
    found
        .into_iter()
        .flatten()
        .max_by_key(|(cursor, _)| cursor.generation)
}

impl Cursor {
    pub fn start() -> Self {
        Cursor {
            generation: 0,
            next: u32::MAX,
        }
    }

    /// The page that records a change, or a checkpoint of `all` if the half is full. `all` is the
    /// list with the change made.
    pub fn append(
        &mut self,
        geometry: &Geometry,
        adds: &[u32],
        removes: &[u32],
        all: impl Iterator<Item = u32>,
    ) -> Vec<Page> {
        if self.next >= pages(geometry) {
            return self.checkpoint(geometry, all);
        }
        let page = encode(self.generation, self.next, adds, removes);
        self.next += 1;
        vec![(u64::from(self.next - 1), page)]
    }

    /// The complete list, in the other half.
    pub fn checkpoint(&mut self, geometry: &Geometry, all: impl Iterator<Item = u32>) -> Vec<Page> {
        let all: Vec<u32> = all.collect();
        self.generation += 1;
        self.next = checkpoint_pages(geometry);
        (0..self.next)
            .map(|index| {
                let first = (index as usize * PER_PAGE).min(all.len());
                let last = (first + PER_PAGE).min(all.len());
                let page = encode(self.generation, index, &all[first..last], &[]);
                (u64::from(index), page)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_read_as_it_was_written_across_halves() {
        let geometry = Geometry {
            size: 1 << 30,
            block: 4096,
            extent: 1 << 20,
            hot: 8,
        };
        let half_bytes = pages(&geometry) as usize * PAGE;
        let mut halves = [vec![0; half_bytes], vec![0; half_bytes]];
        let mut cursor = Cursor::start();
        let mut expected = BTreeSet::new();
        for step in 0..40u32 {
            let removes: Vec<u32> = expected.iter().copied().filter(|_| step % 3 == 0).collect();
            expected.retain(|extent| !removes.contains(extent));
            expected.insert(step);
            let written = cursor.append(&geometry, &[step], &removes, expected.iter().copied());
            for (index, page) in written {
                let at = index as usize * PAGE;
                halves[(cursor.generation % 2) as usize][at..at + PAGE].copy_from_slice(&page);
            }
            let (read, extents) = read(&geometry, [&halves[0], &halves[1]]).unwrap();
            assert_eq!(read, cursor);
            assert_eq!(extents, expected);
        }
    }
}
