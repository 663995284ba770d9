//! Where the frames of a session's streams go that need no one but their stream: data and credit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::frames::{Fault, Frame};
use crate::inlet::Inlet;
use crate::outlet::Outlet;
use crate::stream::{CREDIT, DATA};

#[derive(Clone, Default)]
struct Route {
    inlet: Option<Arc<Inlet>>,
    outlet: Option<Arc<Outlet>>,
}

#[derive(Default)]
pub struct Routes(Mutex<HashMap<u32, Route>>);

impl Routes {
    fn known(&self) -> MutexGuard<'_, HashMap<u32, Route>> {
        self.0.lock().expect("the session is usable")
    }

    /// From now on the data of that stream goes there.
    pub fn add_inlet(&self, stream: u32, inlet: Arc<Inlet>) {
        self.known().entry(stream).or_default().inlet = Some(inlet);
    }

    /// From now on the credit of that stream goes there.
    pub fn add_outlet(&self, stream: u32, outlet: Arc<Outlet>) {
        self.known().entry(stream).or_default().outlet = Some(outlet);
    }

    pub fn remove(&self, stream: u32) {
        self.known().remove(&stream);
    }

    /// Deliver a frame that has a route; one that has none is returned.
    pub fn deliver(&self, frame: Frame) -> Result<Option<Frame>, Fault> {
        if ![DATA, CREDIT].contains(&frame.kind) {
            return Ok(Some(frame));
        }
        let route = self.known().get(&frame.stream).cloned();
        let Route { inlet, outlet } = route.unwrap_or_default();
        match (inlet, outlet, number(&frame.body)) {
            (Some(inlet), _, _) if frame.kind == DATA => inlet.deliver(frame.body)?,
            (_, Some(outlet), Some(count)) if frame.kind == CREDIT => outlet.grant(count)?,
            _ => return Ok(Some(frame)),
        }
        Ok(None)
    }
}

/// A msgpack integer in one of its usual forms.
fn number(body: &[u8]) -> Option<u64> {
    match *body {
        [small] if small < 0x80 => Some(small.into()),
        [0xcc, a] => Some(a.into()),
        [0xcd, a, b] => Some(u16::from_be_bytes([a, b]).into()),
        [0xce, a, b, c, d] => Some(u32::from_be_bytes([a, b, c, d]).into()),
        _ => None,
    }
}
