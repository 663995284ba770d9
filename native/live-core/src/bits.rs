//! A bit per block of the image. Memory is touched only where bits were set.

use crate::layout::PAGE;
use std::ops::Range;

#[derive(Clone)]
pub struct Bitmap {
    words: Vec<u64>,
    bits: u64,
    count: u64,
}

impl Bitmap {
    pub fn new(bits: u64) -> Self {
        Bitmap {
            words: vec![0; bits.div_ceil(64) as usize],
            bits,
            count: 0,
        }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn pieces(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            (at < range.end).then(|| {
                let (word, first) = ((at / 64) as usize, at % 64);
                let length = (64 - first).min(range.end - at);
                at += length;
                let mask = if length == 64 {
                    !0
                } else {
                    ((1 << length) - 1) << first
                };
                (word, mask)
            })
        })
    }

    /// True if any bit was not set before.
    pub fn set(&mut self, range: Range<u64>) -> bool {
        let before = self.count;
        for (word, mask) in Self::pieces(range) {
            let new = mask & !self.words[word];
            self.count += u64::from(new.count_ones());
            self.words[word] |= new;
        }
        self.count != before
    }

    /// True if any bit was set before.
    pub fn clear(&mut self, range: Range<u64>) -> bool {
        let before = self.count;
        for (word, mask) in Self::pieces(range) {
            let old = mask & self.words[word];
            self.count -= u64::from(old.count_ones());
            self.words[word] &= !old;
        }
        self.count != before
    }

    /// Clears a range here and sets in `other` what was set.
    pub fn move_to(&mut self, range: Range<u64>, other: &mut Bitmap) {
        if self.count == 0 {
            return;
        }
        for (word, mask) in Self::pieces(range) {
            let moved = self.words[word] & mask;
            if moved != 0 {
                self.words[word] &= !moved;
                self.count -= u64::from(moved.count_ones());
                other.count += u64::from((moved & !other.words[word]).count_ones());
                other.words[word] |= moved;
            }
        }
    }

    pub fn any(&self, range: Range<u64>) -> bool {
        self.count > 0 && Self::pieces(range).any(|(word, mask)| self.words[word] & mask != 0)
    }

    pub fn all(&self, range: Range<u64>) -> bool {
        Self::pieces(range).all(|(word, mask)| self.words[word] & mask == mask)
    }

    /// The first set bit at or after `from`.
    pub fn next(&self, from: u64) -> Option<u64> {
        if from >= self.bits || self.count == 0 {
            return None;
        }
        let mut word = (from / 64) as usize;
        let mut found = self.words[word] & (!0 << (from % 64));
        while found == 0 {
            word += 1;
            found = *self.words.get(word)?;
        }
        Some(word as u64 * 64 + u64::from(found.trailing_zeros()))
    }

    /// The run of set bits at or after `from`, at most `limit` long.
    pub fn run(&self, from: u64, limit: u64) -> Option<Range<u64>> {
        let first = self.next(from)?;
        let last = (first + limit).min(self.bits);
        let end = (first..last).find(|bit| self.words[(bit / 64) as usize] >> (bit % 64) & 1 == 0);
        Some(first..end.unwrap_or(last))
    }

    /// Adds a page of the stored map to `page`.
    pub fn add_page(&self, index: u64, page: &mut [u8]) {
        let first = index as usize * PAGE / 8;
        for (at, word) in self.words.iter().skip(first).take(PAGE / 8).enumerate() {
            for (into, from) in page[at * 8..].iter_mut().zip(word.to_le_bytes()) {
                *into |= from;
            }
        }
    }

    /// Sets what a page of the stored map has set.
    pub fn load_page(&mut self, index: u64, page: &[u8]) {
        let first = index * PAGE as u64 * 8;
        for (at, byte) in page.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                let block = first + at as u64 * 8 + bit;
                if block < self.bits {
                    self.set(block..block + 1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_runs_and_pages() {
        let mut bits = Bitmap::new(100_000);
        assert!(bits.set(60..200));
        assert!(!bits.set(61..199));
        assert!(bits.set(70_000..70_001));
        assert_eq!(bits.count(), 141);
        assert!(bits.clear(100..110));
        assert_eq!(bits.run(0, 1000), Some(60..100));
        assert_eq!(bits.run(64, 8), Some(64..72));
        assert_eq!(bits.run(100, 1000), Some(110..200));
        assert_eq!(bits.next(200), Some(70_000));
        assert!(bits.all(110..200) && !bits.all(109..111) && bits.any(99..101));
        let mut copy = Bitmap::new(100_000);
        for index in 0..4 {
            let mut page = vec![0; PAGE];
            bits.add_page(index, &mut page);
            copy.load_page(index, &page);
        }
        assert_eq!(copy.count(), bits.count());
        assert_eq!(copy.run(100, 1000), Some(110..200));
    }
}
