//! What both ends agree on: sizes, identities, modes.

use std::sync::Arc;

/// Microseconds of a monotonic clock.
pub type Time = u64;

pub const SECOND: Time = 1_000_000;

/// The stable copy of a write: checksum, local write and frame share it.
pub type Payload = Arc<Vec<u8>>;

/// A kernel's boot: what was written under one boot is still in that kernel's memory.
pub type BootId = [u8; 16];

/// The number that a client's request carries until it is answered.
pub type RequestId = u64;

/// The sizes that a mirror's tracking is laid out by. They never change during its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the image.
    pub size: u64,
    /// Bytes of one bit of the change map.
    pub block: u32,
    /// Bytes of one extent of the activity log.
    pub extent: u32,
    /// How many extents can be tracked at a time.
    pub hot: u32,
}

impl Geometry {
    /// 4 KiB blocks, extents of 1 MiB, 4,096 of them.
    pub fn of_size(size: u64) -> Self {
        Geometry {
            size,
            block: 4096,
            extent: 1 << 20,
            hot: 4096,
        }
    }

    pub fn is_valid(&self) -> bool {
        self.size > 0
            && self.block.is_power_of_two()
            && (512..=1 << 20).contains(&self.block)
            && self.extent.is_power_of_two()
            && self.extent >= self.block
            && self.extent <= 1 << 26
            && (2..=1 << 16).contains(&self.hot)
            && self.size.div_ceil(u64::from(self.extent)) < 1 << 31
    }

    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(u64::from(self.block))
    }

    pub fn extents(&self) -> u64 {
        self.size.div_ceil(u64::from(self.extent))
    }

    pub fn blocks_of_extent(&self) -> u64 {
        u64::from(self.extent / self.block)
    }

    /// The blocks that a range touches.
    pub fn blocks_of(&self, range: Range) -> std::ops::Range<u64> {
        let block = u64::from(self.block);
        range.offset / block..range.end().div_ceil(block)
    }

    /// The blocks that a range covers completely. The image's last block may be short.
    pub fn blocks_within(&self, range: Range) -> std::ops::Range<u64> {
        let block = u64::from(self.block);
        let first = range.offset.div_ceil(block);
        let last = if range.end() == self.size {
            self.blocks()
        } else {
            range.end() / block
        };
        first..last.max(first)
    }

    pub fn extents_of(&self, range: Range) -> std::ops::Range<u32> {
        let extent = u64::from(self.extent);
        (range.offset / extent) as u32..range.end().div_ceil(extent) as u32
    }

    /// The bytes of the image that a run of blocks stands for.
    pub fn range_of(&self, blocks: std::ops::Range<u64>) -> Range {
        let block = u64::from(self.block);
        let offset = blocks.start * block;
        let end = (blocks.end * block).min(self.size);
        Range {
            offset,
            length: end.saturating_sub(offset) as u32,
        }
    }

    pub fn contains(&self, range: Range) -> bool {
        range.length > 0 && range.offset < self.size && range.end() <= self.size
    }
}

/// Bytes of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    pub offset: u64,
    pub length: u32,
}

impl Range {
    pub fn new(offset: u64, length: u32) -> Self {
        Range { offset, length }
    }

    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }
}

/// Why a request was refused or failed, as NBD numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Permission = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    Shutdown = 108,
}

impl Failure {
    pub fn from_code(code: u32) -> Option<Failure> {
        Some(match code {
            1 => Failure::Permission,
            5 => Failure::Io,
            22 => Failure::Invalid,
            28 => Failure::NoSpace,
            108 => Failure::Shutdown,
            _ => return None,
        })
    }
}

/// What a write has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Changes are tracked; nothing is sent.
    Async = 0,
    /// Both ends have a write before it is acknowledged; a lost replica is left behind.
    Sync = 1,
    /// As `Sync`, but writes fail instead of leaving the replica behind.
    Strict = 2,
    /// The replica may be behind by a window; it has a prefix of the writes at every instant.
    Semi = 3,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Async, Mode::Semi, Mode::Sync, Mode::Strict];

    pub fn from_code(code: u8) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| *mode as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Mode::Async => "async",
            Mode::Sync => "sync",
            Mode::Strict => "strict-sync",
            Mode::Semi => "semi-sync",
        }
    }

    pub fn named(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// What an end may do with its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Primary = 1,
    Secondary = 2,
    /// A primary that met a higher epoch: it serves nobody until it becomes a secondary.
    Fenced = 3,
}

impl Role {
    pub fn from_code(code: u8) -> Option<Role> {
        [Role::Primary, Role::Secondary, Role::Fenced]
            .into_iter()
            .find(|role| *role as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Role::Primary => "primary",
            Role::Secondary => "secondary",
            Role::Fenced => "fenced",
        }
    }
}

/// What a secondary's image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Never completely copied: there is no consistent image.
    Empty = 0,
    /// The image is that of a disk after a power cut, or better.
    Consistent = 1,
    /// Being overwritten; the side file has what leads back to the consistent image.
    Resync = 2,
}

impl Phase {
    pub fn from_code(code: u8) -> Option<Phase> {
        [Phase::Empty, Phase::Consistent, Phase::Resync]
            .into_iter()
            .find(|phase| *phase as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Phase::Empty => "empty",
            Phase::Consistent => "consistent",
            Phase::Resync => "resync",
        }
    }
}

/// How far the replica may be behind in `semi-sync`: both limits hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bytes of acknowledged writes.
    pub bytes: u64,
    /// From when the oldest of them was issued until the last one was acknowledged.
    pub time: Time,
}

/// Limits and times of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long acknowledgements are held after the link was last heard.
    pub hold: Time,
    /// How often an idle link is asked for a sign of life.
    pub heartbeat: Time,
    /// How long a silent link counts as up.
    pub timeout: Time,
    /// Bytes sent and not yet written at the other end, of clients' writes.
    pub window: u64,
    /// The same, of copies: this is the share of the link that a resync always has.
    pub copy_window: u64,
    /// Bytes of one copy.
    pub copy_chunk: u32,
    /// Bytes a second of a resync; 0: no limit.
    pub copy_rate: u64,
    /// A limit below it does not count, so that a resync always ends.
    pub copy_rate_min: u64,
    /// How often what was written is made durable at both ends.
    pub barrier: Time,
    /// How long to wait before another resync after one that failed.
    pub retry: Time,
    /// Changed pages of the map that are saved together.
    pub pages: usize,
    /// The limit of `semi-sync`.
    pub semi: Window,
    /// How long a write may wait in `semi-sync` before more of it is used; 0: all of it is.
    pub within: Time,
    /// Bytes of the redo log.
    pub log: u64,
    /// In `semi-sync`, repeated writes of one place are merged in what waits for the link while
    /// more than `merge_above` bytes are not acknowledged: so many are under way at a time.
    pub merge: bool,
    pub merge_above: u64,
    /// Bytes of the writes that become one unit by that.
    pub unit: u64,
    /// Payloads are compressed where no client waits for the other end.
    pub compress: bool,
    /// In sync a write is answered when it is durable at both ends.
    pub durable: bool,
}

impl Settings {
    pub fn effective_copy_rate(&self) -> u64 {
        match self.copy_rate {
            0 => 0,
            rate => rate.max(self.copy_rate_min),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            hold: 30 * SECOND,
            heartbeat: SECOND,
            timeout: 5 * SECOND,
            window: 64 << 20,
            copy_window: 8 << 20,
            copy_chunk: 256 << 10,
            copy_rate: 0,
            copy_rate_min: 1 << 20,
            barrier: SECOND,
            retry: 5 * SECOND,
            pages: 64,
            semi: Window {
                bytes: 16 << 20,
                time: Time::MAX,
            },
            within: 0,
            log: 256 << 20,
            merge: true,
            merge_above: 10_000_000,
            unit: 4 << 20,
            compress: true,
            durable: false,
        }
    }
}
