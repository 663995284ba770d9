//! The states of the blocks of one volume, in pages that are allocated when they are written.

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::collections::HashMap;
use std::ptr::NonNull;

/// Blocks of a page: 4 MiB of a volume of 4 KiB blocks.
pub const PAGE_BITS: u32 = 10;
pub const PAGE: usize = 1 << PAGE_BITS;
/// Number of pages allocated at once.
const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;
/// Pages below this are in a flat directory (64 TiB of 4 KiB blocks).
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
    flat: Vec<u32>,
    far: HashMap<u64, u32>,
}

impl Directory {
    /// The page's id, if it was ever written.
    #[inline]
    pub fn find(&self, page: u64) -> Option<u32> {
        if page < FLAT {
            self.flat
                .get(page as usize)
                .copied()
                .filter(|&id| id != NONE)
        } else {
            self.far.get(&page).copied()
        }
    }

    /// The page's id; the page is allocated if necessary.
    #[inline]
    pub fn find_or_add(&mut self, page: u64, pages: &mut Pages) -> u32 {
        match self.find(page) {
            Some(id) => id,
            None => self.add(page, pages),
        }
    }

    #[cold]
    fn add(&mut self, page: u64, pages: &mut Pages) -> u32 {
        let id = pages.add();
        if page >= FLAT {
            self.far.insert(page, id);
            return id;
        }
        if self.flat.len() <= page as usize {
            self.flat.resize(page as usize + 1, NONE);
        }
        self.flat[page as usize] = id;
        id
    }

    /// The allocated pages from `first` to `last`, with their ids.
    pub fn among(&self, first: u64, last: u64) -> Vec<(u64, u32)> {
        let end = (self.flat.len() as u64).min(last.saturating_add(1));
        let near = (first..end).filter_map(|page| self.find(page).map(|id| (page, id)));
        let far = self
            .far
            .iter()
            .filter(|(page, _)| (first..=last).contains(page));
        near.chain(far.map(|(&page, &id)| (page, id))).collect()
    }
}
