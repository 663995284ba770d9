//! Numbers in text, exactly: no floating point, so that no nanosecond is lost.

/// An unsigned integer; None if it is not one, or beyond 2^64.
#[inline]
pub fn whole(field: &[u8]) -> Option<u64> {
    if field.is_empty() || field.len() > 20 {
        return None;
    }
    let mut value: u64 = 0;
    if field.len() <= 19 {
        let mut rest = field;
        while let Some((eight, after)) = rest.split_first_chunk::<8>() {
            value = value * 100_000_000 + eight_digits(*eight)?;
            rest = after;
        }
        for &byte in rest {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            value = value * 10 + u64::from(digit);
        }
        return Some(value);
    }
    for &byte in field {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Eight digits at once: neighbours are joined to pairs, fours and eights by multiplication.
#[inline]
fn eight_digits(bytes: [u8; 8]) -> Option<u64> {
    const ZEROES: u64 = 0x3030_3030_3030_3030;
    let word = u64::from_le_bytes(bytes);
    let digits = word ^ ZEROES;
    // A byte above 9 sets a bit of its upper half, itself or by adding 6.
    let above = digits | digits.wrapping_add(0x0606_0606_0606_0606);
    if above & 0xf0f0_f0f0_f0f0_f0f0 != 0 {
        return None;
    }
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// A hexadecimal number, with or without `0x`.
pub fn hexadecimal(field: &[u8]) -> Option<u64> {
    let digits = field.strip_prefix(b"0x").unwrap_or(field);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &byte| {
        Some(value << 4 | u64::from((byte as char).to_digit(16)?))
    })
}

/// A decimal number times `unit`: `0.551706` by 10^9 is 551,706,000. Digits below 1 are truncated.
#[inline]
pub fn scaled(field: &[u8], unit: u64) -> Option<i128> {
    let (field, negative) = match field.strip_prefix(b"-") {
        Some(rest) => (rest, true),
        None => (field, false),
    };
    let dot = field.iter().position(|&byte| byte == b'.');
    let (before, after) = match dot {
        None => (field, &field[field.len()..]),
        Some(dot) => (&field[..dot], &field[dot + 1..]),
    };
    if before.is_empty() && after.is_empty() {
        return None;
    }
    let whole_part = if before.is_empty() { 0 } else { whole(before)? };
    let mut value = i128::from(whole_part) * i128::from(unit);
    if !after.is_empty() {
        value += i128::from(fraction(after, unit)?);
    }
    Some(if negative { -value } else { value })
}

/// The digits after the decimal point times `unit`.
#[inline]
fn fraction(digits: &[u8], unit: u64) -> Option<u64> {
    const TENS: [u64; 10] = [
        1,
        10,
        100,
        1_000,
        10_000,
        100_000,
        1_000_000,
        10_000_000,
        100_000_000,
        1_000_000_000,
    ];
    if digits.len() <= 9 {
        let value = whole(digits)?;
        // Below 10^9 each, so the product fits.
        return Some(value * unit.min(1_000_000_000) / TENS[digits.len()]);
    }
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let kept = &digits[..digits.len().min(18)];
    let value = u128::from(whole(kept)?) * u128::from(unit) / 10u128.pow(kept.len() as u32);
    u64::try_from(value).ok()
}

/// Whether it is an integer that is too large.
pub fn is_huge(field: &[u8]) -> bool {
    field.len() > 18 && field.iter().all(u8::is_ascii_digit)
}

/// Without surrounding whitespace and quotes.
#[inline]
pub fn trimmed(mut field: &[u8]) -> &[u8] {
    while let [b' ' | b'\t' | b'"' | b'\r', rest @ ..] = field {
        field = rest;
    }
    while let [rest @ .., b' ' | b'\t' | b'"' | b'\r'] = field {
        field = rest;
    }
    field
}
