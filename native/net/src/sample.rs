//! Whether data is surely not compressible, at a fraction of the cost of a trial.

/// A sample: this many places of this many bytes, spread over the data.
const PLACES: usize = 4;
const PLACE: usize = 2 << 10;
/// Below this size a trial is cheap.
const LEAST: usize = 4 << 10;
/// Bits per byte from which coding single bytes saves less than 4 %.
const BITS: f64 = 7.7;
/// The share of a sample in repeated sequences from which it may be compressible: one of this many.
const REPEATED: usize = 32;
const TABLE: usize = 1 << 12;

/// Whether compressing these bytes would save almost nothing. False: it may be worth a trial.
pub fn incompressible(data: &[u8]) -> bool {
    if data.len() < LEAST {
        return false;
    }
    if data.len() <= PLACES * PLACE {
        return dense(&[data]);
    }
    let step = (data.len() - PLACE) / (PLACES - 1);
    let places: [&[u8]; PLACES] = std::array::from_fn(|n| &data[n * step..n * step + PLACE]);
    dense(&places)
}

/// Whether single bytes occur equally often, and sequences of four bytes do not repeat.
fn dense(places: &[&[u8]]) -> bool {
    // Four counters per byte: a byte that follows itself need not wait for its counter.
    let mut counts = [[0u32; 256]; 4];
    for place in places {
        for four in place.chunks_exact(4) {
            for (count, byte) in counts.iter_mut().zip(four) {
                count[*byte as usize] += 1;
            }
        }
    }
    let total: usize = places.iter().map(|place| place.len() & !3).sum();
    let mut bits = 0.0;
    for byte in 0..256 {
        let count: u32 = counts.iter().map(|each| each[byte]).sum();
        if count > 0 {
            let share = f64::from(count) / total as f64;
            bits -= share * share.log2();
        }
    }
    bits > BITS && repeated(places) * 4 < total / REPEATED
}

/// How many of the sequences of four bytes, at every fourth place, occurred before anywhere.
fn repeated(places: &[&[u8]]) -> usize {
    let mut seen = [0u32; TABLE];
    let mut found = 0;
    for place in places {
        for (at, four) in place.windows(4).enumerate() {
            let word = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            let slot = &mut seen[(word.wrapping_mul(0x9E37_79B1) >> 20) as usize];
            if at % 4 == 0 {
                found += usize::from(*slot == word);
            }
            *slot = word;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as if from a cipher.
    fn noise(count: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn noise_is_not_compressible_however_long() {
        for count in [LEAST, 16 << 10, 20_000, 512 << 10] {
            assert!(incompressible(&noise(count)), "{count}");
        }
    }

    #[test]
    fn what_may_be_compressible_is_left_for_a_trial() {
        let size = 512 << 10;
        let text: Vec<u8> = b"All animals are equal. "
            .iter()
            .copied()
            .cycle()
            .take(size)
            .collect();
        // Each byte occurs equally often; only sequences repeat.
        let ramp: Vec<u8> = (0..size).map(|n| n as u8).collect();
        let period: Vec<u8> = noise(3000).into_iter().cycle().take(size).collect();
        let halves: Vec<u8> = noise(size).iter().map(|byte| byte & 0x7f).collect();
        for data in [vec![0; size], text, ramp, period, halves, noise(LEAST - 1)] {
            assert!(!incompressible(&data), "{:?}", &data[..8]);
        }
    }
}
