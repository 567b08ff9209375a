//! How the audio thread wakes the network thread: an event counter of the kernel, written without waiting.
//!
//! It is the one system call that the audio thread makes: `docs/realtime.md` says why.

#[cfg(target_os = "linux")]
mod event {
    use std::io;
    use std::sync::Arc;

    use nix::sys::eventfd::{EfdFlags, EventFd};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// The audio thread's end.
    #[derive(Clone, Debug)]
    pub struct Waker(Arc<EventFd>);

    /// The network thread's end.
    #[derive(Debug)]
    pub struct Sleeper(Arc<EventFd>);

    /// Both ends.
    ///
    /// # Errors
    /// The system's.
    pub fn pair() -> io::Result<(Waker, Sleeper)> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let event = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        Ok((Waker(event.clone()), Sleeper(event)))
    }

    impl Waker {
        /// RT: no alloc, no lock, one system call that never waits.
        pub fn wake(&self) {
            // It can only fail when 2^64 - 2 wake-ups are pending: then the other end is awake.
            let _ = self.0.write(1);
        }
    }

    impl Sleeper {
        /// Ready once `wake` was called since the last time; must be called within a runtime.
        ///
        /// # Errors
        /// The system's, at the first call.
        pub fn listen(self) -> io::Result<Listener> {
            // SAFETY: the counter stays open, under the same number, as long as its `Arc` lives.
            let registered = unsafe { AsyncFd::register_with_interest(self.0, Interest::READABLE) };
            Ok(Listener(registered?))
        }
    }

    /// A sleeper within its runtime.
    #[derive(Debug)]
    pub struct Listener(AsyncFd<Arc<EventFd>>);

    impl Listener {
        /// Ready once `wake` was called since the last time.
        pub async fn woken(&mut self) {
            let Ok(mut guard) = self.0.readable().await else {
                return std::future::pending().await;
            };
            let _ = self.0.get_ref().read();
            guard.clear_ready();
        }
    }
}

/// Elsewhere nothing is as cheap to write and as easy to wait for: the network thread looks every millisecond.
#[cfg(not(target_os = "linux"))]
mod event {
    use std::io;
    use std::time::Duration;

    use tokio::time::{Interval, MissedTickBehavior, interval};

    /// The audio thread's end.
    #[derive(Clone, Debug)]
    pub struct Waker;
    /// The network thread's end.
    #[derive(Debug)]
    pub struct Sleeper;
    /// A sleeper within its runtime.
    #[derive(Debug)]
    pub struct Listener(Interval);

    /// Both ends.
    ///
    /// # Errors
    /// None.
    pub fn pair() -> io::Result<(Waker, Sleeper)> {
        Ok((Waker, Sleeper))
    }

    impl Waker {
        /// RT: does nothing.
        pub fn wake(&self) {}
    }

    impl Sleeper {
        /// Looks from now on; must be called within a runtime.
        ///
        /// # Errors
        /// None.
        pub fn listen(self) -> io::Result<Listener> {
            let mut looks = interval(Duration::from_millis(1));
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            Ok(Listener(looks))
        }
    }

    impl Listener {
        /// Ready a millisecond after it last was, however often something else came first meanwhile.
        pub async fn woken(&mut self) {
            self.0.tick().await;
        }
    }
}

pub use event::{Sleeper, Waker, pair};
