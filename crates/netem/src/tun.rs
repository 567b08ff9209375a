//! The driver with real packets: two network namespaces of this process, joined by the model (Linux, root).
//!
//! Each side is a thread with a network namespace and a TUN device of its own, which reads the packets that its side sends and
//! writes them into the other side's device at the instant the model says. Nothing has a name in the file system, so
//! nothing is left behind, however the process ends.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getpid, gettid};
use serde::Serialize;
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::{Direction, Line, LinkStats, Plan, PlanError};

const DEVICE: &str = "tun0";
const MTU_BYTES: u16 = 1_500;
/// Packets that the kernel holds while the thread does not get the processor: 1 s of a busy link.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;
/// Packets read before those that are due get their turn.
const READ_BATCH_PACKETS: u32 = 32;
/// How soon a thread notices that it is to end.
const IDLE: Duration = Duration::from_millis(100);
/// One above the sound threads of browsers and of the lab: a real network does not wait for the machine either.
const REAL_TIME_PRIORITY: &str = "9";

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunError {
    /// Correct the plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Run as root, with the device and the command that are named.
    #[error(
        "{what}: {error} (this needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN, /dev/net/tun, and `ip` of iproute2)"
    )]
    Setup {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

fn setup<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> TunError {
    move |error| TunError::Setup {
        what,
        error: error.into(),
    }
}

/// One end, to start programs in: `nsenter --net=NETNS program`.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Its network namespace, as long as the [`Network`] lives.
    pub netns: PathBuf,
    /// Its address.
    pub address: Ipv4Addr,
}

impl Side {
    /// Moves this thread, and what it starts from now on, to this side, for good.
    ///
    /// # Errors
    /// Without the rights to do so, or when the network has ended.
    pub fn enter(&self) -> io::Result<()> {
        setns(File::open(&self.netns)?, CloneFlags::CLONE_NEWNET)?;
        Ok(())
    }
}

/// What became of the packets of one direction.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TunStats {
    /// By the model.
    #[serde(flatten)]
    pub link: LinkStats,
    /// Packets that the far device refused; counted as delivered too.
    pub refused_packets: u64,
    /// From the instant due to the write into the far device. The model counts from when a packet was read from the near one: how late that was cannot be
    /// seen, and comes on top. The thread that reads also writes, so it is about as late at both.
    pub lateness_p50_us: Option<u64>,
    /// As above.
    pub lateness_p99_us: Option<u64>,
    /// As above.
    pub lateness_max_us: Option<u64>,
}

/// Both directions.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStats {
    /// The uplink.
    pub left_to_right: TunStats,
    /// The downlink.
    pub right_to_left: TunStats,
}

/// Two namespaces joined by the model. They end with it.
pub struct Network {
    sides: [Side; 2],
    shared: [Arc<Shared>; 2],
    epoch: Instant,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// One direction, between its thread and whoever asks.
struct Shared {
    way: Mutex<Way>,
}

struct Way {
    line: Line<Vec<u8>>,
    lateness: Lateness,
    refused_packets: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    /// Makes the namespaces and starts the plan.
    ///
    /// # Errors
    /// A wrong plan, or a system that does not allow it.
    pub fn new(plan: &Plan) -> Result<Self, TunError> {
        let epoch = Instant::now();
        let way = |direction| -> Result<_, PlanError> {
            Ok(Arc::new(Shared {
                way: Mutex::new(Way {
                    line: Line::new(plan, direction, 0)?,
                    lateness: Lateness::default(),
                    refused_packets: 0,
                }),
            }))
        };
        let shared = [way(Direction::LeftToRight)?, way(Direction::RightToLeft)?];
        let stop = Arc::new(AtomicBool::new(false));
        let left = Starting::new(Ipv4Addr::new(10, 77, 0, 1), &shared[0], epoch, &stop)?;
        let right = Starting::new(Ipv4Addr::new(10, 77, 0, 2), &shared[1], epoch, &stop)?;
        // A thread that waits for the far device ends when it is not sent.
        let _ = left.far.send(Arc::clone(&right.device));
        let _ = right.far.send(left.device);
        Ok(Self {
            sides: [left.side, right.side],
            shared,
            epoch,
            stop,
            threads: vec![left.thread, right.thread],
        })
    }

    /// The person at home.
    pub fn left(&self) -> &Side {
        &self.sides[0]
    }

    /// The far end.
    pub fn right(&self) -> &Side {
        &self.sides[1]
    }

    /// Follows another plan from now on.
    ///
    /// # Errors
    /// As [`Plan::validate`]; the network then goes on as before.
    pub fn set_plan(&self, plan: &Plan) -> Result<(), PlanError> {
        for shared in &self.shared {
            let mut way = shared.lock();
            way.line.set_plan(plan, elapsed_ns(self.epoch))?;
        }
        Ok(())
    }

    /// What became of the packets so far.
    pub fn stats(&self) -> NetworkStats {
        let [left_to_right, right_to_left] = [0, 1].map(|i| {
            let way = self.shared[i].lock();
            TunStats {
                link: way.line.stats(),
                refused_packets: way.refused_packets,
                lateness_p50_us: way.lateness.quantile_us(0.5),
                lateness_p99_us: way.lateness.quantile_us(0.99),
                lateness_max_us: way.lateness.max_us,
            }
        });
        NetworkStats {
            left_to_right,
            right_to_left,
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A side whose device is there, and which waits for the far one.
struct Starting {
    side: Side,
    device: Arc<SyncDevice>,
    far: mpsc::Sender<Arc<SyncDevice>>,
    thread: JoinHandle<()>,
}

impl Starting {
    fn new(
        address: Ipv4Addr,
        shared: &Arc<Shared>,
        epoch: Instant,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, TunError> {
        let (ready, made) = mpsc::channel();
        let (far, wait_for_far) = mpsc::channel::<Arc<SyncDevice>>();
        let (shared, stop) = (Arc::clone(shared), Arc::clone(stop));
        let thread = thread::spawn(move || {
            let made = make_side(address);
            let device = made.as_ref().ok().map(|(_, device)| Arc::clone(device));
            let _ = ready.send(made);
            if let Some(near) = device
                && let Ok(far) = wait_for_far.recv()
            {
                prefer_this_thread();
                carry(&near, &far, &shared, epoch, &stop);
            }
        });
        let ended = || TunError::Setup {
            what: "start a side",
            error: io::Error::other("its thread ended"),
        };
        let (side, device) = made.recv().map_err(|_| ended())??;
        Ok(Self {
            side,
            device,
            far,
            thread,
        })
    }
}

/// Gives this thread a network namespace with one device, which leads everywhere.
fn make_side(address: Ipv4Addr) -> Result<(Side, Arc<SyncDevice>), TunError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(setup("make a network namespace"))?;
    let device = DeviceBuilder::new()
        .name(DEVICE)
        .inherit_enable_state()
        .build_sync()
        .map_err(setup("make a TUN device"))?;
    device
        .set_nonblocking(true)
        .map_err(setup("make a TUN device"))?;
    // Without addrgenmode none the kernel sends IPv6 router solicitations of its own into the model.
    run_ip(&format!(
        "link set lo up\n\
         link set {DEVICE} mtu {MTU_BYTES} txqueuelen {DEVICE_QUEUE_PACKETS} addrgenmode none\n\
         addr add {address}/24 dev {DEVICE}\n\
         link set {DEVICE} up\n\
         route add default dev {DEVICE}\n"
    ))
    .map_err(setup("set up the TUN device by `ip`"))?;
    let netns = format!("/proc/{}/task/{}/ns/net", getpid(), gettid()).into();
    Ok((Side { netns, address }, Arc::new(device)))
}

/// A child inherits the namespace of the thread that starts it.
fn run_ip(batch: &str) -> io::Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(batch.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(said.trim().to_owned()))
}

/// Asks for real-time scheduling, so that a busy machine does not become jitter; without the right to it, goes on.
pub(crate) fn prefer_this_thread() {
    let _ = Command::new("chrt")
        .args(["--rr", "--pid", REAL_TIME_PRIORITY, &gettid().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Moves packets until told to stop.
fn carry(near: &SyncDevice, far: &SyncDevice, shared: &Shared, epoch: Instant, stop: &AtomicBool) {
    let mut buffer = [0; MTU_BYTES as usize + 1];
    while !stop.load(Ordering::Relaxed) {
        let wait = {
            let mut way = shared.lock();
            for _ in 0..READ_BATCH_PACKETS {
                match near.recv(&mut buffer) {
                    Ok(size) => {
                        let packet = buffer[..size].to_vec();
                        way.line.push(packet, size as u32, elapsed_ns(epoch));
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            deliver(&mut way, far, epoch);
            let now_ns = elapsed_ns(epoch);
            way.line.poll_at().map_or(IDLE, |at_ns| {
                Duration::from_nanos(at_ns.saturating_sub(now_ns)).min(IDLE)
            })
        };
        let mut waited_for = [PollFd::new(near.as_fd(), PollFlags::POLLIN)];
        // An interrupted wait is only shorter.
        let _ = ppoll(&mut waited_for, Some(wait.into()), None);
    }
}

fn deliver(way: &mut Way, far: &SyncDevice, epoch: Instant) {
    while let Some(at_ns) = way.line.poll_at()
        && let now_ns = elapsed_ns(epoch)
        && let Some(packet) = way.line.pop(now_ns)
    {
        if far.send(&packet).is_err() {
            way.refused_packets += 1;
        }
        way.lateness.record((now_ns - at_ns) / 1_000);
    }
}

pub(crate) fn elapsed_ns(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A histogram of whole microseconds, as far as they matter.
struct Lateness {
    counts: Vec<u64>,
    total: u64,
    max_us: Option<u64>,
}

/// Later than that is one class, whose quantiles are the maximum.
const LATENESS_CLASSES: usize = 10_000;

impl Default for Lateness {
    fn default() -> Self {
        Self {
            counts: vec![0; LATENESS_CLASSES],
            total: 0,
            max_us: None,
        }
    }
}

impl Lateness {
    fn record(&mut self, us: u64) {
        self.total += 1;
        self.max_us = self.max_us.max(Some(us));
        if let Some(count) = usize::try_from(us)
            .ok()
            .and_then(|us| self.counts.get_mut(us))
        {
            *count += 1;
        }
    }

    fn quantile_us(&self, p: f64) -> Option<u64> {
        let rank = (p * self.total as f64).ceil() as u64;
        let mut passed = 0;
        let class = self.counts.iter().position(|count| {
            passed += count;
            passed >= rank.max(1)
        });
        class.map_or(self.max_us, |us| Some(us as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_quantiles_are_those_of_the_values() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.quantile_us(0.5), None);
        for us in 1..=100 {
            lateness.record(us * 1_000);
        }
        assert_eq!(lateness.quantile_us(0.05), Some(5_000));
        assert_eq!(lateness.quantile_us(0.99), Some(100_000));
        assert_eq!(lateness.max_us, Some(100_000));
    }
}
