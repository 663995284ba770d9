//! Synchronous mirroring of one image between two hosts.
//!
//! Nothing here touches a file, a socket, a clock or a thread. Each end is a state machine: the
//! driver (the process, or the simulation) passes it events and executes the actions that come
//! back. docs/design-live.md has the states, the frames, the records on disk and the proofs.

pub mod activity;
pub mod bits;
pub mod digest;
pub mod fault;
pub mod frame;
pub mod hello;
pub mod io;
pub mod journal;
pub mod latency;
pub mod layout;
pub mod locks;
pub mod primary;
pub mod rate;
pub mod record;
pub mod redo;
pub mod replica;
pub mod setup;
pub mod side;
pub mod tracker;
pub mod types;
