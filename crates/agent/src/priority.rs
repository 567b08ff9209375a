//! Real-time priority for the calling thread, where the system grants it.

/// Asks that this thread go before all ordinary ones; threads that it starts do not inherit that. `priority`: 1 to 99.
///
/// # Errors
/// In words for the user.
#[cfg(target_os = "linux")]
pub fn real_time(priority: i32) -> Result<(), String> {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameter is valid for the call, and 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(format!(
        "{error}; allow it with `rtprio 95` for your group in /etc/security/limits.d, and log in again"
    ))
}

/// Asks that this thread go before all ordinary ones.
///
/// # Errors
/// Always: only Linux is known here.
#[cfg(not(target_os = "linux"))]
pub fn real_time(_priority: i32) -> Result<(), String> {
    Err("this system is not known here".into())
}
