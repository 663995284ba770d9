//! What clients send, sound and malformed.

use super::*;
use proptest::prelude::*;

fn session() -> (Session, Vec<u8>) {
    let mut out = Vec::new();
    let session = Session::new(1 << 20, "db", Security::Plain, &mut out);
    (session, out)
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
    out
}

fn request(code: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut out = REQUEST_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&0u16.to_be_bytes());
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(&7u64.to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out
}

fn transmitting() -> Session {
    let (mut session, mut out) = session();
    assert_eq!(
        session.parse(&3u32.to_be_bytes(), &mut out),
        Parsed::Consumed(4)
    );
    let go = option(7, &[0, 0, 0, 0, 0, 0]);
    assert_eq!(session.parse(&go, &mut out), Parsed::Consumed(go.len()));
    session
}

#[test]
fn a_write_is_parsed_only_when_it_is_complete() {
    let mut session = transmitting();
    let mut bytes = request(1, 4096, 3);
    bytes.extend_from_slice(b"ab");
    assert_eq!(session.parse(&bytes, &mut Vec::new()), Parsed::Incomplete);
    bytes.push(b'c');
    let Parsed::Request(31, request) = session.parse(&bytes, &mut Vec::new()) else {
        panic!("not a request");
    };
    assert_eq!(
        (request.kind, &request.data[..]),
        (Kind::Write, &b"abc"[..])
    );
}

#[test]
fn what_lies_outside_is_refused() {
    let mut session = transmitting();
    let past = request(0, (1 << 20) - 1, 2);
    let expected = Parsed::Refused(28, 7, Failure::Invalid);
    assert_eq!(session.parse(&past, &mut Vec::new()), expected);
    let wrapping = request(4, u64::MAX, 2);
    assert_eq!(session.parse(&wrapping, &mut Vec::new()), expected);
    let mut fast = request(6, 0, 1);
    fast[5] = 16;
    assert_eq!(session.parse(&fast, &mut Vec::new()), expected);
    let huge = request(1, 0, u32::MAX);
    assert!(matches!(
        session.parse(&huge, &mut Vec::new()),
        Parsed::Broken(_)
    ));
}

/// A small generator of bytes that look a little like the protocol.
#[test]
fn garbage_ends_in_an_error_and_never_in_a_panic() {
    let mut state = 1u64;
    let mut draw = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize
    };
    for _ in 0..20_000 {
        let (mut session, mut out) = session();
        let mut bytes = (draw() as u32 % 5).to_be_bytes().to_vec();
        for _ in 0..draw() % 6 {
            let data: Vec<u8> = (0..draw() % 40).map(|_| draw() as u8 % 8).collect();
            bytes.extend(match draw() % 3 {
                0 => option(draw() as u32 % 12, &data),
                1 => request(draw() as u16 % 10, draw() as u64, draw() as u32 % 100),
                _ => data,
            });
        }
        let mut at = 0;
        while let Parsed::Consumed(used) | Parsed::Request(used, _) | Parsed::Refused(used, ..) =
            session.parse(&bytes[at..], &mut out)
        {
            at += used;
        }
    }
}

/// Sound pieces of the protocol, whole, cut short or with a changed byte, and garbage.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![0..16u32, any::<u32>()];
    let data = proptest::collection::vec(any::<u8>(), 0..64);
    let sound = prop_oneof![
        (number.clone(), data.clone()).prop_map(|(code, data)| option(code, &data)),
        (0..10u16, 0..1u64 << 21, number).prop_map(|(code, at, length)| request(code, at, length)),
        Just(3u32.to_be_bytes().to_vec()),
        data,
    ];
    (sound, any::<u16>(), 0..4u8).prop_map(|(mut bytes, at, how)| {
        let at = usize::from(at) % (bytes.len() + 1);
        match how {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << (at % 8),
            _ => {}
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_input_is_too_strange(
        pieces in proptest::collection::vec(piece(), 0..30),
        is_transmitting: bool,
        security in prop_oneof![Just(Security::Plain), Just(Security::Required)],
    ) {
        let mut session = if is_transmitting {
            transmitting()
        } else {
            Session::new(1 << 20, "db", security, &mut Vec::new())
        };
        let input = pieces.concat();
        let (mut at, mut out) = (0, Vec::new());
        loop {
            let was_required = session.security == Security::Required;
            let used = match session.parse(&input[at..], &mut out) {
                Parsed::Consumed(used) | Parsed::Refused(used, ..) => used,
                Parsed::StartTls(used) => {
                    prop_assert!(was_required && at + used == input.len());
                    used
                }
                Parsed::Request(used, request) => {
                    prop_assert!(!was_required);
                    let end = request.offset + u64::from(request.length);
                    prop_assert!(request.kind == Kind::Flush || end <= 1 << 20);
                    prop_assert!(request.data.len() <= used);
                    used
                }
                Parsed::Incomplete | Parsed::Close | Parsed::Broken(_) => break,
            };
            prop_assert!(used > 0 && at + used <= input.len());
            at += used;
        }
        // Answers are of the size of what was asked.
        prop_assert!(out.len() <= 400 * (pieces.len() + 1) + input.len());
    }
}
