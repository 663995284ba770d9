//! Range locks: operations that overlap are executed one after the other.

use crate::types::Range;
use std::collections::BTreeMap;

/// The ranges in progress. They never overlap.
#[derive(Default)]
pub struct RangeLocks(BTreeMap<u64, u64>);

impl RangeLocks {
    pub fn is_free(&self, range: Range) -> bool {
        let before = self.0.range(..range.end()).next_back();
        before.is_none_or(|(_, end)| *end <= range.offset)
    }

    pub fn lock(&mut self, range: Range) {
        self.0.insert(range.offset, range.end());
    }

    pub fn unlock(&mut self, range: Range) {
        self.0.remove(&range.offset);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_overlaps_wait() {
        let mut locks = RangeLocks::default();
        locks.lock(Range::new(10, 10));
        locks.lock(Range::new(30, 10));
        assert!(locks.is_free(Range::new(20, 10)) && locks.is_free(Range::new(0, 10)));
        assert!(!locks.is_free(Range::new(19, 1)) && !locks.is_free(Range::new(0, 100)));
        locks.unlock(Range::new(10, 10));
        assert!(locks.is_free(Range::new(0, 30)) && !locks.is_free(Range::new(35, 1)));
    }
}
