//! Where clients connect to, and from where they may.

use super::*;

impl Process {
    /// Whether this kind may have one more connection: clients do not keep commands out. Of those that
    /// do not say what they are for, the oldest one makes room.
    pub(super) fn has_room(&mut self, door: Door) -> bool {
        let is_alike = |conn: &Conn| match conn {
            Conn::Client(_) => door == Door::Clients,
            Conn::Control(_) => door == Door::Control,
            Conn::Incoming(_) => door == Door::Link,
            Conn::Outgoing(_) => false,
        };
        let alike = self.conns.iter().filter(|(_, conn)| is_alike(conn));
        if alike.clone().count() < CONNECTIONS_MAX {
            return true;
        }
        let mut strangers =
            alike.filter(|(key, conn)| conn.is_strange(self.incoming == Some(**key)));
        let oldest = strangers.next().map(|(key, _)| *key);
        if let Some(key) = oldest {
            self.forget(key);
        }
        oldest.is_some()
    }

    /// The poll tells of a connection once, also if it cannot be accepted at that moment: too many
    /// files are open, or memory is short.
    pub(super) fn accept_all(&mut self) {
        let keys: Vec<usize> = self.listeners.keys().copied().collect();
        for key in keys {
            self.accept(key);
        }
    }

    /// Listens for clients at one more address; it is no error when it does already.
    pub(crate) fn serve(&mut self, address: &str) -> Result<(), Problem> {
        let address = Address::parse(address);
        let is_open = self.config.clients_tls.is_none() && self.config.clients_from.is_empty();
        if is_open && !address.is_local() {
            let problem = "other hosts can connect to this address; allow some first";
            return Err(Code::AddressOpen.because(problem.into()));
        }
        let mut present = self
            .listeners
            .iter()
            .filter(|(_, (door, listener))| *door == Door::Clients && listener.is_for(&address));
        if let Some((&key, (_, listener))) = present.next() {
            if listener.is_reached() {
                return Ok(());
            }
            self.listeners.remove(&key);
        }
        Ok(self.listen(Door::Clients, &address)?)
    }

    /// Lets clients connect over TCP from these addresses, too.
    pub(crate) fn allow(&mut self, network: &str) -> Result<(), Problem> {
        let network = Network::parse(network).ok_or("not ADDRESS or ADDRESS/BITS")?;
        self.config.clients_from.push(network);
        Ok(())
    }

    pub(super) fn is_allowed(&mut self, from: Option<IpAddr>) -> bool {
        let allowed = &self.config.clients_from;
        let Some(from) = from.filter(|_| !allowed.is_empty()) else {
            return true;
        };
        let is_allowed = allowed.iter().any(|network| network.contains(from));
        if !is_allowed {
            self.complain(format!(
                "client: connection from {from} refused: not allowed by --nbd-allow"
            ));
        }
        is_allowed
    }

    /// Listens for clients no more, and disconnects them.
    pub(crate) fn unserve(&mut self) {
        self.listeners.retain(|_, (door, _)| *door != Door::Clients);
        self.config.clients_from.clear();
        self.drop_clients();
    }
}
