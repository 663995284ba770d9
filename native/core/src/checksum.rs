//! Checksums of blocks and streams (XXH3, seed 0), and the digest that two hosts compare (BLAKE3).

use std::fmt::Write;
use std::hash::Hasher;
use twox_hash::{XxHash3_128, XxHash3_64};

/// Two hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}"); // a string takes everything
        digits
    })
}

/// A running 128-bit checksum of a byte stream.
#[derive(Default)]
pub struct StreamChecksum(XxHash3_128);

impl StreamChecksum {
    pub fn update(&mut self, data: &[u8]) {
        self.0.write(data);
    }

    pub fn digest(&self) -> [u8; 16] {
        self.0.finish_128().to_be_bytes()
    }
}

/// The 64-bit checksum of bytes in several parts.
#[derive(Default)]
pub struct BodyChecksum(XxHash3_64);

impl BodyChecksum {
    pub fn update(&mut self, data: &[u8]) {
        self.0.write(data);
    }

    pub fn digest(&self) -> u64 {
        self.0.finish()
    }
}

/// A running BLAKE3 digest: cryptographic, so that equal digests mean equal streams.
#[derive(Default)]
pub struct StreamDigest(blake3::Hasher);

impl StreamDigest {
    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    pub fn digest(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// The 64-bit checksum of each block of `block_size` bytes in `data`, in order.
/// A shorter last block is not padded.
pub fn block_checksums(data: &[u8], block_size: usize) -> Vec<u64> {
    data.chunks(block_size).map(XxHash3_64::oneshot).collect()
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
    fn a_digest_is_that_of_blake3_and_can_be_asked_for_on_the_way() {
        let mut digest = StreamDigest::default();
        assert_eq!(digest.digest(), *blake3::hash(b"").as_bytes());
        digest.update(b"ab");
        assert_eq!(digest.digest(), *blake3::hash(b"ab").as_bytes());
        digest.update(b"c");
        let known = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";
        assert_eq!(
            blake3::Hash::from_bytes(digest.digest()).to_hex().as_str(),
            known
        );
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
