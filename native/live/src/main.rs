//! `mirrord-live`: serves one image over NBD and keeps the other end equal to it.

mod address;
mod clients;
mod control;
mod credentials;
mod executor;
mod files;
mod link;
mod machine;
mod nbd;
mod problem;
mod process;
mod stream;
mod sys;
mod words;

use address::{Address, Network};
use credentials::{Credentials, With};
use executor::Choice;
use files::{boot_id, explain, parse_id, Files};
use mirrord_live_core::layout;
use mirrord_live_core::record::Record;
use mirrord_live_core::setup;
use mirrord_live_core::types::{Geometry, Role, Settings, SECOND};
use problem::{Code, Problem};
use process::{Config, Process};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: mirrord-live create --image FILE --state DIR --role primary|secondary --volume ID
                           [--in-sync]
       mirrord-live check --image FILE
       mirrord-live run --image FILE --state DIR --control SOCKET [--nbd ADDRESS]...
                        [--link ADDRESS] [--peer ADDRESS] [--export NAME]
                        [--tls-certificate FILE --tls-key FILE --tls-peer FILE]
                        [--nbd-clients FILE [--nbd-certificate FILE --nbd-key FILE]]
                        [--nbd-allow NETWORK]... [--io auto|uring|threads]
                        [--SETTING VALUE]...
       mirrord-live run --config FILE
       mirrord-live ctl SOCKET COMMAND [ARGUMENT]
FILE has a line with NAME VALUE for each --NAME VALUE.
ADDRESS is HOST:PORT or unix:PATH. ID has 32 hexadecimal digits, the same at both ends.
--tls-peer: the other end's certificate, or its authority's. --nbd-clients: certificates or
authorities of clients, which have to use TLS over TCP (with --tls-certificate and --tls-key, or
the ones for NBD). --nbd-allow: ADDRESS or ADDRESS/BITS that TCP clients may connect from.
An NBD ADDRESS that other hosts can reach needs one of the two. Files are PEM.
--in-sync: both images are equal already, and not in use.
--io: what reads and writes the image; auto is io_uring where it is allowed, else threads.
SETTING: hold, timeout, heartbeat, barrier, retry (seconds), window, copy-window, copy-chunk,
buffers, log, merge-above (bytes), copy-rate (bytes a second of a resync), semi-window (bytes, or
seconds as in 5s), compress, durable (on or off).";

/// A redo log has room for the largest write in each half.
const LOG_MIN: u64 = 80 << 20;

/// `--name value`, repeated; flags have no value.
struct Arguments(HashMap<String, Vec<String>>);

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut found: HashMap<String, Vec<String>> = HashMap::new();
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .ok_or(format!("unexpected argument {word}"))?;
            let value = if name == "in-sync" {
                String::new()
            } else {
                words.next().ok_or(format!("--{name} needs a value"))?
            };
            found.entry(name.into()).or_default().push(value);
        }
        Ok(Arguments(found))
    }

    /// Adds those of the file that `--config` names, without which nothing is added.
    fn read_config(&mut self) -> Result<(), String> {
        let Some(path) = self.take("config") else {
            return Ok(());
        };
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        for line in text.lines().filter(|line| !line.is_empty()) {
            let (name, value) = line
                .split_once(' ')
                .ok_or(format!("{path}: {line}: no value"))?;
            self.0.entry(name.into()).or_default().push(value.into());
        }
        Ok(())
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name).and_then(|mut values| values.pop())
    }

    fn need(&mut self, name: &str) -> Result<String, String> {
        self.take(name).ok_or(format!("--{name} is missing"))
    }

    fn number(&mut self, name: &str) -> Result<Option<f64>, String> {
        let Some(text) = self.take(name) else {
            return Ok(None);
        };
        let parsed = text.parse::<f64>().ok();
        let parsed = parsed.filter(|value| value.is_finite() && *value >= 0.0);
        parsed
            .map(Some)
            .ok_or(format!("--{name} {text}: not a number"))
    }

    fn end(self) -> Result<(), String> {
        match self.0.into_keys().next() {
            Some(name) => Err(format!("unknown argument --{name}")),
            None => Ok(()),
        }
    }
}

fn settings(arguments: &mut Arguments) -> Result<(Settings, usize), String> {
    let mut settings = Settings::default();
    for (name, into) in [
        ("hold", &mut settings.hold),
        ("timeout", &mut settings.timeout),
        ("heartbeat", &mut settings.heartbeat),
        ("barrier", &mut settings.barrier),
        ("retry", &mut settings.retry),
    ] {
        if let Some(seconds) = arguments.number(name)? {
            *into = (seconds * SECOND as f64) as u64;
        }
    }
    if let Some(bytes) = arguments.number("window")? {
        settings.window = bytes as u64;
    }
    if let Some(bytes) = arguments.number("copy-window")? {
        settings.copy_window = bytes as u64;
    }
    if let Some(bytes) = arguments.number("copy-rate")? {
        settings.copy_rate = bytes as u64;
    }
    if let Some(bytes) = arguments.number("copy-chunk")? {
        settings.copy_chunk = (bytes as u32).clamp(4096, 1 << 20);
    }
    if let Some(text) = arguments.take("semi-window") {
        let window = words::window_of(&text);
        settings.semi = window.ok_or(format!("--semi-window {text}: BYTES or SECONDSs"))?;
    }
    if let Some(bytes) = arguments.number("merge-above")? {
        settings.merge_above = bytes as u64;
    }
    if let Some(text) = arguments.take("compress") {
        settings.compress = words::is_on(&text)?;
    }
    if let Some(text) = arguments.take("durable") {
        settings.durable = words::is_on(&text)?;
    }
    if let Some(bytes) = arguments.number("log")? {
        settings.log = (bytes as u64).max(LOG_MIN);
    }
    let buffers = arguments.number("buffers")?.unwrap_or(256e6) as usize;
    Ok((settings, buffers))
}

fn create(mut arguments: Arguments) -> Result<(), Problem> {
    let image = PathBuf::from(arguments.need("image")?);
    let state = PathBuf::from(arguments.need("state")?);
    let role = match arguments.need("role")?.as_str() {
        "primary" => Role::Primary,
        "secondary" => Role::Secondary,
        other => return Err(format!("--role {other}: primary or secondary").into()),
    };
    let volume = arguments.need("volume")?;
    let volume = parse_id(&volume).ok_or(format!("--volume {volume}: 32 hexadecimal digits"))?;
    let in_sync = arguments.take("in-sync").is_some();
    arguments.end()?;
    let mut files = Files::create(&image, &state)?;
    let size = files.image_size()?;
    let geometry = Geometry::of_size(size);
    if !geometry.is_valid() {
        return Err(format!("{}: an image of {size} bytes", image.display()).into());
    }
    let mut record = Record::new(volume, geometry, role, boot_id()?);
    if in_sync {
        record.synced = role == Role::Primary;
        record.generation = 1;
        record.phase = mirrord_live_core::types::Phase::Consistent;
    }
    // A full file system must not take the tracking's space later.
    let length = layout::length(&record.geometry);
    let formatted = sys::allocate(&files.tracking, length);
    let formatted = formatted.and_then(|()| setup::format(&mut files, &record));
    formatted.map_err(|error| explain(&state.join("tracking"), &error))?;
    files.remember(&state);
    Ok(())
}

fn check(mut arguments: Arguments) -> Result<(), Problem> {
    let image = PathBuf::from(arguments.need("image")?);
    arguments.end()?;
    Ok(Files::check(&image)?)
}

/// `--tls-*` and `--nbd-*`; each is tried once, so that a mistake shows at the start.
fn security(
    arguments: &mut Arguments,
) -> Result<(Option<Credentials>, Option<Credentials>), String> {
    let mut file = |name: &str| arguments.take(name).map(PathBuf::from);
    let (certificate, key) = (file("tls-certificate"), file("tls-key"));
    let link = match (&certificate, &key, file("tls-peer")) {
        (Some(certificate), Some(key), Some(trusted)) => Some(Credentials {
            certificate: certificate.clone(),
            key: key.clone(),
            trusted,
        }),
        (_, _, Some(_)) => return Err("--tls-peer needs --tls-certificate and --tls-key".into()),
        _ => None,
    };
    let certificate = file("nbd-certificate").or(certificate);
    let clients = match (certificate, file("nbd-key").or(key), file("nbd-clients")) {
        (Some(certificate), Some(key), Some(trusted)) => Some(Credentials {
            certificate,
            key,
            trusted,
        }),
        (_, _, Some(_)) => return Err("--nbd-clients needs a certificate and a key".into()),
        (Some(_), ..) if link.is_none() => {
            return Err("a certificate is given, but neither --tls-peer nor --nbd-clients".into())
        }
        _ => None,
    };
    if let Some(credentials) = &link {
        credentials.session(With::Accepting)?;
        credentials.session(With::Connecting)?;
    }
    if let Some(credentials) = &clients {
        credentials.session(With::Client)?;
    }
    Ok((link, clients))
}

fn run(mut arguments: Arguments) -> Result<(), Problem> {
    arguments.read_config()?;
    let (settings, buffers) = settings(&mut arguments)?;
    let (tls, clients_tls) = security(&mut arguments)?;
    let networks = arguments.0.remove("nbd-allow").unwrap_or_default();
    let clients_from = networks
        .iter()
        .map(|text| {
            Network::parse(text).ok_or(format!("--nbd-allow {text}: ADDRESS or ADDRESS/BITS"))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let io = match arguments.take("io").as_deref() {
        None | Some("auto") => Choice::Auto,
        Some("uring") => Choice::Ring,
        Some("threads") => Choice::Threads,
        Some(other) => return Err(format!("--io {other}: auto, uring or threads").into()),
    };
    let config = Config {
        image: arguments.need("image")?.into(),
        state: arguments.need("state")?.into(),
        export: arguments.take("export").unwrap_or_default(),
        control: arguments.need("control")?.into(),
        nbd: arguments
            .0
            .remove("nbd")
            .unwrap_or_default()
            .iter()
            .map(|text| Address::parse(text))
            .collect(),
        link: arguments.take("link").map(|text| Address::parse(&text)),
        peer: arguments.take("peer").map(|text| Address::parse(&text)),
        tls,
        clients_tls,
        clients_from,
        settings,
        buffers,
        io,
    };
    arguments.end()?;
    let is_open = config.clients_tls.is_none() && config.clients_from.is_empty();
    if let Some(address) = config.nbd.iter().find(|each| is_open && !each.is_local()) {
        return Err(Code::AddressOpen.because(format!(
            "{address}: other hosts can connect to it; give --nbd-clients or --nbd-allow"
        )));
    }
    let files = Files::open(&config.image, &config.state)?;
    let record = setup::read_record(&files).map_err(|error| explain(&config.state, &error))?;
    let size = files.image_size()?;
    if size != record.geometry.size {
        return Err(Code::ImageResized.because(format!(
            "{}: the image has {size} bytes, and had {} when the mirror was created; \
             restore its size",
            config.image.display(),
            record.geometry.size
        )));
    }
    files.remember(&config.state);
    let boot = boot_override().map_or_else(boot_id, Ok)?;
    let mut process = Process::start(config, files, boot)?;
    Ok(process.run()?)
}

/// Tests simulate a reboot with another boot id.
fn boot_override() -> Option<[u8; 16]> {
    parse_id(&std::env::var("MIRRORD_LIVE_BOOT_ID").ok()?)
}

fn ctl(mut words: impl Iterator<Item = String>) -> Result<(), Problem> {
    let socket = words.next().ok_or("ctl needs a socket")?;
    let line = words.collect::<Vec<_>>().join(" ");
    let explain = |error: std::io::Error| format!("{socket}: {error}");
    let mut stream = UnixStream::connect(Path::new(&socket)).map_err(explain)?;
    writeln!(stream, "{line}").map_err(explain)?;
    let mut answer = String::new();
    let read = BufReader::new(stream).read_line(&mut answer);
    read.map_err(explain)?;
    print!("{answer}");
    match answer.starts_with("{\"ok\": false") || answer.is_empty() {
        true => Err("the command failed".into()),
        false => Ok(()),
    }
}

/// A thread that panics would leave its jobs unanswered for ever: the process ends, as by a crash.
fn end_by_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Writes a line to the log. Its disk may be full, which is no reason to end.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn main() -> ExitCode {
    end_by_panics();
    let arguments = |words| Arguments::parse(words).map_err(Problem::from);
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let result = match name.as_str() {
        "create" => arguments(words).and_then(create),
        "check" => arguments(words).and_then(check),
        "run" => arguments(words).and_then(run),
        "ctl" => ctl(words),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            say(&problem.to_string());
            ExitCode::FAILURE
        }
    }
}
