//! Pointers of block volumes: the addresses that a leaf has, in runs that can be read at once.

use std::ops::Range;

/// Ranges of places with consecutive addresses, and of holes (address 0), which cover all places.
pub fn runs(addresses: &[u64]) -> Vec<Range<usize>> {
    let follows = |before: u64, next: u64| match before {
        0 => next == 0,
        _ => before.checked_add(1) == Some(next),
    };
    let mut found = Vec::new();
    let mut begin = 0;
    for run in addresses.chunk_by(|&before, &next| follows(before, next)) {
        found.push(begin..begin + run.len());
        begin += run.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_of_consecutive_addresses_or_of_holes() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[7, 0]), [0..1, 1..2]);
        assert_eq!(runs(&[0, 1, 2, 0, 0, 9, 8]), [0..1, 1..3, 3..5, 5..6, 6..7]);
        assert_eq!(runs(&[u64::MAX, 0, 0]), [0..1, 1..3]);
    }
}
