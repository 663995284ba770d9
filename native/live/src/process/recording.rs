//! Recordings of the data path (live-core/src/primary/recording.rs): one at a time, fetched by
//! commands.

use super::{Conn, Process};
use crate::control::outcome;
use crate::machine::Machine;
use mirrord_live_core::primary::{MAGIC, RECORD};
use mirrord_live_core::types::{Time, SECOND};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of one answer.
const PIECE: usize = 1 << 20;
/// A recording that nobody fetches for so long ends.
const PATIENCE: Time = 60 * SECOND;

#[derive(Default)]
pub(super) struct Recorder {
    /// What comes before what the state machine has, or of a recording that was ended.
    rest: Vec<u8>,
    /// When it was last fetched.
    fetched: Time,
}

impl Process {
    /// The answer, unless it was given.
    pub(crate) fn recording_command(&mut self, key: usize, name: &str) -> Option<String> {
        let now = self.now();
        let size = self.size;
        let Machine::Primary(primary) = &mut self.machine else {
            return None;
        };
        let is_recording = primary.is_recording();
        match name {
            "record" if is_recording => {
                return Some(outcome(Err("a recording is under way already".into())));
            }
            "record" => {
                primary.begin_recording();
                self.recorder = Recorder {
                    rest: header(now, size),
                    fetched: now,
                };
            }
            "recorded" if !is_recording && self.recorder.rest.is_empty() => {
                return Some(outcome(Err("nothing is recorded".into())));
            }
            "recorded" => {
                let piece = if self.recorder.rest.is_empty() {
                    primary.recorded(PIECE)
                } else {
                    let length = self.recorder.rest.len().min(PIECE);
                    self.recorder.rest.drain(..length).collect()
                };
                self.recorder.fetched = now;
                let line = format!("{{\"ok\": true, \"bytes\": {}}}", piece.len());
                self.answer(key, &line);
                if let Some(Conn::Control(stream)) = self.conns.get_mut(&key) {
                    stream.output(&piece);
                }
                return None;
            }
            _ => {
                let left = primary.end_recording();
                self.recorder.rest.extend_from_slice(&left);
            }
        }
        Some(outcome(Ok(())))
    }

    /// Ends a recording whose recorder is gone.
    pub(super) fn check_recording(&mut self) {
        let now = self.now();
        let is_left = now.saturating_sub(self.recorder.fetched) > PATIENCE;
        if let Machine::Primary(primary) = &mut self.machine {
            if is_left && primary.is_recording() {
                primary.end_recording();
                self.recorder = Recorder::default();
                self.log("the recording ended: nobody fetched it for a minute".into());
            }
        }
    }
}

/// What a recording begins with: when its time 0 was, in nanoseconds since 1970, and the bytes of
/// the image.
fn header(now: Time, size: u64) -> Vec<u8> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let wall = since.map_or(0, |since| since.as_nanos() as u64);
    let mut header = vec![0; RECORD];
    header[..16].copy_from_slice(MAGIC);
    header[16..24].copy_from_slice(&wall.saturating_sub(now * 1000).to_le_bytes());
    header[24..32].copy_from_slice(&size.to_le_bytes());
    header
}
