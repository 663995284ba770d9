//! `delay-proxy LISTEN TARGET MICROSECONDS [BYTES_PER_SECOND]`: forwards TCP, each direction late by
//! half of that and at that rate (0: any). A line of the two numbers on standard input changes them.
//! For measurements on a kernel without netem.

use std::io::{stdin, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// What a link holds back when it sends at its rate.
const QUEUE: Duration = Duration::from_millis(5);
static ROUND_TRIP_US: AtomicU64 = AtomicU64::new(0);
static RATE: AtomicU64 = AtomicU64::new(0);

/// The kernel may wake a thread 50 us late, unless told not to.
fn wake_in_time() {
    if let Ok(thread) = std::fs::read_link("/proc/thread-self") {
        let number = thread.file_name().unwrap_or_default().to_string_lossy();
        std::fs::write(format!("/proc/{number}/timerslack_ns"), "1").ok();
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let (sender, pieces) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        wake_in_time();
        for (at, piece) in pieces {
            let late = Duration::from_micros(ROUND_TRIP_US.load(Relaxed) / 2);
            thread::sleep((at + late).saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                return;
            }
        }
    });
    wake_in_time();
    let mut buffer = vec![0; 256 << 10];
    let mut sent = Instant::now();
    loop {
        let rate = RATE.load(Relaxed);
        // Pieces of a frame's size: a piece leaves when the link has sent all of it.
        let most = if rate == 0 { buffer.len() } else { 9000 };
        let Ok(length @ 1..) = from.read(&mut buffer[..most]) else {
            return;
        };
        let now = Instant::now();
        sent = sent.max(now);
        if let Some(nanoseconds) = (length as u64 * 1_000_000_000).checked_div(rate) {
            sent += Duration::from_nanos(nanoseconds);
        }
        if sender.send((sent, buffer[..length].to_vec())).is_err() {
            return;
        }
        thread::sleep(sent.saturating_duration_since(now + QUEUE));
    }
}

fn set(round_trip_us: &str, rate: &str) {
    if let (Ok(round_trip_us), Ok(rate)) = (round_trip_us.parse(), rate.parse()) {
        ROUND_TRIP_US.store(round_trip_us, Relaxed);
        RATE.store(rate, Relaxed);
    }
}

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, target, late, rate @ ..] = words.as_slice() else {
        eprintln!("usage: delay-proxy LISTEN TARGET MICROSECONDS [BYTES_PER_SECOND]");
        std::process::exit(2);
    };
    set(late, rate.first().map_or("0", String::as_str));
    thread::spawn(|| {
        for line in stdin().lines().map_while(Result::ok) {
            if let Some((late, rate)) = line.split_once(' ') {
                set(late, rate);
            }
        }
    });
    for near in TcpListener::bind(listen)?.incoming() {
        let near = near?;
        let far = TcpStream::connect(target)?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let (near_too, far_too) = (near.try_clone()?, far.try_clone()?);
        thread::spawn(move || pump(near, far));
        thread::spawn(move || pump(far_too, near_too));
    }
    Ok(())
}
