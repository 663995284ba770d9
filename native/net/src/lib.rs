//! The bytes of a link between two hosts. Nothing here knows Python: it runs without its lock.

#![deny(unsafe_code)]

pub mod frames;
pub mod gate;
pub mod inlet;
pub mod outlet;
pub mod pace;
pub mod pipe;
pub mod routes;
pub mod sample;
pub mod stream;
pub mod tls;
