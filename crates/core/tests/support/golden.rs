//! Short runs of a [`World`](crate::world::World) as golden files: what came to a player, and what it made of it, to the bit.
#![allow(dead_code, unreachable_pub, reason = "each user uses a part")]

use antiphon_core::Target;
use antiphon_netem::{Loss, Profile};
use serde_json::{Value, json};

use crate::world::{DeviceConfig, EndpointConfig, Event, QUIET, World};

/// FNV-1a, 64 bits: simple enough to write in any language.
pub fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

pub const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// All that a player with one stream was given, in variable-length numbers (LEB128): 0 is a quantum, after which
/// come the milliseconds since the last; any other *n* the datagram whose number is (*n* - 1), unfolded (0, -1, 1, -2, ...), from the one
/// after the last, after which come the milliseconds from the last quantum to its arrival; and a hash of all it made.
pub struct Log {
    pub operations: Vec<u8>,
    pub heard: u64,
    next: u64,
    now_ms: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            operations: Vec::new(),
            heard: FNV_OFFSET,
            next: 0,
            now_ms: 0,
        }
    }
}

impl Log {
    pub fn datagram(&mut self, number: u64, came_ms: u64) {
        let ahead = number.wrapping_sub(self.next) as i64;
        self.write(1 + ((ahead << 1) ^ (ahead >> 63)) as u64);
        self.write(came_ms - self.now_ms);
        self.next = number + 1;
    }

    pub fn quantum(&mut self, now_ms: u64, out: &[f32]) {
        self.write(0);
        self.write(now_ms - self.now_ms);
        self.now_ms = now_ms;
        for sample in out {
            self.heard = fnv1a(self.heard, &sample.to_le_bytes());
        }
    }

    fn write(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.operations.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.operations.push(number as u8);
    }
}

/// A run of 8 s. Nothing in it makes media time and the sender's count of frames differ: the reader knows only the latter.
struct Cell {
    profile: &'static str,
    loss: Option<f64>,
    ppm: f64,
    target: Target,
    packet_frames: usize,
    capture_frames: usize,
    render_frames: usize,
    events: Vec<(f64, Event)>,
}

const CELL_S: f64 = 8.0;
const PLAIN: Cell = Cell {
    profile: "fibre",
    loss: None,
    ppm: 0.0,
    target: Target::Auto,
    packet_frames: 128,
    capture_frames: 128,
    render_frames: 128,
    events: Vec::new(),
};

fn cells() -> Vec<Cell> {
    let profile = |name: &str| Profile::find(name).expect("a profile");
    vec![
        PLAIN,
        Cell {
            profile: "lan",
            ppm: 200.0,
            packet_frames: 64,
            ..PLAIN
        },
        Cell {
            profile: "lan",
            ppm: -200.0,
            ..PLAIN
        },
        Cell {
            loss: Some(0.05),
            ppm: 200.0,
            ..PLAIN
        },
        Cell {
            loss: Some(0.05),
            target: Target::Fixed(512),
            render_frames: 64,
            ..PLAIN
        },
        Cell {
            profile: "cable",
            capture_frames: 1_024,
            ..PLAIN
        },
        Cell {
            profile: "wifi",
            loss: Some(0.02),
            ..PLAIN
        },
        Cell {
            profile: "wifi-bad",
            render_frames: 512,
            ..PLAIN
        },
        Cell {
            profile: "4g",
            ppm: -50.0,
            packet_frames: 240,
            ..PLAIN
        },
        Cell {
            profile: "leo",
            target: Target::Fixed(1_500),
            ..PLAIN
        },
        Cell {
            events: vec![
                (2.0, Event::Slip(1, 20.0)),
                (4.0, Event::Hold(0, 1, 300.0)),
                (6.0, Event::Clocks(0, 300.0, 0.0)),
            ],
            ..PLAIN
        },
        Cell {
            profile: "5g",
            events: vec![
                (3.0, Event::Link(0, 1, profile("wifi-bad").left_to_right)),
                (5.0, Event::Link(0, 1, profile("lan").left_to_right)),
            ],
            ..PLAIN
        },
    ]
}

/// Two sawtooth waves, exact in 16 bits.
fn wave(media: u64) -> f32 {
    ((media * 37 % 4_096 + media * 101 % 4_096) as f32 - 4_096.0) / 8_192.0
}

/// The content of `vectors/sim.json`.
pub fn sim_vectors() -> Value {
    let runs: Vec<Value> = (1..).zip(cells()).map(|(n, cell)| run(n, &cell)).collect();
    json!({
        "version": 2,
        "about": "What came to a player in simulated networks, and what it made of it. Datagram n is the n-th of a sender of mono floats \
            whose frame m is ((m * 37 mod 4096) + (m * 101 mod 4096) - 4096) / 8192. `operations` is base64 of LEB128 numbers: 0 is a quantum, followed by \
            the milliseconds since the last or, for the first, since the clock read 0; any other n a datagram, whose number less the one after the last is n - 1, folded: 0, -1, 1, -2, ..., followed \
            by the milliseconds from the last quantum to its arrival. \
            `target` is the value of the command, and the hash is FNV-1a (64 bits) of all samples heard. \
            Written by crates/core/examples/vectors.rs.",
        "runs": runs,
    })
}

fn run(seed: u64, cell: &Cell) -> Value {
    let mut profile = Profile::find(cell.profile).expect("a profile");
    if let Some(share) = cell.loss {
        profile.left_to_right.loss = Loss::Random { share };
    }
    let device = |ppm, burst_frames| DeviceConfig {
        ppm,
        burst_frames,
        ..QUIET
    };
    let left = EndpointConfig {
        capture: device(cell.ppm, cell.capture_frames),
        packet_frames: cell.packet_frames,
        input: wave,
        ..EndpointConfig::default()
    };
    let right = EndpointConfig {
        output: device(0.0, cell.render_frames),
        target: cell.target,
        ..EndpointConfig::default()
    };
    let mut world = World::new(seed, profile, &[left, right]);
    world.log = Some(Log::default());
    world.play(&cell.events, CELL_S);
    let stats = world.player(1).stream_stats(0).expect("was added");
    let log = world.log.unwrap_or_default();
    let target = match cell.target {
        Target::Auto => -1,
        Target::Fixed(frames) => i64::from(frames),
    };
    json!({
        "name": format!(
            "{}, loss {}, {} ppm, packets of {}, rendered in {}, {} events",
            cell.profile,
            cell.loss.map_or("its own".into(), |share| share.to_string()),
            cell.ppm,
            cell.packet_frames,
            cell.render_frames,
            cell.events.len(),
        ),
        "target": target,
        "packet_frames": cell.packet_frames,
        "quantum_frames": cell.render_frames.min(crate::world::QUANTUM_FRAMES),
        "operations": data_encoding::BASE64.encode(&log.operations),
        "heard_fnv1a": format!("{:016x}", log.heard),
        "received_packets": stats.sequence.received,
        "lost_packets": stats.sequence.lost,
        "late_packets": stats.jitter.late_packets,
        "received_frames": stats.jitter.received_frames,
        "played_frames": stats.jitter.played_frames,
        "concealed_frames": stats.jitter.concealed_frames,
        "skipped_frames": stats.jitter.skipped_frames,
        "late_frames": stats.jitter.late_frames,
        "underruns": stats.jitter.underruns,
        "resyncs": stats.jitter.resyncs,
    })
}
