//! Every parser that a peer reaches, with input that no kernel sends: none panics, and none returns
//! more than its bounds.

use mirrord_core::btrfs_stream::{attribute, checksum, command, MAGIC};
use mirrord_core::prefix_digest::PrefixDigest;
use mirrord_receive::checkpoint::Slot;
use mirrord_receive::command::{check_path, decode, Command};
use mirrord_receive::stream::{Cutter, Place, Start};
use mirrord_receive::sys::Encoding;
use mirrord_receive::{encoded, lzo};
use proptest::prelude::*;

type Attribute = (u16, Vec<u8>);

fn unit(kind: u16, attributes: &[Attribute]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (kind, value) in attributes {
        payload.extend_from_slice(&kind.to_le_bytes());
        payload.extend_from_slice(&(value.len() as u16).to_le_bytes());
        payload.extend_from_slice(value);
    }
    let mut unit = (payload.len() as u32).to_le_bytes().to_vec();
    unit.extend_from_slice(&kind.to_le_bytes());
    let crc = checksum(&unit, &payload);
    unit.extend_from_slice(&crc.to_le_bytes());
    unit.extend_from_slice(&payload);
    unit
}

fn cutter() -> Cutter {
    Cutter::new(Start {
        version: 0,
        position: 0,
        digest: Some(PrefixDigest::default()),
    })
}

/// All commands of a stream that arrives in pieces of this size, as its reader joins them.
fn cut(stream: &[u8], piece: usize) -> (Vec<Attribute>, Cutter, Result<(), String>) {
    let (mut cutter, mut pending, mut found) = (cutter(), Vec::new(), Vec::new());
    for part in stream.chunks(piece) {
        pending.extend_from_slice(part);
        let mut places: Vec<Place> = Vec::new();
        let result = cutter.cut(&pending, &mut places);
        for place in &places {
            found.push((place.kind, pending[place.start..place.end].to_vec()));
        }
        match result {
            Ok(end) => drop(pending.drain(..end)),
            Err(failure) => return (found, cutter, Err(failure.why)),
        }
    }
    (found, cutter, Ok(()))
}

fn attributes() -> impl Strategy<Value = Vec<Attribute>> {
    let value = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        any::<u64>().prop_map(|number| number.to_le_bytes().to_vec()),
        Just(vec![7; 16]),
        "[a-z./]{0,12}".prop_map(String::into_bytes),
    ];
    proptest::collection::vec((0u16..40, value), 0..8)
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let commands = proptest::collection::vec((0u16..30, attributes()), 0..12);
    (1u32..=3, commands).prop_map(|(version, commands)| {
        let mut stream = MAGIC.to_vec();
        stream.extend_from_slice(&version.to_le_bytes());
        for (kind, attributes) in commands {
            stream.extend(unit(kind, &attributes));
        }
        stream
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_stream_is_the_same_however_it_arrives(stream in stream(), piece in 1usize..200) {
        let (whole, one, result) = cut(&stream, stream.len().max(1));
        let (parts, other, by_parts) = cut(&stream, piece);
        prop_assert_eq!(&whole, &parts);
        prop_assert_eq!(result, by_parts);
        prop_assert_eq!(one.position, other.position);
        let digest = |cutter: &Cutter| cutter.digest.as_ref().map(PrefixDigest::digest);
        prop_assert_eq!(digest(&one), digest(&other));
        let prefix = blake3_of(&stream[..one.position as usize]);
        prop_assert_eq!(digest(&one), Some(prefix));
    }

    #[test]
    fn damage_never_panics(mut stream in stream(), at in any::<prop::sample::Index>(), bit in 0u8..8,
                           tail in proptest::collection::vec(any::<u8>(), 0..64)) {
        let at = at.index(stream.len());
        stream[at] ^= 1 << bit;
        stream.extend(tail);
        for (kind, payload) in cut(&stream, 77).0 {
            for version in 1..=3 {
                let _ = decode(kind, &payload, version);
            }
        }
    }

    #[test]
    fn what_is_decoded_is_within_its_bounds(kind in 0u16..30, payload in attributes(),
                                            raw in proptest::collection::vec(any::<u8>(), 0..300)) {
        let built = unit(kind, &payload)[10..].to_vec();
        for payload in [&built, &raw] {
            for version in 1..=3 {
                if let Ok(command) = decode(kind, payload, version) {
                    check_command(&command);
                }
            }
        }
    }

    #[test]
    fn a_valid_path_leads_nowhere_else(path in "[a./\\x00]{0,20}") {
        let path = path.as_bytes();
        if check_path(path).is_ok() {
            let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
            prop_assert!(path.is_empty() || names.iter().all(|name| !name.is_empty()));
            prop_assert!(!names.contains(&&b".."[..]) && !names.contains(&&b"."[..]));
            prop_assert!(!path.contains(&0));
        }
    }

    #[test]
    fn decompression_is_bounded(data in proptest::collection::vec(any::<u8>(), 0..400),
                                compression in 0u32..10, length in 0u64..200_000,
                                inner in 0u64..200_000, file in 0u64..200_000) {
        let encoding = Encoding {
            offset: 0, file_length: file, length, inner_offset: inner, compression, encryption: 0,
        };
        if let Ok(plain) = encoded::decode(&encoding, &data) {
            prop_assert_eq!(plain.len() as u64, file);
            prop_assert!(length <= 128 << 10);
        }
        let mut out = vec![0; 4096];
        if let Ok(count) = lzo::decompress(&data, &mut out) {
            prop_assert!(count <= out.len());
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_read(
        length in prop_oneof![any::<u32>(), 0u32..20, 65_500u32..65_550, 262_100u32..262_150], kind in any::<u16>(), version in 1u32..=3
    ) {
        let most: u32 = if version == 1 { 64 << 10 } else { 256 << 10 };
        let mut start = [&MAGIC[..], &version.to_le_bytes(), &length.to_le_bytes()].concat();
        let refused = cut(&start, start.len()).2.is_err();
        prop_assert_eq!(refused, length > most - 10);
        start.extend_from_slice(&kind.to_le_bytes());
        start.extend_from_slice(&[0; 4]);
        prop_assert!(refused || length == 0 || cut(&start, 7).2.is_ok());
    }

    #[test]
    fn a_valid_command_is_decoded_as_it_was_written(path in "[a-z]{1,9}(/\\PC{1,9}x){0,3}", number in any::<u32>(),
                                                    value in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (path, at) = (path.as_bytes(), u64::from(number));
        prop_assume!(check_path(path).is_ok());
        let bytes = at.to_le_bytes().to_vec();
        let to = [path, b".to"].concat();
        let made = |kind: u16, attributes: Vec<Attribute>| unit(kind, &attributes)[10..].to_vec();
        let named = || (attribute::PATH, path.to_vec());
        let payload = made(command::WRITE, vec![named(), (attribute::FILE_OFFSET, bytes.clone()),
                                                (attribute::DATA, value.clone())]);
        let is_write = matches!(decode(command::WRITE, &payload, 1), Ok(Command::Write {
            path: found, offset, data }) if found == path && offset == at && data == value);
        prop_assert!(is_write);
        let payload = made(command::RENAME, vec![named(), (attribute::PATH_TO, to.clone())]);
        let is_rename = matches!(decode(command::RENAME, &payload, 2), Ok(Command::Rename {
            from, to: found }) if from == path && found == to);
        prop_assert!(is_rename);
        let payload = made(command::SET_XATTR, vec![(attribute::XATTR_DATA, value.clone()), named(),
                                                    (attribute::XATTR_NAME, b"user.x".to_vec())]);
        let is_xattr = matches!(decode(command::SET_XATTR, &payload, 3), Ok(Command::SetXattr {
            path: found, name: b"user.x", value: data }) if found == path && data == value);
        prop_assert!(is_xattr);
        let payload = made(command::TRUNCATE, vec![named(), (attribute::SIZE, bytes)]);
        let is_truncate = matches!(decode(command::TRUNCATE, &payload, 1), Ok(Command::Truncate {
            path: found, size }) if found == path && size == at);
        prop_assert!(is_truncate);
    }

    #[test]
    fn a_record_of_any_bytes_is_none(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut slot = data;
        slot.resize(32 << 10, 0);
        prop_assert_eq!(Slot::decode(&slot), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn compressed_data_is_read_as_it_was_written(plain in data(), padding in 0usize..5000,
                                                 from in any::<prop::sample::Index>(),
                                                 at in any::<prop::sample::Index>(), bit in 0u8..8) {
        for (compression, mut packed) in [(1, zlib(&plain)), (2, zstd(&plain))] {
            let packed_length = packed.len();
            packed.resize(packed_length + padding, 0);
            let inner = from.index(plain.len() + 1) as u64;
            let length = plain.len() as u64;
            let encoding = Encoding {
                offset: 0, file_length: length - inner, length, inner_offset: inner, compression,
                encryption: 0,
            };
            let found = encoded::decode(&encoding, &packed);
            prop_assert_eq!(found.as_deref(), Ok(&plain[inner as usize..]));
            packed[at.index(packed_length)] ^= 1 << bit;
            if let Ok(found) = encoded::decode(&encoding, &packed) {
                prop_assert_eq!(found.len() as u64, length - inner);
            }
        }
    }
}

/// Some repetition, so that it is packed.
fn data() -> impl Strategy<Value = Vec<u8>> {
    let word = proptest::collection::vec(any::<u8>(), 1..60);
    (proptest::collection::vec(word, 1..20), 1usize..100).prop_map(|(words, times)| {
        let mut data = words.concat().repeat(times);
        data.truncate(128 << 10);
        data
    })
}

fn zlib(plain: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    use ruzstd::encoding::{compress_to_vec, CompressionLevel};
    compress_to_vec(plain, CompressionLevel::Fastest)
}

fn blake3_of(data: &[u8]) -> [u8; 32] {
    let mut digest = mirrord_core::checksum::StreamDigest::default();
    digest.update(data);
    digest.digest()
}

fn check_command(command: &Command) {
    let most = i64::MAX as u64;
    match *command {
        Command::Write { path, offset, data } => {
            assert!(!path.is_empty() && offset + data.len() as u64 <= most);
        }
        Command::Clone {
            offset,
            length,
            source_offset,
            ..
        } => {
            assert!(offset + length <= most && source_offset + length <= most);
        }
        Command::Truncate { size, .. } => assert!(size <= most),
        Command::Chmod { mode, .. } => assert!(mode <= 0o7777),
        Command::Chown { user, group, .. } => assert!(user != u32::MAX && group != u32::MAX),
        Command::SetXattr { name, value, .. } => {
            assert!((1..=255).contains(&name.len()) && value.len() <= 64 << 10);
        }
        Command::EncodedWrite { encoding, .. } => assert!(encoding.length <= 128 << 10),
        _ => {}
    }
}

/// A frame of one byte whose header says how much the decoder has to keep.
fn decoded_with(header: &[u8]) -> Result<Vec<u8>, String> {
    let block = [&[0x09, 0, 0][..], b"x"].concat(); // the last one, stored as it is
    let frame = [&[0x28, 0xb5, 0x2f, 0xfd][..], header, &block].concat();
    let encoding = Encoding {
        offset: 0,
        file_length: 1,
        length: 1,
        inner_offset: 0,
        compression: 2,
        encryption: 0,
    };
    encoded::decode(&encoding, &frame)
}

#[test]
fn a_window_beyond_the_largest_extent_is_refused() {
    assert_eq!(decoded_with(&[0, 7 << 3]), Ok(b"x".to_vec())); // 128 KiB
    assert_eq!(decoded_with(&[0x20, 1]), Ok(b"x".to_vec())); // the content's length: 1
    for header in [&[0, (7 << 3) + 1][..], &[0, 8 << 3], &[0xa0, 1, 0, 2, 0]] {
        let refused = decoded_with(header).unwrap_err();
        assert!(refused.contains("window"), "{refused}");
    }
}

#[test]
fn the_numbers_of_commands_and_attributes_are_those_of_the_kernel() {
    assert_eq!(
        (command::SUBVOL, command::END, command::ENABLE_VERITY),
        (1, 21, 26)
    );
    assert_eq!(
        (attribute::PATH, attribute::DATA, attribute::COMPRESSION),
        (15, 19, 30)
    );
}
