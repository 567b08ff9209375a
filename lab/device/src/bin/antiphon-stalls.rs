//! Says when the machine stood still. On every processor a thread sleeps 2 ms at a time, or as many as are given, and whenever it awakes late by
//! half of that or more a line `MS_SINCE_EPOCH LATE_MS` says when, and by how much. Started as `chrt --fifo 99 antiphon-stalls [NAP_MS]` nothing
//! that runs on the machine keeps it waiting, only what runs the machine: its hypervisor, or its kernel. What begins within a nap seems shorter
//! by what was left of it; short naps see it whole, and cost more: 7 % of each processor with 0.25 ms, 1 % with 2.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const NAP_MS: f64 = 2.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nap_ms = std::env::args()
        .nth(1)
        .map_or(Ok(NAP_MS), |ms| ms.parse())?;
    let nap = Duration::try_from_secs_f64(nap_ms / 1e3)?;
    let this = Pid::from_raw(0);
    let all = sched_getaffinity(this)?;
    thread::scope(|scope| {
        for processor in 0..CpuSet::count() {
            if !all.is_set(processor).is_ok_and(|is_ours| is_ours) {
                continue;
            }
            scope.spawn(move || {
                let mut one = CpuSet::new();
                if one
                    .set(processor)
                    .and_then(|()| sched_setaffinity(this, &one))
                    .is_ok()
                {
                    watch(nap);
                }
            });
        }
    });
    Ok(())
}

/// Ends when nobody reads any more.
fn watch(nap: Duration) {
    loop {
        let due = Instant::now() + nap;
        thread::sleep(nap);
        let late = due.elapsed();
        if late < nap / 2 {
            continue;
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let written = writeln!(
            std::io::stdout(),
            "{:.1} {:.2}",
            now.as_secs_f64() * 1e3,
            late.as_secs_f64() * 1e3
        );
        if written.is_err() {
            return;
        }
    }
}
