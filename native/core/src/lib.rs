//! What is hot in mirrord, without I/O, so that each piece can be tested by itself.

pub mod bitmap;
pub mod checksum;
