//! Properties of every parser that a peer reaches: none panics, none holds more than its bounds, the
//! result does not depend on how the input is cut, and what is valid is read as it was written.

use crate::btrfs_rewrite::{rewrite_beginning, Rewrite};
use crate::btrfs_stream::tests::encode;
use crate::btrfs_stream::{self, attribute, command, Command};
use crate::msgpack::{weigh, Bounds};
use crate::prefix_digest::{PrefixDigest, STACK_MAX, TAIL_MAX};
use crate::zfs_ranges::Collected;
use crate::zfs_stream::tests::Writer;
use crate::zfs_stream::{self, Record};
use proptest::collection::vec;
use proptest::prelude::*;

/// The parts of `data` when it is cut at these places.
fn parts<'a>(data: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(data.len() + 1)).collect();
    ends.push(data.len());
    ends.sort_unstable();
    let mut start = 0;
    let part = |end: usize| &data[std::mem::replace(&mut start, end)..end];
    ends.into_iter().map(part).collect()
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    vec(any::<prop::sample::Index>(), 0..12)
}

/// A change of a stream on its way.
#[derive(Clone, Debug)]
enum Damage {
    Flip(prop::sample::Index, u8),
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Cut(prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = || any::<prop::sample::Index>();
    prop_oneof![
        (at(), 0u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (at(), 1usize..400).prop_map(|(at, count)| Damage::Remove(at, count)),
        (at(), vec(any::<u8>(), 1..40)).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        at().prop_map(Damage::Cut),
    ]
}

fn damaged(stream: &[u8], damage: &Damage) -> Vec<u8> {
    let mut bad = stream.to_vec();
    match damage {
        Damage::Flip(at, bit) => bad[at.index(stream.len())] ^= 1 << bit,
        Damage::Remove(at, count) => {
            let at = at.index(stream.len());
            bad.drain(at..(at + count).min(stream.len()));
        }
        Damage::Insert(at, bytes) => {
            let at = at.index(stream.len());
            bad.splice(at..at, bytes.iter().copied());
        }
        Damage::Cut(at) => bad.truncate(at.index(stream.len())),
    }
    bad
}

// btrfs

type Attribute = (u16, Vec<u8>);

fn encoded(kind: u16, attributes: &[Attribute]) -> Vec<u8> {
    let borrowed: Vec<(u16, &[u8])> = attributes.iter().map(|(k, v)| (*k, &v[..])).collect();
    encode(kind, &borrowed)
}

fn attributes() -> impl Strategy<Value = Vec<Attribute>> {
    let path = prop_oneof!["[a-z]{1,6}(/[a-z.]{1,3}x){0,3}", "\\PC{1,9}x"];
    // Any other path leads out of the volume, and is refused.
    let is_inside = |path: &String| path.split('/').all(|name| !["", ".", ".."].contains(&name));
    let path = path.prop_filter("inside", is_inside);
    let one = prop_oneof![
        path.prop_map(|path| (attribute::PATH, path.into_bytes())),
        vec(any::<u8>(), 0..300).prop_map(|data| (attribute::DATA, data)),
        any::<u64>().prop_map(|at| (attribute::FILE_OFFSET, at.to_le_bytes().to_vec())),
        vec(any::<u8>(), 0..40).prop_map(|data| (attribute::XATTR_DATA, data)),
    ];
    vec(one, 0..4)
}

/// A valid stream of version 1, and the number and the data of its commands.
fn btrfs() -> impl Strategy<Value = (Vec<u8>, u64, u64)> {
    let kinds = (command::MKFILE..=command::UTIMES).prop_filter("none", |k| *k != command::LINK);
    vec((kinds, attributes()), 0..12).prop_map(|commands| {
        let mut stream = btrfs_stream::tests::begin();
        let mut data = 0;
        for (kind, attributes) in &commands {
            stream.extend(encoded(*kind, attributes));
            let sizes = attributes
                .iter()
                .filter(|(kind, _)| *kind == attribute::DATA);
            data += sizes.map(|(_, value)| value.len() as u64).sum::<u64>();
        }
        stream.extend(encode(command::END, &[]));
        (stream, commands.len() as u64 + 2, data)
    })
}

/// What a scanner made of the parts of a stream.
fn scanned(parts: &[&[u8]]) -> (btrfs_stream::Scanner, Vec<(u16, Vec<u8>)>, bool) {
    let (mut scanner, mut found, mut valid) = (btrfs_stream::Scanner::default(), vec![], true);
    for part in parts {
        let mut sink = |one: &Command| found.push((one.kind, one.payload.to_vec()));
        let result = scanner.feed(part, &mut sink);
        assert!(
            valid || part.is_empty() || result.is_err(),
            "it goes on after an error"
        );
        valid &= result.is_ok();
    }
    (scanner, found, valid)
}

// ZFS

#[derive(Clone, Debug)]
enum Part {
    Object(u64),
    Write(u64, u64, Vec<u8>),
    Free(u64, u64, u64),
    /// Whatever kind and fields.
    Any(u32, Vec<(usize, u64)>),
}

fn part() -> impl Strategy<Value = Part> {
    let field = (1usize..38).prop_map(|word| word * 8);
    let value = prop_oneof![any::<u64>(), 0u64..10_000, Just(u64::MAX)];
    prop_oneof![
        (1u64..1 << 48).prop_map(Part::Object),
        (1u64..1 << 48, 0u64..1 << 60, vec(any::<u8>(), 1..80)).prop_map(|(object, at, data)| {
            Part::Write(
                object,
                at,
                data.iter().flat_map(|byte| [*byte; 4]).collect(),
            )
        }),
        (1u64..1 << 48, 0u64..1 << 60, 0u64..1 << 60).prop_map(|(o, at, n)| Part::Free(o, at, n)),
        (1u32..14, vec((field, value), 0..6)).prop_map(|(kind, fields)| Part::Any(kind, fields)),
    ]
}

fn zfs(parts: &[Part], swapped: bool) -> Vec<u8> {
    let mut writer = Writer::new(swapped, 1 << 16, &[3; 8]);
    for part in parts {
        match part {
            Part::Object(object) => writer.object(*object),
            Part::Write(object, at, data) => writer.write(*object, *at, data.len() as u64, data),
            Part::Free(object, at, length) => writer.free(*object, *at, *length),
            Part::Any(kind, fields) => {
                let fields: Vec<_> = fields.iter().map(|(at, value)| (*at, *value, 8)).collect();
                writer.record(*kind, &fields, &[]);
            }
        }
    }
    writer.end()
}

fn zfs_scanned(parts: &[&[u8]]) -> (zfs_stream::Scanner, Vec<Record>, Option<String>) {
    let (mut scanner, mut found, mut failed) = (zfs_stream::Scanner::default(), vec![], None);
    for part in parts {
        let before = scanner.passable();
        match scanner.feed(part, &mut |record| found.push(record)) {
            Ok(()) => assert!(
                failed.is_none() || part.is_empty(),
                "it goes on after an error"
            ),
            Err(why) => drop(failed.get_or_insert(why)),
        }
        assert!(before <= scanner.passable() && scanner.passable() <= scanner.bytes);
    }
    (scanner, found, failed)
}

// msgpack

/// A value, and the number of its objects.
fn value() -> impl Strategy<Value = (Vec<u8>, u64)> {
    let leaf = prop_oneof![
        (0u8..0x80).prop_map(|byte| (vec![byte], 1)),
        any::<u64>().prop_map(|n| ([&[0xcf][..], &n.to_be_bytes()].concat(), 1)),
        "\\PC{0,30}".prop_map(|text| {
            (
                [
                    &[0xda][..],
                    &(text.len() as u16).to_be_bytes(),
                    text.as_bytes(),
                ]
                .concat(),
                1,
            )
        }),
        vec(any::<u8>(), 0..40).prop_map(|data| {
            (
                [&[0xc6][..], &(data.len() as u32).to_be_bytes(), &data].concat(),
                1,
            )
        }),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let array = vec(inner.clone(), 0..6).prop_map(|items| joined(0xdc, items.len(), items));
        let map = vec(inner, 0..3).prop_map(|items| {
            let pairs = items
                .into_iter()
                .flat_map(|item| [(vec![0xa1, b'k'], 1), item]);
            let items: Vec<(Vec<u8>, u64)> = pairs.collect();
            joined(0xde, items.len() / 2, items)
        });
        prop_oneof![array, map]
    })
}

fn joined(kind: u8, count: usize, items: Vec<(Vec<u8>, u64)>) -> (Vec<u8>, u64) {
    let mut data = vec![kind];
    data.extend_from_slice(&(count as u16).to_be_bytes());
    let objects = 1 + items.iter().map(|(_, objects)| objects).sum::<u64>();
    items
        .iter()
        .for_each(|(item, _)| data.extend_from_slice(item));
    (data, objects)
}

/// Often at the boundary of a subtree.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..5 * TAIL_MAX,
        (1usize..5, 0usize..3).prop_map(|(n, beyond)| n * TAIL_MAX + beyond - 1),
    ]
}

const BOUNDS: Bounds = Bounds {
    depth: 32,
    bytes: 1 << 20,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_btrfs_stream_is_read_as_it_was_written((stream, count, data) in btrfs(), cuts in cuts()) {
        let (scanner, found, valid) = scanned(&parts(&stream, &cuts));
        prop_assert!(valid && scanner.ended());
        prop_assert_eq!((scanner.commands, scanner.data_bytes), (count, data));
        prop_assert_eq!(scanner.bytes, stream.len() as u64);
        let again: Vec<u8> = found.iter().flat_map(|(kind, payload)| {
            let command = Command { kind: *kind, payload, version: 1 };
            let attributes = command.attributes().map(|one| one.unwrap());
            let attributes: Vec<_> = attributes.map(|(kind, value)| (kind, value.to_vec())).collect();
            encoded(*kind, &attributes)
        }).collect();
        prop_assert_eq!(&stream[btrfs_stream::STREAM_HEADER..], &again[..]);
    }

    #[test]
    fn a_damaged_btrfs_stream_has_no_end((stream, count, _) in btrfs(), damage in damage(),
                                         cuts in cuts()) {
        let bad = damaged(&stream, &damage);
        prop_assume!(bad != stream);
        let (whole, found, valid) = scanned(&[&bad]);
        // Whole commands can be missing, but not END.
        let shorter = matches!(damage, Damage::Remove(..)) && whole.commands < count;
        prop_assert!(!whole.ended() || !valid || shorter);
        let (by_parts, others, still_valid) = scanned(&parts(&bad, &cuts));
        prop_assert_eq!((whole.ended(), found, valid), (by_parts.ended(), others, still_valid));
    }

    #[test]
    fn a_first_command_is_rewritten_or_refused((stream, _, _) in btrfs(), damage in damage(),
                                               path in "[a-z]{0,300}", cut in 0usize..400) {
        let path = Some(path.as_bytes());
        let wanted = Rewrite { path, ctransid: Some(4), parent_uuid: Some([1; 16]) };
        let start = &stream[..cut.min(stream.len())];
        if let Ok(Some(changed)) = rewrite_beginning(start, &wanted) {
            let ((before, ..), (after, _, valid)) = (scanned(&[start]), scanned(&[&changed]));
            prop_assert!(valid);
            prop_assert_eq!((before.commands, before.ended()), (after.commands, after.ended()));
            let found = after.beginning.unwrap();
            prop_assert_eq!((found.ctransid, found.parent_uuid), (4, Some(vec![1; 16])));
        }
        let _ = rewrite_beginning(&damaged(&stream, &damage), &wanted);
    }

    #[test]
    fn a_zfs_stream_is_read_the_same_however_it_is_cut(records in vec(part(), 0..10),
                                                       swapped in any::<bool>(), cuts in cuts()) {
        let stream = zfs(&records, swapped);
        let (whole, found, failed) = zfs_scanned(&[&stream]);
        let (by_parts, others, why) = zfs_scanned(&parts(&stream, &cuts));
        prop_assert_eq!(&found, &others);
        prop_assert_eq!(&failed, &why);
        let facts = |one: &zfs_stream::Scanner| (one.ended(), one.data_bytes, one.records);
        prop_assert_eq!(facts(&whole), facts(&by_parts));
        if !records.iter().any(|one| matches!(one, Part::Any(..))) {
            prop_assert!(whole.ended() && failed.is_none(), "{:?}", failed);
            prop_assert_eq!(whole.passable(), stream.len() as u64 - zfs_stream::HEADER as u64);
            prop_assert_eq!(found.len(), records.len() + 2);
        }
        let mut collected = Collected::default();
        found.into_iter().for_each(|record| collected.take(record));
        prop_assert!(collected.objects.len() <= records.len());
    }

    #[test]
    fn a_damaged_zfs_stream_has_no_end(records in vec(part(), 0..6), swapped in any::<bool>(),
                                       damage in damage(), cuts in cuts()) {
        let stream = zfs(&records, swapped);
        let bad = damaged(&stream, &damage);
        prop_assume!(bad != stream);
        let (whole, _, failed) = zfs_scanned(&[&bad]);
        prop_assert!(!whole.ended() || failed.is_some());
        let (by_parts, _, why) = zfs_scanned(&parts(&bad, &cuts));
        prop_assert_eq!((whole.ended(), failed), (by_parts.ended(), why));
    }

    #[test]
    fn any_bytes_are_an_error_or_wait_for_more(data in vec(any::<u8>(), 0..2000), cuts in cuts()) {
        let parts = parts(&data, &cuts);
        prop_assert!(!scanned(&parts).0.ended());
        prop_assert!(!zfs_scanned(&parts).0.ended());
        let _ = weigh(&data, &BOUNDS);
    }

    #[test]
    fn a_value_weighs_as_much_as_its_objects_at_least((data, objects) in value(), cut in 0usize..500) {
        let weight = weigh(&data, &BOUNDS).unwrap();
        prop_assert!(weight >= 8 * objects && weight >= data.len() as u64 / 9);
        let less = Bounds { depth: 32, bytes: weight - 1 };
        prop_assert!(weigh(&data, &less).is_err());
        prop_assert_eq!(weigh(&data, &Bounds { depth: 32, bytes: weight }), Ok(weight));
        if cut < data.len() {
            prop_assert_eq!(weigh(&data[..cut], &BOUNDS), Err("it ends early".to_string()));
        }
        prop_assert!(weigh(&[&data[..], &[0]].concat(), &BOUNDS).is_err());
    }

    #[test]
    fn a_damaged_value_stays_within_its_bounds((data, _) in value(), damage in damage(), depth in 0usize..5,
                                               bytes in 0u64..5000) {
        if let Ok(weight) = weigh(&damaged(&data, &damage), &Bounds { depth, bytes }) {
            prop_assert!(weight <= bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_prefix_digest_continues_from_any_place(length in length(), stop in length(),
                                                seed in any::<u8>(), cuts in cuts()) {
        let data: Vec<u8> = (0..length).map(|at| (at * at) as u8 ^ seed).collect();
        let (before, after) = data.split_at(stop.min(length));
        let mut first = PrefixDigest::default();
        parts(before, &cuts).into_iter().for_each(|part| first.update(part));
        let (stack, tail) = (first.stack().to_vec(), first.tail().to_vec());
        prop_assert!(tail.len() <= TAIL_MAX && stack.len() <= STACK_MAX);
        let mut second = PrefixDigest::restore(first.bytes(), stack, tail).unwrap();
        second.update(after);
        prop_assert_eq!(second.digest(), *blake3::hash(&data).as_bytes());
    }

    #[test]
    fn a_state_of_a_digest_is_used_or_refused(subtrees in prop_oneof![0u64..9, any::<u64>()],
                                              tail in 0usize..TAIL_MAX + 9, wrong in 0usize..3,
                                              more in length()) {
        let bytes = subtrees.wrapping_mul(TAIL_MAX as u64).wrapping_add(tail as u64);
        let values = vec![[7; 32]; subtrees.count_ones() as usize + wrong];
        if let Some(mut state) = PrefixDigest::restore(bytes, values, vec![1; tail]) {
            prop_assert!(tail <= TAIL_MAX && state.stack().len() <= STACK_MAX);
            prop_assert_eq!(state.bytes(), bytes);
            if let Some(sum) = bytes.checked_add(more as u64) {
                state.update(&vec![5; more]);
                prop_assert_eq!(state.bytes(), sum);
            }
            state.digest();
        }
    }
}
