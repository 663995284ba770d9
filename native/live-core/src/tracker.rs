//! Which blocks may differ between the ends, in memory and on disk.
//!
//! Three sets of blocks: `dirty` differ as far as is known; `current` and `previous` were sent
//! or are being written, and are not known to be durable at both ends (`previous`: a barrier in
//! progress covers them). On disk there is, per extent, either an entry in the activity log or
//! bits in the map: an extent's entry is dropped only when its blocks are durable at both ends
//! (in sync), or when the map has their bits (out of sync).

use crate::activity::{self, Cursor, Page};
use crate::bits::Bitmap;
use crate::io::{Backend, File};
use crate::layout::{self, PAGE};
use crate::types::{Geometry, Range};
use std::collections::{BTreeSet, HashMap};
use std::io;

#[derive(Clone, Debug, Default)]
struct Hot {
    /// Writes in progress.
    pins: u32,
    /// Blocks became dirty since its part of the map was saved.
    unsaved: bool,
    used: u64,
}

/// What has to hold before an extent's entry can be dropped.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// The map on disk has its blocks that differ: out of sync.
    pub map: bool,
    /// Its blocks are durable at both ends: in sync, and from when writes wait for the other end
    /// until the record says so. The map counts no more once it does.
    pub durable: bool,
    /// One of the two is enough, if the map is needed: semi-sync.
    pub either: bool,
}

pub struct Tracker {
    pub geometry: Geometry,
    pub dirty: Bitmap,
    current: Bitmap,
    previous: Bitmap,
    current_extents: BTreeSet<u32>,
    previous_extents: BTreeSet<u32>,
    hot: HashMap<u32, Hot>,
    cursor: Cursor,
    clock: u64,
    /// Pages of the map that have bits on disk which are clear here.
    stale: BTreeSet<u64>,
}

/// Reads `length` bytes of the tracking file.
fn read(backend: &dyn Backend, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    backend.read(File::Tracking, offset, &mut bytes)?;
    Ok(bytes)
}

impl Tracker {
    pub fn new(geometry: Geometry) -> Self {
        Tracker {
            geometry,
            dirty: Bitmap::new(geometry.blocks()),
            current: Bitmap::new(geometry.blocks()),
            previous: Bitmap::new(geometry.blocks()),
            current_extents: BTreeSet::new(),
            previous_extents: BTreeSet::new(),
            hot: HashMap::new(),
            cursor: Cursor::start(),
            clock: 0,
            stale: BTreeSet::new(),
        }
    }

    /// What the tracking file says: the tracked extents, and with `map` the blocks of the map.
    /// All of these blocks are dirty.
    pub fn load(geometry: Geometry, backend: &dyn Backend, map: bool) -> io::Result<Self> {
        let damaged = |problem| Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        if backend.size(File::Tracking)? < layout::length(&geometry) {
            return damaged("the tracking file is shorter than it was");
        }
        let mut tracker = Tracker::new(geometry);
        let half = activity::pages(&geometry) as usize * PAGE;
        let first = read(backend, layout::activity_offset(&geometry, 0), half)?;
        let second = read(backend, layout::activity_offset(&geometry, 1), half)?;
        let Some((cursor, extents)) = activity::read(&geometry, [&first, &second]) else {
            return damaged("the activity log is damaged, or has no complete checkpoint");
        };
        tracker.cursor = cursor;
        if map {
            for index in 0..layout::map_pages(&geometry) {
                let at = layout::map_offset(&geometry) + index * PAGE as u64;
                tracker.dirty.load_page(index, &read(backend, at, PAGE)?);
            }
        }
        for extent in extents {
            tracker.dirty.set(tracker.blocks_of(extent));
            tracker.hot.insert(
                extent,
                Hot {
                    unsaved: true,
                    ..Hot::default()
                },
            );
        }
        Ok(tracker)
    }

    fn blocks_of(&self, extent: u32) -> std::ops::Range<u64> {
        let per = self.geometry.blocks_of_extent();
        let first = u64::from(extent) * per;
        first..(first + per).min(self.geometry.blocks())
    }

    pub fn hot_count(&self) -> usize {
        self.hot.len()
    }

    pub fn undurable(&self) -> bool {
        !self.current.is_empty() || !self.previous.is_empty()
    }

    /// Blocks that are not known to be equal and durable at both ends.
    pub fn tracked_blocks(&self) -> u64 {
        self.dirty.count() + self.current.count() + self.previous.count()
    }

    /// The extents of a range that are not tracked on disk.
    pub fn missing(&self, range: Range) -> impl Iterator<Item = u32> + '_ {
        let extents = self.geometry.extents_of(range);
        extents.filter(|extent| !self.hot.contains_key(extent))
    }

    /// A write to `range` was issued. Its extents are tracked on disk.
    pub fn pin(&mut self, range: Range, sent: bool) {
        self.clock += 1;
        for extent in self.geometry.extents_of(range) {
            let hot = self.hot.entry(extent).or_default();
            hot.pins += 1;
            hot.used = self.clock;
            hot.unsaved = true;
        }
        if sent {
            self.sent(range);
        } else {
            self.outdate(range);
        }
    }

    pub fn unpin(&mut self, range: Range) {
        for extent in self.geometry.extents_of(range) {
            if let Some(hot) = self.hot.get_mut(&extent) {
                hot.pins = hot.pins.saturating_sub(1);
            }
        }
    }

    /// The other end gets this range; blocks that it covers completely are no longer dirty.
    pub fn sent(&mut self, range: Range) {
        self.current.set(self.geometry.blocks_of(range));
        self.current_extents.extend(self.geometry.extents_of(range));
        if !self.dirty.is_empty() {
            self.clean(range);
        }
    }

    /// The blocks within `range` are not dirty any more.
    pub fn clean(&mut self, range: Range) {
        let within = self.geometry.blocks_within(range);
        if self.dirty.clear(within.clone()) {
            let bits = PAGE as u64 * 8;
            self.stale
                .extend(within.start / bits..within.end.div_ceil(bits));
        }
    }

    /// The other end does not have this range.
    pub fn outdate(&mut self, range: Range) {
        if self.dirty.set(self.geometry.blocks_of(range)) {
            for extent in self.geometry.extents_of(range) {
                if let Some(hot) = self.hot.get_mut(&extent) {
                    hot.unsaved = true;
                }
            }
        }
    }

    /// The same for ranges that no entry in the activity log stands for: the pages of the map that
    /// have them are saved next.
    pub fn outdate_saved(&mut self, range: Range) {
        self.outdate(range);
        let blocks = self.geometry.blocks_of(range);
        let bits = PAGE as u64 * 8;
        self.stale
            .extend(blocks.start / bits..blocks.end.div_ceil(bits));
    }

    pub fn outdate_saved_all(&mut self) {
        self.outdate_all();
        self.stale.extend(0..layout::map_pages(&self.geometry));
    }

    /// Nothing differs.
    pub fn clear(&mut self) {
        self.dirty = Bitmap::new(self.geometry.blocks());
        self.hot.clear();
    }

    pub fn outdate_all(&mut self) {
        self.dirty.set(0..self.geometry.blocks());
        self.hot.values_mut().for_each(|hot| hot.unsaved = true);
    }

    /// A barrier starts; it does not cover the writes in progress.
    pub fn start_barrier(&mut self, in_progress: impl Iterator<Item = Range>) {
        for extent in std::mem::take(&mut self.current_extents) {
            let blocks = self.blocks_of(extent);
            self.current.move_to(blocks, &mut self.previous);
            self.previous_extents.insert(extent);
        }
        for range in in_progress {
            self.current.set(self.geometry.blocks_of(range));
            self.current_extents.extend(self.geometry.extents_of(range));
        }
    }

    /// Everything before the barrier is durable at both ends.
    pub fn finish_barrier(&mut self) {
        for extent in std::mem::take(&mut self.previous_extents) {
            self.previous.clear(self.blocks_of(extent));
        }
    }

    /// The other end is not to be relied upon: all that may differ is dirty.
    pub fn lose(&mut self) {
        let mut extents = std::mem::take(&mut self.current_extents);
        extents.append(&mut self.previous_extents);
        for extent in extents {
            let blocks = self.blocks_of(extent);
            self.current.move_to(blocks.clone(), &mut self.dirty);
            self.previous.move_to(blocks, &mut self.dirty);
        }
        self.hot.values_mut().for_each(|hot| hot.unsaved = true);
    }

    /// How many more extents can be tracked.
    pub fn room(&self) -> usize {
        (self.geometry.hot as usize).saturating_sub(self.hot.len())
    }

    fn is_evictable(&self, extent: u32, hot: &Hot, needs: Needs) -> bool {
        let blocks = self.blocks_of(extent);
        let is_durable = || {
            !self.dirty.any(blocks.clone())
                && !self.current.any(blocks.clone())
                && !self.previous.any(blocks.clone())
        };
        let is_saved = !(needs.map && hot.unsaved) || needs.either && is_durable();
        hot.pins == 0 && is_saved && (!needs.durable || is_durable())
    }

    /// Extents whose entries can be dropped now, those unused for longest first, but none in
    /// `kept`. `early` is the seeded fault.
    pub fn evictable(
        &self,
        limit: usize,
        kept: std::ops::Range<u32>,
        needs: Needs,
        early: bool,
    ) -> Vec<u32> {
        let mut found: Vec<(u64, u32)> = self
            .hot
            .iter()
            .filter(|(extent, _)| !kept.contains(extent))
            .filter(|(extent, hot)| self.is_evictable(**extent, hot, needs) || early)
            .map(|(extent, hot)| (hot.used, *extent))
            .collect();
        found.sort_unstable();
        found.truncate(limit);
        found.into_iter().map(|(_, extent)| extent).collect()
    }

    /// The pages that record new and dropped extents, with their offsets in the tracking file.
    /// New ones count from `admit` on, when these are durable.
    pub fn append(&mut self, adds: &[u32], removes: &[u32]) -> Vec<Page> {
        for extent in removes {
            self.hot.remove(extent);
        }
        let all: Vec<u32> = self.hot.keys().chain(adds).copied().collect();
        let pages = self
            .cursor
            .append(&self.geometry, adds, removes, all.into_iter());
        self.placed(pages)
    }

    /// The pages of a complete new list.
    pub fn checkpoint(&mut self) -> Vec<Page> {
        let all: Vec<u32> = self.hot.keys().copied().collect();
        let pages = self.cursor.checkpoint(&self.geometry, all.into_iter());
        self.placed(pages)
    }

    fn placed(&self, pages: Vec<Page>) -> Vec<Page> {
        let start = layout::activity_offset(&self.geometry, self.cursor.generation);
        let place = |(index, page)| (start + index * PAGE as u64, page);
        pages.into_iter().map(place).collect()
    }

    pub fn admit(&mut self, extents: &[u32]) {
        self.clock += 1;
        for extent in extents {
            let used = self.clock;
            self.hot.entry(*extent).or_default().used = used;
        }
    }

    /// A page of the map, as it has to be on disk.
    pub fn map_page(&self, index: u64) -> Page {
        let mut page = vec![0; PAGE];
        self.dirty.add_page(index, &mut page);
        self.current.add_page(index, &mut page);
        self.previous.add_page(index, &mut page);
        let at = layout::map_offset(&self.geometry) + index * PAGE as u64;
        (at, page)
    }

    fn page_of(&self, extent: u32) -> u64 {
        self.blocks_of(extent).start / (PAGE as u64 * 8)
    }

    /// Pages of the map which, once durable, let the extents unused for longest be dropped.
    /// Writes from now on make an extent unsaved again.
    /// `again`: pages with blocks that become equal by themselves are saved once more.
    pub fn save_hot(&mut self, limit: usize, again: bool) -> Vec<Page> {
        let mut unsaved: Vec<(u64, u32)> = self
            .hot
            .iter()
            .filter(|(_, hot)| hot.unsaved && hot.pins == 0)
            .map(|(extent, hot)| (hot.used, *extent))
            .collect();
        unsaved.sort_unstable();
        let wanted = unsaved.iter().take((self.hot.len() / 2).max(1));
        let mut pages: BTreeSet<u64> = BTreeSet::new();
        for (_, extent) in wanted {
            if pages.len() < limit || pages.contains(&self.page_of(*extent)) {
                pages.insert(self.page_of(*extent));
            }
        }
        self.saving(pages, again)
    }

    /// Pages of the map whose cleared bits can be stored.
    pub fn save_stale(&mut self, limit: usize, again: bool) -> Vec<Page> {
        let pages: BTreeSet<u64> = self.stale.iter().take(limit).copied().collect();
        self.saving(pages, again)
    }

    pub fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Every page that has bits.
    pub fn save_all(&mut self) -> Vec<Page> {
        self.saving((0..layout::map_pages(&self.geometry)).collect(), false)
    }

    fn saving(&mut self, pages: BTreeSet<u64>, again: bool) -> Vec<Page> {
        let per_extent = self.geometry.blocks_of_extent();
        let bits = PAGE as u64 * 8;
        for (extent, hot) in &mut self.hot {
            let first = u64::from(*extent) * per_extent;
            let last = (first + per_extent - 1) / bits;
            if (first / bits..=last).all(|page| pages.contains(&page)) {
                hot.unsaved = false;
            }
        }
        self.stale.retain(|page| !pages.contains(page));
        if again {
            let is_sent = |page: &u64| {
                let blocks = page * bits..(page + 1) * bits;
                self.current.any(blocks.clone()) || self.previous.any(blocks)
            };
            self.stale.extend(pages.iter().copied().filter(is_sent));
        }
        pages.into_iter().map(|page| self.map_page(page)).collect()
    }
}
