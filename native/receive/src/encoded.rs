//! Decompression of encoded writes, for files and kernels that do not take compressed data.

use std::io::Read;

use crate::lzo;
use crate::sys::Encoding;

/// The most that btrfs compresses into one extent.
const UNENCODED_MAX: u64 = 128 << 10;
const ZLIB: u32 = 1;
const ZSTD: u32 = 2;
const LZO_4K: u32 = 3;
const LZO_64K: u32 = 7;

/// The lengths are possible, and the encoding is known.
pub fn check(encoding: &Encoding) -> Result<(), String> {
    let end = encoding.inner_offset.checked_add(encoding.file_length);
    if encoding.length > UNENCODED_MAX || end.is_none_or(|end| end > encoding.length) {
        return Err(format!(
            "an encoded write of {} bytes at {} of {} is not possible",
            encoding.file_length, encoding.inner_offset, encoding.length
        ));
    }
    if encoding.encryption != 0 {
        return Err("data is encrypted in an unknown way".into());
    }
    if encoding.compression > LZO_64K {
        return Err(format!("the unknown compression {}", encoding.compression));
    }
    Ok(())
}

/// The part of the data that belongs into the file. `encoding` was checked.
pub fn decode(encoding: &Encoding, data: &[u8]) -> Result<Vec<u8>, String> {
    check(encoding)?;
    // What the compressed data lacks at the end reads as zeros.
    let mut out = vec![0; encoding.length as usize];
    match encoding.compression {
        0 => {
            let length = data.len().min(out.len());
            out[..length].copy_from_slice(&data[..length]);
        }
        ZLIB => fill(flate2::read::ZlibDecoder::new(data), &mut out)?,
        ZSTD => zstd(data, &mut out)?,
        which => lzo_sectors(data, &mut out, 4096 << (which - LZO_4K))?,
    }
    let start = encoding.inner_offset as usize;
    out.drain(..start);
    out.truncate(encoding.file_length as usize);
    Ok(out)
}

fn fill(mut from: impl Read, out: &mut [u8]) -> Result<(), String> {
    let mut filled = 0;
    while filled < out.len() {
        match from.read(&mut out[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) => return Err(format!("compressed data is damaged: {error}")),
        }
    }
    Ok(())
}

fn zstd(data: &[u8], out: &mut [u8]) -> Result<(), String> {
    let damaged = |error: ruzstd::decoding::errors::FrameDecoderError| {
        format!("compressed data (zstd) is damaged: {error}")
    };
    let mut decoder = ruzstd::decoding::FrameDecoder::new();
    let mut rest = data;
    decoder.reset(&mut rest).map_err(damaged)?;
    // The decoder keeps as much as the window: that is the peer's choice.
    let window = zstd_window(data).unwrap_or(decoder.content_size());
    if window > UNENCODED_MAX {
        return Err(format!(
            "compressed data (zstd) has a window of {window} bytes"
        ));
    }
    let mut filled = 0;
    // The extent is padded after its frame; a block is at most as large as the window.
    while filled < out.len() {
        let some = ruzstd::decoding::BlockDecodingStrategy::UptoBlocks(1);
        let done = decoder.decode_blocks(&mut rest, some).map_err(damaged)?;
        loop {
            match decoder.read(&mut out[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) => return Err(format!("compressed data (zstd) is damaged: {error}")),
            }
        }
        if done {
            break;
        }
    }
    Ok(())
}

/// The size that the header of a frame gives (RFC 8878, 3.1.1.1); without it, that is the content's.
fn zstd_window(data: &[u8]) -> Option<u64> {
    let (descriptor, size) = (data.get(4)?, data.get(5)?);
    let base = 1u64 << (10 + (size >> 3));
    (descriptor & 0x20 == 0).then_some(base + base / 8 * u64::from(size & 7))
}

/// The total length, then segments with their length each; its field is not split over sectors.
fn lzo_sectors(data: &[u8], out: &mut [u8], sector: usize) -> Result<(), String> {
    const CUT: &str = "compressed data (lzo) is cut short";
    let word = |at: usize| -> Result<usize, String> {
        let bytes = data.get(at..at + 4).and_then(|four| four.try_into().ok());
        Ok(u32::from_le_bytes(bytes.ok_or(CUT)?) as usize)
    };
    let total = word(0)?;
    if total > data.len() {
        return Err(CUT.into());
    }
    let (mut at, mut filled) = (4, 0);
    while at < total && filled < out.len() {
        if sector - at % sector < 4 {
            at += sector - at % sector;
        }
        let length = word(at)?;
        at += 4;
        let segment = data.get(at..).and_then(|rest| rest.get(..length));
        let end = out.len().min(filled + sector);
        filled += lzo::decompress(segment.ok_or(CUT)?, &mut out[filled..end])?;
        at += length;
    }
    Ok(())
}
