//! Two ends of a live mirror in virtual time: their disks lose what was not synced, the network
//! drops and corrupts, processes are killed. Each run is decided by a seed, and one that violates
//! a property is reduced to the operations that it needs.

pub mod disk;
pub mod exhaustive;
pub mod history;
mod kinds;
pub mod plan;
pub mod rng;
pub mod shrink;
pub mod world;

use disk::Disk;
use mirrord_live_core::io::{Backend, File};
use mirrord_live_core::redo::{self, Kind};
use mirrord_live_core::setup;
use mirrord_live_core::side;
use mirrord_live_core::types::Phase;

/// The redo log that a secondary's record names, unless a part of its file is lost.
pub fn complete_log(disk: &Disk) -> Option<redo::Found> {
    let record = setup::read_record(disk).ok()?;
    let log = redo::load(disk, &record.geometry).ok()??;
    let length = disk.contents(File::Log).len() as u64;
    let is_complete = length >= redo::length_of(log.slot.half);
    (is_complete && log.slot.log == record.log).then_some(log)
}

/// The image that a break would serve from a secondary's disk; None before the initial copy is
/// complete.
pub fn consistent_image(disk: &Disk) -> Option<Vec<u8>> {
    let record = setup::read_record(disk).ok()?;
    let mut image = disk.contents(File::Image).to_vec();
    let log = complete_log(disk);
    if record.log != 0 && log.is_none() {
        return None;
    }
    for entry in log.into_iter().flat_map(|log| log.entries) {
        let (first, last) = (entry.range.offset as usize, entry.range.end() as usize);
        match entry.kind {
            Kind::Write => disk
                .read(File::Log, entry.at, &mut image[first..last])
                .ok()?,
            _ => image[first..last].fill(0),
        }
    }
    match record.phase {
        Phase::Empty => return None,
        Phase::Consistent => {}
        Phase::Resync => {
            let saved = side::load(disk, &record.geometry, record.side).ok()??;
            for entry in saved.entries.into_iter().rev() {
                let (first, last) = (entry.range.offset as usize, entry.range.end() as usize);
                disk.read(File::Side, entry.at, &mut image[first..last])
                    .ok()?;
            }
        }
    }
    Some(image)
}
