//! Small handmade traces. (Random traces, against a slow replay: tests/analysis/test_replay.py.)

use super::*;

const BLOCK: i64 = 4096;

/// (time, volume, op, first block, blocks)
type Record = (i64, u32, u8, i64, i64);

fn feed(replayer: &mut Replayer, records: &[Record]) -> Result<(), Fault> {
    let column = |of: fn(&Record) -> i64| records.iter().map(of).collect::<Vec<_>>();
    let (time_ns, offset, length) = (
        column(|r| r.0),
        column(|r| r.3 * BLOCK),
        column(|r| r.4 * BLOCK),
    );
    let volume: Vec<u32> = records.iter().map(|r| r.1).collect();
    let op: Vec<u8> = records.iter().map(|r| r.2).collect();
    replayer.feed(Columns {
        time_ns: &time_ns,
        volume: &volume,
        op: &op,
        offset: &offset,
        length: &length,
    })
}

/// (interval, written, in place, active, live) of each row.
fn rows(replayer: &mut Replayer, grid: usize) -> Vec<(i64, i64, i64, i64, i64)> {
    let (rows, _) = replayer.finish();
    let rows = rows[grid].iter();
    rows.map(|row| {
        (
            row.interval,
            row.written,
            row.in_place,
            row.active,
            row.live,
        )
    })
    .collect()
}

#[test]
fn intervals_begin_at_the_first_record() {
    let mut replayer = Replayer::new(12, &[Cuts::Every(10)], &[], 0, 1, 1);
    let times = [5, 14, 15, 24, 25, 99];
    let records: Vec<Record> = times.iter().map(|&time| (time, 0, WRITE, 0, 1)).collect();
    feed(&mut replayer, &records).unwrap();
    let counted = rows(&mut replayer, 0);
    assert_eq!(
        counted,
        [
            (0, 2, 1, 1, 0),
            (1, 2, 1, 1, 0),
            (2, 1, 1, 1, 0),
            (9, 1, 1, 1, 0)
        ]
    );
}

#[test]
fn a_trim_takes_what_was_written_out_of_the_active_map() {
    let mut replayer = Replayer::new(12, &[Cuts::At(vec![10, 20])], &[], 0, 1, 1);
    let records = [
        (0, 0, WRITE, 0, 4),
        (1, 0, TRIM, 1, 2),
        (10, 0, TRIM, 0, 1),
        (11, 0, WRITE, 1, 1),
        (12, 0, TRIM, 1, 1),
        (13, 0, WRITE, 1, 1),
        (20, 0, TRIM, 0, 9),
    ];
    feed(&mut replayer, &records).unwrap();
    let counted = rows(&mut replayer, 0);
    assert_eq!(
        counted,
        [(0, 4, 4, 2, -2), (1, 2, 1, 1, 0), (2, 0, 0, 0, -2)]
    );
}

#[test]
fn more_grids_than_are_counted_together() {
    let cuts: Vec<Cuts> = (1..=19).map(Cuts::Every).collect();
    let mut replayer = Replayer::new(12, &cuts, &[], 0, 1, 1);
    let records: Vec<Record> = (0..380).map(|time| (time, 0, WRITE, 0, 1)).collect();
    feed(&mut replayer, &records).unwrap();
    let (grids, _) = replayer.finish();
    for (grid, rows) in grids.iter().enumerate() {
        let transferred: i64 = rows.iter().map(|row| row.in_place).sum();
        assert_eq!(transferred, 380_u64.div_ceil(grid as u64 + 1) as i64);
    }
}

#[test]
fn a_cut_ends_an_interval() {
    let mut replayer = Replayer::new(12, &[Cuts::At(vec![]), Cuts::Every(1000)], &[], 0, 1, 1);
    feed(&mut replayer, &[(0, 0, WRITE, 0, 3), (1, 0, WRITE, 0, 1)]).unwrap();
    assert_eq!(replayer.cut(0, 2), (4, 3, 3));
    feed(&mut replayer, &[(2, 0, WRITE, 0, 1)]).unwrap();
    assert_eq!(replayer.cut(0, 3), (1, 1, 1));
    assert_eq!(rows(&mut replayer, 1), [(0, 5, 3, 3, 0)]);
}

#[test]
fn parts_share_nothing_and_miss_nothing() {
    let records: Vec<Record> = (0..40_000)
        .map(|n| {
            (
                n,
                (n % 3) as u32,
                if n % 7 == 0 { TRIM } else { WRITE },
                n * 7919 % 90_000,
                1 + n % 5,
            )
        })
        .collect();
    let cuts = [Cuts::Every(1000), Cuts::At(vec![77])];
    let sum = |replayer: &mut Replayer| {
        feed(replayer, &records).unwrap();
        let (grids, volumes) = replayer.finish();
        let mut sums: Vec<i64> = Vec::new();
        for rows in grids {
            sums.push(rows.iter().map(|row| row.written).sum());
            sums.push(rows.iter().map(|row| row.in_place).sum());
            sums.push(rows.iter().map(|row| row.active).sum());
            sums.push(rows.iter().map(|row| row.live).sum());
        }
        sums.push(volumes.iter().map(|volume| volume.unique).sum());
        sums
    };
    let alone = sum(&mut Replayer::new(12, &cuts, &[], 0, 1, 1));
    // Enough records to start threads: both parts run concurrently.
    assert_eq!(sum(&mut Replayer::new(12, &cuts, &[], 0, 2, 2)), alone);
    let mut added = vec![0; alone.len()];
    for part in 0..5 {
        let one = sum(&mut Replayer::new(12, &cuts, &[], part, 1, 5));
        assert!(one.iter().zip(&alone).any(|(one, all)| one != all));
        added.iter_mut().zip(one).for_each(|(all, one)| *all += one);
    }
    assert_eq!(added, alone);
}

#[test]
fn memory_is_for_what_was_written() {
    let mut replayer = Replayer::new(12, &[Cuts::Every(10)], &[], 0, 1, 1);
    let far = (1 << 50) - 1;
    feed(
        &mut replayer,
        &[
            (0, 0, WRITE, 0, 1),
            (1, 0, WRITE, far, 1),
            (2, 0, TRIM, 9, far),
        ],
    )
    .unwrap();
    assert!(replayer.memory() <= 8 << 20, "{}", replayer.memory());
}

#[test]
fn scattered_blocks_need_little_memory() {
    let mut replayer = Replayer::new(12, &[Cuts::Every(10)], &[], 0, 1, 1);
    // Far apart, over 16 TiB.
    let blocks = 40_000;
    let apart = (16 << 40) / BLOCK / blocks;
    let records: Vec<Record> = (0..blocks)
        .map(|index| (index, 0, WRITE, index * apart, 1))
        .collect();
    feed(&mut replayer, &records).unwrap();
    // For each 256 bytes; the flat directory, which doubles, and a chunk that is not full.
    let most = blocks as usize * 256 * 2 + (32 << 20) + (2 << 20);
    assert!(replayer.memory() <= most, "{}", replayer.memory());
    // A trim of everything finds them all.
    feed(&mut replayer, &[(blocks, 0, TRIM, 0, (16 << 40) / BLOCK)]).unwrap();
    let (_, volumes) = replayer.finish();
    assert_eq!((volumes[0].unique, volumes[0].live), (blocks, -blocks));
}

#[test]
fn the_busiest_second_begins_at_any_instant() {
    let mut replayer = Replayer::new(12, &[], &[], 0, 1, 1);
    let ms = 1_000_000;
    let records = [
        (0, 0, WRITE, 0, 1),
        // Two blocks on each side of the full second, and one at the end of the window.
        (900 * ms, 0, WRITE, 0, 2),
        (1100 * ms, 0, WRITE, 0, 2),
        (1100 * ms, 0, 1, 0, 9),
        (1899 * ms, 0, WRITE, 0, 1),
    ];
    feed(&mut replayer, &records).unwrap();
    assert_eq!(replayer.totals.as_ref().unwrap().busiest.peak, 5 * BLOCK);
    feed(&mut replayer, &[(2000 * ms, 0, WRITE, 0, 9)]).unwrap();
    assert_eq!(replayer.totals.unwrap().busiest.peak, 12 * BLOCK);
}

#[test]
fn faults_are_told() {
    let fault = |records: &[Record]| feed(&mut Replayer::new(12, &[], &[], 0, 1, 1), records);
    assert_eq!(
        fault(&[(5, 0, WRITE, 0, 1), (4, 0, 1, 0, 1)]),
        Err(Fault::Order {
            record: 1,
            time_ns: 4,
            before_ns: 5
        })
    );
    let range = Fault::Range {
        record: 0,
        offset: -BLOCK,
        length: BLOCK,
    };
    assert_eq!(fault(&[(0, 0, TRIM, -1, 1)]), Err(range));
    let volume = Fault::Volume {
        record: 1,
        volume: u32::MAX,
    };
    assert_eq!(
        fault(&[(0, 0, WRITE, 0, 1), (0, u32::MAX, 1, 0, 1)]),
        Err(volume)
    );
}
