//! The tracking file of a new end, and the changes of role that happen while nothing runs.

use crate::io::{Backend, File};
use crate::layout;
use crate::record::{Record, SLOT};
use crate::tracker::Tracker;
use crate::types::{BootId, Phase, Role};
use std::io;

/// Writes a new tracking file. Every block of a primary that is not in sync has yet to be copied.
pub fn format(backend: &mut dyn Backend, record: &Record) -> io::Result<()> {
    let mut tracker = Tracker::new(record.geometry);
    if record.role == Role::Primary && !record.synced {
        tracker.outdate_all();
    }
    for (at, page) in tracker.checkpoint() {
        backend.write(File::Tracking, at, &page)?;
    }
    for index in 0..layout::map_pages(&record.geometry) {
        let (at, page) = tracker.map_page(index);
        backend.write(File::Tracking, at, &page)?;
    }
    backend.write(File::Tracking, layout::record_offset(1), &vec![0; SLOT])?;
    backend.sync(File::Tracking)?;
    let at = layout::record_offset(record.serial);
    backend.write(File::Tracking, at, &record.encode())?;
    backend.sync(File::Tracking)
}

/// The record of an end.
pub fn read_record(backend: &dyn Backend) -> io::Result<Record> {
    let mut slots = vec![0; 2 * SLOT];
    backend.read(File::Tracking, 0, &mut slots)?;
    let (first, second) = slots.split_at(SLOT);
    let invalid = |problem| io::Error::new(io::ErrorKind::InvalidData, problem);
    Record::newest(first, second).map_err(invalid)
}

fn write_record(backend: &mut dyn Backend, record: &mut Record) -> io::Result<()> {
    record.serial += 1;
    let at = layout::record_offset(record.serial);
    backend.write(File::Tracking, at, &record.encode())?;
    backend.sync(File::Tracking)
}

/// Stores the blocks of the tracked extents in the map of an end that was in sync: until now what
/// the map has on disk did not count.
fn store_map(backend: &mut dyn Backend, record: &Record) -> io::Result<()> {
    if !record.synced {
        return Ok(());
    }
    let tracker = Tracker::load(record.geometry, backend, false)?;
    for index in 0..layout::map_pages(&record.geometry) {
        let (at, page) = tracker.map_page(index);
        backend.write(File::Tracking, at, &page)?;
    }
    backend.sync(File::Tracking)
}

/// A fenced primary becomes the secondary: its changes since the roles parted will be overwritten.
/// Until the resync is complete its image is what it was when it was fenced.
pub fn become_secondary(backend: &mut dyn Backend) -> io::Result<()> {
    backend.sync(File::Tracking)?;
    let mut record = read_record(backend)?;
    if record.role != Role::Fenced {
        return Err(io::Error::other(format!(
            "only a fenced end can become the secondary; this one is {}",
            record.role.name()
        )));
    }
    store_map(backend, &record)?;
    record.role = Role::Secondary;
    record.phase = Phase::Consistent;
    record.synced = false;
    record.bounded = false;
    record.unfenced = false;
    record.diverged = true;
    // It has not what was acknowledged at the other end.
    record.since = 0;
    write_record(backend, &mut record)
}

/// A fenced primary takes its role back, with an epoch above the one that fenced it: the other
/// end's changes will be overwritten once that end is the secondary.
pub fn reclaim(backend: &mut dyn Backend, boot: BootId) -> io::Result<()> {
    backend.sync(File::Tracking)?;
    let mut record = read_record(backend)?;
    if record.role != Role::Fenced {
        return Err(io::Error::other(format!(
            "only a fenced end can be reclaimed; this one is {}",
            record.role.name()
        )));
    }
    record.role = Role::Primary;
    record.epoch += 1;
    store_map(backend, &record)?;
    record.synced = false;
    record.bounded = false;
    record.unfenced = true;
    record.diverged = true;
    record.boot = boot;
    write_record(backend, &mut record)
}
