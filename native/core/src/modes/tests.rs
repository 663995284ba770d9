//! Small cases computed by hand; the policies' ones are in tests/analysis/test_modes.py.

use super::*;

const MS: i64 = 1_000_000;

fn points(mode: Mode) -> Setpoints {
    Setpoints {
        mode,
        lag_bytes: None,
        within_ns: None,
        max_lag_bytes: u64::MAX,
        merge: false,
        copy: true,
    }
}

/// 1000 bytes take 1 ms; the replica answers 4 ms later, local storage in 1 ms.
fn simulator(points: Setpoints, writes: &[(i64, i64, i64)]) -> Simulator {
    let setup = Setup {
        rate: 1_000_000,
        reply_ns: 4 * MS,
        local_ns: MS,
        late_ns: 5 * MS,
        period_ns: 100 * MS,
    };
    let mut made = Simulator::new(setup, points);
    made.answers = Some(Vec::new());
    let time_ns: Vec<i64> = writes.iter().map(|write| write.0 * MS).collect();
    let offset: Vec<i64> = writes.iter().map(|write| write.1).collect();
    let length: Vec<i64> = writes.iter().map(|write| write.2).collect();
    let columns = Columns {
        time_ns: &time_ns,
        volume: &vec![0; writes.len()],
        op: &vec![WRITE; writes.len()],
        offset: &offset,
        length: &length,
    };
    made.feed(columns).unwrap();
    made.end();
    made
}

fn latencies(mut made: Simulator) -> Vec<i64> {
    while !made.ended() {
        made.run(0);
    }
    made.drain();
    let answers = made.answers.take().unwrap();
    answers.iter().map(|answer| answer.1 / MS).collect()
}

#[test]
fn synchronous_writes_take_the_way_and_the_queue() {
    let writes = [(0, 0, 1000), (0, 0, 1000), (100, 0, 3000)];
    let made = simulator(points(Mode::Sync), &writes);
    assert_eq!(latencies(made), [5, 6, 7]);
}

#[test]
fn semi_synchronous_writes_wait_for_what_exceeds_m() {
    let fixed = Setpoints {
        lag_bytes: Some(2000),
        ..points(Mode::SemiSync)
    };
    let made = simulator(fixed, &[(0, 0, 1000), (0, 0, 1000), (0, 0, 1000)]);
    // The third is admitted when the replica has the first, at 5 ms.
    assert_eq!(latencies(made), [1, 1, 5]);
}

#[test]
fn m_grows_when_a_write_has_waited() {
    let growing = Setpoints {
        lag_bytes: Some(0),
        within_ns: Some(4 * MS),
        ..points(Mode::SemiSync)
    };
    let mut made = simulator(growing, &[(0, 0, 1000), (2, 0, 1000), (3, 0, 1000)]);
    made.run(0);
    made.drain();
    // At 4 ms: what arrived until 2 ms. The third is admitted when the replica has the first.
    assert_eq!(made.limit, 2000);
    assert_eq!(latencies(made), [4, 2, 2]);
}

#[test]
fn merged_writes_are_sent_once() {
    let merging = Setpoints {
        lag_bytes: Some(1 << 40),
        merge: true,
        ..points(Mode::SemiSync)
    };
    // The first is being sent when the others arrive: the last of them is sent.
    let writes = [(0, 0, 4096), (1, 0, 4096), (2, 0, 4096), (2, 512, 512)];
    let mut made = simulator(merging, &writes);
    made.run(0);
    made.drain();
    assert_eq!(made.totals().sent, 2 * 4096 + 512);
    assert!(made.queue.is_empty() && made.queue.buffered == 0);
}

#[test]
fn tracked_blocks_are_copied_once() {
    let writes = [(0, 0, 4096), (1, 0, 4096), (2, 4095, 2)];
    let mut made = simulator(points(Mode::Async), &writes);
    made.run(0);
    assert_eq!(made.lag.bytes, 8194);
    made.drain();
    // The block that was being copied when it was written again is copied again.
    assert_eq!(made.totals().sent, 3 * 4096);
    assert_eq!(made.totals().lag.peak_ns, (3 * 4096 * MS) / 1000 + 4 * MS);
    assert_eq!(made.lag.bytes, 0);
}

#[test]
fn m_gets_smaller_by_half_of_what_is_acknowledged() {
    let mut semi = points(Mode::SemiSync);
    (semi.lag_bytes, semi.within_ns) = (Some(100_000), Some(1000 * MS));
    let mut writes: Vec<_> = (0..10).map(|n| (0, n * 1000, 1000)).collect();
    writes.push((900, 0, 1000));
    let mut made = simulator(semi, &writes);
    made.run(0); // 100 ms: all ten are acknowledged
    semi.lag_bytes = Some(2000);
    made.direct(semi);
    assert_eq!(made.limit, 2000, "nobody waits for it");

    semi.lag_bytes = Some(100_000);
    let mut made = simulator(semi, &writes);
    made.setup.period_ns = 8 * MS;
    made.next_ns = Some(8 * MS); // four are acknowledged: each takes 1 ms, and 4 ms to answer
    made.run(0);
    semi.lag_bytes = Some(2000);
    made.direct(semi);
    assert_eq!(made.limit, 6000, "what is unacknowledged");
    made.run(0);
    assert_eq!(made.limit, 6000 - 6 * 500, "half of the other six");
}
