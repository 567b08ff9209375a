//! A terminal for a program, and what the program does when it is closed.

use std::{
    ffi::CStr,
    fs::File,
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::Command,
};

/// A terminal's two ends: that of who looks at it, and that of a program.
pub(crate) fn terminal() -> (File, File) {
    let open = |path: &str| {
        let mut options = File::options();
        options.read(true).write(true).open(path)
    };
    let ours = open("/dev/ptmx").expect("a terminal");
    let mut name = [0; 64];
    // SAFETY: the descriptor is open, and the name has room for its end.
    let named = unsafe {
        libc::unlockpt(ours.as_raw_fd()) == 0
            && libc::ptsname_r(ours.as_raw_fd(), name.as_mut_ptr(), name.len()) == 0
    };
    assert!(named);
    // SAFETY: it was written with its end.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let theirs = open(name.to_str().expect("ASCII")).expect("its other end");
    (ours, theirs)
}

/// What SIGHUP does to a program at its start: these tests may themselves run where it is ignored.
pub(crate) fn on_hangup(command: &mut Command, action: libc::sighandler_t) {
    // SAFETY: between fork and exec nothing is done but to set what a signal does.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGHUP, action);
            Ok(())
        });
    }
}
