//! Checksums of blocks and streams (XXH3, seed 0).

use xxhash_rust::xxh3::{xxh3_64, Xxh3};

/// A running 128-bit checksum of a byte stream.
#[derive(Default)]
pub struct StreamChecksum(Xxh3);

impl StreamChecksum {
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    pub fn digest(&self) -> [u8; 16] {
        self.0.digest128().to_be_bytes()
    }
}

/// The 64-bit checksum of each block of `block_size` bytes in `data`, in order.
/// A last block that is shorter is summed as it stands.
pub fn block_checksums(data: &[u8], block_size: usize) -> Vec<u64> {
    data.chunks(block_size).map(xxh3_64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_sums_the_same_however_it_is_cut() {
        let data: Vec<u8> = (0..10_000u32).map(|n| (n % 251) as u8).collect();
        let mut whole = StreamChecksum::default();
        whole.update(&data);
        let mut pieces = StreamChecksum::default();
        for piece in data.chunks(37) {
            pieces.update(piece);
        }
        assert_eq!(whole.digest(), pieces.digest());
        pieces.update(b"x");
        assert_ne!(whole.digest(), pieces.digest());
    }

    #[test]
    fn each_block_has_its_own_sum() {
        let mut data = vec![0u8; 3 * 4096];
        data[4096] = 1;
        let sums = block_checksums(&data, 4096);
        assert_eq!(sums.len(), 3);
        assert_eq!(sums[0], sums[2]);
        assert_ne!(sums[0], sums[1]);
    }
}
