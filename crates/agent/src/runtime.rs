//! A thread's runtime, with tasks of that thread alone.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

/// A runtime for one thread.
///
/// # Errors
/// The system's.
pub(crate) fn new() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Runs `future` to its end, and with it the tasks that it spawned. What the system was asked and has not answered is left behind: a
/// look-up of a host's name may hang for long, and who leaves shall not wait for it.
pub(crate) fn run<F: Future>(runtime: Runtime, future: F) -> F::Output {
    let output = LocalSet::new().block_on(&runtime, future);
    runtime.shutdown_background();
    output
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_call_that_hangs_is_not_waited_for() {
        let (answer, hung) = mpsc::channel::<()>();
        let (say, said) = mpsc::channel();
        thread::spawn(move || {
            run(new().expect("a runtime"), async {
                let (ask, asked) = tokio::sync::oneshot::channel();
                tokio::task::spawn_blocking(move || {
                    let _ = ask.send(());
                    hung.recv()
                });
                asked.await.expect("it hangs now");
            });
            let _ = say.send(());
        });
        let ended = said.recv_timeout(Duration::from_secs(30));
        drop(answer);
        ended.expect("it ends though the call has not");
    }
}
