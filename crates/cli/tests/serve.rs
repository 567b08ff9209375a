//! `antiphon serve` as its user sees it.

#[cfg(target_os = "linux")]
mod terminal;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    iter,
    net::{TcpListener, TcpStream, UdpSocket},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use web_transport_quinn::{ClientBuilder, proto::ConnectRequest};

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

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

/// The lines that come within half a minute: a test that waits for another one fails then.
fn lines(from: impl Read + Send + 'static) -> impl Iterator<Item = String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut read = BufReader::new(from).lines().map_while(Result::ok);
        read.try_for_each(|line| sender.send(line))
    });
    let end = Instant::now() + Duration::from_secs(30);
    iter::from_fn(move || {
        let left = end.saturating_duration_since(Instant::now());
        lines.recv_timeout(left).ok()
    })
}

/// Ends the server with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_flag_counts_more_than_the_environment_and_that_more_than_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("antiphon.toml");
    let text = "listen = \"127.0.0.1:1001\"\nmax_rooms = 11\nmax_participants = 12\nmax_messages_per_s = 13\n\
                ice_servers = [\"stun:file.example.org\", \"turn:file.example.org,ann,hunter2\"]\n\
                turn_urls = [\"turn:turn.example.org\"]\nturn_secret = \"hunter3\"\n\
                acme_cache = \"certificates\"\nrelay_listen = \"0.0.0.0:1002\"\nrelay_port = 14\nno_relay = true\n";
    fs::write(&file, text).expect("written");
    let file = file.to_str().expect("UTF-8");
    let (code, shown, _) = run(antiphon(&["serve", "--print-config", "--max-rooms", "31"])
        .args(["--relay-port", "34", "--no-relay=false"])
        .env("ANTIPHON_CONFIG", file)
        .env("ANTIPHON_MAX_ROOMS", "21")
        .env("ANTIPHON_MAX_PARTICIPANTS", "22")
        .env("ANTIPHON_ACME_DOMAINS", "a.example.org b.example.org")
        .env("ANTIPHON_TRUSTED_PROXIES", "192.0.2.1 10.0.0.0/8"));
    assert_eq!(code, Some(0));
    for line in [
        "max_rooms = 31",
        "max_participants = 22",
        "max_messages_per_s = 13",
        "max_participants_per_room = 32",
        "listen = \"127.0.0.1:1001\"",
        "acme_domains = [\"a.example.org\", \"b.example.org\"]",
        "acme_cache = \"certificates\"",
        "relay_listen = \"0.0.0.0:1002\"",
        "relay_port = 34",
        "no_relay = false",
        "trusted_proxies = [\"192.0.2.1\", \"10.0.0.0/8\"]",
        "ice_servers = [\"stun:file.example.org\", \"turn:file.example.org,ann,***\"]",
        "turn_secret = \"***\"",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} is not in\n{shown}"
        );
    }
    assert!(!shown.contains("hunter"));
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_text_is_not_shown() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let mut command = antiphon(&["serve", "--print-config", "--tls-key", "key.pem"]);
    command
        .arg("--tls-cert")
        .arg(OsStr::from_bytes(b"\xff.pem"));
    let (code, _, stderr) = run(&mut command);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.starts_with("error: ") && stderr.contains("UTF-8"),
        "{stderr}"
    );
}

#[cfg(unix)]
#[test]
fn nobody_need_read_what_is_printed() {
    for arguments in [
        &["serve", "--print-config"][..],
        // Without sound cards it fails, which is 1.
        &["join", "--backend", "cpal", "--list-devices"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = antiphon(arguments);
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn();
        let output = child.expect("it starts").wait_with_output();
        let Output { status, stderr, .. } = output.expect("it ends");
        let stderr = String::from_utf8(stderr).expect("UTF-8");
        let code = status.code();
        assert!(matches!(code, Some(0 | 1)), "{arguments:?}: {stderr}");
    }
}

fn acme<'a>(others: &[&'a str]) -> Vec<&'a str> {
    let names = ["--acme-domain", "a.example.org", "--acme-cache", "cache"];
    [&names[..], others].concat()
}

#[test]
fn mistakes_are_explained_and_secrets_are_not_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("antiphon.toml");
    fs::write(&file, "max_rooms = 1\n\nturn_sekret = \"hunter2\"\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    for (arguments, explained) in [
        (
            vec!["--config", file],
            "line 3: unknown field `turn_sekret`",
        ),
        (vec!["--config", "no-such-file.toml"], "no-such-file.toml"),
        (vec!["--tls-cert", "cert.pem"], "--tls-key"),
        (vec!["--relay-key", "key.pem"], "--relay-cert"),
        (vec!["--acme-domain", "a.example.org"], "--acme-cache"),
        (vec!["--acme-cache", "cache"], "--acme-domain"),
        (
            vec!["--acme-contact", "mailto:ann@example.org"],
            "--acme-contact is of no use without --acme-domain",
        ),
        (
            vec!["--acme-directory", "https://ca.example.org"],
            "--acme-directory is of no use without --acme-domain",
        ),
        (
            vec!["--acme-root-ca", "root.pem"],
            "--acme-root-ca is of no use without --acme-domain",
        ),
        (
            vec!["--max-participants-per-room", "65"],
            "expected 1 to 64",
        ),
        (acme(&["--acme-domain", "A.example.org"]), "twice"),
        (acme(&["--acme-domain", "*.example.org"]), "wildcards"),
        (acme(&["--acme-domain", "192.0.2.1"]), "no address"),
        (acme(&["--acme-domain", "https://b.example.org"]), "a name"),
        (
            acme(&["--tls-cert", "c.pem", "--tls-key", "k.pem"]),
            "--tls-cert",
        ),
        (acme(&["--public-url", "http://a.example.org"]), "https://"),
        (
            acme(&["--public-url", "https://b.example.org"]),
            "--acme-domain",
        ),
        (acme(&["--acme-contact", "ann@example.org"]), "mailto:"),
        (
            acme(&["--acme-directory", "http://ca.example.org"]),
            "https://",
        ),
        (
            vec![
                "--tls-cert",
                "c",
                "--tls-key",
                "k",
                "--public-url",
                "http://h",
            ],
            "--public-url http://h: expected https://",
        ),
        (vec!["--relay-port", "0"], "1 to 65535"),
        (
            vec!["--no-relay", "--relay-listen", "0.0.0.0:8080"],
            "--relay-listen is of no use with --no-relay",
        ),
        (
            vec!["--no-relay", "--relay-port", "8080"],
            "--relay-port is of no use with --no-relay",
        ),
        (
            vec!["--no-relay", "--relay-cert", "c", "--relay-key", "k"],
            "--relay-cert is of no use with --no-relay",
        ),
        (
            vec!["--turn-ttl-s", "3600"],
            "--turn-ttl-s is of no use without --turn-url",
        ),
        (vec!["--no-relay=perhaps"], "--no-relay"),
        (vec!["--turn-url", "turn:turn.example.org"], "--turn-secret"),
        (
            vec!["--ice-server", "turn:turn.example.org"],
            "USER,CREDENTIAL",
        ),
        (vec!["--turn-secret", "hunter2"], "--turn-url"),
        (
            vec!["--turn-url", "turn:turn.example.org", "--turn-secret="],
            "--turn-secret",
        ),
        (vec!["--public-url", "music.example.org"], "https://HOST"),
        (vec!["--public-url", "https://:443"], "https://HOST"),
        (vec!["--public-url", "https://h:99999"], "https://HOST"),
        (vec!["--public-url", "https://h:0"], "https://HOST"),
        (vec!["--public-url", "https://h:"], "https://HOST"),
        (vec!["--public-url", "https://a:b:c"], "https://HOST"),
        (vec!["--public-url", "https://[::1"], "https://HOST"),
        (
            vec!["--max-rooms", "0"],
            "--max-rooms 0: expected 1 or more",
        ),
        (vec!["--max-participants", "0"], "--max-participants 0"),
        (
            vec!["--max-connections-per-address", "0"],
            "--max-connections-per-address 0",
        ),
        (vec!["--max-messages-per-s", "0"], "--max-messages-per-s 0"),
        (vec!["--max-bytes-per-s", "0"], "--max-bytes-per-s 0"),
        (vec!["--turn-ttl-s", "0"], "--turn-ttl-s 0"),
        (vec!["--listen", "8080"], "--listen"),
        (vec!["--listen", "localhost:8080"], "expected an IP address"),
        (vec!["--log", "loud"], "--log loud: expected"),
    ] {
        let (code, _, stderr) = run(antiphon(&["serve", "--print-config"]).args(&arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(explained), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("hunter2"), "{stderr}");
    }
}

#[test]
fn an_address_that_people_type_has_a_host_and_may_have_a_port() {
    for url in [
        "https://music.example.org",
        "https://music.example.org:8443/",
        "http://192.0.2.1:8080",
        "https://[2001:db8::1]",
        "https://[2001:db8::1]:8443",
    ] {
        let (code, shown, stderr) = run(&mut antiphon(&[
            "serve",
            "--print-config",
            "--public-url",
            url,
        ]));
        assert_eq!(code, Some(0), "{stderr}");
        assert!(shown.contains(url), "{shown}");
    }
}

#[test]
fn a_variable_of_nothing_is_not_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("antiphon.toml");
    fs::write(&file, "log = \"debug\"\n").expect("written");
    let mut command = antiphon(&["serve", "--print-config"]);
    for name in [
        "CONFIG",
        "LISTEN",
        "TLS_CERT",
        "ICE_SERVERS",
        "MAX_ROOMS",
        "NO_RELAY",
        "LOG",
    ] {
        command.env(format!("ANTIPHON_{name}"), "");
    }
    let (code, shown, mistake) = run(&mut command);
    assert_eq!(code, Some(0), "{mistake}");
    assert!(shown.contains("log = \"info\""));
    command.arg("--config").arg(&file);
    assert!(run(&mut command).1.contains("log = \"debug\""));
}

#[test]
fn a_variable_that_is_misspelt_is_missed() {
    let mut command = antiphon(&["serve", "--listen", "127.0.0.1:0", "--no-relay"]);
    command.env("ANTIPHON_ICE_SERVER", "stun:stun.example.org");
    command
        .env("ANTIPHON_MAX_ROOMS", "3")
        .env("ANTIPHON_PASSPHRASE", "of join");
    command.args(["--metrics-listen", "127.0.0.1:0"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = Server(command.spawn().expect("it starts"));
    let mut log = Vec::new();
    for line in lines(server.0.stderr.take().expect("piped")) {
        if line.contains("for the operator") {
            break;
        }
        log.push(line);
    }
    let log = log.join("\n");
    assert!(log.contains("ANTIPHON_ICE_SERVER is no setting"), "{log}");
    assert!(log.contains("ANTIPHON_ICE_SERVERS is one"), "{log}");
    assert_eq!(log.matches("is no setting").count(), 1, "{log}");
}

#[test]
fn a_list_may_have_many_spaces() {
    let mut command = antiphon(&["serve", "--print-config"]);
    command
        .env("ANTIPHON_ICE_SERVERS", " stun:a:1  stun:b:2\n")
        .env("ANTIPHON_TRUSTED_PROXIES", "192.0.2.1   192.0.2.2 ")
        .env("ANTIPHON_TURN_URLS", "  ");
    let (code, shown, stderr) = run(&mut command);
    assert_eq!(code, Some(0), "{stderr}");
    for line in [
        "ice_servers = [\"stun:a:1\", \"stun:b:2\"]",
        "trusted_proxies = [\"192.0.2.1\", \"192.0.2.2\"]",
        "turn_urls = []",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
}

#[test]
fn no_mistake_shows_a_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("antiphon.toml");
    for (line, explained) in [
        ("turn_secret = 314159", "invalid type, expected a string"),
        ("turn_secret = [\"314159\"]", "expected a string"),
        ("turn_secret = 314159, expected", "line 2"),
        ("turn_secret = hush314159", "line 2"),
        ("turn_secret = \"314159", "line 2"),
        ("turn_secret = \"\\314159\"", "line 2"),
        ("turn_secret \"314159\"", "line 2"),
        (
            "ice_servers = \"turn:turn.example.org,ann,314159\"",
            "invalid type, expected a sequence",
        ),
        (
            "ice_servers = [\"turn.example.org,ann,314159\"]",
            "begins with stun:",
        ),
        ("ice_servers = [314159]", "expected a string"),
        ("ice_servers = 314159", "expected a sequence"),
    ] {
        fs::write(&file, format!("max_rooms = 1\n{line}\n")).expect("written");
        let mut command = antiphon(&["serve", "--print-config", "--config"]);
        let (code, _, stderr) = run(command.arg(&file));
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(stderr.contains(explained), "{line}: {stderr}");
        assert!(!stderr.contains("314159"), "{line}: {stderr}");
    }
    for server in [
        "turn.example.org,ann,314159",
        "turn:turn.example.org,314159",
        "turn:turn.example.org,ann,pass 314159",
    ] {
        let mut by_flag = antiphon(&["serve", "--print-config", "--ice-server", server]);
        let mut by_environment = antiphon(&["serve", "--print-config"]);
        by_environment.env("ANTIPHON_ICE_SERVERS", server);
        for command in [&mut by_flag, &mut by_environment] {
            let (code, _, stderr) = run(command);
            assert_eq!(code, Some(2), "{stderr}");
            assert!(stderr.contains("error: --ice-server: "), "{stderr}");
            assert!(!stderr.contains("314159"), "{stderr}");
        }
    }
    let secret = ["--turn-url", "turn:turn.example.org", "--turn-secret"];
    let mut command = antiphon(&["serve", "--print-config"]);
    let (code, shown, stderr) = run(command.args(secret).arg("--314159"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(!shown.contains("314159"), "{shown}");
}

#[test]
fn a_printed_file_is_of_use_once_its_secrets_are_put_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("antiphon.toml");
    let print = || {
        let mut command = antiphon(&["serve", "--print-config", "--config"]);
        run(command.arg(&file))
    };
    let turn = "turn_urls = [\"turn:turn.example.org\"]\nturn_secret = \"hunter2\"\n";
    let ice = "ice_servers = [\"stun:stun.example.org\", \"turn:turn.example.org,ann,hunter2\"]\n";
    let room = "room_secret = \"correct horse hunter2\"\n";
    for (settings, flag, secret) in [
        (turn, "--turn-secret", "hunter2"),
        (ice, "--ice-server", "hunter2"),
        (room, "--room-secret", "correct horse hunter2"),
    ] {
        fs::write(&file, settings).expect("written");
        let (code, printed, stderr) = print();
        assert_eq!(code, Some(0), "{stderr}");
        fs::write(&file, &printed).expect("written");
        let (code, _, stderr) = print();
        assert_eq!(code, Some(2), "{printed}");
        let explained = format!("{flag}: *** is what --print-config writes for a secret");
        assert!(stderr.contains(&explained), "{stderr}");
        fs::write(&file, printed.replace("***", secret)).expect("written");
        assert_eq!(print(), (Some(0), printed, String::new()));
    }
}

#[test]
fn a_room_of_the_operators_has_a_link_that_is_the_same_each_time() {
    let print = |arguments: &[&str], secret: &str| {
        let mut command = antiphon(&["serve", "--public-url", "https://music.example.org"]);
        run(command.args(arguments).env("ANTIPHON_ROOM_SECRET", secret))
    };
    let choir = ["--print-room", "choir"];
    let (code, link, stderr) = print(&choir, "correct horse battery");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        link.starts_with("https://music.example.org/r/choir-"),
        "{link}"
    );
    assert_eq!(print(&choir, "correct horse battery").1, link);
    assert_ne!(print(&choir, "correct horse batterie").1, link);
    for (arguments, secret, why) in [
        (&choir[..], "", "--print-room needs --room-secret"),
        (&choir, "too short", "--room-secret: expected at least 16"),
        (
            &["--print-room", "the choir"],
            "correct horse battery",
            "--print-room the choir: expected 1 to 41 letters",
        ),
    ] {
        let (code, _, stderr) = print(arguments, secret);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(
            stderr.contains(why) && !stderr.contains("too short"),
            "{stderr}"
        );
    }
}

#[test]
fn a_taken_port_is_explained() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for flag in ["--listen", "--metrics-listen"] {
        let free = ["serve", "--listen", "127.0.0.1:0"];
        let arguments = if flag == "--listen" {
            &free[..1]
        } else {
            &free
        };
        let (code, _, stderr) = run(antiphon(arguments).args([flag, &address]));
        assert_eq!(code, Some(1));
        let advice = format!("another: {flag} 127.0.0.1:");
        assert!(
            stderr.contains("another program has this port") && stderr.contains(&advice),
            "{stderr}"
        );
    }
}

#[test]
fn a_taken_port_of_the_relay_is_explained() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--relay-listen"];
    let (code, _, stderr) = run(antiphon(&arguments).arg(&address));
    assert_eq!(code, Some(1));
    for word in ["UDP", &address, "--relay-listen", "--no-relay"] {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
}

#[test]
fn prints_a_link_serves_it_and_stops_when_told() {
    let mut command = antiphon(&["serve", "--listen", "127.0.0.1:0"]);
    let mut server = Server(
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts"),
    );
    let mut lines = lines(server.0.stdout.take().expect("piped"));
    let link = lines
        .find_map(|line| {
            line.trim()
                .strip_prefix("http://localhost:")
                .map(str::to_owned)
        })
        .expect("a link");
    let (port, room) = link.split_once("/r/").expect("a link to a room");
    assert_eq!(room.len(), 22);
    let next = lines
        .next()
        .into_iter()
        .chain(lines.next())
        .collect::<String>();
    assert!(next.contains("send the same link"), "{next}");
    let typed = env!("CARGO_BIN_EXE_antiphon");
    let open = format!("{typed} open http://localhost:{link}");
    assert!(lines.any(|line| line.ends_with(&open)));

    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("connects");
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    #[cfg(unix)]
    {
        let told = Command::new("kill")
            .args(["-TERM", &server.0.id().to_string()])
            .status();
        assert!(told.expect("kill runs").success());
        assert_eq!(server.0.wait().expect("it ends").code(), Some(0));
        let mut log = String::new();
        server
            .0
            .stderr
            .take()
            .expect("piped")
            .read_to_string(&mut log)
            .expect("a log");
        assert!(log.contains("stopping"), "{log}");
    }
}

#[test]
fn a_log_for_programs_has_nothing_else_with_it() {
    let mut command = antiphon(&["serve", "--listen", "127.0.0.1:0", "--log-format", "json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Server(command.spawn().expect("it starts"));
    let mut log = lines(server.0.stderr.take().expect("piped"));
    let mut ready = false;
    while !ready {
        let line = log.next().expect("it says that it is ready");
        assert!(line.starts_with('{') && !line.contains("/r/"), "{line}");
        ready = line.contains("ready on 127.0.0.1:");
    }
    server.0.kill().expect("it ends");
    let mut said = String::new();
    let mut stdout = server.0.stdout.take().expect("piped");
    stdout.read_to_string(&mut said).expect("nothing");
    assert_eq!(said, "");
}

#[cfg(target_os = "linux")]
#[test]
fn takes_as_many_open_files_as_it_may_and_warns_if_they_are_too_few() {
    let start = |limit: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_antiphon"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-relay"]);
        command.args(["--max-participants", "500"]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = Server(command.spawn().expect("it starts"));
        let mut greeting = lines(server.0.stdout.take().expect("piped"));
        assert!(greeting.any(|line| line.contains("To stop")));
        let limits = fs::read_to_string(format!("/proc/{}/limits", server.0.id()));
        let limits = limits.expect("they are known");
        let files = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let files = files.expect("it is limited").split_whitespace().nth(3);
        let files = files.expect("a number").to_owned();
        server.0.kill().expect("it ends");
        let log: Vec<_> = lines(server.0.stderr.take().expect("piped")).collect();
        (files, log.join("\n"))
    };
    let (files, log) = start("-S -n 100 && ulimit -H -n 900");
    assert_eq!(files, "900", "{log}");
    assert!(!log.contains("open files"), "{log}");
    let (files, log) = start("-n 600");
    assert_eq!(files, "600", "{log}");
    let warning = "--max-participants 500 is more than 600 open files allow";
    assert!(log.contains("WARN") && log.contains(warning), "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn visitors_leave_files_for_the_operator() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 80 && exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_antiphon"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--no-relay"]);
    command.args(["--metrics-listen", "127.0.0.1:0"]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Server(command.spawn().expect("it starts"));
    let mut greeting = lines(server.0.stdout.take().expect("piped"));
    let link = greeting
        .find(|line| line.contains("http://"))
        .expect("a link");
    let mut log = lines(server.0.stderr.take().expect("piped"));
    let operator = log
        .find(|line| line.contains("for the operator"))
        .expect("a page");
    let address = |text: &str| {
        let (_, rest) = text.split_once("http://").expect("a URL");
        let address = rest.split('/').next().expect("an address");
        address.replace("localhost", "127.0.0.1")
    };
    // The system takes connections before the server does.
    let visitors = (0..150).map(|_| TcpStream::connect(address(&link)).expect("connects"));
    let _visitors: Vec<_> = visitors.collect();
    assert!(log.any(|line| line.contains("as many connections as open files allow")));
    let mut page = TcpStream::connect(address(&operator)).expect("connects");
    let asked =
        page.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    asked.expect("asked");
    let mut answer = String::new();
    page.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_closed_terminal_stops_it_in_good_order_and_without_one_nothing_happens() {
    let (_ours, theirs) = terminal::terminal();
    let start = |stdin: Stdio| {
        let mut command = antiphon(&["serve", "--listen", "127.0.0.1:0"]);
        terminal::on_hangup(&mut command, libc::SIG_DFL);
        let command = command.stdin(stdin).stdout(Stdio::piped());
        let child = command.stderr(Stdio::piped()).spawn();
        let mut server = Server(child.expect("it starts"));
        let mut greeting = lines(server.0.stdout.take().expect("piped"));
        assert!(greeting.any(|line| line.contains("/r/")));
        let log = lines(server.0.stderr.take().expect("piped"));
        (server, log)
    };
    let signal = |server: &Server, name: &str| {
        let told = Command::new("kill")
            .args([name, &server.0.id().to_string()])
            .status();
        assert!(told.expect("kill runs").success());
    };
    let (mut server, mut log) = start(theirs.into());
    signal(&server, "-HUP");
    assert!(log.any(|line| line.contains("stopping")));
    assert_eq!(server.0.wait().expect("it ends").code(), Some(0));

    let (mut server, mut log) = start(Stdio::null());
    signal(&server, "-HUP");
    assert!(log.any(|line| line.contains("nothing to read again")));
    signal(&server, "-TERM");
    assert!(log.any(|line| line.contains("stopping")));
    assert_eq!(server.0.wait().expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn what_strangers_make_libraries_say_is_not_logged() {
    let mut command = antiphon(&["serve", "--listen", "127.0.0.1:0", "--log", "debug"]);
    let mut server = Server(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts"),
    );
    let mut lines = lines(server.0.stderr.take().expect("piped"));
    let address = lines
        .find_map(|line| {
            line.split_once("relay on UDP ")
                .map(|(_, address)| address.to_owned())
        })
        .expect("the relay's address");
    let client = ClientBuilder::new()
        .dangerous()
        .with_no_certificate_verification();
    let token = "0123456789abcdef0123456789abcdef";
    let url = format!("https://{address}/relay/{token}");
    let request = ConnectRequest::new(url.parse::<url::Url>().expect("a URL"));
    let client = client.expect("a client");
    let began = Instant::now();
    for _ in 0..10 {
        let session = client.connect(request.clone()).await;
        // Its token is unknown, so that it ends at once.
        session.expect("connects").closed().await;
    }
    let seconds = began.elapsed().as_secs() as usize;
    let mut log = Vec::new();
    let refused = lines.find(|line| {
        log.push(line.clone());
        line.contains("refused a session")
    });
    assert!(refused.is_some(), "the server's own words are there");
    server.0.kill().expect("it ends");
    log.extend(lines);
    let refused = log.iter().filter(|line| line.contains("refused a session"));
    assert!(refused.count() <= 2 + seconds, "nor can it be filled");
    for line in log {
        let foreign = [token, "CONNECT", "SETTINGS", "capsule"];
        assert!(!foreign.iter().any(|word| line.contains(word)), "{line}");
    }
}

/// In a network of its own, if this system lets a test have one.
#[cfg(target_os = "linux")]
#[test]
fn where_there_is_only_ipv6_the_link_has_that() {
    let shell = "ip link set lo up && ip -6 addr add 2001:db8:7::5/64 dev lo nodad && \
                 ip -6 route add default dev lo src 2001:db8:7::5";
    let alone = |command: &str| {
        let mut unshared = Command::new("unshare");
        unshared.args(["-rn", "sh", "-c", &format!("{shell} && {command}")]);
        unshared.arg(env!("CARGO_BIN_EXE_antiphon"));
        unshared
    };
    if !alone("true").status().is_ok_and(|status| status.success()) {
        eprintln!("not tested: unshare -rn is refused");
        return;
    }
    let mut command = alone("exec \"$0\" serve --no-relay --listen '[::]:8081'");
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server(command.spawn().expect("it starts"));
    let mut greeting = lines(server.0.stdout.take().expect("piped"));
    let link = greeting
        .find(|line| line.contains("http://"))
        .expect("a link");
    assert!(
        link.trim().starts_with("http://[2001:db8:7::5]:8081/r/"),
        "{link}"
    );
}

#[test]
fn warns_about_plain_http_for_others() {
    warns(&["--listen", "0.0.0.0:0"], &["microphone", "--tls-cert"]);
}

#[test]
fn says_why_there_is_no_certificate_yet() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().to_str().expect("UTF-8");
    // A port that nobody listens on.
    let ca = "https://127.0.0.1:1/directory";
    let arguments = ["--listen", "127.0.0.1:0", "--acme-directory", ca];
    let acme = ["--acme-domain", "Music.example.org", "--acme-cache", cache];
    let arguments = [arguments, acme].concat();
    let what = "no valid certificate for music.example.org";
    warns(&arguments, &["--listen 0.0.0.0:443"]);
    logs(
        "ERROR",
        &arguments,
        &[what, "refused", "Next attempt in 1 min"],
    );
}

#[test]
fn the_link_has_the_name_of_the_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().to_str().expect("UTF-8");
    let ca = "https://127.0.0.1:1/directory";
    let mut command = antiphon(&["serve", "--listen", "127.0.0.1:0", "--acme-directory", ca]);
    command.args(["--acme-domain", "music.example.org", "--acme-cache", cache]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server(command.spawn().expect("it starts"));
    let mut lines = lines(server.0.stdout.take().expect("piped"));
    assert!(lines.any(|line| line.trim().starts_with("https://music.example.org/r/")));
}

#[test]
fn warns_about_an_operators_page_that_others_reach() {
    let arguments = ["--listen", "127.0.0.1:0", "--metrics-listen", "0.0.0.0:0"];
    warns(&arguments, &["operator", "--metrics-listen 127.0.0.1:"]);
}

#[test]
fn warns_about_a_relay_behind_a_proxy() {
    warns(
        &[
            "--listen",
            "127.0.0.1:0",
            "--public-url",
            "https://music.example.org",
        ],
        &["UDP", "--relay-listen"],
    );
}

#[test]
fn warns_about_a_certificate_of_another_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["*.example.org".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("made");
    let file = |name: &str, pem: String| {
        let path = folder.path().join(name);
        fs::write(&path, pem).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let cert = file("cert.pem", made.cert.pem());
    let key = file("key.pem", made.signing_key.serialize_pem());
    let start = |url| {
        let arguments = [
            "--listen",
            "127.0.0.1:0",
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
        ];
        let mut command = antiphon(&["serve", "--public-url", url]);
        command
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut server = Server(command.spawn().expect("it starts"));
        let lines = lines(server.0.stderr.take().expect("piped"));
        let log = lines.scan(false, |is_last, line| {
            let go_on = !*is_last;
            *is_last = line.contains("relay on UDP");
            go_on.then_some(line)
        });
        log.collect::<Vec<_>>().concat()
    };
    let warning = "the certificate is not for music.example.com, which --public-url has";
    assert!(start("https://music.example.com:8443").contains(warning));
    assert!(!start("https://music.example.org").contains("is not for"));
}

fn warns(arguments: &[&str], words: &[&str]) {
    logs("WARN", arguments, words);
}

fn logs(level: &str, arguments: &[&str], words: &[&str]) {
    let mut command = antiphon(&["serve"]);
    command.args(arguments);
    let mut server = Server(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts"),
    );
    let mut lines = lines(server.0.stderr.take().expect("piped"));
    assert!(lines.any(|line| line.contains(level) && words.iter().all(|word| line.contains(word))));
}

#[test]
fn help_teaches_by_examples() {
    for (arguments, example) in [
        (&["--help"][..], "antiphon serve  "),
        (
            &["serve", "--help"],
            "--tls-cert fullchain.pem --tls-key privkey.pem",
        ),
        (&["serve", "--help"], "you agree to their terms"),
        (&["open", "--help"], "antiphon open --browser firefox LINK"),
        (&["join", "--help"], "antiphon join --bots 3 LINK"),
    ] {
        let (code, help, _) = run(&mut antiphon(arguments));
        assert_eq!(code, Some(0));
        assert!(
            help.contains("Examples:") && help.contains(example),
            "{help}"
        );
        assert!(
            help.lines().all(|line| line.chars().count() <= 110),
            "{help}"
        );
    }
    let (code, _, help) = run(&mut antiphon(&[]));
    assert_eq!(code, Some(2), "no command is a mistake");
    assert!(help.contains("Examples:"), "{help}");
}
