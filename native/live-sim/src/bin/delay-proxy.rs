//! `delay-proxy LISTEN TARGET MICROSECONDS`: forwards TCP, each direction late by half of that.
//! For measurements on a kernel without netem.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// The kernel may wake a thread 50 us late, unless told not to.
fn wake_in_time() {
    if let Ok(thread) = std::fs::read_link("/proc/thread-self") {
        let number = thread.file_name().unwrap_or_default().to_string_lossy();
        std::fs::write(format!("/proc/{number}/timerslack_ns"), "1").ok();
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, late: Duration) {
    let (sender, pieces) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        wake_in_time();
        for (at, piece) in pieces {
            thread::sleep((at + late).saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 256 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if sender
            .send((Instant::now(), buffer[..length].to_vec()))
            .is_err()
        {
            return;
        }
    }
}

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, target, late] = words.as_slice() else {
        eprintln!("usage: delay-proxy LISTEN TARGET MICROSECONDS");
        std::process::exit(2);
    };
    let late = Duration::from_micros(late.parse::<u64>().unwrap_or(0) / 2);
    for near in TcpListener::bind(listen)?.incoming() {
        let near = near?;
        let far = TcpStream::connect(target)?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let (near_too, far_too) = (near.try_clone()?, far.try_clone()?);
        thread::spawn(move || pump(near, far, late));
        thread::spawn(move || pump(far_too, near_too, late));
    }
    Ok(())
}
