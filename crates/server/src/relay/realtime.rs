//! The media thread's priority.

use std::io;

/// Lets the calling thread run before all ordinary ones, at the lowest real-time priority. Threads that it starts do not inherit it.
///
/// # Errors
/// The operating system does not allow it (on Linux: neither `CAP_SYS_NICE` nor `RLIMIT_RTPRIO`), or has no such thing.
#[cfg(target_os = "linux")]
pub(crate) fn prefer_this_thread() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameters` lives through the call, which only reads it; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn prefer_this_thread() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
