//! The replica link's frames over a stream.

use crate::stream::Stream;
use mirrord_live_core::frame::{Frame, FrameError, Header, HEADER};

/// Puts a frame into the stream's output.
pub fn send(stream: &mut Stream, frame: &Frame) {
    stream.output(&frame.header());
    if !frame.payload.is_empty() {
        stream.output_shared(frame.payload.clone());
    }
}

/// The next complete frame of the stream's input.
pub fn receive(stream: &mut Stream) -> Result<Option<Frame>, FrameError> {
    let input = stream.input();
    let Some(head) = input.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let header = Header::parse(head)?;
    let length = header.payload_length;
    if input.len() < HEADER + length {
        return Ok(None);
    }
    let payload = input[HEADER..HEADER + length].to_vec();
    let frame = header.complete(payload)?;
    stream.consume(HEADER + length);
    Ok(Some(frame))
}
