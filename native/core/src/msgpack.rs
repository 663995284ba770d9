//! The memory that a msgpack value needs, computed without decoding it.
//!
//! One byte can encode an empty map, which takes 64 bytes of memory as an object, and an array
//! can declare more items than there are bytes. So a peer's value is checked here first: its depth,
//! its completeness, and the memory that its objects will take.

/// Limits of one value.
pub struct Bounds {
    /// Maximum nesting of arrays and maps.
    pub depth: usize,
    /// Maximum memory of its objects, estimated from above.
    pub bytes: u64,
}

/// An object without its content: its header, and the reference to it.
const OBJECT: u64 = 64;
/// An entry of an array; of a map, key and value with their share of the hash table.
const ITEM: u64 = 8;
const PAIR: u64 = 104;

/// The memory, in bytes, that the one value in `data` will take as objects.
pub fn weigh(data: &[u8], bounds: &Bounds) -> Result<u64, String> {
    let mut left = data;
    let mut weight = 0u64;
    // For each open array and map: the number of values still expected.
    let mut open: Vec<u64> = Vec::new();
    loop {
        let (cost, inner) = one(&mut left)?;
        weight += cost;
        if weight > bounds.bytes {
            return Err(format!(
                "it would take more than {} bytes of memory",
                bounds.bytes
            ));
        }
        if inner > 0 {
            if open.len() >= bounds.depth {
                return Err(format!("it is nested more than {} deep", bounds.depth));
            }
            open.push(inner);
            continue;
        }
        while let Some(missing) = open.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                break;
            }
            open.pop();
        }
        if open.is_empty() {
            break;
        }
    }
    if left.is_empty() {
        Ok(weight)
    } else {
        Err(format!("{} bytes follow it", left.len()))
    }
}

/// The next value's cost without its content, and how many values it contains.
fn one(left: &mut &[u8]) -> Result<(u64, u64), String> {
    let first = take(left, 1)?[0];
    match first {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => Ok((ITEM, 0)),
        0x80..=0x8f => map(left, u64::from(first & 0x0f)),
        0x90..=0x9f => array(left, u64::from(first & 0x0f)),
        0xa0..=0xbf => text(left, u64::from(first & 0x1f)),
        0xc4..=0xc6 => {
            let length = number(left, 1 << (first - 0xc4))?;
            take(left, length)?;
            Ok((OBJECT + length, 0))
        }
        0xca..=0xd3 => {
            let bytes = match first {
                0xcc | 0xd0 => 1,
                0xcd | 0xd1 => 2,
                0xca | 0xce | 0xd2 => 4,
                _ => 8,
            };
            take(left, bytes)?;
            Ok((OBJECT, 0))
        }
        0xd9..=0xdb => {
            let length = number(left, 1 << (first - 0xd9))?;
            text(left, length)
        }
        0xdc | 0xdd => {
            let items = number(left, 2 << (first - 0xdc))?;
            array(left, items)
        }
        0xde | 0xdf => {
            let pairs = number(left, 2 << (first - 0xde))?;
            map(left, pairs)
        }
        _ => Err(format!("it has a value of the unknown type {first:#04x}")),
    }
}

fn array(left: &[u8], items: u64) -> Result<(u64, u64), String> {
    at_least(left, items)?;
    Ok((OBJECT + ITEM * items, items))
}

fn map(left: &[u8], pairs: u64) -> Result<(u64, u64), String> {
    at_least(left, 2 * pairs)?;
    Ok((OBJECT + PAIR * pairs, 2 * pairs))
}

/// A string takes four bytes per character as soon as one of its characters needs four.
fn text(left: &mut &[u8], length: u64) -> Result<(u64, u64), String> {
    let width = if take(left, length)?.is_ascii() { 1 } else { 4 };
    Ok((OBJECT + width * length, 0))
}

/// Each value has at least one byte.
fn at_least(left: &[u8], values: u64) -> Result<(), String> {
    if values > left.len() as u64 {
        return Err("it ends early".into());
    }
    Ok(())
}

fn number(left: &mut &[u8], bytes: u64) -> Result<u64, String> {
    let digits = take(left, bytes)?;
    Ok(digits
        .iter()
        .fold(0, |found, &digit| found << 8 | u64::from(digit)))
}

fn take<'a>(left: &mut &'a [u8], count: u64) -> Result<&'a [u8], String> {
    if count > left.len() as u64 {
        return Err("it ends early".into());
    }
    let (taken, rest) = left.split_at(count as usize);
    *left = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        depth: 4,
        bytes: 10_000,
    };

    fn why(data: &[u8]) -> String {
        weigh(data, &BOUNDS).unwrap_err()
    }

    #[test]
    fn every_kind_of_value_is_walked_to_its_end() {
        let values: &[&[u8]] = &[
            b"\x00",
            b"\xff",
            b"\xc0",
            b"\xc3",
            b"\x80",
            b"\x90",
            b"\xa1x",
            b"\xcc\x01",
            b"\xcd\x01\x02",
            b"\xce\x01\x02\x03\x04",
            b"\xcf\x01\x02\x03\x04\x05\x06\x07\x08",
            b"\xd0\x01",
            b"\xd1\x01\x02",
            b"\xd2\x01\x02\x03\x04",
            b"\xd3\x01\x02\x03\x04\x05\x06\x07\x08",
            b"\xca\x01\x02\x03\x04",
            b"\xcb\x01\x02\x03\x04\x05\x06\x07\x08",
            b"\xd9\x01x",
            b"\xda\x00\x01x",
            b"\xdb\x00\x00\x00\x01x",
            b"\xc4\x01x",
            b"\xc5\x00\x01x",
            b"\xc6\x00\x00\x00\x01x",
            b"\xdc\x00\x01\x00",
            b"\xdd\x00\x00\x00\x01\x00",
            b"\xde\x00\x01\xa1x\x00",
            b"\xdf\x00\x00\x00\x01\xa1x\x00",
            b"\x92\x91\x00\x81\xa1x\x90",
        ];
        for value in values {
            assert!(weigh(value, &BOUNDS).unwrap() >= 8, "{value:?}");
            for end in 0..value.len() {
                assert_eq!(why(&value[..end]), "it ends early", "{value:?}");
            }
            assert_eq!(why(&[value, &b"\x00"[..]].concat()), "1 bytes follow it");
        }
    }

    #[test]
    fn what_is_small_on_the_way_and_large_in_memory_is_refused() {
        let empty_maps = [&b"\xdc\x10\x00"[..], &[0x80; 4096]].concat();
        assert!(why(&empty_maps).contains("bytes of memory"));
        let wide = [
            &b"\xdb\x00\x00\x0f\xff"[..],
            "ü".repeat(2047).as_bytes(),
            b"x",
        ]
        .concat();
        assert!(why(&wide).contains("bytes of memory"));
        assert!(why(b"\xdd\xff\xff\xff\xff").contains("ends early"));
        assert!(why(b"\xdf\xff\xff\xff\xff\x00").contains("ends early"));
        assert!(why(b"\xc6\xff\xff\xff\xff").contains("ends early"));
    }

    #[test]
    fn depth_is_bounded_and_extensions_are_unknown() {
        assert!(weigh(b"\x91\x91\x91\x91\x00", &BOUNDS).is_ok());
        assert!(why(b"\x91\x91\x91\x91\x91\x00").contains("nested"));
        assert!(why(b"\xc7\x00\x01").contains("unknown type"));
        assert!(why(b"\xd4\x01\x00").contains("unknown type"));
        assert!(why(b"\xc1").contains("unknown type"));
    }
}
