//! `antiphon join` as its user hears it: a real server, and musicians made of files.

#[cfg(target_os = "linux")]
mod terminal;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use antiphon_agent::clock::now_ns;
use antiphon_agent::core::wire::{self, Datagram, Kind, Probe};
use antiphon_agent::direct::{Direct, DirectEvent};
use antiphon_agent::link::RoomLink;
use antiphon_agent::relay::{self, Listen, Relay, RelayConfig, RelayEvent};
use antiphon_agent::signalling::{self, FromServer, Hello, Secret, SignallingEvent, ToServer};
use serde_json::{Value, json};
#[cfg(target_os = "linux")]
use terminal::{on_hangup, terminal};
use tokio::sync::mpsc;

fn antiphon(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
    command.args(arguments);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ANTIPHON_"))
    {
        command.env_remove(name);
    }
    command
}

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve() -> (Process, String) {
    let mut command = antiphon(&["serve", "--listen", "127.0.0.1:0"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut server = Process(child);
    let link = BufReader::new(server.0.stdout.take().expect("piped"))
        .lines()
        .map_while(Result::ok)
        .find(|line| line.trim().starts_with("http://"))
        .expect("a link");
    (server, link.trim().to_owned())
}

/// Two channels of noise of 16 bits, between a second of silence, in which the players of the others begin, and more than enough of it.
fn write_take(path: &Path) -> Vec<i32> {
    let spec = hound::WavSpec {
        channels: 2,
        sample_rate: 48_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut noise = 1u32;
    let samples: Vec<i32> = (0..2 * 48_000)
        .map(|_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Never 0, so that it is known where it begins.
            i32::from((noise >> 16) as i16 | 1)
        })
        .collect();
    let mut writer = hound::WavWriter::create(path, spec).expect("created");
    let silence = |seconds: usize| std::iter::repeat_n(0, 2 * 48_000 * seconds);
    for sample in silence(1).chain(samples.iter().copied()).chain(silence(20)) {
        writer.write_sample(sample).expect("written");
    }
    writer.finalize().expect("finished");
    samples
}

fn interrupt(process: &mut Process) {
    let told = Command::new("kill")
        .args(["-INT", &process.0.id().to_string()])
        .status();
    assert!(told.expect("kill runs").success());
    assert!(process.0.wait().expect("it ends").success());
}

#[cfg(target_os = "linux")]
#[test]
fn a_closed_terminal_ends_it_unless_that_is_ignored_and_a_second_signal_ends_it_at_once() {
    let (server, link) = serve();
    let (_ours, theirs) = terminal();
    let signal = |process: &Process, name: &str| {
        let told = Command::new("kill")
            .args([name, &process.0.id().to_string()])
            .status();
        assert!(told.expect("kill runs").success());
    };
    let join = |hangup: libc::sighandler_t| {
        let mut command = antiphon(&["join", "--tone=440", "--plain", &link]);
        on_hangup(&mut command, hangup);
        let child = command
            .stdin(theirs.try_clone().expect("the terminal"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut process = Process(child.expect("it starts"));
        let stdout = process.0.stdout.take().expect("piped");
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("online")), "it joins");
        process
    };
    let code = |process: &mut Process| {
        for _ in 0..300 {
            if let Some(status) = process.0.try_wait().expect("it is ours") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("it does not end");
    };
    let mut ignoring = join(libc::SIG_IGN);
    signal(&ignoring, "-HUP");
    let mut closed = join(libc::SIG_DFL);
    signal(&closed, "-HUP");
    assert_eq!(code(&mut closed), Some(0));
    assert!(ignoring.0.try_wait().expect("it is there").is_none());
    interrupt(&mut ignoring);

    let mut waiting = join(libc::SIG_DFL);
    signal(&server, "-STOP");
    signal(&waiting, "-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.0.try_wait().expect("it is there").is_none());
    signal(&waiting, "-INT");
    assert_eq!(code(&mut waiting), Some(130));
    signal(&server, "-CONT");
}

/// Of what a terminal is told: to enter, and to leave, the screen that programs have for themselves.
#[cfg(target_os = "linux")]
const SCREEN: [&str; 2] = ["\u{1b}[?1049h", "\u{1b}[?1049l"];

/// Somebody at a terminal, who joins with a view.
#[cfg(target_os = "linux")]
struct Seat {
    ours: std::fs::File,
    theirs: std::fs::File,
    shown: std::sync::Arc<std::sync::Mutex<String>>,
    process: Process,
}

#[cfg(target_os = "linux")]
impl Seat {
    fn join(link: &str) -> Self {
        use std::io::Read;
        let (ours, theirs) = terminal();
        let mut command = antiphon(&["join", "--tone=440", link]);
        // SAFETY: between fork and exec nothing is done but to take the terminal as one's own.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let end = || theirs.try_clone().expect("the terminal");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn();
        let process = Process(child.expect("it starts"));
        let shown = std::sync::Arc::<std::sync::Mutex<String>>::default();
        let (mut reader, all) = (ours.try_clone().expect("the terminal"), shown.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]);
                all.lock().expect("no panic").push_str(&text);
            }
        });
        let seat = Self {
            ours,
            theirs,
            shown,
            process,
        };
        seat.wait_for(SCREEN[0], 1);
        wait_until(|| seat.is_raw());
        seat
    }

    fn wait_for(&self, words: &str, times: usize) {
        wait_until(|| self.shown.lock().expect("no panic").matches(words).count() >= times);
    }

    fn is_raw(&self) -> bool {
        let mut mode = std::mem::MaybeUninit::<libc::termios>::uninit();
        let terminal = std::os::fd::AsRawFd::as_raw_fd(&self.theirs);
        // SAFETY: the descriptor is open; it is written where it answers 0.
        let mode = unsafe {
            assert_eq!(libc::tcgetattr(terminal, mode.as_mut_ptr()), 0);
            mode.assume_init()
        };
        mode.c_lflag & libc::ICANON == 0
    }

    fn signal(&self, name: &str) {
        let told = Command::new("kill")
            .args([name, &self.process.0.id().to_string()])
            .status();
        assert!(told.expect("kill runs").success());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_is_given_back_while_it_is_stopped_and_at_a_second_signal() {
    let (server, link) = serve();
    let mut seat = Seat::join(&link);
    // Stopped and gone on with, by the key and by somebody else; the system does not stop who has no shell.
    std::io::Write::write_all(&mut seat.ours, b"\x1a").expect("it is read");
    seat.wait_for(SCREEN[1], 1);
    seat.wait_for(SCREEN[0], 2);
    wait_until(|| seat.is_raw());
    seat.signal("-TSTP");
    seat.wait_for(SCREEN[1], 2);
    seat.wait_for(SCREEN[0], 3);
    wait_until(|| seat.is_raw());

    // It would have left in time otherwise.
    let stopped = Command::new("kill")
        .args(["-STOP", &server.0.id().to_string()])
        .status();
    assert!(stopped.expect("kill runs").success());
    seat.signal("-TERM");
    std::thread::sleep(Duration::from_millis(10));
    seat.signal("-TERM");
    assert_eq!(seat.process.0.wait().expect("it ends").code(), Some(130));
    seat.wait_for(SCREEN[1], 3);
    assert!(!seat.is_raw());
}

/// What was heard of `samples` that were sent, and how many frames were made up in place of lost ones.
fn play_and_hear(path: &str) -> (Vec<i32>, Vec<i32>, u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let name = |name: &str| file(name).to_str().expect("UTF-8").to_owned();
    let sent = write_take(&file("take.wav"));
    let (_server, link) = serve();
    let join = |who: &str, more: &[&str]| {
        let mut command = antiphon(&["join", "--plain", "--name", who, "--path", path]);
        // Deep enough for a busy machine.
        command.args(["--buffer", "8000"]).args(more).arg(&link);
        Process(command.stdout(Stdio::piped()).spawn().expect("it starts"))
    };
    let (heard, json) = (name("heard.wav"), name("ear.json"));
    let mut ear = join("Ear", &["--output", &heard, "--json", &json]);
    let lines = BufReader::new(ear.0.stdout.take().expect("piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    lines.find(|line| line.starts_with("online")).expect("in");
    let mut mouth = join("Mouth", &["--input", &name("take.wav")]);
    lines
        .find(|line| line.contains("Mouth"))
        .expect("both are in");
    // All is heard some three seconds later; how much later does not matter, for silence follows.
    std::thread::sleep(Duration::from_secs(5));
    interrupt(&mut ear);
    interrupt(&mut mouth);
    let ear: Value = serde_json::from_slice(&std::fs::read(json).expect("written")).expect("JSON");
    let concealed = ear["peers"][0]["concealed_frames"]
        .as_u64()
        .expect("a count");
    let mut reader = hound::WavReader::open(heard).expect("a WAV file");
    let samples = reader.samples::<f32>().map(|sample| {
        let scaled = sample.expect("a sample") * 32_768.0;
        // What 16 bits cannot hold is as wrong as can be.
        if scaled.fract() == 0.0 {
            scaled as i32
        } else {
            i32::MAX
        }
    });
    (sent, samples.collect(), concealed)
}

/// Sound in real time takes processors that are not busy with that of another test.
static IN_REAL_TIME: Mutex<()> = Mutex::new(());

fn arrives_bit_exact(path: &str) {
    let _alone = IN_REAL_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // Where datagrams are lost or late, sound is made up: that proves nothing, so it is tried again.
    for _ in 0..5 {
        let (sent, heard, concealed) = play_and_hear(path);
        if concealed > 0 {
            continue;
        }
        let begin = heard.iter().position(|&sample| sample != 0);
        let heard = &heard[begin.expect("sound")..][..sent.len()];
        let wrong = sent
            .iter()
            .zip(heard)
            .position(|(sent, heard)| sent != heard);
        assert_eq!(
            wrong,
            None,
            "the first sample of {} that is not as it was sent",
            sent.len()
        );
        return;
    }
    panic!("sound was lost each time");
}

#[cfg(unix)]
#[test]
fn a_take_arrives_bit_exact_through_the_server() {
    arrives_bit_exact("relay");
}

#[cfg(unix)]
#[test]
fn a_take_arrives_bit_exact_by_data_channels() {
    arrives_bit_exact("direct");
}

#[cfg(unix)]
#[test]
fn a_take_arrives_bit_exact_by_both_paths_at_once() {
    arrives_bit_exact("auto");
}

/// What one does who is no program of this crate, but says and hears the same things: it counts what comes by each way.
struct Listener {
    signals: mpsc::Receiver<SignallingEvent>,
    to_server: mpsc::Sender<ToServer>,
    lanes: mpsc::Receiver<DirectEvent>,
    sessions: mpsc::Receiver<RelayEvent>,
    /// The musician's.
    id: String,
    direct: Direct,
    _relay: Relay,
}

#[derive(Debug, PartialEq)]
enum Way {
    Direct,
    Relayed,
}

impl Listener {
    /// Comes into a room where there is a musician.
    async fn join(link: &str) -> Self {
        let link: RoomLink = link.parse().expect("a link");
        let (to_server, outgoing) = mpsc::channel(256);
        let (events, mut signals) = mpsc::channel(256);
        let (lane_events, lanes) = mpsc::channel(256);
        let (session_events, sessions) = mpsc::channel(256);
        let hello = Hello {
            secret: Secret::random(),
            name: "Ear".into(),
            sample_rate_hz: 48_000,
            passphrase: None,
            returning: false,
            bot: false,
        };
        let talking = signalling::run(link.clone(), hello, outgoing, events);
        tokio::task::spawn_local(talking);
        let Some(SignallingEvent::Message {
            message: FromServer::Welcome(welcome),
            address,
        }) = signals.recv().await
        else {
            panic!("no welcome");
        };
        let musician = &welcome.participants[0];
        let config = RelayConfig {
            host: link.host,
            server: address,
            address: welcome.relay.expect("a relay"),
            sessions: 1,
        };
        let listen = Listen {
            forward: vec![musician.stream],
            ..Listen::default()
        };
        let endpoint = relay::endpoint(address).expect("a socket");
        let relay = Relay::open(&endpoint, &config, listen, session_events);
        Self {
            signals,
            to_server,
            lanes,
            sessions,
            id: musician.id.clone(),
            direct: Direct::new(
                &welcome.id,
                &musician.id,
                1,
                &welcome.ice_servers,
                lane_events,
            ),
            _relay: relay.expect("an address"),
        }
    }

    async fn say(&self, data: Value) {
        let to = self.id.clone();
        let said = self.to_server.send(ToServer::Signal { to, data }).await;
        said.expect("the server is there");
    }

    /// By which way the next datagram of sound comes.
    async fn next(&mut self) -> Way {
        loop {
            tokio::select! {
                Some(event) = self.signals.recv() => {
                    if let SignallingEvent::Message { message: FromServer::Signal { data, .. }, .. } = event {
                        self.direct.handle_signal(&data, now_ns());
                    }
                }
                Some(event) = self.lanes.recv() => match event {
                    DirectEvent::Datagram { bytes, .. } if is_audio(&bytes) => return Way::Direct,
                    // Lanes that answer nothing are dead.
                    DirectEvent::Datagram { lane, bytes, .. } => {
                        if let Ok(Datagram::Probe(probe)) = wire::parse(&bytes) {
                            let reply = Probe { replied_ns: Some(now_ns()), ..probe };
                            self.direct.send_on(lane, reply.to_bytes().to_vec().into());
                        }
                    }
                    DirectEvent::Signal { data, .. } => self.say(data).await,
                    DirectEvent::Closed { lane, epoch, .. } => self.direct.handle_closed(lane, epoch),
                    DirectEvent::Retry { lane, epoch, .. } => self.direct.handle_retry(lane, epoch),
                    DirectEvent::Notice(_) => {}
                },
                Some(event) = self.sessions.recv() => match event {
                    RelayEvent::Datagram(_, bytes) if is_audio(&bytes) => return Way::Relayed,
                    _ => {}
                },
            }
        }
    }

    async fn wait_for(&mut self, way: &Way) {
        let come = async { while self.next().await != *way {} };
        let come = tokio::time::timeout(Duration::from_secs(30), come).await;
        come.unwrap_or_else(|_| panic!("nothing comes {way:?}"));
    }
}

fn is_audio(bytes: &[u8]) -> bool {
    matches!(wire::route(bytes), Ok((Kind::Audio, _)))
}

#[cfg(unix)]
#[test]
fn one_who_wants_nothing_directly_gets_it_through_the_server_alone_until_it_does() {
    let (_server, link) = serve();
    let mut command = antiphon(&["join", "--plain", "--tone=440", &link]);
    let child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut musician = Process(child);
    let lines = BufReader::new(musician.0.stdout.take().expect("piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    lines.find(|line| line.starts_with("online")).expect("in");
    // Else its output would be in its way.
    std::thread::spawn(move || lines.for_each(drop));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let listening = async {
        let mut listener = Listener::join(&link).await;
        listener.wait_for(&Way::Relayed).await;
        listener.wait_for(&Way::Direct).await;
        let wish = |wanted| json!({"kind": "direct", "wanted": wanted});
        listener.say(wish(false)).await;
        // A second and more of nothing but what the server sends.
        let alone = async {
            let mut count = 0;
            while count < 500 {
                count = match listener.next().await {
                    Way::Relayed => count + 1,
                    Way::Direct => 0,
                }
            }
        };
        let alone = tokio::time::timeout(Duration::from_secs(30), alone).await;
        alone.expect("it goes on coming directly, or not at all");
        listener.say(wish(true)).await;
        listener.wait_for(&Way::Direct).await;
    };
    tokio::task::LocalSet::new().block_on(&runtime, listening);
}

#[cfg(target_os = "linux")]
#[test]
fn a_recording_is_whole_when_the_terminal_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let heard = folder.path().join("heard.wav");
    let (_server, link) = serve();
    let typed = format!(
        "exec {} join --tone=440 --output {} {link}",
        env!("CARGO_BIN_EXE_antiphon"),
        heard.display()
    );
    let terminal = Command::new("script")
        .args(["--quiet", "--command", &typed, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let terminal = Process(terminal.expect("script is there"));
    // A quarter of a second, or so.
    wait_until(|| std::fs::metadata(&heard).is_ok_and(|file| file.len() > 100_000));
    drop(terminal);
    let frames = || hound::WavReader::open(&heard).map_or(0, |reader| reader.duration());
    wait_until(|| frames() > 10_000);
    let written = frames();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(frames(), written, "it has ended");
    assert!(
        written < 4 * 48_000,
        "{written}: not only by what is written every few seconds"
    );
}

#[cfg(target_os = "linux")]
fn wait_until(is_so: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < patience, "in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn bots_hear_each_other_through_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("bots.json");
    let (_server, link) = serve();
    let arguments = [
        "join",
        "--bots",
        "3",
        "--rooms",
        "2",
        "--seconds",
        "4",
        "--json",
        json.to_str().expect("UTF-8"),
        &link,
    ];
    let status = antiphon(&arguments).stdout(Stdio::null()).status();
    assert!(status.expect("it runs").success());
    let summary: Value =
        serde_json::from_slice(&std::fs::read(json).expect("written")).expect("JSON");
    assert_eq!(
        (&summary["bots"], &summary["rooms"]),
        (&6.into(), &2.into()),
        "{summary}"
    );
    let count = |name: &str| summary[name].as_u64().expect("a count");
    assert!(count("sent_packets") > 0, "{summary}");
    // All that came was sent by a bot of the same room.
    assert!(
        count("received_packets") > count("sent_packets"),
        "{summary}"
    );
    assert_eq!(count("delays"), count("received_packets"), "{summary}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_that_nobody_types_at_gets_lines() {
    use std::os::unix::process::CommandExt;
    let (_server, link) = serve();
    let (ours, theirs) = terminal();
    let mut command = antiphon(&["join", "--tone=440", &link]);
    // SAFETY: between fork and exec nothing is done but to leave the terminal that these tests may have.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let child = command.stdin(Stdio::null()).stdout(theirs).spawn();
    let mut process = Process(child.expect("it starts"));
    let mut lines = BufReader::new(ours).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("online")));
    interrupt(&mut process);
}

#[cfg(target_os = "linux")]
#[test]
fn a_dumb_terminal_gets_lines() {
    let (_server, link) = serve();
    let (ours, theirs) = terminal();
    let mut command = antiphon(&["join", "--tone=440", "--seconds", "5", &link]);
    let end = || theirs.try_clone().expect("the terminal");
    let child = command.env("TERM", "dumb").stdin(end()).stdout(end());
    let mut process = Process(child.spawn().expect("it starts"));
    drop((command, theirs));
    let mut lines = BufReader::new(ours).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("online")));
    interrupt(&mut process);
}

#[test]
fn who_only_records_is_told_that_there_is_no_microphone() {
    let (_server, link) = serve();
    let folder = tempfile::tempdir().expect("a folder");
    let heard = folder.path().join("heard.wav");
    let heard = heard.to_str().expect("UTF-8");
    for (sound, is_silent) in [(&[][..], true), (&["--tone"], false)] {
        let arguments = [&["join", "--plain", "--output", heard, &link], sound].concat();
        let child = antiphon(&arguments).stdout(Stdio::piped()).spawn();
        let mut process = Process(child.expect("it starts"));
        let lines = BufReader::new(process.0.stdout.take().expect("piped")).lines();
        let is_in = |line: &String| line.starts_with("online");
        let line = lines.map_while(Result::ok).find(is_in).expect("in");
        let says_so = line.contains("no microphone is connected");
        assert_eq!(says_so, is_silent, "{line}");
        interrupt(&mut process);
        std::fs::remove_file(heard).expect("it was written");
    }
}

/// Somebody who has come into a room first, and locked it.
fn lock(link: &str) -> Process {
    let mut first = antiphon(&["join", "--tone", "--plain", "--passphrase", "tallis", link]);
    let mut first = Process(first.stdout(Stdio::piped()).spawn().expect("it starts"));
    let lines = BufReader::new(first.0.stdout.take().expect("piped")).lines();
    let is_locked = |line: &String| line == "the room is yours, and locked";
    lines.map_while(Result::ok).find(is_locked).expect("in");
    first
}

#[test]
fn bots_that_nobody_lets_in_say_so() {
    let (_server, link) = serve();
    let _first = lock(&link);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let nowhere = format!("http://{}/r/abcdefghijklmnop", nobody.expect("a port"));
    for (arguments, why) in [
        (&["join", "--bots", "3", &link][..], "passphrase"),
        (
            &["join", "--bots", "1", "--seconds", "1", &nowhere],
            "nothing listens there",
        ),
    ] {
        let output = antiphon(arguments).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains("no bot") && stderr.contains(why),
            "{stderr}"
        );
    }
}

#[test]
fn a_locked_door_says_how_to_open_it() {
    let (_server, link) = serve();
    let _first = lock(&link);
    for said in [&[][..], &["--passphrase", "byrd"]] {
        let arguments = [&["join", "--tone", "--plain", &link], said].concat();
        let output = antiphon(&arguments).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said:?}: {stderr}");
        assert!(
            stderr.contains("passphrase: say it by"),
            "{said:?}: {stderr}"
        );
    }
}

#[test]
fn who_never_got_in_is_told_why() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let address = nobody.expect("a port").to_string();
    let link = format!("http://{address}/r/abcdefghijklmnop");
    let folder = tempfile::tempdir().expect("a folder");
    let heard = folder.path().join("heard.wav");
    let output = antiphon(&["join", "--tone", "--plain", "--seconds", "1", &link])
        .arg("--output")
        .arg(&heard)
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(!heard.exists(), "a recording of nothing");
    for words in ["never got into the room: ", &address, "nothing listens"] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    let (_server, link) = serve();
    let link = link.replace("http://", "https://");
    let output = antiphon(&["join", "--tone", "--plain", "--seconds", "1", &link]).output();
    let stderr = String::from_utf8(output.expect("it runs").stderr).expect("UTF-8");
    assert!(stderr.contains("begin with http://?"), "{stderr}");
}

#[test]
fn what_is_of_a_sound_card_is_refused_without_one() {
    for option in [
        ["--device", "x"],
        ["--output-device", "x"],
        ["--input-channels", "1"],
    ] {
        let arguments = [
            &["join", "--tone", "http://localhost/r/abcdefghijklmnop"][..],
            &option,
        ]
        .concat();
        let output = antiphon(&arguments).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.contains("--tone") && stderr.contains(option[0]),
            "{stderr}"
        );
    }
}

#[cfg(all(target_os = "linux", feature = "alsa"))]
#[test]
fn of_a_card_that_is_not_there_only_what_is_ours_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = folder.path().join("alsa.conf");
    let card = "pcm.default { type plug slave.pcm \"absent\" }";
    std::fs::write(&settings, card).expect("written");
    // Nobody listens there.
    let mut command = antiphon(&["join", "http://127.0.0.1:1/r/abcdefghijklmnop"]);
    command.args(["--backend", "cpal", "--plain"]);
    let output = command.env("ALSA_CONFIG_PATH", settings).output();
    let stderr = String::from_utf8(output.expect("it runs").stderr).expect("UTF-8");
    assert!(stderr.starts_with("error: the sound card"), "{stderr}");
}

#[test]
fn mistakes_are_explained() {
    for (arguments, explained) in [
        (&["join"][..], "LINK"),
        (&["join", "http://localhost/nowhere"], "/r/ROOM"),
        (
            &[
                "join",
                "--input",
                "no-such.wav",
                "http://localhost/r/abcdefghijklmnop",
            ],
            "no-such.wav",
        ),
        (
            &[
                "join",
                "--bits",
                "12",
                "http://localhost/r/abcdefghijklmnop",
            ],
            "16, 24 or 32",
        ),
        (
            &[
                "join",
                "--bots",
                "2",
                "--bits",
                "24",
                "http://localhost/r/abcdefghijklmnop",
            ],
            "cannot be used with",
        ),
        (
            &[
                "join",
                "--bots",
                "2",
                "--path",
                "direct",
                "http://localhost/r/abcdefghijklmnop",
            ],
            "server only",
        ),
    ] {
        let output = antiphon(arguments).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(explained), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_recording_that_is_there_stays_and_mistakes_make_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (take, new, json) = (file("take.wav"), file("new.wav"), file("new.json"));
    let (nowhere, roundabout) = (file("missing/new.json"), file("./take.wav"));
    write_take(take.as_ref());
    let before = std::fs::read(&take).expect("there");
    for (arguments, explained) in [
        (&["--output", &take][..], "take.wav is there already"),
        (
            &["--input", &take, "--output", &take],
            "take.wav is there already",
        ),
        (
            &["--rate", "44100", "--opus", "64", "--output", &new],
            "48,000 Hz",
        ),
        (&["--input", "no-such.wav", "--json", &json], "no-such.wav"),
        (
            &["--bots", "1", "--path", "direct", "--json", &json],
            "server only",
        ),
        (&["--output", &new, "--json", &nowhere], "new.json"),
        (
            &["--tone", "--output", &new, "--json", &new],
            "--json and --output name the same file",
        ),
        (
            &["--input", &take, "--json", &roundabout],
            "--json and --input name the same file",
        ),
    ] {
        // Nobody listens there: whoever tries to get in has not seen the mistake.
        let mut command = antiphon(&["join", "http://127.0.0.1:1/r/abcdefghijklmnop"]);
        command.args(["--plain", "--seconds", "1"]).args(arguments);
        let output = command.output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(explained), "{arguments:?}: {stderr}");
    }
    assert_eq!(std::fs::read(&take).expect("there"), before);
    for made in [&new, &json] {
        assert!(!Path::new(made).exists(), "{made}");
    }
}
