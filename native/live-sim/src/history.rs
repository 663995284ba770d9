//! What the client did, and which images may be found after it.
//!
//! Each write fills its sectors with a number of its own; 0 is the initial content and what a
//! TRIM leaves. An image may hold, in a sector, any write that no *secured* write has followed:
//! one that started after the other was over. What counts as secured is the caller's question:
//! acknowledged writes (P1), flushed writes (P1 after two power cuts), or those flushed before a
//! write that is in the image (P3).

use crate::disk::SECTOR;

pub type Clock = u64;

#[derive(Clone, Debug)]
pub struct Written {
    pub request: u64,
    /// What its sectors hold.
    pub content: u64,
    pub start: Clock,
    /// When it was acknowledged, or its fate decided by a crash.
    pub closed: Option<Clock>,
    pub acknowledged: bool,
    /// By the primary's clock, in seconds.
    pub answered: u64,
    /// Both ends lost their memory: only a flush protects it.
    pub exposed: bool,
    pub flushed: Option<Clock>,
    /// A recovery showed that it did not happen.
    pub discarded: bool,
}

#[derive(Clone, Debug)]
pub struct History {
    sectors: Vec<Vec<Written>>,
    now: Clock,
}

/// Which writes an image has to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secured {
    Acknowledged,
    Flushed,
    /// Flushed before any write that is in the image started.
    Barriers,
    /// Acknowledged before this second of the primary's clock.
    Until(u64),
}

fn content_of(sector: &[u8]) -> Option<u64> {
    let words = sector.chunks_exact(8).map(|word| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        u64::from_le_bytes(bytes)
    });
    let mut words = words.peekable();
    let first = *words.peek()?;
    words.all(|word| word == first).then_some(first)
}

impl History {
    pub fn new(size: u64) -> Self {
        let initial = Written {
            request: 0,
            content: 0,
            start: 0,
            closed: Some(0),
            acknowledged: true,
            answered: 0,
            exposed: false,
            flushed: Some(0),
            discarded: false,
        };
        History {
            sectors: vec![vec![initial]; size as usize / SECTOR],
            now: 1,
        }
    }

    fn tick(&mut self) -> Clock {
        self.now += 1;
        self.now
    }

    pub fn start(&mut self, request: u64, offset: u64, length: u64, content: u64) {
        let start = self.tick();
        let first = offset as usize / SECTOR;
        for sector in &mut self.sectors[first..first + length as usize / SECTOR] {
            sector.push(Written {
                request,
                content,
                start,
                closed: None,
                acknowledged: false,
                answered: 0,
                exposed: false,
                flushed: None,
                discarded: false,
            });
        }
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Written> {
        self.sectors.iter_mut().flatten()
    }

    pub fn end(&mut self, request: u64, is_good: bool, wall: u64) {
        let now = self.tick();
        for write in self.each().filter(|write| write.request == request) {
            write.answered = wall;
            write.acknowledged = is_good;
            // A failed write may still take effect, as long as its request was not closed.
            write.closed = Some(now);
        }
    }

    /// The instant at which a flush is issued.
    pub fn start_flush(&mut self) -> Clock {
        self.tick()
    }

    pub fn end_flush(&mut self, start: Clock) {
        let now = self.tick();
        for write in self.each() {
            let is_before = write.closed.is_some_and(|closed| closed < start);
            if write.acknowledged && is_before && !write.exposed && write.flushed.is_none() {
                write.flushed = Some(now);
            }
        }
    }

    /// A write with FUA was acknowledged.
    pub fn end_fua(&mut self, request: u64) {
        let now = self.now;
        for write in self.each().filter(|write| write.request == request) {
            write.flushed = Some(now);
        }
    }

    /// The client's connections are gone: what was not answered never will be.
    pub fn close(&mut self) {
        let now = self.tick();
        for write in self.each().filter(|write| write.closed.is_none()) {
            write.closed = Some(now);
        }
    }

    /// Unflushed writes have no copy that is known to be kept.
    pub fn expose(&mut self) {
        for write in self.each().filter(|write| write.flushed.is_none()) {
            write.exposed = true;
        }
    }

    /// Nothing of what was not in the image happened.
    pub fn settle(&mut self, image: &[u8]) {
        for (sector, bytes) in self.sectors.iter_mut().zip(image.chunks(SECTOR)) {
            let content = content_of(bytes);
            let found = sector.iter().filter(|write| Some(write.content) == content);
            let over = found.map(|write| write.closed.unwrap_or(Clock::MAX)).max();
            let over = over.unwrap_or(Clock::MAX);
            for write in sector.iter_mut() {
                let is_found = Some(write.content) == content;
                let is_lost = write.exposed && write.flushed.is_none();
                if is_found {
                    write.exposed = false;
                } else if write.closed.is_some() && (!write.acknowledged || is_lost) {
                    // Had it happened, what was over before it started would not be there. One
                    // that was under way at the same time may have been overwritten.
                    write.discarded |= write.start > over;
                    write.acknowledged = false;
                }
            }
        }
    }

    /// Another end's image is the truth now: what it lacks is gone.
    pub fn adopt(&mut self, image: &[u8]) {
        let now = self.tick();
        for (sector, bytes) in self.sectors.iter_mut().zip(image.chunks(SECTOR)) {
            let content = content_of(bytes);
            // After roles parted twice it may be a write of the other lineage.
            let mut kept = sector[0].clone();
            kept.content = content.unwrap_or(0);
            kept.request = 0;
            kept.start = now;
            kept.closed = Some(now);
            kept.acknowledged = true;
            kept.exposed = false;
            kept.flushed = Some(now);
            kept.discarded = false;
            *sector = vec![kept];
        }
    }

    fn is_secured(write: &Written, secured: Secured, newest: Clock) -> bool {
        match secured {
            Secured::Acknowledged => {
                write.acknowledged && (!write.exposed || write.flushed.is_some())
            }
            Secured::Until(wall) => {
                let is_kept = Self::is_secured(write, Secured::Acknowledged, newest);
                is_kept && write.answered < wall
            }
            Secured::Flushed => write.flushed.is_some(),
            Secured::Barriers => write.flushed.is_some_and(|flushed| flushed < newest),
        }
    }

    /// What is wrong with an image; None if nothing is. `lineage`: it is the served image, so
    /// that discarded writes must stay away.
    pub fn check(&self, image: &[u8], secured: Secured, lineage: bool) -> Option<String> {
        let mut newest = 0;
        let mut found = Vec::new();
        for (number, (sector, bytes)) in self.sectors.iter().zip(image.chunks(SECTOR)).enumerate() {
            let Some(content) = content_of(bytes) else {
                return Some(format!("sector {number} is torn within itself"));
            };
            let same: Vec<&Written> = sector
                .iter()
                .filter(|write| write.content == content)
                .collect();
            let Some(oldest) = same.iter().map(|write| write.start).min() else {
                return Some(format!(
                    "sector {number} holds {content}, which nobody wrote"
                ));
            };
            newest = newest.max(oldest);
            found.push((number, sector, same));
        }
        for (number, sector, same) in found {
            let is_allowed = same.iter().any(|write| {
                let is_late = lineage && write.discarded;
                let followed = sector.iter().any(|other| {
                    write.closed.is_some_and(|closed| closed < other.start)
                        && Self::is_secured(other, secured, newest)
                });
                !is_late && !followed
            });
            if !is_allowed {
                return Some(format!(
                    "sector {number} holds {}, but {secured:?} writes followed it: {:?}",
                    same[0].content,
                    sector
                        .iter()
                        .filter(|other| other.start > same[0].start)
                        .map(|other| (other.content, other.acknowledged, other.flushed))
                        .collect::<Vec<_>>()
                ));
            }
        }
        None
    }
}
