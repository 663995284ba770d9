//! A BLAKE3 digest whose state can be stored, so that it continues in another process.
//!
//! The state consists of the chaining values of complete subtrees and of the bytes that follow
//! them, fewer than `TAIL_MAX` + 1.

use blake3::hazmat::{merge_subtrees_non_root, merge_subtrees_root, HasherExt, Mode};
use blake3::Hasher;

/// Bytes per subtree: 16 chunks, which the widest implementation hashes at once.
pub const TAIL_MAX: usize = 16 * 1024;
/// Enough for 2^64 bytes.
pub const STACK_MAX: usize = 50;
pub type Value = [u8; 32];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefixDigest {
    subtrees: u64,
    stack: Vec<Value>,
    tail: Vec<u8>,
}

impl PrefixDigest {
    /// The state after a prefix of `bytes` bytes; None when the parts do not fit together.
    pub fn restore(bytes: u64, stack: Vec<Value>, tail: Vec<u8>) -> Option<Self> {
        let before = bytes.checked_sub(tail.len() as u64)?;
        let subtrees = before / TAIL_MAX as u64;
        let fits = before % TAIL_MAX as u64 == 0
            && tail.len() <= TAIL_MAX
            && stack.len() == subtrees.count_ones() as usize
            && (!tail.is_empty() || bytes == 0);
        fits.then_some(Self {
            subtrees,
            stack,
            tail,
        })
    }

    /// How many bytes were digested.
    pub fn bytes(&self) -> u64 {
        self.subtrees * TAIL_MAX as u64 + self.tail.len() as u64
    }

    pub fn stack(&self) -> &[Value] {
        &self.stack
    }

    pub fn tail(&self) -> &[u8] {
        &self.tail
    }

    pub fn update(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            // A subtree is only closed when data follows it: the last one is part of the root.
            if self.tail.is_empty() && data.len() > TAIL_MAX {
                let (whole, rest) = data.split_at(TAIL_MAX);
                self.push(whole);
                data = rest;
                continue;
            }
            if self.tail.len() == TAIL_MAX {
                let whole = std::mem::take(&mut self.tail);
                self.push(&whole);
                self.tail = whole;
                self.tail.clear();
                continue;
            }
            let taken = (TAIL_MAX - self.tail.len()).min(data.len());
            self.tail.extend_from_slice(&data[..taken]);
            data = &data[taken..];
        }
    }

    fn push(&mut self, subtree: &[u8]) {
        let mut value = self.value_of(subtree);
        self.subtrees += 1;
        let mut count = self.subtrees;
        while count & 1 == 0 {
            if let Some(left) = self.stack.pop() {
                value = merge_subtrees_non_root(&left, &value, Mode::Hash);
            }
            count >>= 1;
        }
        self.stack.push(value);
    }

    fn value_of(&self, subtree: &[u8]) -> Value {
        let mut hasher = Hasher::new();
        hasher.set_input_offset(self.subtrees * TAIL_MAX as u64);
        hasher.update(subtree);
        hasher.finalize_non_root()
    }

    /// The BLAKE3 digest of all that was passed to `update`.
    pub fn digest(&self) -> Value {
        let Some((first, above)) = self.stack.split_first() else {
            return *blake3::hash(&self.tail).as_bytes();
        };
        let mut value = self.value_of(&self.tail);
        for left in above.iter().rev() {
            value = merge_subtrees_non_root(left, &value, Mode::Hash);
        }
        *merge_subtrees_root(first, &value, Mode::Hash).as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(length: usize) -> Vec<u8> {
        (0..length).map(|n| (n * n % 251) as u8).collect()
    }

    #[test]
    fn it_is_the_digest_of_blake3_at_every_boundary() {
        let all = data(9 * TAIL_MAX + 7);
        let mut lengths = vec![0, 1, 1023, 1024, 1025];
        for n in 1..=9 {
            lengths.extend([n * TAIL_MAX - 1, n * TAIL_MAX, n * TAIL_MAX + 1]);
        }
        for length in lengths {
            for piece in [997, TAIL_MAX, TAIL_MAX + 1, 1 << 20] {
                let mut digest = PrefixDigest::default();
                for piece in all[..length].chunks(piece) {
                    digest.update(piece);
                }
                assert_eq!(digest.bytes(), length as u64);
                let wanted = *blake3::hash(&all[..length]).as_bytes();
                assert_eq!(digest.digest(), wanted, "{length} by {piece}");
            }
        }
    }

    #[test]
    fn it_continues_from_its_stored_state() {
        let all = data(5 * TAIL_MAX + 99);
        for cut in (0..all.len()).step_by(4_099) {
            let mut first = PrefixDigest::default();
            first.update(&all[..cut]);
            let stored = (first.bytes(), first.stack().to_vec(), first.tail().to_vec());
            let mut second = PrefixDigest::restore(stored.0, stored.1, stored.2).unwrap();
            assert_eq!(second, first);
            second.update(&all[cut..]);
            assert_eq!(second.digest(), *blake3::hash(&all).as_bytes());
        }
    }

    #[test]
    fn a_state_that_does_not_fit_its_length_is_refused() {
        let mut digest = PrefixDigest::default();
        digest.update(&data(3 * TAIL_MAX + 5));
        let (bytes, stack, tail) = (digest.bytes(), digest.stack(), digest.tail());
        for wrong in [0, 4, bytes - 1, bytes + 1, bytes + TAIL_MAX as u64] {
            assert!(PrefixDigest::restore(wrong, stack.to_vec(), tail.to_vec()).is_none());
        }
        assert!(PrefixDigest::restore(bytes - 5, stack.to_vec(), vec![]).is_none());
        assert!(PrefixDigest::restore(bytes, stack[1..].to_vec(), tail.to_vec()).is_none());
    }
}
