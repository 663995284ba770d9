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

/// Where a log goes on, and the extents that it names.
pub type Listed = (Cursor, BTreeSet<u32>);

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

/// Of a page: its generation, and the extents that it adds and removes.
type Contents = (u64, Vec<u32>, Vec<u32>);

fn decode(page: &[u8], index: u32) -> Option<Contents> {
    let field =
        |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
    let found = u64::from(field(8)) | u64::from(field(12)) << 32;
    let (adds, removes) = (field(16) as usize, field(20) as usize);
    if field(0) != MAGIC || field(4) != index || adds.checked_add(removes)? > PER_PAGE {
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

/// The newest generation in a half, and what it says: the extents, and where it goes on. Without a
/// complete checkpoint there is no such generation: a crash has torn it. But a page after it, or
/// after one that is missing, is written once all before it are durable: what is missing there was
/// damaged, and nothing is known.
fn read_half(geometry: &Geometry, half: &[u8]) -> Option<(u64, Option<Listed>)> {
    let pages = half.chunks_exact(PAGE).enumerate();
    let pages = pages.map(|(index, page)| decode(page, index as u32));
    let pages: Vec<_> = pages.collect();
    let generation = pages.iter().flatten().map(|(found, ..)| *found).max()?;
    let is_newest = |page: &&Option<Contents>| matches!(page, Some((it, ..)) if *it == generation);
    let last = pages.iter().rposition(|page| is_newest(&page))? as u32;
    let mut extents = BTreeSet::new();
    let mut next = 0;
    for (_, adds, removes) in pages.iter().take_while(is_newest).flatten() {
        for extent in removes {
            extents.remove(extent);
        }
        extents.extend(adds);
        next += 1;
    }
    extents.retain(|extent| u64::from(*extent) < geometry.extents());
    if next.max(last) < checkpoint_pages(geometry) {
        return None;
    }
    let is_complete = next > last;
    Some((
        generation,
        is_complete.then_some((Cursor { generation, next }, extents)),
    ))
}

/// What the two halves say. None if neither has a checkpoint, or the newer one is damaged.
pub fn read(geometry: &Geometry, halves: [&[u8]; 2]) -> Option<Listed> {
    let found = halves.map(|half| read_half(geometry, half));
    let newest = found.into_iter().flatten().max_by_key(|(it, _)| *it);
    newest.and_then(|(_, contents)| contents)
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

    #[test]
    fn a_torn_page_was_not_relied_on_and_a_damaged_one_was() {
        let geometry = Geometry {
            size: 1 << 40,
            block: 4096,
            extent: 1 << 20,
            hot: 4096,
        };
        let mut halves = [0, 1].map(|_| vec![0; pages(&geometry) as usize * PAGE]);
        let mut cursor = Cursor::start();
        let mut written = Vec::new();
        for generation in 0..2 {
            written = cursor.checkpoint(&geometry, 0..3000);
            for step in 0..4 {
                written.extend(cursor.append(&geometry, &[5000 + step], &[], 0..0));
            }
            let half = &mut halves[(cursor.generation % 2) as usize];
            for (index, page) in &written[..if generation == 0 { 9 } else { 5 }] {
                half[*index as usize * PAGE..][..PAGE].copy_from_slice(page);
            }
        }
        let newest = (cursor.generation % 2) as usize;
        let extents = |halves: &[Vec<u8>; 2]| {
            let found = read(&geometry, [&halves[0], &halves[1]]);
            found.map(|(_, extents)| extents.len())
        };
        assert_eq!(extents(&halves), Some(3000));
        for page in 0..5 {
            let mut torn = halves.clone();
            torn[newest][page * PAGE + 40] ^= 1;
            assert_eq!(extents(&torn), Some(3004), "page {page}");
        }
        for (index, page) in &written[5..] {
            halves[newest][*index as usize * PAGE..][..PAGE].copy_from_slice(page);
        }
        assert_eq!(extents(&halves), Some(3004));
        for page in 0..8 {
            let mut damaged = halves.clone();
            damaged[newest][page * PAGE + 40] ^= 1;
            assert_eq!(extents(&damaged), None, "page {page}");
        }
        halves[newest][8 * PAGE + 40] ^= 1;
        assert_eq!(extents(&halves), Some(3003));
    }
}
