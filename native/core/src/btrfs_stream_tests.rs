use super::*;

pub type Attribute<'a> = (u16, &'a [u8]);

pub fn encode(kind: u16, attributes: &[Attribute]) -> Vec<u8> {
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

pub fn begin() -> Vec<u8> {
    let mut stream = MAGIC.to_vec();
    stream.extend_from_slice(&1u32.to_le_bytes());
    stream.extend(encode(
        command::SNAPSHOT,
        &[
            (attribute::PATH, b"snap"),
            (attribute::UUID, &[7; 16]),
            (attribute::CTRANSID, &9u64.to_le_bytes()),
            (attribute::CLONE_UUID, &[8; 16]),
            (attribute::CLONE_CTRANSID, &5u64.to_le_bytes()),
        ],
    ));
    stream
}

pub fn sample() -> Vec<u8> {
    let mut stream = begin();
    for n in 0..50usize {
        let data = vec![n as u8; n * 37];
        stream.extend(encode(
            command::WRITE,
            &[(attribute::PATH, b"dir/file"), (attribute::DATA, &data)],
        ));
    }
    stream.extend(encode(command::END, &[]));
    stream
}

pub fn scan(stream: &[u8], piece: usize) -> Result<Scanner, String> {
    let mut scanner = Scanner::default();
    for piece in stream.chunks(piece) {
        scanner.feed(piece, &mut |_| ())?;
    }
    Ok(scanner)
}

#[test]
fn a_stream_reads_the_same_however_it_is_cut() {
    let stream = sample();
    for piece in [1, 2, 3, 9, 10, 11, 17, 100, 4096, stream.len()] {
        let scanner = scan(&stream, piece).unwrap();
        assert!(scanner.ended());
        assert_eq!(scanner.commands, 52);
        assert_eq!(scanner.data_bytes, (0..50).map(|n| n * 37).sum::<u64>());
        let beginning = scanner.beginning.unwrap();
        assert_eq!(beginning.ctransid, 9);
        assert_eq!(beginning.parent_uuid, Some(vec![8; 16]));
    }
}

#[test]
fn every_flipped_bit_is_found_or_leaves_no_end() {
    let stream = sample();
    for at in 0..stream.len() {
        let mut bad = stream.clone();
        bad[at] ^= 1 << (at % 8);
        if let Ok(scanner) = scan(&bad, 1000) {
            // Versions 1 and 2 differ in a single bit pattern; nothing else may be accepted.
            assert!(!scanner.ended() || at == 13, "byte {at}");
        }
    }
}

#[test]
fn a_part_is_never_whole() {
    let stream = sample();
    for length in 0..stream.len() {
        assert!(!scan(&stream[..length], 512).unwrap().ended());
    }
}

#[test]
fn what_begins_again_or_goes_on_after_the_end_is_refused() {
    let stream = sample();
    let mut again = stream[..stream.len() - 10].to_vec();
    again.extend_from_slice(&stream);
    assert!(scan(&again, 64).err().unwrap().contains("begins again"));
    let end = stream.len();
    for stopped in (STREAM_HEADER..200)
        .chain((200..end).step_by(997))
        .chain(end - 99..end)
    {
        let again = [&stream[..stopped], &stream[..]].concat();
        for piece in [stopped, stopped + 40, again.len()] {
            assert_eq!(
                scan(&again, piece).err().unwrap(),
                AGAIN,
                "{stopped} {piece}"
            );
        }
    }
    let mut damaged = stream.clone();
    damaged[40] ^= 1;
    assert!(scan(&damaged, 4096).err().unwrap().contains("checksum"));
    let mut long = stream.clone();
    long.push(0);
    assert!(scan(&long, 64).err().unwrap().contains("follows its end"));
}

#[test]
fn paths_that_leave_the_volume_are_refused() {
    for path in [&b"../x"[..], b"/etc/passwd", b"a/../../b", b"a\0b"] {
        let mut stream = begin();
        stream.extend(encode(command::UNLINK, &[(attribute::PATH, path)]));
        assert!(scan(&stream, 64).is_err());
    }
}

#[test]
fn garbage_never_panics() {
    let mut state = 99u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) as usize
    };
    let stream = sample();
    for _ in 0..2000 {
        let mut bad = if random() % 2 == 0 {
            stream.clone()
        } else {
            begin()
        };
        for _ in 0..random() % 20 {
            let at = random() % bad.len();
            bad[at] = random() as u8;
        }
        bad.extend((0..random() % 100).map(|_| random() as u8));
        let _ = scan(&bad, 1 + random() % 300);
        let _ = crate::btrfs_rewrite::rewrite_beginning(&bad, &Default::default());
    }
}
