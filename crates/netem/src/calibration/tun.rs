//! The stream as real UDP packets through the namespaces.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

use super::{Case, DriverError, Observation, Seen};
use crate::expected::Traffic;
use crate::tun::{Network, NetworkStats, Side, TunError, elapsed_ns, prefer_this_thread};

const PORT: u16 = 7_700;
/// IPv4 and UDP headers.
const HEADER_BYTES: usize = 28;
/// A sequence number and the instant of sending.
const PAYLOAD_BYTES: usize = 16;
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;
/// So long after the last packet was sent, and after the last one came, none will come any more.
const QUIET: Duration = Duration::from_secs(1);

/// What a stream met.
#[derive(Clone, Debug)]
pub struct TunRun {
    /// As seen by the receivers.
    pub seen: Seen,
    /// With the driver's own lateness.
    pub stats: NetworkStats,
}

impl DriverError {
    /// What real packets may add: wake-ups of the sender, the driver and the receiver, and an uneven stream, whose
    /// packets wait for each other in other groups than those of the formula. Measured on a quiet machine of two cores: the
    /// median delay is 0.02 to 0.11 ms above the model's. The rest is room for a machine with other work.
    pub const TUN: Self = Self {
        delay_ms: 0.5,
        share: 0.02,
    };
}

impl Case {
    /// Sends the stream through two network namespaces, both ways at once.
    ///
    /// # Errors
    /// As [`Network::new`], and when a socket fails.
    pub fn run_tun(&self, seed: u64) -> Result<TunRun, TunError> {
        let network = Network::new(&self.plan(seed))?;
        let io_error = |error| TunError::Setup {
            what: "send the stream",
            error,
        };
        let epoch = Instant::now();
        let (left, right) = (network.left(), network.right());
        let traffic = self.traffic;
        let observations = thread::scope(|scope| {
            let ways = [(left, right), (right, left)].map(|(near, far)| {
                let (listening, wait_for_listener) = channel();
                let (sent, wait_for_sender) = channel();
                let sender =
                    scope.spawn(move || send(near, far, traffic, epoch, &wait_for_listener, sent));
                let receiver =
                    scope.spawn(move || receive(far, traffic, epoch, &listening, &wait_for_sender));
                (sender, receiver)
            });
            ways.map(|(sender, receiver)| {
                let ended = |_| io::Error::other("a thread panicked");
                sender.join().map_err(ended)??;
                receiver.join().map_err(ended)?
            })
        });
        let [up, down] = observations;
        let stats = network.stats();
        Ok(TunRun {
            seen: [
                (up.map_err(io_error)?, stats.left_to_right.link),
                (down.map_err(io_error)?, stats.right_to_left.link),
            ],
            stats,
        })
    }
}

fn send(
    near: &Side,
    far: &Side,
    traffic: Traffic,
    epoch: Instant,
    listener: &Receiver<()>,
    sent: Sender<()>,
) -> io::Result<()> {
    near.enter()?;
    let socket = UdpSocket::bind((near.address, 0))?;
    socket.connect(SocketAddr::from((far.address, PORT)))?;
    listener
        .recv()
        .map_err(|_| io::Error::other("the receiver ended"))?;
    prefer_this_thread();
    let start_ns = elapsed_ns(epoch);
    let mut payload =
        vec![0; (traffic.size_bytes as usize).max(HEADER_BYTES + PAYLOAD_BYTES) - HEADER_BYTES];
    for number in 0..u64::from(traffic.packets) {
        let due_ns = start_ns + number * traffic.interval_ns;
        let wait_ns = due_ns.saturating_sub(elapsed_ns(epoch));
        if wait_ns > 0 {
            thread::sleep(Duration::from_nanos(wait_ns));
        }
        payload[..8].copy_from_slice(&number.to_be_bytes());
        payload[8..PAYLOAD_BYTES].copy_from_slice(&elapsed_ns(epoch).to_be_bytes());
        socket.send(&payload)?;
    }
    drop(sent);
    Ok(())
}

fn receive(
    far: &Side,
    traffic: Traffic,
    epoch: Instant,
    listening: &Sender<()>,
    sender: &Receiver<()>,
) -> io::Result<Observation> {
    far.enter()?;
    let socket = UdpSocket::bind((far.address, PORT))?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
    socket.set_read_timeout(Some(QUIET))?;
    let _ = listening.send(());
    prefer_this_thread();
    let mut seen = Observation::new(traffic.packets);
    let mut buffer = [0; 2_048];
    let mut sender_ended = false;
    loop {
        match socket.recv(&mut buffer) {
            Ok(size) => {
                let field = |at: usize| {
                    let bytes = buffer[..size].get(at..at + 8)?;
                    Some(u64::from_be_bytes(bytes.try_into().ok()?))
                };
                if let (Some(number), Some(sent_ns)) = (field(0), field(8)) {
                    seen.record(number, elapsed_ns(epoch).saturating_sub(sent_ns));
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if sender_ended {
                    return Ok(seen);
                }
                sender_ended =
                    sender.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
