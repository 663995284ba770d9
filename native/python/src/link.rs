//! Python bindings of `mirrord-net`: the bytes of a link, without the lock of the interpreter.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use mirrord_net::frames::{self, Fault, Splitter};
use mirrord_net::pipe;
use mirrord_net::tls::{Broken, Session};
use mirrord_tls::{Config, Error, Malformed};
use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{bytes_of, unlocked};

create_exception!(mirrord._native, TlsError, PyOSError);
// The peer aborted the connection with an alert.
create_exception!(mirrord._native, TlsAlert, TlsError);
// The peer's certificate is not accepted.
create_exception!(mirrord._native, TlsUntrusted, TlsError);
// A malformed frame: what, and a hint or "".
create_exception!(mirrord._native, FrameFault, PyValueError);

/// Bytes that were made without the lock of the interpreter. A read-only buffer.
#[pyclass(frozen)]
pub struct Chunk(pub Vec<u8>);

#[pymethods]
impl Chunk {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// `view` is a buffer structure that the interpreter passes to be filled in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let data = &slf.get().0;
        let (start, length) = (data.as_ptr() as *mut c_void, data.len() as ffi::Py_ssize_t);
        // SAFETY: the bytes never change nor move while the object lives, which the view keeps
        // alive; it is marked as read-only.
        if unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) } == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

/// SAFETY: the caller's object owns the descriptor, and does not close it during the call.
pub fn borrowed<'a>(descriptor: RawFd) -> PyResult<BorrowedFd<'a>> {
    if descriptor < 0 {
        return Err(PyOSError::new_err("the descriptor is closed"));
    }
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// Read from a pipe until `most` bytes are there, it has ended, or `patience_s` has passed since
/// the first byte. Empty: it has ended. Other threads run meanwhile.
#[pyfunction]
pub fn fill_from(
    py: Python<'_>,
    descriptor: RawFd,
    most: usize,
    patience_s: f64,
) -> PyResult<Chunk> {
    let pipe = borrowed(descriptor)?;
    let patience = Duration::from_secs_f64(patience_s);
    let found = py.detach(|| pipe::fill(pipe, most, patience));
    found
        .map(Chunk)
        .map_err(|error| std::io::Error::from(error).into())
}

/// Write to a pipe that does not block until all is written or `limit_s` has passed; how much was
/// written. None: no limit. Less than all also when there was a signal. Other threads run meanwhile.
#[pyfunction]
pub fn drain_to(
    py: Python<'_>,
    descriptor: RawFd,
    data: PyBuffer<u8>,
    limit_s: Option<f64>,
) -> PyResult<usize> {
    let (pipe, bytes) = (borrowed(descriptor)?, bytes_of(&data)?);
    let limit = limit_s.map(Duration::from_secs_f64);
    let done = py.detach(|| pipe::drain(pipe, bytes, limit));
    done.map_err(|error| std::io::Error::from(error).into())
}

/// Move bytes from one pipe to another, without a copy, until there are `most`, the first pipe has
/// ended, or `limit_s` has passed. None: nothing in that time, or a signal. 0: it has ended. Other
/// threads run meanwhile.
#[pyfunction]
pub fn pass_on(
    py: Python<'_>,
    from: RawFd,
    to: RawFd,
    most: usize,
    limit_s: f64,
) -> PyResult<Option<usize>> {
    let (from, to) = (borrowed(from)?, borrowed(to)?);
    let moved = py.detach(|| pipe::pass(from, to, most, Duration::from_secs_f64(limit_s)));
    moved.map_err(|error| std::io::Error::from(error).into())
}

/// The header of a frame whose body consists of these parts.
#[pyfunction]
pub fn frame_header(
    py: Python<'_>,
    kind: u8,
    stream: u32,
    parts: Vec<PyBuffer<u8>>,
) -> PyResult<Bound<'_, PyBytes>> {
    let parts = parts.iter().map(bytes_of).collect::<PyResult<Vec<_>>>()?;
    let length = parts.iter().map(|part| part.len()).sum();
    let made = unlocked(py, length, || frames::header(kind, stream, &parts));
    Ok(PyBytes::new(py, &made))
}

/// Splits received bytes into frames: (type, stream, body), their checksums verified. FrameFault:
/// one is malformed; then it must not be used again.
#[pyclass(frozen)]
#[derive(Default)]
pub struct FrameSplitter(Mutex<Splitter>);

type Frames = Vec<(u8, u32, Chunk)>;

impl FrameSplitter {
    pub fn splitter(&self) -> MutexGuard<'_, Splitter> {
        self.0.lock().expect("the splitter is usable")
    }
}

fn complete(splitter: &mut Splitter) -> Frames {
    let found = std::mem::take(&mut splitter.frames);
    found
        .into_iter()
        .map(|one| (one.kind, one.stream, Chunk(one.body)))
        .collect()
}

#[pymethods]
impl FrameSplitter {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The frames that are complete now.
    fn feed(&self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<Frames> {
        let bytes = bytes_of(&data)?;
        unlocked(py, bytes.len(), || {
            let mut splitter = self.splitter();
            splitter.feed(bytes)?;
            Ok(complete(&mut splitter))
        })
        .map_err(malformed)
    }

    /// How many frames went where they are routed.
    #[getter]
    fn routed(&self) -> u64 {
        self.splitter().routed
    }

    /// The beginning of an incomplete frame, for messages.
    fn pending(&self) -> Vec<u8> {
        self.splitter().pending()
    }
}

pub fn malformed((what, hint): Fault) -> PyErr {
    FrameFault::new_err((what, hint))
}

/// Our certificate and the trusted one; each connection gets a session from it.
#[pyclass(frozen)]
pub struct TlsConfig(Config);

#[pymethods]
impl TlsConfig {
    /// certificate, key: our own, PEM. trusted: the peer's certificate, or its authority's, PEM.
    /// `ValueError` names the malformed one.
    #[new]
    fn new(server: bool, certificate: &str, key: &str, trusted: &str) -> PyResult<Self> {
        let made = Config::new(server, certificate, key, trusted);
        made.map(Self).map_err(|malformed| match malformed {
            Malformed::Own(why) => PyValueError::new_err(("own", why)),
            Malformed::Trusted(why) => PyValueError::new_err(("trusted", why)),
        })
    }

    /// A new session.
    fn session(&self) -> PyResult<TlsSession> {
        Session::new(&self.0)
            .map(TlsSession)
            .map_err(|error| exception(&error))
    }
}

/// One end of a connection. One thread may receive while others send.
#[pyclass(frozen)]
pub struct TlsSession(pub Session);

#[pymethods]
impl TlsSession {
    /// Process received bytes. An error in them is raised by `check` and, after all data before it
    /// was read, by `read`.
    fn feed(&self, py: Python<'_>, data: PyBuffer<u8>) -> PyResult<()> {
        let bytes = bytes_of(&data)?;
        py.detach(|| self.0.feed(bytes));
        Ok(())
    }

    /// Raise the error of the session, if there is one.
    fn check(&self) -> PyResult<()> {
        self.0.check().map_err(|error| exception(&error))
    }

    /// Whether the handshake is not complete yet.
    fn handshaking(&self) -> bool {
        self.0.handshaking()
    }

    /// Bytes to send for the handshake.
    fn outgoing<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let sealed = py.detach(|| self.0.outgoing());
        PyBytes::new(py, &sealed)
    }

    /// At most `most` bytes of decrypted data; None: nothing yet; b"": the peer has sent
    /// close_notify.
    fn read<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.0.read(most).map_err(|error| exception(&error))?;
        Ok(found.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Encrypt the parts, concatenated, and send them over the connected socket; waits until the
    /// peer takes them. One thread at a time; other threads run meanwhile.
    fn send(&self, py: Python<'_>, socket: RawFd, parts: Vec<PyBuffer<u8>>) -> PyResult<()> {
        let all = parts.iter().map(bytes_of).collect::<PyResult<Vec<_>>>()?;
        let socket = borrowed(socket)?;
        let mut stopped = None;
        let sent = py.detach(|| {
            let mut signal = || {
                stopped = Python::attach(|py| py.check_signals()).err();
                stopped.is_none()
            };
            self.0.send(socket, &all, &mut signal)
        });
        sent.map_err(|broken| stopped.unwrap_or_else(|| raised(broken)))
    }

    /// Receive from the connected socket until at least one frame is complete: the number of bytes
    /// that came, and the frames. Without a frame after half a second in which some bytes came;
    /// 0 bytes: the peer has sent close_notify. One thread at a time; other threads run meanwhile.
    fn receive(
        &self,
        py: Python<'_>,
        socket: RawFd,
        splitter: &FrameSplitter,
    ) -> PyResult<(usize, Frames)> {
        let socket = borrowed(socket)?;
        let found = py.detach(|| {
            let mut splitter = splitter.splitter();
            let count = self.0.receive(socket, &mut splitter)?;
            Ok((count, complete(&mut splitter)))
        });
        match found {
            Err(Broken::Closed) => Ok((0, Vec::new())),
            found => found.map_err(raised),
        }
    }

    /// Close this direction (close_notify); returns the bytes to send.
    fn goodbye<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.goodbye())
    }

    /// The peer's certificate (DER), None before it was presented.
    fn peer_certificate<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0
            .peer_certificate()
            .map(|shown| PyBytes::new(py, &shown))
    }
}

pub fn raised(broken: Broken) -> PyErr {
    match broken {
        Broken::Closed => PyOSError::new_err("closed by the other end"),
        Broken::Tls(error) => exception(&error),
        Broken::Io(error) => error.into(),
        Broken::Frame(fault) => malformed(fault),
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

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Chunk>()?;
    m.add_class::<FrameSplitter>()?;
    m.add_class::<TlsConfig>()?;
    m.add_class::<TlsSession>()?;
    m.add("FrameFault", m.py().get_type::<FrameFault>())?;
    m.add("TlsError", m.py().get_type::<TlsError>())?;
    m.add("TlsAlert", m.py().get_type::<TlsAlert>())?;
    m.add("TlsUntrusted", m.py().get_type::<TlsUntrusted>())?;
    m.add_function(wrap_pyfunction!(drain_to, m)?)?;
    m.add_function(wrap_pyfunction!(fill_from, m)?)?;
    m.add_function(wrap_pyfunction!(pass_on, m)?)?;
    m.add_function(wrap_pyfunction!(frame_header, m)?)?;
    Ok(())
}
