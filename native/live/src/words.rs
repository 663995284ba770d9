//! The arguments of commands and of settings.

use mirrord_live_core::types::{Time, Window, SECOND};

/// The largest window: the primary keeps these writes in memory.
const WINDOW_MAX: u64 = 1 << 30;

/// Bytes a second; nothing or 0: no limit.
pub fn rate(argument: &str) -> Result<u64, String> {
    match argument.trim() {
        "" => Ok(0),
        text => text
            .parse()
            .map_err(|_| format!("{text}: not a number of bytes a second")),
    }
}

/// `on` or `off`.
pub fn is_on(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text}: neither on nor off")),
    }
}

/// The window of semi-sync: bytes, or seconds with an `s`, of which there is a limit in bytes, too.
pub fn window_of(text: &str) -> Option<Window> {
    let (bytes, seconds) = match text.strip_suffix('s') {
        Some(seconds) => (None, Some(seconds.parse::<f64>().ok()?)),
        None => (Some(text.parse::<u64>().ok()?), None),
    };
    let seconds = seconds.filter(|value| value.is_finite() && *value >= 0.0 && *value < 1e9);
    let time = match (bytes, seconds) {
        (Some(_), _) => Time::MAX,
        (None, Some(seconds)) => (seconds * SECOND as f64) as Time,
        _ => return None,
    };
    let bytes = bytes.unwrap_or(WINDOW_MAX).min(WINDOW_MAX);
    Some(Window { bytes, time })
}

/// How long a write may wait before more of the window is used, and how much is used now.
pub fn within_of(text: &str) -> Option<(Time, Option<u64>)> {
    let (within, limit) = text.split_once(' ').unwrap_or((text, ""));
    let limit = match limit.trim() {
        "" => None,
        bytes => Some(bytes.parse().ok()?),
    };
    Some((within.parse().ok()?, limit))
}

/// How long to wait, from milliseconds.
pub fn patience_of(text: &str) -> Option<Time> {
    let milliseconds: Time = text.parse().ok()?;
    milliseconds.checked_mul(SECOND / 1000)
}
