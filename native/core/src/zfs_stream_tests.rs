use super::*;

/// Writes streams record by record as OpenZFS does, in either byte order.
pub struct Writer {
    pub stream: Vec<u8>,
    fletcher: Fletcher,
    swapped: bool,
}

pub type Field = (usize, u64, usize);

impl Writer {
    pub fn new(swapped: bool, features: u64, payload: &[u8]) -> Self {
        let (stream, fletcher) = (Vec::new(), Fletcher::default());
        let mut made = Self {
            stream,
            fletcher,
            swapped,
        };
        let mut header = made.header(
            kind::BEGIN,
            &[
                (4, payload.len() as u64, 4),
                (8, MAGIC, 8),
                (16, features << 2 | 1, 8),
                (24, 1_700_000_000, 8),
                (32, 2, 4),
                (40, 77, 8),
                (48, 55, 8),
            ],
        );
        header[56..66].copy_from_slice(b"tank/a@two");
        made.append(header, payload);
        made
    }

    fn header(&self, kind: u32, fields: &[Field]) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        for &(at, value, width) in [(0, u64::from(kind), 4)].iter().chain(fields) {
            let bytes = if self.swapped {
                value.to_be_bytes()[8 - width..].to_vec()
            } else {
                value.to_le_bytes()[..width].to_vec()
            };
            header[at..at + width].copy_from_slice(&bytes);
        }
        header
    }

    fn append(&mut self, mut header: [u8; HEADER], payload: &[u8]) {
        self.fletcher.update(&header[..CHECKSUM_AT], self.swapped);
        if header[..4] != [0; 4] {
            let sums = self.checksum();
            header[CHECKSUM_AT..].copy_from_slice(&sums);
        }
        self.fletcher.update(&header[CHECKSUM_AT..], self.swapped);
        self.fletcher.update(payload, self.swapped);
        self.stream.extend_from_slice(&header);
        self.stream.extend_from_slice(payload);
    }

    fn checksum(&self) -> Vec<u8> {
        let each = |sum: &u64| {
            if self.swapped {
                sum.to_be_bytes()
            } else {
                sum.to_le_bytes()
            }
        };
        self.fletcher.sums().iter().flat_map(each).collect()
    }

    pub fn record(&mut self, kind: u32, fields: &[Field], payload: &[u8]) {
        let header = self.header(kind, fields);
        self.append(header, payload);
    }

    pub fn object(&mut self, object: u64) {
        let fields = [(8, object, 8), (16, 19, 4), (24, 131_072, 4), (28, 165, 4)];
        self.record(kind::OBJECT, &fields, &[9; 168]);
    }

    pub fn write(&mut self, object: u64, offset: u64, length: u64, payload: &[u8]) {
        let packed = payload.len() as u64 != length;
        let size = if packed { payload.len() as u64 } else { 0 };
        self.record(
            kind::WRITE,
            &[
                (8, object, 8),
                (24, offset, 8),
                (32, length, 8),
                (50, if packed { 15 } else { 0 }, 1),
                (96, size, 8),
            ],
            payload,
        );
    }

    pub fn free(&mut self, object: u64, offset: u64, length: u64) {
        self.record(
            kind::FREE,
            &[(8, object, 8), (16, offset, 8), (24, length, 8)],
            &[],
        );
    }

    pub fn end(mut self) -> Vec<u8> {
        let mut header = self.header(kind::END, &[(40, 77, 8)]);
        header[8..40].copy_from_slice(&self.checksum());
        self.append(header, &[]);
        self.stream
    }
}

pub fn sample(swapped: bool) -> Vec<u8> {
    let mut writer = Writer::new(swapped, 1 << 22 | 1 << 16, &[3; 48]);
    writer.object(7);
    writer.write(7, 0, 4096, &[1; 4096]);
    writer.write(7, 4096, 131_072, &[2; 1024]);
    writer.free(7, 1 << 20, u64::MAX);
    writer.record(kind::FREEOBJECTS, &[(8, 8, 8), (16, 24, 8)], &[]);
    writer.record(kind::SPILL, &[(8, 7, 8), (16, 512, 8)], &[4; 512]);
    writer.record(
        kind::WRITE_EMBEDDED,
        &[(8, 9, 8), (24, 4096, 8), (48, 4096, 4), (52, 13, 4)],
        &[5; 16],
    );
    writer.record(kind::REDACT, &[(8, 9, 8), (16, 0, 8), (24, 512, 8)], &[]);
    writer.record(kind::OBJECT_RANGE, &[(8, 0, 8), (16, 32, 8)], &[]);
    writer.record(
        kind::WRITE_BYREF,
        &[(8, 9, 8), (16, 8192, 8), (24, 512, 8)],
        &[],
    );
    writer.end()
}

pub fn scan(stream: &[u8], piece: usize) -> Result<(Scanner, Vec<Record>), String> {
    let (mut scanner, mut seen) = (Scanner::default(), Vec::new());
    for piece in stream.chunks(piece) {
        scanner.feed(piece, &mut |record| seen.push(record))?;
    }
    Ok((scanner, seen))
}

#[test]
fn a_stream_reads_the_same_however_it_is_cut_and_in_both_byte_orders() {
    for swapped in [false, true] {
        let stream = sample(swapped);
        let whole = scan(&stream, stream.len()).unwrap().1;
        for piece in (1..=700).chain([4096, 100_000]) {
            let (scanner, seen) = scan(&stream, piece).unwrap();
            assert!(scanner.ended());
            assert_eq!(seen, whole);
            assert_eq!(scanner.end_at, Some((stream.len() - HEADER) as u64));
            assert_eq!(scanner.passable(), (stream.len() - HEADER) as u64);
            assert_eq!(scanner.records, [1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1]);
            assert_eq!(scanner.data_bytes, 4096 + 1024 + 512 + 16);
            let begin = scanner.begin.unwrap();
            assert_eq!((begin.to_guid, begin.from_guid, begin.kind), (77, 55, 2));
            assert_eq!(
                (begin.features, begin.swapped),
                (1 << 22 | 1 << 16, swapped)
            );
            assert_eq!(begin.to_name, b"tank/a@two");
        }
        assert!(whole.contains(&Record::Free {
            object: 7,
            offset: 1 << 20,
            length: u64::MAX
        }));
    }
}

#[test]
fn nothing_of_an_end_is_ever_passable() {
    let stream = sample(false);
    let end_at = (stream.len() - HEADER) as u64;
    let mut scanner = Scanner::default();
    let mut before = 0;
    for byte in &stream {
        scanner.feed(&[*byte], &mut |_| ()).unwrap();
        assert!(scanner.passable() >= before && scanner.passable() <= end_at);
        before = scanner.passable();
    }
    assert_eq!(before, end_at);
}

#[test]
fn raw_streams_have_their_lengths_elsewhere() {
    let mut writer = Writer::new(false, feature::RAW, &[]);
    writer.record(
        kind::OBJECT,
        &[
            (8, 3, 8),
            (16, 19, 4),
            (24, 512, 4),
            (28, 100, 4),
            (36, 192, 4),
        ],
        &[1; 192],
    );
    // Not compressed, but with its length in the field of a compressed one.
    writer.record(
        kind::WRITE,
        &[(8, 3, 8), (24, 0, 8), (32, 8192, 8), (96, 4096, 8)],
        &[2; 4096],
    );
    writer.record(
        kind::SPILL,
        &[(8, 3, 8), (16, 1024, 8), (40, 512, 8)],
        &[3; 512],
    );
    let (scanner, _) = scan(&writer.end(), 100).unwrap();
    assert!(scanner.ended());
    assert_eq!(scanner.data_bytes, 4096 + 512);
}

#[test]
fn every_flipped_bit_is_found_or_leaves_no_end() {
    let stream = sample(false);
    for at in 0..stream.len() {
        let mut bad = stream.clone();
        bad[at] ^= 1 << (at % 8);
        if let Ok((scanner, _)) = scan(&bad, 1000) {
            // A longer BEGIN consumes everything after it; nothing else is accepted.
            assert!(!scanner.ended() && (4..8).contains(&at), "byte {at}");
        }
    }
}

#[test]
fn a_part_is_never_whole() {
    let stream = sample(true);
    for length in 0..stream.len() {
        let (scanner, _) = scan(&stream[..length], 512).unwrap();
        assert!(!scanner.ended() && scanner.end_at.is_none());
    }
}

fn refusal(stream: &[u8]) -> String {
    scan(stream, 64).err().expect("it should be refused")
}

#[test]
fn lengths_are_bounded_even_under_a_right_checksum() {
    let with = |kind: u32, fields: &[Field]| {
        let mut writer = Writer::new(false, 1 << 22, &[]);
        writer.record(kind, fields, &[]);
        writer.stream
    };
    let huge = 1 << 40;
    let compressed = [(8, 1, 8), (32, 512, 8), (50, 3, 1), (96, huge, 8)];
    assert!(refusal(&with(kind::WRITE, &compressed)).contains("claims"));
    assert!(refusal(&with(kind::WRITE, &[(8, 1, 8), (32, huge, 8)])).contains("claims"));
    assert!(refusal(&with(kind::SPILL, &[(8, 1, 8), (16, huge, 8)])).contains("claims"));
    assert!(refusal(&with(kind::OBJECT, &[(8, 1, 8), (28, 0xffff_ffff, 4)])).contains("claims"));
    let embedded = [(8, 1, 8), (24, 512, 8), (52, 4096, 4)];
    assert!(refusal(&with(kind::WRITE_EMBEDDED, &embedded)).contains("claims"));
    let beyond = [(8, 1, 8), (16, u64::MAX - 1, 8), (24, 512, 8)];
    assert!(refusal(&with(kind::FREE, &beyond)).contains("beyond"));
    assert!(refusal(&with(kind::FREEOBJECTS, &[(8, 9, 8), (16, u64::MAX, 8)])).contains("beyond"));
    assert!(refusal(&with(kind::WRITE, &[(32, 512, 8)])).contains("object 0"));
    assert!(refusal(&with(kind::WRITE, &[(8, 1, 8), (32, 6, 8)])).contains("words"));
    assert!(refusal(&with(17, &[])).contains("type 17"));
    let mut long = Writer::new(false, 0, &[]).stream;
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(refusal(&long).contains("claims"));
}

#[test]
fn what_is_no_single_stream_of_a_dataset_is_refused() {
    let stream = sample(false);
    let mut longer = stream.clone();
    longer.push(0);
    assert!(refusal(&longer).contains("follows its end"));
    let mut again = stream[..HEADER + 48].to_vec();
    again.extend_from_slice(&stream);
    assert!(refusal(&again).contains("type 0"));
    let mut package = stream.clone();
    package[16] = package[16] & !3 | 2;
    assert!(refusal(&package).contains("package"));
    let mut other = stream.clone();
    other[32] = 1;
    assert!(refusal(&other).contains("neither"));
    assert!(refusal(&[b'x'; 400]).contains("does not begin"));
    let mut scanner = Scanner::default();
    assert!(scanner.feed(&[1; 400], &mut |_| ()).is_err());
    assert!(scanner.feed(&stream, &mut |_| ()).is_err());
}

#[test]
fn garbage_never_panics() {
    let mut state = 7u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) as usize
    };
    for turn in 0..4000 {
        let mut bad = sample(turn % 2 == 0);
        for _ in 0..random() % 20 {
            let at = random() % bad.len();
            bad[at] = random() as u8;
        }
        bad.extend((0..random() % 100).map(|_| random() as u8));
        let _ = scan(&bad, 1 + random() % 700);
    }
    // Random fields with a valid checksum: only the bounds can reject it.
    for _ in 0..20_000 {
        let mut writer = Writer::new(random() % 2 == 0, random() as u64, &[]);
        let fields: Vec<Field> = (0..random() % 8)
            .map(|_| (4 + random() % 34 * 8, (random() << 40 | random()) as u64, 8))
            .collect();
        writer.record((random() % 12) as u32, &fields, &vec![1; random() % 2000]);
        let _ = scan(&writer.end(), 1 + random() % 2000);
    }
}
