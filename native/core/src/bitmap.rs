//! Flat allocation bitmaps: one bit per block, least significant bit first.

/// The runs `(first, length)` of set bits in `bits`.
pub fn runs(bits: &[u8]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut open: Option<u64> = None;
    for (byte_index, &byte) in bits.iter().enumerate() {
        let at = byte_index as u64 * 8;
        match (byte, open) {
            (0x00, None) | (0xff, Some(_)) => continue,
            (0xff, None) => {
                open = Some(at);
                continue;
            }
            _ => {}
        }
        for bit in 0..8 {
            let set = byte >> bit & 1 == 1;
            match (set, open) {
                (true, None) => open = Some(at + bit),
                (false, Some(first)) => {
                    found.push((first, at + bit - first));
                    open = None;
                }
                _ => {}
            }
        }
    }
    if let Some(first) = open {
        found.push((first, bits.len() as u64 * 8 - first));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(bits: &[u8]) -> Vec<(u64, u64)> {
        let set: Vec<u64> = (0..bits.len() as u64 * 8)
            .filter(|&n| bits[n as usize / 8] >> (n % 8) & 1 == 1)
            .collect();
        let mut found: Vec<(u64, u64)> = Vec::new();
        for n in set {
            match found.last_mut() {
                Some((first, length)) if *first + *length == n => *length += 1,
                _ => found.push((n, 1)),
            }
        }
        found
    }

    #[test]
    fn runs_are_those_of_a_bit_by_bit_reading() {
        let mut state = 12345u64;
        for length in 0..200 {
            let bits: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    match state >> 62 {
                        0 => 0,
                        1 => 0xff,
                        _ => (state >> 40) as u8,
                    }
                })
                .collect();
            assert_eq!(runs(&bits), naive(&bits));
        }
    }
}
