use super::*;
use std::cell::Cell;
use std::sync::Arc;

/// What a file has, and how much of it was read.
struct Memory(Vec<u8>, Cell<usize>);

fn memory(bytes: Vec<u8>) -> Memory {
    Memory(bytes, Cell::new(0))
}

impl Backend for Memory {
    fn read(&self, _: File, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.1.set(self.1.get() + into.len());
        for (at, byte) in into.iter_mut().enumerate() {
            *byte = self.0.get(offset as usize + at).copied().unwrap_or(0);
        }
        Ok(())
    }

    fn write(&mut self, _: File, offset: u64, data: &[u8]) -> io::Result<()> {
        let last = offset as usize + data.len();
        self.0.resize(self.0.len().max(last), 0);
        self.0[offset as usize..last].copy_from_slice(data);
        Ok(())
    }

    fn zero(&mut self, _: Range, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self, _: File) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, _: File, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn size(&self, _: File) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

const SLOT: Slot = Slot {
    log: 9,
    base: 100,
    half: 4096,
};

/// Writes a batch of two operations; returns where the next one is.
fn append(memory: &mut Memory, generation: u64, number: u64, at: u64, first: u64) -> u64 {
    let change = |osn| Change {
        osn,
        range: Range::new(512 * (osn % 8), 700),
        kind: Kind::Write,
        data: Arc::new(vec![osn as u8; 700]),
    };
    let place = Place {
        log: SLOT.log,
        generation,
        number,
        at,
        first,
        last: first + 1,
    };
    let (bytes, _) = encode(&place, &[change(first), change(first + 1)]);
    memory.write(File::Log, at, &bytes).unwrap();
    at + bytes.len() as u64
}

#[test]
fn a_torn_batch_ends_the_log() {
    let geometry = Geometry::of_size(1 << 20);
    let mut memory = memory(SLOT.encode());
    let second = append(&mut memory, 0, 0, SLOT.start_of(0), 101);
    let end = append(&mut memory, 0, 1, second, 103);
    let found = load(&memory, &geometry).unwrap().unwrap();
    assert_eq!((found.last, found.entries.len(), found.at), (104, 4, end));
    let used = size_of(0, 0) as usize - 512 + HEADER + 2 * ENTRY + 1400;
    for at in (second as usize..second as usize + used).step_by(3) {
        memory.0[at] ^= 1;
        let found = load(&memory, &geometry).unwrap().unwrap();
        assert_eq!((found.last, found.entries.len()), (102, 2), "byte {at}");
        memory.0[at] ^= 1;
    }
}

#[test]
fn a_batch_before_another_is_not_torn_but_damaged() {
    let geometry = Geometry::of_size(1 << 20);
    let mut memory = memory(SLOT.encode());
    let mut at = SLOT.start_of(0);
    let second = append(&mut memory, 2, 0, at, 101);
    append(&mut memory, 2, 1, second, 103);
    for damaged in [at, second - 700] {
        memory.0[damaged as usize + 5] ^= 1;
        assert!(load(&memory, &geometry).unwrap().is_none());
        memory.0[damaged as usize + 5] ^= 1;
    }
    // What a half has of the generation before the other one's does not count.
    at = SLOT.start_of(1);
    append(&mut memory, 3, 0, at, 105);
    memory.0[SLOT.start_of(0) as usize + 5] ^= 1;
    let found = load(&memory, &geometry).unwrap().unwrap();
    assert_eq!((found.entries.len(), found.last), (2, 106));
}

#[test]
fn data_that_looks_like_batches_does_not_multiply_what_is_read() {
    let geometry = Geometry::of_size(1 << 20);
    let half: usize = 4 << 20;
    let slot = Slot {
        half: half as u64,
        ..SLOT
    };
    let mut memory = memory(slot.encode());
    let next = append(&mut memory, 0, 0, slot.start_of(0), 101);
    memory.0.resize(length_of(slot.half) as usize, 0);
    for at in (next as usize..slot.start_of(1) as usize).step_by(ALIGN as usize) {
        let count = (slot.start_of(1) as usize - at - HEADER) / ENTRY;
        memory.0[at..at + 8].copy_from_slice(&MAGIC);
        memory.0[at + 8..at + 16].copy_from_slice(&slot.log.to_le_bytes());
        memory.0[at + 56..at + 60].copy_from_slice(&(count as u32).to_le_bytes());
    }
    assert!(load(&memory, &geometry).unwrap().is_none());
    assert!(memory.1.get() < 8 * half, "{} bytes", memory.1.get());
}

#[test]
fn halves_follow_each_other() {
    let geometry = Geometry::of_size(1 << 20);
    let mut memory = memory(SLOT.encode());
    append(&mut memory, 1, 0, SLOT.start_of(1), 103);
    append(&mut memory, 2, 0, SLOT.start_of(0), 105);
    let found = load(&memory, &geometry).unwrap().unwrap();
    let order: Vec<u64> = found.entries.iter().map(|entry| entry.osn).collect();
    assert_eq!(order, [103, 104, 105, 106]);
    assert_eq!((found.generation, found.number, found.last), (2, 1, 106));
    // A gap: the end of the older one was damaged.
    append(&mut memory, 2, 0, SLOT.start_of(0), 107);
    assert!(load(&memory, &geometry).unwrap().is_none());
    // Of another log.
    memory.0[..512].copy_from_slice(&Slot { log: 10, ..SLOT }.encode());
    let found = load(&memory, &geometry).unwrap().unwrap();
    assert_eq!((found.entries.len(), found.last), (0, 100));
}
