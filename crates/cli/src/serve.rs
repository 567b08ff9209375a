//! `antiphon serve`.

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::PathBuf,
    time::Duration,
};

use antiphon_server::{
    Config, RoomSigner, Server, StartError, Tls, has_web_app, signalling::RoomName,
};
use clap::Args;
use tokio::runtime::Runtime;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{
    Failure, join,
    open::quoted,
    say,
    settings::{LogFormat, Settings},
    unknown_variables,
};

/// Serve the web app, its signalling and the relay, and print a room's link
#[derive(Debug, Args)]
#[command(after_help = "\
Each setting can also come from the environment (ANTIPHON_LISTEN for --listen)
or from the file (listen = \"127.0.0.1:8080\"). A flag counts more than the
environment, the environment more than the file. Lists are ANTIPHON_ICE_SERVERS,
ANTIPHON_TURN_URLS, ANTIPHON_TRUSTED_PROXIES, ANTIPHON_ACME_DOMAINS and
ANTIPHON_ACME_CONTACTS, with spaces between the items; in the file they are
arrays: ice_servers = [\"stun:stun.example.org:3478\"].

Examples:
  antiphon serve
      Try it on this computer: http://localhost needs no certificate.

  antiphon serve --listen 0.0.0.0:443 --acme-domain music.example.org \\
      --acme-cache /var/lib/antiphon --ice-server stun:stun.example.org:3478
      For others to join: browsers give the microphone to HTTPS pages only. The
      certificate comes from Let's Encrypt and is renewed by itself.

  antiphon serve --listen 0.0.0.0:443 --public-url https://music.example.org \\
      --tls-cert fullchain.pem --tls-key privkey.pem
      The same with a certificate of your own.

  antiphon serve --public-url https://music.example.org \\
      --trusted-proxy 127.0.0.1 --relay-listen 0.0.0.0:8080
      The same behind a proxy on this machine that holds the certificate.
      The relay's UDP port is open to everyone: no web proxy passes it on.

  ANTIPHON_TURN_SECRET=... antiphon serve \\
      --turn-url 'turns:turn.example.org:443?transport=tcp'
      Relay through coturn (use-auth-secret) for those whose networks let
      nothing else through.

  antiphon serve --config antiphon.toml --print-config
      Show the settings that result, as a file, without starting.

  antiphon serve --config antiphon.toml --print-room violin-3a
      With room_secret = \"...\" in the file, nobody else makes rooms: print the
      link of this one, which is the same each time, without starting.")]
pub(crate) struct Serve {
    /// Read settings from this TOML file
    #[arg(long, env = "ANTIPHON_CONFIG", value_name = "FILE", hide_env = true)]
    config: Option<PathBuf>,

    /// Print the settings that result, as a TOML file with `***` for each secret, which you have to put in, and stop
    #[arg(long)]
    print_config: bool,

    /// Print the link of the room that is called so, which --room-secret makes, and stop: 1 to 41 of the letters A to Z, digits, - and _
    #[arg(long, value_name = "NAME")]
    print_room: Option<String>,

    #[command(flatten)]
    settings: Settings,
}

impl Serve {
    /// Serves until it is told to stop.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let file = self
            .config
            .map(|path| Settings::from_file(&path))
            .transpose()
            .map_err(Failure::usage)?;
        let settings = self
            .settings
            .or(file.unwrap_or_default())
            .or(Settings::defaults());
        let resolved = settings.clone().resolve().map_err(Failure::usage)?;
        if self.print_config {
            say(settings.to_toml().map_err(Failure::usage)?.trim_end());
            return Ok(());
        }
        if let Some(label) = self.print_room {
            say(&link_of(&resolved.config, &label).map_err(Failure::usage)?);
            return Ok(());
        }
        start_log(resolved.log, resolved.log_format);
        for (name, nearest) in unknown_variables() {
            tracing::warn!("{name} is no setting, and changes nothing; {nearest} is one");
        }
        #[cfg_attr(not(unix), allow(unused_mut))]
        let mut config = resolved.config;
        #[cfg(unix)]
        if let Some(files) = allow_files(config.rooms.participants) {
            config.connections.in_all = files.saturating_sub(OWN_FILES).max(1);
        }
        let runtime = Runtime::new().map_err(Failure::running)?;
        run_to_end(runtime, serve(config, resolved.log_format))
    }
}

/// What is open beside the connections of participants: the server's own, and of pages that load their files.
#[cfg(unix)]
const OTHER_FILES: u64 = 256;

/// Of those, what visitors leave: the sockets it listens on, certificates, the operator's page.
#[cfg(unix)]
const OWN_FILES: usize = 64;

/// As many open files as the system lets this process have: many begin with 1024, and each connection is one. Answers how many they are.
#[cfg(unix)]
fn allow_files(participants: usize) -> Option<usize> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    let limit = if raised.is_ok() { hard } else { soft };
    if limit < (participants as u64).saturating_add(OTHER_FILES) {
        tracing::warn!(
            "--max-participants {participants} is more than {limit} open files allow: raise that limit (`ulimit -n`, \
             or LimitNOFILE= of systemd), or take fewer"
        );
    }
    Some(limit.try_into().unwrap_or(usize::MAX))
}

/// What has begun to block meanwhile may write a file to its end, but not ask a DNS that never answers.
fn run_to_end<T>(runtime: Runtime, work: impl Future<Output = T>) -> T {
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn serve(config: Config, log_format: LogFormat) -> Result<(), Failure> {
    let tls = config.tls.is_some();
    let acme = matches!(config.tls, Some(Tls::Acme(_)));
    let public_origin = config.public_origin.clone();
    let signer = config.room_signer.as_ref();
    let room = signer.map_or_else(RoomName::random, RoomSigner::random);
    let relay = config.relay.as_ref();
    let relay_ip = relay.map(|relay| relay.listen.unwrap_or(config.listen).ip());
    let no_ice = config.ice.servers.is_empty() && config.ice.turn.is_none();
    let server = Server::bind(config)
        .await
        .map_err(|error| Failure::running(advise(&error)))?;
    let address = server.address();
    let link = room_link(address, tls, public_origin.as_deref(), &room);
    let stopped = stopped(server.reads_files());
    match log_format {
        LogFormat::Human => {
            // A closed standard output is no reason to stop.
            let _ = write_greeting(
                &mut io::stdout().lock(),
                &typed(env::args_os().next()),
                &link,
                address.ip().is_loopback() && public_origin.is_none(),
            );
        }
        // Nobody reads it, and the link would be in a log.
        LogFormat::Json => tracing::info!("ready on {address}"),
    }
    if let Some(address) = server.relay_address() {
        tracing::info!("relay on UDP {address}");
    }
    if let Some(address) = server.metrics_address() {
        tracing::info!("for the operator: http://{address}/, metrics on http://{address}/metrics");
        if !address.ip().is_loopback() {
            tracing::warn!(
                "the operator's page and the metrics are open to whoever reaches {address}: close that port to others, or use \
                 --metrics-listen 127.0.0.1:{}",
                address.port()
            );
        }
    }
    if !has_web_app() {
        tracing::warn!(
            "this binary has no web app in it: run `make build`, then target/release/antiphon"
        );
    }
    if public_origin.is_some() && relay_ip.is_some_and(|ip| ip.is_loopback()) {
        tracing::warn!(
            "others cannot reach the relay, because no web proxy passes its UDP on: use --relay-listen 0.0.0.0:PORT \
             and open that UDP port, or --no-relay"
        );
    }
    if acme && address.ip().is_loopback() {
        tracing::warn!(
            "the CA cannot reach {address} unless something here passes port 443 on to it: use --listen 0.0.0.0:443"
        );
    }
    if !address.ip().is_loopback() {
        if !tls
            && !public_origin
                .as_deref()
                .is_some_and(|origin| origin.starts_with("https://"))
        {
            tracing::warn!(
                "plain HTTP: from other computers, browsers will refuse this page microphone and sound. Use --acme-domain, or \
                 --tls-cert and --tls-key, or a proxy with HTTPS and --public-url https://..."
            );
        }
        if no_ice {
            tracing::warn!(
                "no --ice-server: people in the same network reach each other, most of those elsewhere find no straight path, and need the relay"
            );
        }
    }
    server.run(stopped).await.map_err(Failure::running)
}

/// What starts this program again where it was started: it need not be on the PATH.
fn typed(argument_0: Option<OsString>) -> String {
    argument_0
        .filter(|name| !name.is_empty())
        .map_or("antiphon".into(), |name| quoted(&name.to_string_lossy()))
}

fn write_greeting(
    out: &mut impl Write,
    antiphon: &str,
    link: &str,
    only_here: bool,
) -> io::Result<()> {
    writeln!(out, "\nAntiphon is ready. A new room:\n\n  {link}\n")?;
    writeln!(
        out,
        "Open it in Chrome, Edge or Firefox, and send the same link to those you want to play with."
    )?;
    if only_here {
        writeln!(
            out,
            "It works on this computer only; `{antiphon} serve --help` shows how to let others in."
        )?;
    }
    writeln!(
        out,
        "For the lowest latency:  {antiphon} open {link}\nTo stop: Ctrl-C\n"
    )?;
    out.flush()
}

/// The link to the room that the operator calls so.
fn link_of(config: &Config, label: &str) -> Result<String, String> {
    let signer = config.room_signer.as_ref();
    let signer =
        signer.ok_or("--print-room needs --room-secret: without it, any name makes a room")?;
    let room = signer
        .room(label)
        .map_err(|error| format!("--print-room {label}: {error}"))?;
    let origin = config.public_origin.as_deref();
    Ok(room_link(
        config.listen,
        config.tls.is_some(),
        origin,
        &room,
    ))
}

/// The link to a room, at the address that others most likely reach.
fn room_link(
    address: SocketAddr,
    tls: bool,
    public_origin: Option<&str>,
    room: &RoomName,
) -> String {
    let room = room.as_str();
    if let Some(origin) = public_origin {
        return format!("{origin}/r/{room}");
    }
    let (scheme, default_port) = if tls { ("https", 443) } else { ("http", 80) };
    let host = match address.ip() {
        ip if ip.is_loopback() => "localhost".to_owned(),
        ip if ip.is_unspecified() => own_address(ip).map_or("localhost".to_owned(), in_url),
        ip => in_url(ip),
    };
    match address.port() {
        port if port == default_port => format!("{scheme}://{host}/r/{room}"),
        port => format!("{scheme}://{host}:{port}/r/{room}"),
    }
}

fn in_url(ip: IpAddr) -> String {
    match ip {
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    }
}

/// The address of this machine in its network, for who listens on all: of IPv4, or where there is none of IPv6. Connecting a UDP socket sends nothing.
fn own_address(listening: IpAddr) -> Option<IpAddr> {
    let towards = |any: &str, somewhere: &str| {
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(somewhere).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    };
    let ipv6 = || towards("[::]:0", "[2001:db8::1]:9").filter(|_| listening.is_ipv6());
    towards("0.0.0.0:0", "192.0.2.1:9").or_else(ipv6)
}

fn advise(error: &StartError) -> String {
    let (flag, address, source) = match error {
        StartError::Listen { address, source } => ("--listen", *address, source),
        StartError::ListenMetrics { address, source } => ("--metrics-listen", *address, source),
        StartError::ListenRelay { .. } => {
            return format!(
                "{error}. Take another address, --relay-listen IP:PORT, or do without: --no-relay"
            );
        }
        _ => return error.to_string(),
    };
    let with_port = |port| SocketAddr::new(address.ip(), port);
    match source.kind() {
        io::ErrorKind::AddrInUse => format!(
            "cannot listen on {address}: another program has this port. Stop it, or take another: {flag} {}",
            with_port(address.port().checked_add(1).unwrap_or(8080)),
        ),
        io::ErrorKind::PermissionDenied => format!(
            "cannot listen on {address}: ports below 1024 need a permission. Take another: {flag} {}",
            with_port(8443),
        ),
        io::ErrorKind::AddrNotAvailable if flag == "--listen" => {
            let all: IpAddr = match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            format!(
                "cannot listen on {address}: this machine has no such address. For all that it has: {flag} {}",
                SocketAddr::new(all, address.port())
            )
        }
        // Not all: metrics are for the operator alone.
        io::ErrorKind::AddrNotAvailable => format!(
            "cannot listen on {address}: this machine has no such address. For this machine alone: {flag} 127.0.0.1:{}",
            address.port()
        ),
        _ => error.to_string(),
    }
}

fn start_log(level: LevelFilter, format: LogFormat) {
    let lines = fmt::layer().with_writer(io::stderr).with_target(false);
    let log = tracing_subscriber::registry().with(logged(level));
    match format {
        LogFormat::Human => log.with(lines.with_ansi(io::stderr().is_terminal())).init(),
        LogFormat::Json => log.with(lines.json()).init(),
    }
}

/// What Antiphon says itself, and errors of the libraries. QUIC's and WebTransport's warn of whatever a stranger sends them, two bytes a line, on
/// the media thread; and they show the requested path, which has the participant's token in it.
fn logged(level: LevelFilter) -> Targets {
    Targets::new()
        .with_default(LevelFilter::ERROR)
        .with_target("antiphon", level)
}

/// Ready after the first SIGINT or SIGTERM from the call on, which has to be in a runtime; the second one ends the process at once. SIGHUP is the
/// server's where it `reads_files`.
fn stopped(reads_files: bool) -> impl Future<Output = ()> {
    let first = signal();
    let hung_up = (!reads_files).then(hung_up);
    async {
        let hung_up = async {
            match hung_up {
                Some(hung_up) => hung_up.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = first => {}
            () = hung_up => {}
        }
        tokio::spawn(async {
            signal().await;
            std::process::exit(130);
        });
    }
}

/// Ready after the first SIGINT or SIGTERM from the call on, which has to be in a runtime.
#[cfg(unix)]
pub(crate) fn signal() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let interrupt = signal(SignalKind::interrupt());
    let terminate = signal(SignalKind::terminate());
    async {
        let (Ok(mut interrupt), Ok(mut terminate)) = (interrupt, terminate) else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

/// Ready after the terminal was closed. Without one, SIGHUP asks for certificates to be read again, of which none are in files.
#[cfg(unix)]
fn hung_up() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let has_terminal = join::has_terminal();
    let hangup = (!join::ignores_hangup()).then(|| signal(SignalKind::hangup()));
    async move {
        if let Some(Ok(mut hangup)) = hangup {
            while hangup.recv().await.is_some() {
                if has_terminal {
                    return;
                }
                tracing::info!("SIGHUP: there is nothing to read again");
            }
        }
        std::future::pending().await
    }
}

#[cfg(not(unix))]
async fn hung_up() {
    std::future::pending().await
}

#[cfg(not(unix))]
pub(crate) async fn signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::{sync::oneshot, task};
    use tracing::Level;

    use super::*;

    #[test]
    fn what_is_to_be_typed_works_where_this_was_typed() {
        for (started, shown) in [
            (Some("antiphon"), "antiphon"),
            (Some("target/release/antiphon"), "target/release/antiphon"),
            (Some("/opt/my tools/antiphon"), "'/opt/my tools/antiphon'"),
            (Some(""), "antiphon"),
            (None, "antiphon"),
        ] {
            assert_eq!(typed(started.map(OsString::from)), shown);
        }
    }

    #[test]
    fn a_name_that_is_looked_up_for_ever_does_not_keep_it_from_ending() {
        let (answer, answered) = mpsc::channel();
        run_to_end(Runtime::new().expect("a runtime"), async {
            let (begin, begun) = oneshot::channel();
            task::spawn_blocking(move || {
                let _ = begin.send(());
                let _ = answered.recv_timeout(Duration::from_secs(30));
            });
            begun.await.expect("it begins");
        });
        answer.send(()).expect("it still waits for an answer");
    }

    #[test]
    fn a_port_that_cannot_be_had_is_explained() {
        let advice = |metrics: bool, address: &str, kind: io::ErrorKind| {
            let address = address.parse().expect("an address");
            let source = kind.into();
            advise(&if metrics {
                StartError::ListenMetrics { address, source }
            } else {
                StartError::Listen { address, source }
            })
        };
        use io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
        for (metrics, address, kind, advised) in [
            (false, "127.0.0.1:80", AddrInUse, "--listen 127.0.0.1:81"),
            (false, "[::1]:80", AddrInUse, "--listen [::1]:81"),
            (false, "[::]:443", PermissionDenied, "--listen [::]:8443"),
            (
                false,
                "[2001:db8::1]:443",
                AddrNotAvailable,
                "--listen [::]:443",
            ),
            (
                false,
                "192.0.2.1:443",
                AddrNotAvailable,
                "--listen 0.0.0.0:443",
            ),
            (true, "[::1]:9090", AddrInUse, "--metrics-listen [::1]:9091"),
            (
                true,
                "127.0.0.1:90",
                PermissionDenied,
                "--metrics-listen 127.0.0.1:8443",
            ),
            (
                true,
                "192.0.2.1:9090",
                AddrNotAvailable,
                "--metrics-listen 127.0.0.1:9090",
            ),
        ] {
            let advice = advice(metrics, address, kind);
            assert!(advice.ends_with(&format!(": {advised}")), "{advice}");
        }
    }

    #[test]
    fn what_strangers_make_libraries_say_is_not_logged() {
        for level in [LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE] {
            let logged = logged(level);
            for target in [
                "web_transport_quinn::session",
                "web_transport_quinn::connect",
                "web_transport_proto::connect",
                "quinn::connection",
                "quinn_proto::connection",
                "quinn_udp::imp",
                "rustls::server::hs",
                "hyper::proto::h1",
            ] {
                assert!(!logged.would_enable(target, &Level::WARN), "{target}");
                assert!(!logged.would_enable(target, &Level::DEBUG), "{target}");
                assert!(logged.would_enable(target, &Level::ERROR), "{target}");
            }
            for own in [module_path!(), "antiphon_server::relay::session"] {
                assert!(logged.would_enable(own, &Level::INFO), "{own}");
                let debug = logged.would_enable(own, &Level::DEBUG);
                assert_eq!(debug, level >= LevelFilter::DEBUG, "{own}");
            }
        }
        let errors = logged(LevelFilter::ERROR);
        assert!(!errors.would_enable("antiphon_server::hub", &Level::WARN));
    }
}
