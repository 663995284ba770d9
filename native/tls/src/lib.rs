//! TLS 1.3 with rustls, without I/O: received bytes are passed in, bytes to send are returned.
//!
//! Both ends present a certificate. A peer is identified by the certificate itself, never by a name
//! or an address: it is either a trusted certificate, or one signed by a trusted authority.

mod session;
mod trust;

pub use rustls::{Connection, Error};
pub use session::Session;

use rustls::client::Resumption;
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use std::sync::Arc;
use trust::Trust;

/// What of the given certificates and keys is malformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// This end's certificate or key.
    Own(String),
    /// The peers' certificates.
    Trusted(String),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Own(why) => write!(out, "this end's certificate or key: {why}"),
            Malformed::Trusted(why) => write!(out, "the trusted certificate: {why}"),
        }
    }
}

/// The certificates of a PEM text.
fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|one| one.map(CertificateDer::into_owned))
        .collect::<Result<Vec<_>, _>>()
        .map_err(explained)
}

/// The library names what is missing by the numbers of its bytes.
fn explained(error: pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "it is cut off".into(),
        other => other.to_string(),
    }
}

#[derive(Clone)]
enum Role {
    Client(Arc<ClientConfig>),
    Server(Arc<ServerConfig>),
}

/// Our certificate and the trusted ones; each connection gets a session from it.
#[derive(Clone)]
pub struct Config(Role);

impl Config {
    /// certificate, key: our own, PEM. trusted: the peer's certificate, or its authority's, PEM.
    pub fn new(
        server: bool,
        certificate: &str,
        key: &str,
        trusted: &str,
    ) -> Result<Config, Malformed> {
        let trusted = CertificateDer::from_pem_slice(trusted.as_bytes())
            .map_err(|error| Malformed::Trusted(explained(error)))?
            .into_owned();
        let provider = ring::default_provider();
        Config::with_provider(server, certificate, key, vec![trusted], provider)
    }

    /// A server for several peers: `trusted` has the certificate or the authority of each.
    pub fn server_for_all(
        certificate: &str,
        key: &str,
        trusted: &str,
    ) -> Result<Config, Malformed> {
        let trusted = certificates(trusted).map_err(Malformed::Trusted)?;
        if trusted.is_empty() {
            return Err(Malformed::Trusted("no certificate in it".into()));
        }
        let provider = ring::default_provider();
        Config::with_provider(true, certificate, key, trusted, provider)
    }

    fn with_provider(
        server: bool,
        certificate: &str,
        key: &str,
        trusted: Vec<CertificateDer<'static>>,
        provider: CryptoProvider,
    ) -> Result<Config, Malformed> {
        let provider = Arc::new(provider);
        let trust = Trust::new(trusted, server, provider.clone()).map_err(Malformed::Trusted)?;
        let chain = certificates(certificate).map_err(Malformed::Own)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
        let key = key.map_err(|error| Malformed::Own(explained(error)))?;
        let own = |error: Error| Malformed::Own(error.to_string());
        Ok(Config(if server {
            let mut config = ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&TLS13])
                .map_err(own)?
                .with_client_cert_verifier(Arc::new(trust))
                .with_single_cert(chain, key)
                .map_err(own)?;
            // A resumed session would not present a certificate.
            config.send_tls13_tickets = 0;
            config.session_storage = Arc::new(NoServerSessionStorage {});
            Role::Server(Arc::new(config))
        } else {
            let mut config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&TLS13])
                .map_err(own)?
                .dangerous() // required for a custom verifier: see `Trust`
                .with_custom_certificate_verifier(Arc::new(trust))
                .with_client_auth_cert(chain, key)
                .map_err(own)?;
            config.resumption = Resumption::disabled();
            config.enable_sni = false;
            Role::Client(Arc::new(config))
        }))
    }

    /// A new session.
    pub fn session(&self) -> Result<Session, Error> {
        self.connection().map(Session::new)
    }

    /// A new connection, for callers with a session of their own.
    pub fn connection(&self) -> Result<Connection, Error> {
        match &self.0 {
            Role::Server(config) => ServerConnection::new(config.clone()).map(Connection::from),
            Role::Client(config) => {
                let nobody = ServerName::from(std::net::Ipv4Addr::UNSPECIFIED);
                ClientConnection::new(config.clone(), nobody).map(Connection::from)
            }
        }
    }
}

#[cfg(test)]
mod tests;
