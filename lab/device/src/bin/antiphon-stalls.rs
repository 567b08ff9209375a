//! Says when the machine stood still. On every processor a thread sleeps 2 ms at a time, and whenever it awakes late by 1 ms or more a
//! line `MS_SINCE_EPOCH LATE_MS` says when, and by how much. Started as `chrt --fifo 99 antiphon-stalls` nothing that runs on the machine
//! keeps it waiting, only what runs the machine: its hypervisor, or its kernel.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const NAP: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
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
                    watch();
                }
            });
        }
    });
    Ok(())
}

/// Ends when nobody reads any more.
fn watch() {
    loop {
        let due = Instant::now() + NAP;
        thread::sleep(NAP);
        let late = due.elapsed();
        if late < LATE {
            continue;
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let written = writeln!(
            std::io::stdout(),
            "{:.1} {:.1}",
            now.as_secs_f64() * 1e3,
            late.as_secs_f64() * 1e3
        );
        if written.is_err() {
            return;
        }
    }
}
