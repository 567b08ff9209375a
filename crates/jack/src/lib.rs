//! The functions of the JACK API that the project needs, from whatever libjack the loader finds (under `pw-jack`
//! that is PipeWire's). Loaded at run time, so that the workspace builds on machines without JACK's headers; the crates
//! `jack` and `jack-sys` load at run time too, but their build script demands the headers on Linux all the same.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use libloading::Library;

#[repr(C)]
struct RawClient {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawPort {
    _opaque: [u8; 0],
}

const AUDIO: &CStr = c"32 bit float mono audio";
const NO_START_SERVER: c_int = 0x01;
/// The server answers, but the client could not be set up.
const INIT_FAILURE: c_int = 0x100;
const PORT_IS_INPUT: c_ulong = 0x1;
const PORT_IS_OUTPUT: c_ulong = 0x2;
const PORT_IS_PHYSICAL: c_ulong = 0x4;
const ALREADY_CONNECTED: c_int = 17; // EEXIST
const CAPTURE_LATENCY: c_int = 0;
const PLAYBACK_LATENCY: c_int = 1;

/// PipeWire before 1.1 gives up a client that is being opened when, in that moment, another program's port or stream ends (one of 15, with
/// 8 programs that come and go all the time). So a set-up that failed is tried again.
const OPEN_TRIES: u32 = 10;
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// Frames.
#[repr(C)]
#[derive(Default)]
struct LatencyRange {
    min: u32,
    max: u32,
}

macro_rules! api {
    ($($name:ident: fn($($arg:ty),* $(; $variadic:tt)?) $(-> $ret:ty)?;)*) => {
        /// Function pointers into libjack, valid as long as `_library` is loaded.
        struct Api {
            $($name: unsafe extern "C" fn($($arg),* $(, $variadic)?) $(-> $ret)?,)*
            _library: Library,
        }

        impl Api {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: libjack's initialisers have no preconditions, and the types below are those of jack/jack.h.
                unsafe {
                    let library = Library::new("libjack.so.0")?;
                    Ok(Self { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)* _library: library })
                }
            }

            /// For tests, which replace what they need: whatever else is called ends the program.
            #[cfg(all(test, unix))]
            fn stub() -> Self {
                unsafe extern "C" fn unexpected() {
                    std::process::abort();
                }
                // SAFETY: it looks at no argument, and never returns.
                unsafe {
                    Self {
                        $($name: std::mem::transmute::<unsafe extern "C" fn(), unsafe extern "C" fn($($arg),* $(, $variadic)?) $(-> $ret)?>(unexpected),)*
                        _library: libloading::os::unix::Library::this().into(),
                    }
                }
            }
        }
    };
}

api! {
    jack_set_error_function: fn(unsafe extern "C" fn(*const c_char));
    jack_set_info_function: fn(unsafe extern "C" fn(*const c_char));
    jack_client_open: fn(*const c_char, c_int, *mut c_int; ...) -> *mut RawClient;
    jack_client_close: fn(*mut RawClient) -> c_int;
    jack_activate: fn(*mut RawClient) -> c_int;
    jack_deactivate: fn(*mut RawClient) -> c_int;
    jack_set_process_callback: fn(*mut RawClient, unsafe extern "C" fn(u32, *mut c_void) -> c_int, *mut c_void) -> c_int;
    jack_set_xrun_callback: fn(*mut RawClient, unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int;
    jack_on_shutdown: fn(*mut RawClient, unsafe extern "C" fn(*mut c_void), *mut c_void);
    jack_get_sample_rate: fn(*mut RawClient) -> u32;
    jack_get_buffer_size: fn(*mut RawClient) -> u32;
    jack_set_buffer_size: fn(*mut RawClient, u32) -> c_int;
    jack_last_frame_time: fn(*const RawClient) -> u32;
    jack_port_register: fn(*mut RawClient, *const c_char, *const c_char, c_ulong, c_ulong) -> *mut RawPort;
    jack_port_name: fn(*const RawPort) -> *const c_char;
    jack_port_by_name: fn(*mut RawClient, *const c_char) -> *mut RawPort;
    jack_port_connected: fn(*const RawPort) -> c_int;
    jack_port_get_latency_range: fn(*mut RawPort, c_int, *mut LatencyRange);
    jack_port_get_buffer: fn(*mut RawPort, u32) -> *mut c_void;
    jack_connect: fn(*mut RawClient, *const c_char, *const c_char) -> c_int;
    jack_get_ports: fn(*mut RawClient, *const c_char, *const c_char, c_ulong) -> *mut *const c_char;
    jack_free: fn(*mut c_void);
}

/// What is called on the audio thread once per cycle, and beside it.
pub trait Handler: Send {
    /// RT: no alloc, no lock, no system call.
    fn process(&mut self, cycle: &Cycle<'_>);
    /// Another thread than the audio thread may call these, at the same time as `process`.
    fn events(&self) -> Arc<dyn Events>;
}

/// What JACK reports beside the audio thread. RT: as `process`.
pub trait Events: Send + Sync {
    /// A cycle was late. Some are not told: PipeWire keeps back the first of each driver's life.
    fn xrun(&self);
    /// The server shut down: nothing is called any more.
    fn server_gone(&self);
}

/// A port of ours that hears. Belongs to the client that registered it.
#[derive(Debug)]
pub struct InPort(NonNull<RawPort>);
/// A port of ours that plays. Belongs to the client that registered it.
#[derive(Debug)]
pub struct OutPort(NonNull<RawPort>);

// SAFETY: a port handle is only an address, used by the audio thread inside its cycle.
unsafe impl Send for InPort {}
// SAFETY: as above.
unsafe impl Send for OutPort {}

/// One cycle of the graph: the only access to the ports' buffers.
pub struct Cycle<'a> {
    api: &'a Api,
    client: *mut RawClient,
    /// Frames in this cycle.
    pub frames: u32,
}

impl Cycle<'_> {
    /// First frame of this cycle on the graph's clock; wraps.
    pub fn start(&self) -> u32 {
        // SAFETY: the client is alive while its process callback runs.
        unsafe { (self.api.jack_last_frame_time)(self.client) }
    }

    /// What a port hears in this cycle.
    pub fn heard(&self, port: &InPort) -> &[f32] {
        // SAFETY: JACK hands out `frames` samples, valid until the process callback returns, and nobody writes them.
        unsafe {
            let samples = (self.api.jack_port_get_buffer)(port.0.as_ptr(), self.frames);
            std::slice::from_raw_parts(samples.cast(), self.frames as usize)
        }
    }

    /// What a port is to play in this cycle: whatever it holds is old. One slice at a time, for another were the same memory:
    ///
    /// ```compile_fail,E0499
    /// # use antiphon_jack::{Cycle, OutPort};
    /// fn twice(cycle: &Cycle<'_>, port: &mut OutPort) {
    ///     let one = cycle.to_play(port);
    ///     let other = cycle.to_play(port);
    ///     one.copy_from_slice(other);
    /// }
    /// ```
    pub fn to_play<'a>(&'a self, port: &'a mut OutPort) -> &'a mut [f32] {
        // SAFETY: as in `heard`; the port is borrowed exclusively for as long as the slice, so nobody gets another to write to.
        unsafe {
            let samples = (self.api.jack_port_get_buffer)(port.0.as_ptr(), self.frames);
            std::slice::from_raw_parts_mut(samples.cast(), self.frames as usize)
        }
    }
}

/// What the audio thread sees.
struct Callbacks<H> {
    handler: H,
    api: *const Api,
    client: *mut RawClient,
    rate_hz: *const AtomicU32,
}

unsafe extern "C" fn on_process<H: Handler>(frames: u32, argument: *mut c_void) -> c_int {
    // SAFETY: the argument is the `Callbacks` that `run` keeps until after jack_deactivate, and only the audio thread touches it
    // meanwhile.
    unsafe {
        let callbacks = argument.cast::<Callbacks<H>>();
        let cycle = Cycle {
            api: &*(*callbacks).api,
            client: (*callbacks).client,
            frames,
        };
        let rate_hz = (cycle.api.jack_get_sample_rate)(cycle.client);
        (*(*callbacks).rate_hz).store(rate_hz, Ordering::Relaxed);
        (*callbacks).handler.process(&cycle);
    }
    0
}

unsafe extern "C" fn on_xrun(argument: *mut c_void) -> c_int {
    // SAFETY: the argument is one of `Client::told`, which is there until the client is closed; it is shared and Sync.
    unsafe { (*argument.cast::<Arc<dyn Events>>()).xrun() };
    0
}

unsafe extern "C" fn on_shutdown(argument: *mut c_void) {
    // SAFETY: as in `on_xrun`.
    unsafe { (*argument.cast::<Arc<dyn Events>>()).server_gone() };
}

/// libjack writes to standard error by itself, in the midst of whatever a terminal shows. What a caller can do something
/// about comes as a result.
unsafe extern "C" fn say_nothing(_: *const c_char) {}

/// A connection to the JACK server.
pub struct Client {
    api: Api,
    raw: *mut RawClient,
    /// Who is told of xruns and of the server's end. JACK may do so as long as the client is open, on a thread that deactivating does not stop.
    told: RefCell<Vec<*mut Arc<dyn Events>>>,
    /// In the newest cycle; 0 before the first.
    cycle_rate_hz: AtomicU32,
}

impl Client {
    /// Connects to a server that runs; starts none. Takes half a second at most when the server refuses.
    ///
    /// # Errors
    /// In words for the user: no libjack, no server, or one that refuses.
    pub fn open(name: &str) -> Result<Self, String> {
        let api = Api::load().map_err(|e| {
            format!("no libjack ({e}): run it under pw-jack (Debian package pipewire-jack), or install jackd2")
        })?;
        // SAFETY: the function is there for as long as the program.
        unsafe {
            (api.jack_set_error_function)(say_nothing);
            (api.jack_set_info_function)(say_nothing);
        }
        let name = c_string(name)?;
        let mut status = 0;
        for _ in 0..OPEN_TRIES {
            // SAFETY: both pointers are valid for the call; NO_START_SERVER takes no further argument.
            let raw =
                unsafe { (api.jack_client_open)(name.as_ptr(), NO_START_SERVER, &mut status) };
            if !raw.is_null() {
                return Ok(Self {
                    api,
                    raw,
                    told: RefCell::default(),
                    cycle_rate_hz: AtomicU32::new(0),
                });
            }
            if status & INIT_FAILURE == 0 {
                return Err(format!(
                    "no JACK server answers (status {status:#x}): start one, or, where PipeWire runs, put `pw-jack` before the \
                     command; XDG_RUNTIME_DIR must be that of PipeWire's session"
                ));
            }
            thread::sleep(OPEN_PAUSE);
        }
        Err(format!(
            "the JACK server refuses a client (status {status:#x}): its log says why"
        ))
    }

    /// Frames per second of the graph, as far as is known before it [runs](Self::run): PipeWire tells then what `PIPEWIRE_LATENCY` says,
    /// whatever the graph has. See [`check_rate`](Self::check_rate).
    pub fn sample_rate_hz(&self) -> u32 {
        // SAFETY: `raw` is an open client.
        unsafe { (self.api.jack_get_sample_rate)(self.raw) }
    }

    /// Whether the newest cycle had the rate that was told before. To be asked now and then while it [runs](Self::run), once a port is linked:
    /// until then a client of PipeWire may be driven by another clock than its card's.
    ///
    /// # Errors
    /// In words for the user: the graph has another.
    pub fn check_rate(&self, told_hz: u32) -> Result<(), String> {
        match self.cycle_rate_hz.load(Ordering::Relaxed) {
            hz if hz == 0 || hz == told_hz => Ok(()),
            hz => Err(format!(
                "the sound system runs at {hz} Hz, not at {told_hz} Hz as it said before: start again, under PipeWire with PIPEWIRE_LATENCY={}/{hz}",
                self.quantum_frames()
            )),
        }
    }

    /// Frames of a cycle, until somebody changes them.
    pub fn quantum_frames(&self) -> u32 {
        // SAFETY: `raw` is an open client.
        unsafe { (self.api.jack_get_buffer_size)(self.raw) }
    }

    /// Asks for cycles of so many frames, for the whole graph. The server may refuse, or take another number.
    pub fn set_quantum_frames(&self, frames: u32) -> bool {
        // SAFETY: `raw` is an open client.
        unsafe { (self.api.jack_set_buffer_size)(self.raw, frames) == 0 }
    }

    /// Registers a port that hears; returns it and its full name.
    ///
    /// # Errors
    /// In words for the user.
    pub fn in_port(&self, name: &str) -> Result<(InPort, String), String> {
        self.register(name, PORT_IS_INPUT)
            .map(|(port, name)| (InPort(port), name))
    }

    /// Registers a port that plays; returns it and its full name.
    ///
    /// # Errors
    /// In words for the user.
    pub fn out_port(&self, name: &str) -> Result<(OutPort, String), String> {
        self.register(name, PORT_IS_OUTPUT)
            .map(|(port, name)| (OutPort(port), name))
    }

    fn register(&self, name: &str, flags: c_ulong) -> Result<(NonNull<RawPort>, String), String> {
        let short = c_string(name)?;
        // SAFETY: `raw` is an open client, and the strings outlive the call; the name JACK returns is copied at once.
        unsafe {
            let port =
                (self.api.jack_port_register)(self.raw, short.as_ptr(), AUDIO.as_ptr(), flags, 0);
            let port = NonNull::new(port).ok_or_else(|| format!("JACK refuses the port {name}"))?;
            let full = CStr::from_ptr((self.api.jack_port_name)(port.as_ptr()))
                .to_string_lossy()
                .into_owned();
            Ok((port, full))
        }
    }

    /// From when a sound's first frame is at a card's connector until the cycle begins in which a port hears that, by JACK's word: the longest of
    /// the ways there. By the port's full name; `None` while nothing is connected to it.
    pub fn capture_latency_frames(&self, port: &str) -> Option<u32> {
        self.latency(port, CAPTURE_LATENCY)
    }

    /// From when a cycle begins until the first frame that a port plays in it is at a card's connector, likewise.
    pub fn playback_latency_frames(&self, port: &str) -> Option<u32> {
        self.latency(port, PLAYBACK_LATENCY)
    }

    fn latency(&self, port: &str, mode: c_int) -> Option<u32> {
        let name = c_string(port).ok()?;
        let mut range = LatencyRange::default();
        // SAFETY: `raw` is an open client, the string and the range are valid for the calls, and the port is there between them.
        unsafe {
            let port = (self.api.jack_port_by_name)(self.raw, name.as_ptr());
            let port = NonNull::new(port)?.as_ptr();
            if (self.api.jack_port_connected)(port) == 0 {
                return None;
            }
            (self.api.jack_port_get_latency_range)(port, mode, &mut range);
        }
        Some(range.max)
    }

    /// Links two ports by their full names.
    pub fn connect(&self, source: &str, target: &str) -> Result<(), String> {
        let (from, to) = (c_string(source)?, c_string(target)?);
        // SAFETY: `raw` is an open client, and the strings outlive the call.
        match unsafe { (self.api.jack_connect)(self.raw, from.as_ptr(), to.as_ptr()) } {
            0 | ALREADY_CONNECTED => Ok(()),
            code => Err(format!("cannot connect {source} to {target} (code {code})")),
        }
    }

    /// Full names of all audio ports.
    pub fn ports(&self) -> Vec<String> {
        self.list(0)
    }

    /// Full names of the ports of sound cards that can be heard.
    pub fn microphones(&self) -> Vec<String> {
        self.list(PORT_IS_PHYSICAL | PORT_IS_OUTPUT)
    }

    /// Full names of the ports of sound cards that play.
    pub fn speakers(&self) -> Vec<String> {
        self.list(PORT_IS_PHYSICAL | PORT_IS_INPUT)
    }

    fn list(&self, flags: c_ulong) -> Vec<String> {
        let mut names = Vec::new();
        // SAFETY: JACK returns null or an array of strings that ends in null, to be freed by jack_free.
        unsafe {
            let list = (self.api.jack_get_ports)(self.raw, ptr::null(), AUDIO.as_ptr(), flags);
            if !list.is_null() {
                let mut next = list;
                while !(*next).is_null() {
                    names.push(CStr::from_ptr(*next).to_string_lossy().into_owned());
                    next = next.add(1);
                }
                (self.api.jack_free)(list.cast());
            }
        }
        names
    }

    /// Runs `handler` on the audio thread for as long as `body` runs on this one, and gives it back. Fails, in words for the user, where the
    /// server does not let it run.
    pub fn run<H: Handler, R>(
        &self,
        handler: H,
        body: impl FnOnce() -> R,
    ) -> (H, Result<R, String>) {
        let told = Box::into_raw(Box::new(handler.events()));
        self.told.borrow_mut().push(told);
        let mut callbacks = Callbacks {
            handler,
            api: &self.api,
            client: self.raw,
            rate_hz: &self.cycle_rate_hz,
        };
        self.cycle_rate_hz.store(0, Ordering::Relaxed);
        let argument = (&raw mut callbacks).cast();
        // SAFETY: `raw` is an open client, not yet active; `told` is there until it is closed.
        unsafe {
            (self.api.jack_set_process_callback)(self.raw, on_process::<H>, argument);
            (self.api.jack_set_xrun_callback)(self.raw, on_xrun, told.cast());
            (self.api.jack_on_shutdown)(self.raw, on_shutdown, told.cast());
        }
        let running = Running(self);
        // SAFETY: `callbacks` stays where it is until `running` has ended, be it by a panic.
        let active = unsafe { (self.api.jack_activate)(self.raw) };
        let result = (active == 0).then(body);
        drop(running);
        let result = result.ok_or_else(|| format!("JACK refuses to activate (code {active})"));
        (callbacks.handler, result)
    }
}

/// Until this is dropped, cycles may run.
struct Running<'a>(&'a Client);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` is an open client.
        unsafe { (self.0.api.jack_deactivate)(self.0.raw) };
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: `raw` is an open client, and nothing uses it after this, nor what it was told to call.
        unsafe {
            (self.api.jack_client_close)(self.raw);
            for told in self.told.get_mut().drain(..) {
                drop(Box::from_raw(told));
            }
        }
    }
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} has a zero byte"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    type ProcessCallback = unsafe extern "C" fn(u32, *mut c_void) -> c_int;
    type ShutdownCallback = unsafe extern "C" fn(*mut c_void);

    thread_local! {
        /// What happened, in order.
        static LOG: RefCell<Vec<&'static str>> = RefCell::default();
        static RATE_HZ: Cell<u32> = const { Cell::new(48_000) };
        static ACTIVATION: Cell<c_int> = const { Cell::new(0) };
        static PROCESS: Cell<Option<(ProcessCallback, *mut c_void)>> = const { Cell::new(None) };
        static SHUTDOWN: Cell<Option<(ShutdownCallback, *mut c_void)>> = const { Cell::new(None) };
    }

    fn log(what: &'static str) {
        LOG.with_borrow_mut(|log| log.push(what));
    }

    /// Of a JACK that only remembers what it was told.
    fn client() -> Client {
        type XrunCallback = unsafe extern "C" fn(*mut c_void) -> c_int;
        unsafe extern "C" fn set_process_callback(
            _: *mut RawClient,
            callback: ProcessCallback,
            argument: *mut c_void,
        ) -> c_int {
            PROCESS.set(Some((callback, argument)));
            0
        }
        unsafe extern "C" fn set_xrun_callback(
            _: *mut RawClient,
            _: XrunCallback,
            _: *mut c_void,
        ) -> c_int {
            0
        }
        unsafe extern "C" fn on_shutdown(
            _: *mut RawClient,
            callback: ShutdownCallback,
            argument: *mut c_void,
        ) {
            SHUTDOWN.set(Some((callback, argument)));
        }
        unsafe extern "C" fn activate(_: *mut RawClient) -> c_int {
            log("active");
            ACTIVATION.get()
        }
        unsafe extern "C" fn deactivate(_: *mut RawClient) -> c_int {
            log("inactive");
            0
        }
        unsafe extern "C" fn close(_: *mut RawClient) -> c_int {
            log("closed");
            0
        }
        unsafe extern "C" fn get_sample_rate(_: *mut RawClient) -> u32 {
            RATE_HZ.get()
        }
        unsafe extern "C" fn get_buffer_size(_: *mut RawClient) -> u32 {
            64
        }
        LOG.take();
        Client {
            api: Api {
                jack_get_sample_rate: get_sample_rate,
                jack_get_buffer_size: get_buffer_size,
                jack_set_process_callback: set_process_callback,
                jack_set_xrun_callback: set_xrun_callback,
                jack_on_shutdown: on_shutdown,
                jack_activate: activate,
                jack_deactivate: deactivate,
                jack_client_close: close,
                ..Api::stub()
            },
            raw: NonNull::dangling().as_ptr(),
            told: RefCell::default(),
            cycle_rate_hz: AtomicU32::new(0),
        }
    }

    struct Deaf;

    impl Handler for Deaf {
        fn process(&mut self, _: &Cycle<'_>) {}

        fn events(&self) -> Arc<dyn Events> {
            Arc::new(Witness)
        }
    }

    impl Drop for Deaf {
        fn drop(&mut self) {
            log("handler freed");
        }
    }

    struct Witness;

    impl Events for Witness {
        fn xrun(&self) {}

        fn server_gone(&self) {
            log("server gone");
        }
    }

    impl Drop for Witness {
        fn drop(&mut self) {
            log("events freed");
        }
    }

    #[test]
    fn the_server_s_end_may_be_told_until_the_client_is_closed() {
        let client = client();
        let (handler, ran) = client.run(Deaf, || ());
        ran.expect("activates");
        drop(handler);
        assert_eq!(LOG.take(), ["active", "inactive", "handler freed"]);
        let (callback, argument) = SHUTDOWN.take().expect("was told");
        // SAFETY: the client is open.
        unsafe { callback(argument) };
        drop(client);
        assert_eq!(LOG.take(), ["server gone", "closed", "events freed"]);
    }

    #[test]
    fn who_may_not_run_has_its_handler_back() {
        let client = client();
        ACTIVATION.set(-1);
        let (handler, ran) = client.run(Deaf, || panic!("it runs"));
        ACTIVATION.set(0);
        assert_eq!(ran, Err("JACK refuses to activate (code -1)".into()));
        assert_eq!(LOG.take(), ["active", "inactive"]);
        drop(handler);
    }

    #[test]
    fn a_panic_ends_the_cycles_before_it_frees_what_they_use() {
        let client = client();
        let run = || client.run::<_, ()>(Deaf, || panic!("as the test wants it"));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(LOG.take(), ["active", "inactive", "handler freed"]);
    }
    #[test]
    fn a_graph_that_runs_at_another_rate_than_it_said_is_found_out_by_its_cycles() {
        let client = client();
        let told_hz = client.sample_rate_hz();
        RATE_HZ.set(44_100);
        let cycle = || {
            let (callback, argument) = PROCESS.get().expect("was told");
            // SAFETY: the client runs, and no other cycle does.
            unsafe { callback(64, argument) };
        };
        let checks = client.run(Deaf, || {
            let before = client.check_rate(told_hz);
            cycle();
            let wrong = client.check_rate(told_hz);
            RATE_HZ.set(told_hz);
            cycle();
            [before, wrong, client.check_rate(told_hz)]
        });
        let [before, wrong, right] = checks.1.expect("activates");
        assert_eq!((before, right), (Ok(()), Ok(())));
        let wrong = wrong.expect_err("44100 are not 48000");
        assert!(wrong.contains("runs at 44100 Hz"), "{wrong}");
        assert!(wrong.contains("PIPEWIRE_LATENCY=64/44100"), "{wrong}");
    }
}
