//! Applies a btrfs send stream to a staging folder: confined, with checkpoints.
//!
//! docs/btrfs-receiver.md describes how it works and why it can be trusted.
#![deny(unsafe_code)]

pub mod apply;
pub mod base;
pub mod checkpoint;
pub mod command;
pub mod confine;
pub mod encoded;
pub mod failure;
pub mod file;
pub mod lzo;
pub mod options;
pub mod session;
pub mod stream;
pub mod sys;
pub mod tree;
