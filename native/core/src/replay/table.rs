//! The states of the blocks of one volume, in pages that are allocated when they are written.
//!
//! Pages are small, so that scattered blocks need little: for each at most a page (128 bytes) and a
//! node of the directory (as much again).

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::collections::HashMap;
use std::ptr::NonNull;

/// Blocks of a page: 128 KiB of a volume of 4 KiB blocks.
pub const PAGE_BITS: u32 = 5;
pub const PAGE: usize = 1 << PAGE_BITS;
/// Pages of a node of the directory.
pub const NODE_BITS: u32 = 5;
const NODE: usize = 1 << NODE_BITS;
/// Number of pages allocated at once.
const CHUNK_BITS: u32 = 14;
const CHUNK: usize = 1 << CHUNK_BITS;
/// Nodes below this are in a flat directory (64 TiB of 4 KiB blocks).
const FLAT: u64 = 1 << 24;
const NONE: u32 = u32::MAX;

/// Size and alignment of a chunk: huge pages avoid most of the time for address translation.
const CHUNK_LAYOUT: Layout = match Layout::from_size_align(CHUNK * PAGE * size_of::<i32>(), 2 << 20)
{
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// `CHUNK` pages of states, zero at first.
struct Chunk(NonNull<[i32; CHUNK * PAGE]>);

// SAFETY: a chunk owns its memory, as a box does.
unsafe impl Send for Chunk {}
// SAFETY: as above; shared, it is only read.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new() -> Self {
        // SAFETY: the layout is not empty. The memory is written before it is read, and the advice
        // only affects speed, so it may fail.
        unsafe {
            let Some(start) = NonNull::new(alloc(CHUNK_LAYOUT)) else {
                handle_alloc_error(CHUNK_LAYOUT)
            };
            #[cfg(target_os = "linux")]
            libc::madvise(
                start.as_ptr().cast(),
                CHUNK_LAYOUT.size(),
                libc::MADV_HUGEPAGE,
            );
            start.as_ptr().write_bytes(0, CHUNK_LAYOUT.size());
            Self(start.cast())
        }
    }

    #[inline]
    fn states(&self) -> &[i32; CHUNK * PAGE] {
        // SAFETY: the memory is allocated, and every i32 was written.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn states_mut(&mut self) -> &mut [i32; CHUNK * PAGE] {
        // SAFETY: as above, and this borrow is the only one.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout and is not used after this.
        unsafe { dealloc(self.0.as_ptr().cast(), CHUNK_LAYOUT) };
    }
}

/// Pages of all volumes of a part.
#[derive(Default)]
pub struct Pages {
    chunks: Vec<Chunk>,
    used: usize,
}

impl Pages {
    fn add(&mut self) -> u32 {
        if self.used == self.chunks.len() * CHUNK {
            self.chunks.push(Chunk::new());
        }
        self.used += 1;
        u32::try_from(self.used - 1).expect("fewer than 4 thousand million pages")
    }

    /// The states of a page's blocks.
    #[inline]
    pub fn page(&mut self, id: u32) -> &mut [i32; PAGE] {
        let start = (id as usize & (CHUNK - 1)) << PAGE_BITS;
        let states = self.chunks[id as usize >> CHUNK_BITS].states_mut();
        (&mut states[start..start + PAGE])
            .try_into()
            .expect("a whole page")
    }

    /// Prefetches the state of a block.
    #[inline]
    pub fn prefetch(&self, id: u32, block: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            let start = (id as usize & (CHUNK - 1)) << PAGE_BITS;
            let state = &self.chunks[id as usize >> CHUNK_BITS].states()[start + block];
            // SAFETY: a prefetch changes nothing, and the address is that of an element.
            unsafe { _mm_prefetch(std::ptr::from_ref(state).cast(), _MM_HINT_T0) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (id, block);
    }

    pub fn memory(&self) -> usize {
        self.chunks.len() * CHUNK_LAYOUT.size()
    }
}

/// Which pages a volume has.
#[derive(Default)]
pub struct Directory {
    /// The place of each node in `nodes`.
    flat: Vec<u32>,
    far: HashMap<u64, u32>,
    /// The ids of the pages of each node.
    nodes: Vec<[u32; NODE]>,
}

impl Directory {
    #[inline]
    fn node(&self, node: u64) -> Option<usize> {
        let found = if node < FLAT {
            self.flat.get(node as usize).copied()
        } else {
            self.far.get(&node).copied()
        };
        found
            .filter(|&place| place != NONE)
            .map(|place| place as usize)
    }

    /// The page's id; the page is allocated if necessary.
    #[inline]
    pub fn find_or_add(&mut self, page: u64, pages: &mut Pages) -> u32 {
        let node = match self.node(page >> NODE_BITS) {
            Some(node) => node,
            None => self.add(page >> NODE_BITS),
        };
        let id = &mut self.nodes[node][page as usize & (NODE - 1)];
        if *id == NONE {
            *id = pages.add();
        }
        *id
    }

    #[cold]
    fn add(&mut self, node: u64) -> usize {
        let place = self.nodes.len();
        self.nodes.push([NONE; NODE]);
        let place_u32 = u32::try_from(place).expect("fewer nodes than pages");
        if node >= FLAT {
            self.far.insert(node, place_u32);
            return place;
        }
        if self.flat.len() <= node as usize {
            self.flat.resize(node as usize + 1, NONE);
        }
        self.flat[node as usize] = place_u32;
        place
    }

    /// The allocated pages from `first` to `last`, with their ids.
    pub fn among(&self, first: u64, last: u64) -> Vec<(u64, u32)> {
        let (from, to) = (first >> NODE_BITS, last >> NODE_BITS);
        let end = (self.flat.len() as u64).min(to + 1);
        let near = (from..end).filter_map(|node| self.node(node).map(|place| (node, place)));
        let far = self
            .far
            .iter()
            .map(|(&node, &place)| (node, place as usize));
        near.chain(far.filter(|(node, _)| (from..=to).contains(node)))
            .flat_map(|(node, place)| {
                let ids = self.nodes[place].iter().enumerate();
                ids.map(move |(index, &id)| ((node << NODE_BITS) + index as u64, id))
            })
            .filter(|&(page, id)| id != NONE && (first..=last).contains(&page))
            .collect()
    }

    pub fn memory(&self) -> usize {
        self.flat.capacity() * size_of::<u32>() + self.nodes.capacity() * size_of::<[u32; NODE]>()
    }
}
