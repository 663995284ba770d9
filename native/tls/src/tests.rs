//! Sessions against each other, in memory.

use super::*;
use rustls::{SupportedCipherSuite, Tls13CipherSuite};

/// A certificate for both ends, made once for these tests; it is valid until 2126.
const CERTIFICATE: &str = include_str!("../tests/certificate.pem");
const KEY: &str = include_str!("../tests/key.pem");
const OTHER: &str = include_str!("../tests/other.pem");

/// A provider whose keys protect `limit` records only.
fn provider(limit: u64) -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites = provider
        .cipher_suites
        .into_iter()
        .filter_map(|suite| {
            let suite = suite.tls13()?;
            let mut lowered = Tls13CipherSuite {
                common: rustls::crypto::CipherSuiteCommon {
                    suite: suite.common.suite,
                    hash_provider: suite.common.hash_provider,
                    confidentiality_limit: limit,
                },
                ..*suite
            };
            lowered.quic = None;
            Some(SupportedCipherSuite::Tls13(Box::leak(Box::new(lowered))))
        })
        .collect();
    provider
}

fn pair(limit: u64, trusted: &str) -> [Session; 2] {
    [false, true].map(|server| {
        let trusted = certificates(trusted).unwrap();
        Config::with_provider(server, CERTIFICATE, KEY, trusted, provider(limit))
            .unwrap()
            .session()
            .unwrap()
    })
}

/// Passes on what one end has to send; the number of records.
fn pass(from: &mut Session, to: &mut Session) -> usize {
    let mut sealed = Vec::new();
    from.outgoing(&mut sealed);
    to.feed(&sealed);
    let mut rest = &sealed[..];
    let mut records = 0;
    while let [_, _, _, high, low, ..] = rest {
        records += 1;
        rest = &rest[5 + usize::from(*high) * 256 + usize::from(*low)..];
    }
    records
}

fn shake_hands(client: &mut Session, server: &mut Session) {
    for _ in 0..4 {
        pass(client, server);
        pass(server, client);
    }
}

#[test]
fn keys_are_changed_before_their_limit() {
    for limit in [8, u64::MAX] {
        let [mut client, mut server] = pair(limit, CERTIFICATE);
        shake_hands(&mut client, &mut server);
        assert!(!client.is_handshaking() && !server.is_handshaking());
        let mut records = 0;
        for round in 0..1000u32 {
            for (from, to) in [(0, 1), (1, 0)] {
                let ends = [&mut client, &mut server];
                let piece = (round * 2 + from).to_le_bytes();
                ends[from as usize].write(&piece).unwrap();
                let [client, server] = ends;
                let (from, to) = if to == 1 {
                    (client, server)
                } else {
                    (server, client)
                };
                records += pass(from, to);
                assert_eq!((&to.failed, &to.plain[..]), (&None, &piece[..]));
                to.plain.clear();
            }
        }
        let updates = records - 2000;
        let expected = if limit == 8 { 200..400 } else { 0..1 };
        assert!(expected.contains(&updates), "{updates} key updates");
    }
}

#[test]
fn only_the_trusted_certificate_is_accepted() {
    let [mut client, mut server] = pair(u64::MAX, OTHER);
    shake_hands(&mut client, &mut server);
    let refused = format!("{:?}", client.failed);
    assert!(refused.contains("InvalidCertificate"), "{refused}");
    let trusting = certificates(CERTIFICATE).unwrap();
    let mut client = Config::with_provider(false, CERTIFICATE, KEY, trusting, provider(u64::MAX))
        .unwrap()
        .session()
        .unwrap();
    let [_, mut server] = pair(u64::MAX, OTHER);
    client.write(b"early").unwrap();
    shake_hands(&mut client, &mut server);
    let refused = format!("{:?}", server.failed);
    assert!(
        refused.contains("InvalidCertificate") && server.plain.is_empty(),
        "{refused}"
    );
}
