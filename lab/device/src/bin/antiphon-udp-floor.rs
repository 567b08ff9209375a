//! The floor under every server's cost: datagrams go from one of a pair to the other by one read and one write each, and nothing else.
//!
//! `antiphon-udp-floor serve ADDRESS` forwards between the first and the second who send to it, the third and the fourth, and so on;
//! `antiphon-udp-floor play ADDRESS COUNT TURNS` is so many participants, who send in so many turns in the time of a packet, and wait for what they
//! hear, each in a thread: who sends to somebody who waits pays for waking him. Both run until they are ended.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// 128 frames of 16-bit stereo with the headers of Antiphon and of QUIC.
const DATAGRAM_BYTES: usize = 560;
/// 128 frames at 48 kHz.
const PACKET: Duration = Duration::from_nanos(2_666_667);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match args[..] {
        ["serve", address] => address.parse().ok().map(serve),
        ["play", address, count, turns] => (|| {
            let turns = turns.parse::<NonZeroUsize>().ok()?.get();
            Some(play(address.parse().ok()?, count.parse().ok()?, turns))
        })(),
        _ => None,
    };
    match ended {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("antiphon-udp-floor: {error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("usage: antiphon-udp-floor serve ADDRESS | play ADDRESS COUNT TURNS");
            ExitCode::from(2)
        }
    }
}

fn serve(address: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    let mut known: Vec<SocketAddr> = Vec::new();
    let mut datagram = [0; 2_048];
    loop {
        let (length, from) = socket.recv_from(&mut datagram)?;
        let index = known.iter().position(|known| *known == from);
        let index = index.unwrap_or_else(|| {
            known.push(from);
            known.len() - 1
        });
        if let Some(partner) = known.get(index ^ 1) {
            socket.send_to(&datagram[..length], partner)?;
        }
    }
}

fn play(server: SocketAddr, count: usize, turns: usize) -> io::Result<()> {
    let mut sockets = Vec::new();
    for _ in 0..count {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(server)?;
        let ear = socket.try_clone()?;
        thread::spawn(move || {
            loop {
                let _ = ear.recv(&mut [0; 2_048]);
            }
        });
        sockets.push(socket);
    }
    let start = Instant::now();
    for turn in 0.. {
        let due = PACKET * turn as u32 / turns as u32;
        thread::sleep(due.saturating_sub(start.elapsed()));
        for socket in sockets.iter().skip(turn % turns).step_by(turns) {
            // Refused is what was sent before the server was there.
            let _ = socket.send(&[0; DATAGRAM_BYTES]);
        }
    }
    Ok(())
}
