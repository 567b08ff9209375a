//! What `antiphon serve` can be told: by flags, by the environment, by a file. In this order of precedence.

use std::{
    ffi::OsStr,
    fmt::Display,
    fs,
    net::{Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use antiphon_server::{
    AcmeConfig, Config, ConnectionLimits, Network, RelayConfig, RoomSigner, Secret, Tls, TlsFiles,
    acme::{LETS_ENCRYPT, check_domain},
    ice::{IceConfig, IceServer, IceServerError, TurnService, check_turn_url},
    rooms::{MAX_PARTICIPANTS_PER_ROOM, RoomLimits},
};
use clap::{Arg, Args, Command, ValueEnum, builder::TypedValueParser, error::ErrorKind};
use serde::{Deserialize, Serialize, Serializer};
use tracing::level_filters::LevelFilter;

/// Longer than anyone plays.
const TURN_TTL_S: u64 = 24 * 60 * 60;

/// The variables that hold lists.
pub(crate) const LISTS: [&str; 5] = [
    "ANTIPHON_ACME_CONTACTS",
    "ANTIPHON_ACME_DOMAINS",
    "ANTIPHON_ICE_SERVERS",
    "ANTIPHON_TRUSTED_PROXIES",
    "ANTIPHON_TURN_URLS",
];

/// Each setting is unknown until somebody sets it. The keys of the file are the names of these fields.
#[derive(Debug, Clone, Default, Args, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Where to listen [default: 127.0.0.1:8080]
    #[arg(
        long,
        env = "ANTIPHON_LISTEN",
        value_name = "IP:PORT",
        value_parser = socket_address,
        hide_env = true
    )]
    listen: Option<SocketAddr>,

    /// The address that people type, if a proxy stands before this server, such as `https://music.example.org`
    #[arg(long, env = "ANTIPHON_PUBLIC_URL", value_name = "URL", hide_env = true)]
    public_url: Option<String>,

    /// A name of this server, such as music.example.org, to have certificates issued for; repeat for more. Let's Encrypt, or whoever has
    /// --acme-directory, looks for this server at port 443 of the name. Using this, you agree to their terms
    #[arg(
        long = "acme-domain",
        env = "ANTIPHON_ACME_DOMAINS",
        value_name = "NAME",
        value_delimiter = ' '
    )]
    #[arg(hide_env = true, help_heading = "HTTPS")]
    acme_domains: Option<Vec<String>>,

    /// A directory of this server's own, for the keys and certificates that go with --acme-domain
    #[arg(
        long,
        env = "ANTIPHON_ACME_CACHE",
        value_name = "DIRECTORY",
        hide_env = true,
        help_heading = "HTTPS"
    )]
    acme_cache: Option<PathBuf>,

    /// Whom the CA may write to, such as mailto:ann@example.org; repeat for more
    #[arg(
        long = "acme-contact",
        env = "ANTIPHON_ACME_CONTACTS",
        value_name = "URL",
        value_delimiter = ' '
    )]
    #[arg(hide_env = true, help_heading = "HTTPS")]
    acme_contacts: Option<Vec<String>>,

    /// The directory of another CA than Let's Encrypt that speaks ACME
    #[arg(
        long,
        env = "ANTIPHON_ACME_DIRECTORY",
        value_name = "URL",
        hide_env = true,
        help_heading = "HTTPS"
    )]
    acme_directory: Option<String>,

    /// The root certificate (PEM) of that CA's own web server, if this system does not know it
    #[arg(
        long,
        env = "ANTIPHON_ACME_ROOT_CA",
        value_name = "FILE",
        hide_env = true,
        help_heading = "HTTPS"
    )]
    acme_root_ca: Option<PathBuf>,

    /// Certificate chain (PEM), for HTTPS without a proxy; read again when it changes, or on SIGHUP
    #[arg(
        long,
        env = "ANTIPHON_TLS_CERT",
        value_name = "FILE",
        hide_env = true,
        help_heading = "HTTPS"
    )]
    tls_cert: Option<PathBuf>,

    /// The certificate's private key (PEM)
    #[arg(
        long,
        env = "ANTIPHON_TLS_KEY",
        value_name = "FILE",
        hide_env = true,
        help_heading = "HTTPS"
    )]
    tls_key: Option<PathBuf>,

    /// A proxy whose X-Forwarded-For is believed, or a network of them, such as 10.0.0.0/8; repeat for more
    #[arg(
        long = "trusted-proxy",
        env = "ANTIPHON_TRUSTED_PROXIES",
        value_name = "IP|NETWORK",
        value_delimiter = ' '
    )]
    #[arg(hide_env = true, help_heading = "HTTPS")]
    trusted_proxies: Option<Vec<Network>>,

    /// A STUN or TURN server: stun:HOST:PORT or turn:HOST:PORT,USER,CREDENTIAL; repeat for more
    #[arg(
        long = "ice-server",
        env = "ANTIPHON_ICE_SERVERS",
        value_name = "SERVER",
        value_delimiter = ' ',
        value_parser = IceServerParser
    )]
    #[arg(hide_env = true, help_heading = "Reaching each other")]
    #[serde(serialize_with = "hide_credentials")]
    ice_servers: Option<Vec<IceServer>>,

    /// A TURN address of a coturn with use-auth-secret; repeat for more
    #[arg(
        long = "turn-url",
        env = "ANTIPHON_TURN_URLS",
        value_name = "URL",
        value_delimiter = ' '
    )]
    #[arg(hide_env = true, help_heading = "Reaching each other")]
    turn_urls: Option<Vec<String>>,

    /// coturn's static-auth-secret; better in the file or the environment, where `ps` does not show it
    #[arg(
        long,
        env = "ANTIPHON_TURN_SECRET",
        value_name = "SECRET",
        hide_env = true,
        allow_hyphen_values = true
    )]
    #[arg(help_heading = "Reaching each other")]
    turn_secret: Option<Secret>,

    /// How long a TURN credential is valid, in seconds [default: 86400]
    #[arg(
        long,
        env = "ANTIPHON_TURN_TTL_S",
        value_name = "SECONDS",
        hide_env = true
    )]
    #[arg(help_heading = "Reaching each other")]
    turn_ttl_s: Option<u64>,

    /// UDP address of the relay, which carries sound for those who cannot reach each other, and mixes [default: that of
    /// --listen]
    #[arg(
        long,
        env = "ANTIPHON_RELAY_LISTEN",
        value_name = "IP:PORT",
        value_parser = socket_address,
        hide_env = true,
        help_heading = "Relay"
    )]
    relay_listen: Option<SocketAddr>,

    /// The UDP port that pages are told, if a firewall maps it to another [default: the one listened on]
    #[arg(
        long,
        env = "ANTIPHON_RELAY_PORT",
        value_name = "PORT",
        hide_env = true,
        help_heading = "Relay"
    )]
    relay_port: Option<u16>,

    /// Certificate chain (PEM) for the relay, of a public CA [default: that of the web port if browsers trust it everywhere, else the relay's own, which pages recognise]
    #[arg(
        long,
        env = "ANTIPHON_RELAY_CERT",
        value_name = "FILE",
        hide_env = true,
        help_heading = "Relay"
    )]
    relay_cert: Option<PathBuf>,

    /// That certificate's private key (PEM)
    #[arg(
        long,
        env = "ANTIPHON_RELAY_KEY",
        value_name = "FILE",
        hide_env = true,
        help_heading = "Relay"
    )]
    relay_key: Option<PathBuf>,

    /// No relay: sound goes between participants only, or through a TURN server
    #[arg(
        long,
        env = "ANTIPHON_NO_RELAY",
        value_name = "true|false",
        hide_env = true,
        hide_possible_values = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Relay"
    )]
    no_relay: Option<bool>,

    /// Only you make rooms: their links are signed with this secret, and printed by --print-room [default: none, and any name makes a room]. Better in the file or the environment, where `ps` does not show it
    #[arg(
        long,
        env = "ANTIPHON_ROOM_SECRET",
        value_name = "SECRET",
        hide_env = true,
        allow_hyphen_values = true
    )]
    #[arg(help_heading = "Limits")]
    room_secret: Option<Secret>,

    /// Rooms at once [default: 1000]
    #[arg(
        long,
        env = "ANTIPHON_MAX_ROOMS",
        value_name = "N",
        hide_env = true,
        help_heading = "Limits"
    )]
    max_rooms: Option<usize>,

    /// Participants in all rooms [default: 2000]
    #[arg(
        long,
        env = "ANTIPHON_MAX_PARTICIPANTS",
        value_name = "N",
        hide_env = true
    )]
    #[arg(help_heading = "Limits")]
    max_participants: Option<usize>,

    /// Participants in one room, 64 at most: no page or program plays more [default: 32]
    #[arg(
        long,
        env = "ANTIPHON_MAX_PARTICIPANTS_PER_ROOM",
        value_name = "N",
        hide_env = true
    )]
    #[arg(help_heading = "Limits")]
    max_participants_per_room: Option<usize>,

    /// Connections of signalling from one address (an IPv6 /64 counts as one, a /48 as four); an eighth as many may be opened a second. It may hold eight times as
    /// many connections to the web port in all, and at least 32, and four times as many sessions with the relay. Raise it if a whole school shares one address [default: 64]
    #[arg(
        long,
        env = "ANTIPHON_MAX_CONNECTIONS_PER_ADDRESS",
        value_name = "N",
        hide_env = true
    )]
    #[arg(help_heading = "Limits")]
    max_connections_per_address: Option<u32>,

    /// Signalling messages per second and connection, in the long run [default: 100]
    #[arg(
        long,
        env = "ANTIPHON_MAX_MESSAGES_PER_S",
        value_name = "N",
        hide_env = true
    )]
    #[arg(help_heading = "Limits")]
    max_messages_per_s: Option<u32>,

    /// Signalling bytes per second and connection, in the long run [default: 262144]
    #[arg(
        long,
        env = "ANTIPHON_MAX_BYTES_PER_S",
        value_name = "N",
        hide_env = true
    )]
    #[arg(help_heading = "Limits")]
    max_bytes_per_s: Option<u32>,

    /// Serve a live page for you at http://IP:PORT/ and Prometheus metrics at /metrics [default: nowhere]
    #[arg(
        long,
        env = "ANTIPHON_METRICS_LISTEN",
        value_name = "IP:PORT",
        value_parser = socket_address,
        hide_env = true
    )]
    #[arg(help_heading = "Observing")]
    metrics_listen: Option<SocketAddr>,

    /// How much to log, to standard error: error, warn, info, debug or trace [default: info]
    #[arg(
        long,
        env = "ANTIPHON_LOG",
        value_name = "LEVEL",
        hide_env = true,
        help_heading = "Observing"
    )]
    log: Option<String>,

    /// How to log: human or json, which leaves out the greeting [default: human]
    #[arg(
        long,
        env = "ANTIPHON_LOG_FORMAT",
        value_name = "FORMAT",
        hide_env = true
    )]
    #[arg(help_heading = "Observing")]
    log_format: Option<LogFormat>,
}

/// For people, or for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// One line each, coloured on a terminal.
    Human,
    /// One JSON object each.
    Json,
}

/// Every setting, known.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) config: Config,
    pub(crate) log: LevelFilter,
    pub(crate) log_format: LogFormat,
}

impl Settings {
    /// Reads a TOML file.
    pub(crate) fn from_file(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        // The error quotes the line it is about, which may hold a secret: the place and the reason are enough.
        toml::from_str(&text).map_err(|error| {
            let line = error
                .span()
                .map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            format!(
                "{}, line {line}: {}",
                path.display(),
                reason(error.message())
            )
        })
    }

    /// These, and where they are silent, the others.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            public_url: self.public_url.or(other.public_url),
            acme_domains: self.acme_domains.or(other.acme_domains),
            acme_cache: self.acme_cache.or(other.acme_cache),
            acme_contacts: self.acme_contacts.or(other.acme_contacts),
            acme_directory: self.acme_directory.or(other.acme_directory),
            acme_root_ca: self.acme_root_ca.or(other.acme_root_ca),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            trusted_proxies: self.trusted_proxies.or(other.trusted_proxies),
            ice_servers: self.ice_servers.or(other.ice_servers),
            turn_urls: self.turn_urls.or(other.turn_urls),
            turn_secret: self.turn_secret.or(other.turn_secret),
            turn_ttl_s: self.turn_ttl_s.or(other.turn_ttl_s),
            relay_listen: self.relay_listen.or(other.relay_listen),
            relay_port: self.relay_port.or(other.relay_port),
            relay_cert: self.relay_cert.or(other.relay_cert),
            relay_key: self.relay_key.or(other.relay_key),
            no_relay: self.no_relay.or(other.no_relay),
            room_secret: self.room_secret.or(other.room_secret),
            max_rooms: self.max_rooms.or(other.max_rooms),
            max_participants: self.max_participants.or(other.max_participants),
            max_participants_per_room: self
                .max_participants_per_room
                .or(other.max_participants_per_room),
            max_connections_per_address: self
                .max_connections_per_address
                .or(other.max_connections_per_address),
            max_messages_per_s: self.max_messages_per_s.or(other.max_messages_per_s),
            max_bytes_per_s: self.max_bytes_per_s.or(other.max_bytes_per_s),
            metrics_listen: self.metrics_listen.or(other.metrics_listen),
            log: self.log.or(other.log),
            log_format: self.log_format.or(other.log_format),
        }
    }

    /// What is used when nobody says anything.
    pub(crate) fn defaults() -> Self {
        let config = Config::default();
        Self {
            listen: Some(config.listen),
            public_url: None,
            acme_domains: Some(Vec::new()),
            acme_cache: None,
            acme_contacts: Some(Vec::new()),
            acme_directory: Some(LETS_ENCRYPT.into()),
            acme_root_ca: None,
            tls_cert: None,
            tls_key: None,
            trusted_proxies: Some(Vec::new()),
            ice_servers: Some(Vec::new()),
            turn_urls: Some(Vec::new()),
            turn_secret: None,
            turn_ttl_s: Some(TURN_TTL_S),
            relay_listen: None,
            relay_port: None,
            relay_cert: None,
            relay_key: None,
            no_relay: Some(config.relay.is_none()),
            room_secret: None,
            max_rooms: Some(config.rooms.rooms),
            max_participants: Some(config.rooms.participants),
            max_participants_per_room: Some(config.rooms.participants_per_room),
            max_connections_per_address: Some(config.connections.per_address),
            max_messages_per_s: Some(config.connections.messages_per_s),
            max_bytes_per_s: Some(config.connections.bytes_per_s),
            metrics_listen: None,
            log: Some("info".into()),
            log_format: Some(LogFormat::Human),
        }
    }

    /// As a file that says the same, with secrets as `***`.
    pub(crate) fn to_toml(&self) -> Result<String, String> {
        toml::to_string(self).map_err(|error| format!("this is no text for a file: {error}"))
    }

    /// Checks what belongs together, and fills in the defaults.
    pub(crate) fn resolve(self) -> Result<Resolved, String> {
        let settings = self.or(Self::defaults());
        let known = "a default stands for what was not set";
        let files = |cert, key, mistake: &str| match (cert, key) {
            (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert, key })),
            (None, None) => Ok(None),
            _ => Err(mistake.to_owned()),
        };
        let tls_files = files(
            settings.tls_cert,
            settings.tls_key,
            "--tls-cert and --tls-key go together",
        )?;
        let relay_tls = files(
            settings.relay_cert,
            settings.relay_key,
            "--relay-cert and --relay-key go together",
        )?;
        let no_relay = settings.no_relay.expect(known);
        if no_relay {
            let of_no_use = [
                ("--relay-listen", settings.relay_listen.is_some()),
                ("--relay-port", settings.relay_port.is_some()),
                ("--relay-cert", relay_tls.is_some()),
            ];
            none_set(&of_no_use, "with --no-relay")?;
        }
        let acme = acme(
            settings.acme_domains.expect(known),
            settings.acme_contacts.expect(known),
            settings.acme_cache,
            settings.acme_directory.expect(known),
            settings.acme_root_ca,
        )?;
        if settings.relay_port == Some(0) {
            return Err("--relay-port 0: expected 1 to 65535".into());
        }
        let per_room = settings.max_participants_per_room.expect(known);
        if !(1..=MAX_PARTICIPANTS_PER_ROOM).contains(&per_room) {
            return Err(format!(
                "--max-participants-per-room {per_room}: expected 1 to {MAX_PARTICIPANTS_PER_ROOM}"
            ));
        }
        refuse_hidden("--room-secret", settings.room_secret.as_ref())?;
        let room_signer = settings
            .room_secret
            .as_ref()
            .map(RoomSigner::new)
            .transpose()
            .map_err(|error| format!("--room-secret: {error}"))?;
        let rooms = RoomLimits {
            rooms: at_least_one("--max-rooms", settings.max_rooms)?,
            participants: at_least_one("--max-participants", settings.max_participants)?,
            participants_per_room: per_room,
            ..RoomLimits::default()
        };
        let connections = ConnectionLimits {
            per_address: at_least_one(
                "--max-connections-per-address",
                settings.max_connections_per_address,
            )?,
            messages_per_s: at_least_one("--max-messages-per-s", settings.max_messages_per_s)?,
            bytes_per_s: at_least_one("--max-bytes-per-s", settings.max_bytes_per_s)?,
            ..ConnectionLimits::default()
        };
        let ttl_s = at_least_one("--turn-ttl-s", settings.turn_ttl_s)?;
        let relay = RelayConfig {
            listen: settings.relay_listen,
            public_port: settings.relay_port,
            tls: relay_tls,
        };
        let public_origin = settings.public_url.map(|url| origin_of(&url)).transpose()?;
        let (tls, public_origin) = match acme {
            Some(acme) => {
                if tls_files.is_some() {
                    return Err("--acme-domain and --tls-cert: expected one of them".into());
                }
                let origin = acme_origin(&acme, public_origin)?;
                (Some(Tls::Acme(acme)), Some(origin))
            }
            None => (tls_files.map(Tls::Files), public_origin),
        };
        if let (Some(_), Some(origin)) = (&tls, &public_origin)
            && !origin.starts_with("https://")
        {
            return Err(format!(
                "--public-url {origin}: expected https://, because of --tls-cert"
            ));
        }
        let turn_urls = settings.turn_urls.expect(known);
        for url in &turn_urls {
            check_turn_url(url).map_err(|error| format!("--turn-url {url}: {error}"))?;
        }
        let secret = settings.turn_secret;
        let ice_servers = settings.ice_servers.expect(known);
        refuse_hidden("--turn-secret", secret.as_ref())?;
        for server in &ice_servers {
            refuse_hidden("--ice-server", server.credential.as_ref())?;
        }
        let turn = match (
            turn_urls.is_empty(),
            secret.filter(|secret| !secret.reveal().is_empty()),
        ) {
            (false, Some(secret)) => Some(TurnService {
                urls: turn_urls,
                secret,
                ttl_s,
            }),
            (true, None) => {
                let set = ttl_s != TURN_TTL_S;
                none_set(&[("--turn-ttl-s", set)], "without --turn-url")?;
                None
            }
            (false, None) => {
                return Err("--turn-url needs --turn-secret, coturn's static-auth-secret".into());
            }
            (true, Some(_)) => return Err("--turn-secret is of no use without --turn-url".into()),
        };
        let log = settings.log.expect(known);
        let log = log
            .parse()
            .map_err(|_| format!("--log {log}: expected error, warn, info, debug or trace"))?;
        let config = Config {
            listen: settings.listen.expect(known),
            public_origin,
            tls,
            relay: (!no_relay).then_some(relay),
            metrics_listen: settings.metrics_listen,
            trusted_proxies: settings.trusted_proxies.expect(known),
            ice: IceConfig {
                servers: ice_servers,
                turn,
            },
            room_signer,
            rooms,
            connections,
        };
        Ok(Resolved {
            config,
            log,
            log_format: settings.log_format.expect(known),
        })
    }
}

/// Reads an ICE server. Clap's own words would quote what is refused, which may hold a credential.
#[derive(Debug, Clone)]
struct IceServerParser;

impl TypedValueParser for IceServerParser {
    type Value = IceServer;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<IceServer, clap::Error> {
        let refuse = |why: &dyn Display| {
            let why = format!("--ice-server: {why}\n");
            clap::Error::raw(ErrorKind::ValueValidation, why).with_cmd(command)
        };
        let text = value.to_str().ok_or_else(|| refuse(&"it is not UTF-8"))?;
        text.parse().map_err(|error: IceServerError| refuse(&error))
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, &'static str> {
    let expected = "expected an IP address and a port, such as 127.0.0.1:8080, or 0.0.0.0:443 for every address of this machine";
    text.parse().map_err(|_| expected)
}

/// Why a file cannot be read, without the value that it is about, which may be a secret.
fn reason(message: &str) -> String {
    let kinds = ["invalid type", "invalid value"];
    let kind = kinds.into_iter().find(|kind| message.starts_with(kind));
    match (kind, message.rsplit_once(", expected ")) {
        (Some(kind), Some((_, expected))) => format!("{kind}, expected {expected}"),
        _ => message.to_owned(),
    }
}

/// What `--print-config` printed is a file that only lacks its secrets: with those left out, every credential would be wrong.
fn refuse_hidden(flag: &str, secret: Option<&Secret>) -> Result<(), String> {
    let hidden = Secret::HIDDEN;
    match secret {
        Some(secret) if secret.reveal() == hidden => Err(format!(
            "{flag}: {hidden} is what --print-config writes for a secret: put the secret itself there"
        )),
        _ => Ok(()),
    }
}

/// A limit that is not 0, which would let nobody in.
fn at_least_one<T: Default + PartialEq>(flag: &str, limit: Option<T>) -> Result<T, String> {
    limit
        .filter(|limit| *limit != T::default())
        .ok_or_else(|| format!("{flag} 0: expected 1 or more"))
}

/// Refuses what somebody set, believing that it counts.
fn none_set(flags: &[(&str, bool)], why: &str) -> Result<(), String> {
    match flags.iter().find(|(_, set)| *set) {
        Some((flag, _)) => Err(format!("{flag} is of no use {why}")),
        None => Ok(()),
    }
}

/// What is ordered where, if anything is.
fn acme(
    domains: Vec<String>,
    contacts: Vec<String>,
    cache: Option<PathBuf>,
    directory: String,
    root_ca: Option<PathBuf>,
) -> Result<Option<AcmeConfig>, String> {
    if domains.is_empty() {
        let others = [
            ("--acme-cache", cache.is_some()),
            ("--acme-contact", !contacts.is_empty()),
            ("--acme-directory", directory != LETS_ENCRYPT),
            ("--acme-root-ca", root_ca.is_some()),
        ];
        none_set(&others, "without --acme-domain")?;
        return Ok(None);
    }
    let lower_case = domains.iter().map(|name| name.to_ascii_lowercase());
    let domains: Vec<_> = lower_case.collect();
    for (n, name) in domains.iter().enumerate() {
        check_domain(name).map_err(|error| format!("--acme-domain {name}: {error}"))?;
        if domains[..n].contains(name) {
            return Err(format!("--acme-domain {name}: it is there twice"));
        }
    }
    if let Some(contact) = contacts
        .iter()
        .find(|contact| !contact.starts_with("mailto:"))
    {
        return Err(format!(
            "--acme-contact {contact}: expected mailto:NAME@HOST"
        ));
    }
    if !directory.starts_with("https://") {
        return Err(format!("--acme-directory {directory}: expected https://…"));
    }
    let cache = cache.ok_or(
        "--acme-domain needs --acme-cache DIRECTORY: CAs issue few certificates a week for the same names, so they are kept",
    )?;
    Ok(Some(AcmeConfig {
        domains,
        contacts,
        cache,
        directory,
        root_ca,
    }))
}

/// Where people find a server with these certificates.
fn acme_origin(acme: &AcmeConfig, public_origin: Option<String>) -> Result<String, String> {
    let Some(origin) = public_origin else {
        return Ok(format!("https://{}", acme.domains[0]));
    };
    let certain = origin.strip_prefix("https://").is_some_and(|authority| {
        let host = authority.split(':').next();
        acme.domains.iter().any(|name| Some(&**name) == host)
    });
    if certain {
        Ok(origin)
    } else {
        Err(format!(
            "--public-url {origin}: expected https:// and one of the names of --acme-domain"
        ))
    }
}

/// `https://Music.example.org/` to `https://music.example.org`, which is what a browser sends as its origin.
fn origin_of(url: &str) -> Result<String, String> {
    let origin = url.strip_suffix('/').unwrap_or(url).to_ascii_lowercase();
    let host = origin
        .strip_prefix("https://")
        .or_else(|| origin.strip_prefix("http://"));
    if host.is_some_and(is_authority) {
        Ok(origin)
    } else {
        Err(format!(
            "--public-url {url}: expected https://HOST or https://HOST:PORT, without a path"
        ))
    }
}

/// `HOST` or `HOST:PORT`.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, port.parse::<u16>().ok()),
        _ => (text, Some(443)),
    };
    let ipv6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match ipv6 {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            let foreign = |c: char| c.is_whitespace() || "/?#@\\\"'<>:[]".contains(c);
            !host.is_empty() && !host.contains(foreign)
        }
    };
    is_host && port.is_some_and(|port| port > 0)
}

fn hide_credentials<S: Serializer>(
    servers: &Option<Vec<IceServer>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let hidden = servers.as_ref().map(|servers| {
        let write = |server: &IceServer| match &server.username {
            Some(username) => format!("{},{username},{}", server.urls.join(" "), Secret::HIDDEN),
            None => server.urls.join(" "),
        };
        servers.iter().map(write).collect::<Vec<_>>()
    });
    hidden.serialize(serializer)
}
