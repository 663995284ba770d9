//! Which blocks of which objects a ZFS send stream writes and frees.

use crate::zfs_stream::Record;
use std::collections::BTreeMap;

/// Disjoint ranges (start, end) in bytes, ordered; adjacent ones are merged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        match self.0.last_mut() {
            // Offsets in a stream ascend: this is the usual case.
            Some(last) if start == last.1 => last.1 = end,
            Some(last) if start < last.1 => self.insert(start, end),
            _ => self.0.push((start, end)),
        }
    }

    fn insert(&mut self, mut start: u64, mut end: u64) {
        let first = self.0.partition_point(|range| range.1 < start);
        let last = self.0.partition_point(|range| range.0 <= end);
        if first < last {
            start = start.min(self.0[first].0);
            end = end.max(self.0[last - 1].1);
        }
        self.0.splice(first..last, [(start, end)]);
    }

    pub fn bytes(&self) -> u64 {
        self.0
            .iter()
            .map(|(start, end)| end - start)
            .fold(0, u64::saturating_add)
    }

    pub fn as_slice(&self) -> &[(u64, u64)] {
        &self.0
    }
}

/// The changes of one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object {
    /// Its OpenZFS type (19: a file's content, 20: a folder, 23: a volume); 0: not given.
    pub kind: u32,
    /// Its block size in bytes; 0: not given.
    pub block: u32,
    /// Ranges with new content.
    pub added: Ranges,
    /// Ranges without content: freed, or never written. An end of u64::MAX: to its end.
    pub freed: Ranges,
    /// Bytes of new content as sent: compressed if the stream is.
    pub payload_bytes: u64,
}

/// Collects records.
#[derive(Default)]
pub struct Collected {
    pub objects: BTreeMap<u64, Object>,
    /// (first, end) of the numbers of objects that do not exist (any more).
    pub freed_objects: Ranges,
}

impl Collected {
    pub fn take(&mut self, record: Record) {
        match record {
            Record::Object {
                object,
                kind,
                block,
            } => {
                let found = self.objects.entry(object).or_default();
                (found.kind, found.block) = (kind, block);
            }
            Record::Write {
                object,
                offset,
                length,
                payload,
            } => {
                let found = self.objects.entry(object).or_default();
                found.added.add(offset, offset.saturating_add(length));
                found.payload_bytes = found.payload_bytes.saturating_add(payload);
            }
            Record::Spill {
                object, payload, ..
            } => {
                let found = self.objects.entry(object).or_default();
                found.payload_bytes = found.payload_bytes.saturating_add(payload);
            }
            Record::Free {
                object,
                offset,
                length,
            } => {
                let found = self.objects.entry(object).or_default();
                found.freed.add(offset, offset.saturating_add(length));
            }
            Record::FreeObjects { first, count } => {
                self.freed_objects.add(first, first.saturating_add(count));
            }
            Record::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zfs_stream::tests::sample;
    use crate::zfs_stream::Scanner;

    #[test]
    fn ranges_are_a_set_whatever_the_order() {
        let mut state = 5u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let (mut ranges, mut truth) = (Ranges::default(), [false; 200]);
            for _ in 0..random(40) {
                let start = random(190);
                let end = start + random(10);
                ranges.add(start, end);
                (start..end).for_each(|at| truth[at as usize] = true);
            }
            let marked = truth.iter().filter(|&&there| there).count();
            assert_eq!(ranges.bytes(), marked as u64);
            let slices = ranges.as_slice();
            assert!(
                slices.windows(2).all(|pair| pair[0].1 < pair[1].0),
                "{slices:?}"
            );
            assert!(slices
                .iter()
                .all(|&(start, end)| (start..end).all(|at| truth[at as usize])));
        }
    }

    #[test]
    fn a_stream_tells_what_becomes_of_each_object() {
        for swapped in [false, true] {
            let (mut scanner, mut found) = (Scanner::default(), Collected::default());
            scanner
                .feed(&sample(swapped), &mut |record| found.take(record))
                .unwrap();
            let file = &found.objects[&7];
            assert_eq!((file.kind, file.block), (19, 131_072));
            assert_eq!(file.added.as_slice(), [(0, 4096 + 131_072)]);
            assert_eq!(file.freed.as_slice(), [(1 << 20, u64::MAX)]);
            assert_eq!(file.payload_bytes, 4096 + 1024 + 512);
            assert_eq!(found.objects[&9].added.bytes(), 4096 + 512);
            assert_eq!(found.freed_objects.as_slice(), [(8, 32)]);
        }
    }
}
