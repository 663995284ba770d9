//! TLS 1.3 with rustls, without I/O: received bytes are passed in, bytes to send are returned.
//!
//! Both ends present a certificate. A peer is identified by the certificate itself, never by a name
//! or an address: it is either the trusted certificate, or one signed by the trusted authority.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, Resumption};
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    DistinguishedName, Error, RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};

use crate::bytes_of;

create_exception!(mirrord._native, TlsError, PyOSError);
// The peer aborted the connection with an alert.
create_exception!(mirrord._native, TlsAlert, TlsError);
// The peer's certificate is not accepted.
create_exception!(mirrord._native, TlsUntrusted, TlsError);

/// Accepts the trusted certificate, and certificates signed by the trusted authority.
#[derive(Debug)]
struct Trust {
    certificate: CertificateDer<'static>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl Trust {
    fn new(trusted: &str, server: bool, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let certificate = CertificateDer::from_pem_slice(trusted.as_bytes())
            .map_err(|error| error.to_string())?
            .into_owned();
        let mut roots = RootCertStore::empty();
        roots
            .add(certificate.clone())
            .map_err(|error| error.to_string())?;
        let roots = Arc::new(roots);
        let clients = if server {
            let made = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build()
                .map_err(|error| error.to_string())?;
            Some(made)
        } else {
            None
        };
        Ok(Self {
            certificate,
            roots,
            provider,
            clients,
        })
    }

    fn signed(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn no_older_tls() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("only TLS 1.3 is spoken".into()))
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *end_entity != self.certificate {
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(end_entity)?,
                &self.roots,
                intermediates,
                now,
                self.provider.signature_verification_algorithms.all,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_older_tls()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Trust {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[] // unauthenticated peers need not learn whom we trust
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if *end_entity == self.certificate {
            return Ok(ClientCertVerified::assertion());
        }
        match &self.clients {
            Some(clients) => clients.verify_client_cert(end_entity, intermediates, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_older_tls()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

enum Role {
    Client(Arc<ClientConfig>),
    Server(Arc<ServerConfig>),
}

/// Our certificate and the trusted one; each connection gets a session from it.
#[pyclass(frozen)]
pub struct TlsConfig(Role);

#[pymethods]
impl TlsConfig {
    /// certificate, key: our own, PEM. trusted: the peer's certificate, or its authority's, PEM.
    /// `ValueError` names the malformed one.
    #[new]
    fn new(server: bool, certificate: &str, key: &str, trusted: &str) -> PyResult<Self> {
        let wrong = |what: &str, why: String| PyValueError::new_err((what.to_owned(), why));
        let provider = Arc::new(ring::default_provider());
        let trust =
            Trust::new(trusted, server, provider.clone()).map_err(|why| wrong("trusted", why))?;
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .map(|one| one.map(CertificateDer::into_owned))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| wrong("own", error.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| wrong("own", error.to_string()))?;
        let own = |error: Error| wrong("own", error.to_string());
        let made = if server {
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
        };
        Ok(Self(made))
    }

    /// A new session.
    fn session(&self) -> PyResult<TlsSession> {
        let made = match &self.0 {
            Role::Server(config) => ServerConnection::new(config.clone()).map(Connection::from),
            Role::Client(config) => {
                let nobody = ServerName::from(std::net::Ipv4Addr::UNSPECIFIED);
                ClientConnection::new(config.clone(), nobody).map(Connection::from)
            }
        };
        let mut connection = made.map_err(|error| exception(&error))?;
        connection.set_buffer_limit(None); // each piece is removed immediately
        Ok(TlsSession(Mutex::new(State {
            connection,
            plain: Vec::new(),
            failed: None,
            closed: false,
        })))
    }
}

struct State {
    connection: Connection,
    /// Decrypted data that was not read yet.
    plain: Vec<u8>,
    failed: Option<Error>,
    /// The peer has sent close_notify.
    closed: bool,
}

impl State {
    fn feed(&mut self, mut data: &[u8]) {
        while !data.is_empty() && self.failed.is_none() {
            match self.connection.read_tls(&mut data) {
                Ok(0) => break, // data after its close_notify is ignored
                Ok(_) => {}
                Err(error) => {
                    self.failed = Some(Error::General(error.to_string()));
                    break;
                }
            }
            match self.connection.process_new_packets() {
                Ok(state) => {
                    let count = state.plaintext_bytes_to_read();
                    self.closed |= state.peer_has_closed();
                    let start = self.plain.len();
                    self.plain.resize(start + count, 0);
                    if let Err(error) = self
                        .connection
                        .reader()
                        .read_exact(&mut self.plain[start..])
                    {
                        self.failed = Some(Error::General(error.to_string()));
                    }
                }
                Err(error) => self.failed = Some(error),
            }
        }
    }

    fn outgoing(&mut self) -> Vec<u8> {
        let mut sealed = Vec::new();
        while self.connection.wants_write() {
            // Writing to memory cannot fail.
            if self.connection.write_tls(&mut sealed).is_err() {
                break;
            }
        }
        sealed
    }
}

/// One end of a connection. May be used by several threads.
#[pyclass(frozen)]
pub struct TlsSession(Mutex<State>);

impl TlsSession {
    fn state(&self) -> MutexGuard<'_, State> {
        // After a panic inside the session cannot be used: that is reported.
        self.0.lock().expect("the session is usable")
    }
}

#[pymethods]
impl TlsSession {
    /// Process received bytes. An error in them is raised by `check` and, after all data before it
    /// was read, by `read`.
    fn feed(&self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<()> {
        let bytes = bytes_of(&data)?;
        py.detach(|| self.state().feed(bytes));
        Ok(())
    }

    /// Raise the error of the session, if there is one.
    fn check(&self) -> PyResult<()> {
        match &self.state().failed {
            Some(error) => Err(exception(error)),
            None => Ok(()),
        }
    }

    /// Whether the handshake is not complete yet.
    fn handshaking(&self) -> bool {
        self.state().connection.is_handshaking()
    }

    /// Bytes to send, in addition to those returned by `seal`.
    fn outgoing<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let sealed = py.detach(|| self.state().outgoing());
        PyBytes::new(py, &sealed)
    }

    /// At most `most` bytes of decrypted data; None: nothing yet; b"": the peer has sent
    /// close_notify.
    fn read<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut state = self.state();
        let count = most.min(state.plain.len());
        if count == 0 && most > 0 {
            return match (&state.failed, state.closed) {
                (Some(error), _) => Err(exception(error)),
                (None, true) => Ok(Some(PyBytes::new(py, b""))),
                (None, false) => Ok(None),
            };
        }
        let found = PyBytes::new(py, &state.plain[..count]);
        state.plain.drain(..count);
        Ok(Some(found))
    }

    /// The parts, concatenated and encrypted.
    fn seal<'py>(
        &self,
        py: Python<'py>,
        parts: Vec<PyBuffer<u8>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let all = parts.iter().map(bytes_of).collect::<PyResult<Vec<_>>>()?;
        let sealed = py.detach(|| {
            let mut state = self.state();
            for part in all {
                state.connection.writer().write_all(part)?;
            }
            Ok::<_, std::io::Error>(state.outgoing())
        })?;
        Ok(PyBytes::new(py, &sealed))
    }

    /// Close this direction (close_notify); returns the bytes to send.
    fn goodbye<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut state = self.state();
        state.connection.send_close_notify();
        let sealed = state.outgoing();
        PyBytes::new(py, &sealed)
    }

    /// The peer's certificate (DER), None before it was presented.
    fn peer_certificate<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let state = self.state();
        let shown = state.connection.peer_certificates()?.first()?;
        Some(PyBytes::new(py, shown))
    }
}

fn exception(error: &Error) -> PyErr {
    match error {
        Error::AlertReceived(alert) => TlsAlert::new_err(words(&format!("{alert:?}"))),
        Error::InvalidCertificate(why) => TlsUntrusted::new_err(format!("{why}")),
        Error::NoCertificatesPresented => TlsUntrusted::new_err("no certificate was presented"),
        other => TlsError::new_err(other.to_string()),
    }
}

/// "CertificateRequired" as "certificate required".
fn words(name: &str) -> String {
    let mut said = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !said.is_empty() {
            said.push(' ');
        }
        said.extend(letter.to_lowercase());
    }
    said
}
