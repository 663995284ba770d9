//! Where things are in the tracking file: two record slots, two halves of the activity log, the map.

use crate::activity;
use crate::record::SLOT;
use crate::types::Geometry;

pub const PAGE: usize = 4096;

pub fn record_offset(serial: u64) -> u64 {
    serial % 2 * SLOT as u64
}

/// Where a half of the activity log begins.
pub fn activity_offset(geometry: &Geometry, half: u64) -> u64 {
    2 * SLOT as u64 + half % 2 * u64::from(activity::pages(geometry)) * PAGE as u64
}

pub fn map_offset(geometry: &Geometry) -> u64 {
    2 * SLOT as u64 + 2 * u64::from(activity::pages(geometry)) * PAGE as u64
}

pub fn map_pages(geometry: &Geometry) -> u64 {
    geometry.blocks().div_ceil(PAGE as u64 * 8)
}

/// Bytes of the tracking file.
pub fn length(geometry: &Geometry) -> u64 {
    map_offset(geometry) + map_pages(geometry) * PAGE as u64
}
