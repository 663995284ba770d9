//! The state machine of the role that this end has.

use mirrord_live_core::frame::Frame;
use mirrord_live_core::hello::Hello;
use mirrord_live_core::io::{Action, Backend, Outcome, Token};
use mirrord_live_core::primary::{self, Primary};
use mirrord_live_core::replica::{self, Replica};
use mirrord_live_core::setup;
use mirrord_live_core::types::{BootId, Role, Settings, Time};
use std::io;

pub enum Machine {
    Primary(Box<Primary>),
    Replica(Box<Replica>),
    Fenced(Hello),
}

impl Machine {
    pub fn open(
        backend: &dyn Backend,
        boot: BootId,
        settings: Settings,
        out: &mut Vec<Action>,
    ) -> io::Result<Machine> {
        let record = setup::read_record(backend)?;
        Ok(match record.role {
            Role::Primary => {
                let opened = Primary::open(record, boot, settings, backend, None, out)?;
                Machine::Primary(Box::new(opened))
            }
            Role::Secondary => {
                let opened = Replica::open(record, boot, settings, backend, None, out)?;
                Machine::Replica(Box::new(opened))
            }
            Role::Fenced => Machine::Fenced(Hello::of(&record, false)),
        })
    }

    pub fn done(&mut self, now: Time, token: Token, outcome: Outcome, out: &mut Vec<Action>) {
        match self {
            Machine::Primary(it) => it.step(now, primary::Event::Done { token, outcome }, out),
            Machine::Replica(it) => it.step(now, replica::Event::Done { token, outcome }, out),
            Machine::Fenced(_) => {}
        }
    }

    pub fn tick(&mut self, now: Time, wall: u64, out: &mut Vec<Action>) {
        match self {
            Machine::Primary(it) => it.step(now, primary::Event::Tick { wall }, out),
            Machine::Replica(it) => it.step(now, replica::Event::Tick { wall }, out),
            Machine::Fenced(_) => {}
        }
    }

    /// Clients are answered when this end's image has a write; the other end gets it later.
    pub fn answers_alone(&self) -> bool {
        matches!(self, Machine::Primary(it) if it.answers_alone())
    }

    /// When time has to pass for the window of semi-sync.
    pub fn due(&self) -> Option<Time> {
        match self {
            Machine::Primary(it) => it.grows_at(),
            _ => None,
        }
    }

    pub fn connected(&mut self, now: Time, out: &mut Vec<Action>) {
        match self {
            Machine::Primary(it) => it.step(now, primary::Event::Connected, out),
            Machine::Replica(it) => it.step(now, replica::Event::Connected, out),
            Machine::Fenced(_) => {}
        }
    }

    pub fn disconnected(&mut self, now: Time, out: &mut Vec<Action>) {
        match self {
            Machine::Primary(it) => it.step(now, primary::Event::Disconnected, out),
            Machine::Replica(it) => it.step(now, replica::Event::Disconnected, out),
            Machine::Fenced(_) => {}
        }
    }

    pub fn frame(&mut self, now: Time, frame: Frame, out: &mut Vec<Action>) {
        match self {
            Machine::Primary(it) => it.step(now, primary::Event::Frame(frame), out),
            Machine::Replica(it) => it.step(now, replica::Event::Frame(frame), out),
            Machine::Fenced(_) => {}
        }
    }

    pub fn hello(&self) -> Hello {
        match self {
            Machine::Primary(it) => it.hello(),
            Machine::Replica(it) => it.hello(),
            Machine::Fenced(hello) => hello.clone(),
        }
    }
}
