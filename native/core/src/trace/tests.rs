//! Tests of the parsers.

use super::blkparse::Blkparse;
use super::blktrace::Blktrace;
use super::delimited::{key, Delimited, Layout, OpRule};
use super::lines::Lines;
use super::number::{hexadecimal, scaled, whole};
use super::survey::{Seen, Survey};
use super::{Columns, Fault, Op, Parser};

fn msr() -> Layout {
    Layout {
        delimiter: b',',
        time: 0,
        time_extra: None,
        op: Some(3),
        offset: 4,
        length: 5,
        latency: Some(6),
        volumes: vec![1, 2],
        time_ns: 100,
        offset_bytes: 1,
        length_bytes: 1,
        latency_ns: 100,
        rule: OpRule::Words(vec![(key(b"write"), Op::Write), (key(b"read"), Op::Read)]),
        header: 0,
        only_digits: false,
    }
}

/// Feeds in pieces of `step` bytes.
fn parse(mut parser: impl Parser, text: &[u8], step: usize) -> Result<Columns, Fault> {
    let mut out = Columns::default();
    for piece in text.chunks(step) {
        parser.feed(piece, &mut out)?;
    }
    parser.finish(false, &mut out)?;
    Ok(out)
}

#[test]
fn numbers_are_exact_or_refused() {
    for value in [
        0,
        7,
        99_999_999,
        100_000_000,
        18_446_744_073_709_551_615u64,
        12_345_678_901,
    ] {
        assert_eq!(whole(value.to_string().as_bytes()), Some(value));
    }
    for at in 0..10 {
        for wrong in [b'/', b':', b'a', b' ', b'-', 0x80, 0xff, 0] {
            let mut digits = *b"1234567890";
            digits[at] = wrong;
            assert_eq!(whole(&digits), None, "{at} {wrong}");
        }
    }
    assert_eq!(whole(b""), None);
    assert_eq!(whole(b"18446744073709551616"), None);
    assert_eq!(hexadecimal(b"0x2A"), Some(42));
    assert_eq!(hexadecimal(b"g"), None);
    assert_eq!(scaled(b"9.378419363", 1_000_000_000), Some(9_378_419_363));
    assert_eq!(scaled(b"0.5", 1_000), Some(500));
    assert_eq!(
        scaled(b"128166372003061629", 100),
        Some(12_816_637_200_306_162_900)
    );
    assert_eq!(
        scaled(b"1456095145.1330760001", 1_000_000_000),
        Some(1_456_095_145_133_076_000)
    );
    assert_eq!(scaled(b".", 1), None);
    assert_eq!(scaled(b"1.2.3", 1000), None);
    assert_eq!(scaled(b"-1.5", 1000), Some(-1500));
}

#[test]
fn pieces_may_be_cut_anywhere() {
    let text = b"128166372003061629,hm,0,Write,7014912,4096,26\r\n\
        128166372003061630,hm,1,Read,0,512,1\n128166372003061628,hm,0,write,1,2,3";
    let whole = parse(Lines::new(Delimited::new(msr()), false), text, text.len()).unwrap();
    assert_eq!(whole.time, [0, 100, -100]);
    assert_eq!(whole.volume, [0, 1, 0]);
    assert_eq!(whole.op, [0, 1, 0]);
    assert_eq!(whole.latency, [2600, 100, 300]);
    for step in 1..60 {
        let cut = parse(Lines::new(Delimited::new(msr()), false), text, step).unwrap();
        assert_eq!(cut, whole, "{step}");
    }
}

#[test]
fn a_fault_names_the_line() {
    let good = "128166372003061629,hm,0,Write,7014912,4096,26\n";
    let huge = format!("{good}128166372003061629,hm,0,Write,9223372036854775807,4096,26\n");
    let fault = parse(Lines::new(Delimited::new(msr()), false), huge.as_bytes(), 7).unwrap_err();
    assert_eq!((fault.kind, fault.place), ("record", 2));
    assert!(fault.what.contains("beyond 2^63"), "{}", fault.what);
    let broken = format!("{good}128166372003061629,hm,0,Wri");
    let fault = parse(
        Lines::new(Delimited::new(msr()), false),
        broken.as_bytes(),
        7,
    )
    .unwrap_err();
    assert_eq!((fault.kind, fault.place), ("truncated", 2));
}

#[test]
fn blkparse_takes_one_action() {
    let text = b"  8,16 2 1 9.378419363 16766  Q   W 3428327242 + 8 [flush-8:16]\n\
        8,16 2 2 9.378419364 16766  C   W 3428327242 + 8 [0]\n\
        8,16 2 3 9.378419365 16766  P   N [flush-8:16]\n\
        8,16 2 4 9.378419366 16766  Q FWS [kworker]\n\
        8,16 2 5 9.378419367 16766  Q  DS 64 + 128 [fstrim]\n\
        8,16 2 5 9.378419368 16766  Q  RA 64 + 8 [cat]\n\
        CPU0 (8,16):\n Reads Queued:           1,        4KiB\n";
    let found = parse(Lines::new(Blkparse::new(b'Q'), false), text, 13).unwrap();
    assert_eq!(found.op, [0, 3, 2, 1]);
    assert_eq!(found.offset, [3_428_327_242 * 512, 0, 64 * 512, 64 * 512]);
    assert_eq!(found.length, [4096, 0, 65536, 4096]);
    assert_eq!(found.time, [0, 3, 4, 5]);
}

fn event(time: u64, action: u32, bytes: u32, follows: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(0x6561_7407u32.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend(time.to_le_bytes());
    out.extend(8u64.to_le_bytes());
    out.extend(bytes.to_le_bytes());
    out.extend(action.to_le_bytes());
    out.extend([0; 4]);
    out.extend((8u32 << 20 | 16).to_le_bytes());
    out.extend([0; 6]);
    out.extend((follows.len() as u16).to_le_bytes());
    out.extend(follows);
    out
}

#[test]
fn blktrace_knows_the_wall_clock() {
    let mut clock = 1000u32.to_le_bytes().to_vec();
    clock.extend(7u32.to_le_bytes());
    let text = [
        event(5, 1 << 26 | 1, 0, &clock),
        event(9, 2 << 16 | 1, 4096, b"pdu"),
        event(10, 2 << 16 | 8, 4096, b""),
        event(11, (1 << 13 | 2) << 16 | 1, 8192, b""),
        event(12, (4 | 2) << 16 | 1, 0, b""),
    ]
    .concat();
    for step in [1, 47, 48, 1000] {
        let mut parser = Blktrace::new(1);
        let mut out = Columns::default();
        for piece in text.chunks(step) {
            parser.feed(piece, &mut out).unwrap();
        }
        parser.finish(false, &mut out).unwrap();
        assert_eq!(out.op, [0, 2, 3]);
        assert_eq!(out.time, [0, 2, 3]);
        assert_eq!(parser.shared().epoch, Some(1_000_000_000_007 - 5));
        assert_eq!(parser.shared().volumes, ["8,16"]);
    }
    let fault = parse(Blktrace::new(1), &text[..60], 9).unwrap_err();
    assert_eq!((fault.kind, fault.place), ("truncated", 2));
}

#[test]
fn the_survey_follows_writes_on_any_grid() {
    // The same block, 512 bytes off the grid, twice within 5 ms, and its neighbour.
    let seen = Seen {
        time: &[0, 5_000_000, 6_000_000],
        volume: &[0, 0, 0],
        op: &[0, 0, 0],
        offset: &[3584, 3584, 7680],
        length: &[4096, 4096, 4096],
    };
    let mut survey = Survey::default();
    survey.feed(&seen);
    assert_eq!(survey.touched[0], 6);
    assert_eq!(survey.touched[1], 3);
    assert_eq!(survey.gaps, [0, 1, 0, 0, 0, 0]);
    assert_eq!(survey.followed_writes, 3);
}
