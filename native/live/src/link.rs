//! The replica link's frames over a stream.

use crate::stream::Stream;
use mirrord_live_core::frame::{Frame, FrameError, Header, COMPRESSED, HEADER, PAYLOAD_MAX};
use std::sync::Arc;

/// Payloads that are worth the time, and do not take long.
const COMPRESSIBLE: std::ops::RangeInclusive<usize> = 256..=4 << 20;
/// Bytes that one byte of LZ4 stands for at most.
const RATIO_MAX: usize = 256;

/// Bytes of payloads, and what they were on the link.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    pub payload: u64,
    pub sent: u64,
}

/// Puts a frame into the stream's output.
pub fn send(stream: &mut Stream, frame: &Frame, compress: bool, traffic: &mut Traffic) {
    let packed = compress.then(|| pack(frame)).flatten();
    traffic.payload += frame.payload.len() as u64;
    let frame = packed.as_ref().unwrap_or(frame);
    traffic.sent += frame.payload.len() as u64;
    stream.output(&frame.header());
    if !frame.payload.is_empty() {
        stream.output_shared(frame.payload.clone());
    }
}

/// The frame with its payload compressed, if that makes it smaller.
fn pack(frame: &Frame) -> Option<Frame> {
    let length = frame.payload.len();
    if !COMPRESSIBLE.contains(&length) {
        return None;
    }
    let mut packed = vec![0; 4 + lz4_flex::block::get_maximum_output_size(length)];
    packed[..4].copy_from_slice(&(length as u32).to_le_bytes());
    let used = lz4_flex::block::compress_into(&frame.payload, &mut packed[4..]).ok()?;
    packed.truncate(4 + used);
    packed.shrink_to_fit();
    (packed.len() < length).then(|| Frame {
        flags: frame.flags | COMPRESSED,
        payload: Arc::new(packed),
        ..frame.clone()
    })
}

fn unpack(frame: Frame) -> Result<Frame, FrameError> {
    if frame.flags & COMPRESSED == 0 {
        return Ok(frame);
    }
    let Some((length, block)) = frame.payload.split_first_chunk::<4>() else {
        return Err(FrameError::Compression);
    };
    let length = u32::from_le_bytes(*length);
    if length > PAYLOAD_MAX {
        return Err(FrameError::Length(length));
    }
    if length as usize > block.len() * RATIO_MAX {
        return Err(FrameError::Compression);
    }
    let mut payload = vec![0; length as usize];
    let filled = lz4_flex::block::decompress_into(block, &mut payload);
    if filled.ok() != Some(payload.len()) {
        return Err(FrameError::Compression);
    }
    Ok(Frame {
        flags: frame.flags & !COMPRESSED,
        payload: Arc::new(payload),
        ..frame
    })
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
    let frame = unpack(header.complete(payload)?)?;
    stream.consume(HEADER + length);
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrord_live_core::frame::Class;
    use proptest::prelude::*;

    fn frame(payload: Vec<u8>) -> Frame {
        let mut frame = Frame::with_payload(Class::Write, 7, payload);
        frame.flags = 2;
        frame
    }

    #[test]
    fn what_gets_larger_is_sent_as_it_is() {
        let mut state = 1u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let noise: Vec<u8> = (0..4096).map(|_| next()).collect();
        assert!(pack(&frame(noise)).is_none());
        let packed = pack(&frame(vec![7; 4096])).unwrap();
        assert!(packed.payload.len() < 100);
        let read = unpack(packed).unwrap();
        assert_eq!((read.flags, &read.payload[..]), (2, &[7; 4096][..]));
    }

    #[test]
    fn a_length_is_refused_before_memory_is_taken_for_it() {
        for (length, problem) in [
            (PAYLOAD_MAX + 1, FrameError::Length(PAYLOAD_MAX + 1)),
            (PAYLOAD_MAX, FrameError::Compression),
            (4095, FrameError::Compression),
        ] {
            let mut packed = pack(&frame(vec![7; 4096])).unwrap();
            let mut payload = packed.payload.to_vec();
            payload[..4].copy_from_slice(&length.to_le_bytes());
            packed.payload = Arc::new(payload);
            assert_eq!(unpack(packed).unwrap_err(), problem);
        }
    }

    proptest! {
        #[test]
        fn payloads_survive(payload in proptest::collection::vec(0u8..4, 0..9000)) {
            let sent = frame(payload);
            let packed = pack(&sent).unwrap_or(sent.clone());
            prop_assert_eq!(unpack(packed).unwrap().payload, sent.payload);
        }

        #[test]
        fn garbage_is_refused(garbage in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut sent = frame(garbage);
            sent.flags |= COMPRESSED;
            if let Ok(read) = unpack(sent) {
                prop_assert!(read.payload.len() <= 300 * RATIO_MAX);
            }
        }
    }
}
