//! The performance-critical parts of mirrord, without I/O, so that each can be tested separately.

pub mod bitmap;
pub mod btrfs_blocks;
pub mod btrfs_changes;
pub mod btrfs_rewrite;
pub mod btrfs_search;
pub mod btrfs_stream;
pub mod checksum;
pub mod modes;
pub mod msgpack;
pub mod pointers;
pub mod prefix_digest;
#[cfg(test)]
mod properties;
pub mod replay;
pub mod ring_buffer;
pub mod trace;
pub mod verify;
pub mod zfs_ranges;
pub mod zfs_stream;
