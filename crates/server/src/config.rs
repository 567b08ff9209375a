//! What the operator decides.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use crate::{
    ice::IceConfig, network::Network, room_signer::RoomSigner, rooms::RoomLimits,
    signalling::RoomName,
};

/// Everything that a [`crate::Server`] needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen; port 0 takes any free port.
    pub listen: SocketAddr,
    /// The origin that people type, if it is not the address listened on: `https://music.example.org`.
    pub public_origin: Option<String>,
    /// Where the web port's certificate is from; plain HTTP without one.
    pub tls: Option<Tls>,
    /// The relay, if there is one.
    pub relay: Option<RelayConfig>,
    /// Where to serve `/metrics` and the operator's page, if anywhere. A port of their own, so that no proxy can publish
    /// them by accident.
    pub metrics_listen: Option<SocketAddr>,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<Network>,
    /// STUN and TURN.
    pub ice: IceConfig,
    /// Whose rooms these are: there are no others. Without it any name makes a room.
    pub room_signer: Option<RoomSigner>,
    /// How many rooms and participants there may be.
    pub rooms: RoomLimits,
    /// What one connection, or one address, may do.
    pub connections: ConnectionLimits,
}

impl Config {
    /// Whether that is an address of a trusted proxy.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.trusted_proxies
            .iter()
            .any(|proxy| proxy.contains(address))
    }

    /// The room of that name, if there may be one.
    pub(crate) fn room(&self, name: &str) -> Option<RoomName> {
        let room = name.parse().ok()?;
        let signer = self.room_signer.as_ref();
        signer
            .is_none_or(|signer| signer.has_made(&room))
            .then_some(room)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            public_origin: None,
            tls: None,
            relay: Some(RelayConfig::default()),
            metrics_listen: None,
            trusted_proxies: Vec::new(),
            ice: IceConfig::default(),
            room_signer: None,
            rooms: RoomLimits::default(),
            connections: ConnectionLimits::default(),
        }
    }
}

/// Where the relay is, and what it shows for a certificate.
#[derive(Debug, Clone, Default)]
pub struct RelayConfig {
    /// The UDP address to listen on; that of [`Config::listen`], with the port that was really taken, if none is given.
    pub listen: Option<SocketAddr>,
    /// The port that pages are told, if a firewall maps it to another than the one listened on.
    pub public_port: Option<u16>,
    /// Its certificate, of a public CA: a [`crate::Server`] shows no other. Without one it is that of the web port, from files or from [`Tls::Acme`] as soon as there is one, if a public CA vouches for it; otherwise the
    /// relay makes its own, and pages are told their hashes.
    pub tls: Option<TlsFiles>,
}

/// Where a certificate is from.
#[derive(Debug, Clone)]
pub enum Tls {
    /// Somebody puts it there.
    Files(TlsFiles),
    /// The server orders it.
    Acme(AcmeConfig),
}

/// Certificates from a CA by ACME (RFC 8555).
#[derive(Debug, Clone)]
pub struct AcmeConfig {
    /// The names in the certificate ([`crate::acme::check_domain`]), at least one. The CA must find the web port at port 443 of each.
    pub domains: Vec<String>,
    /// Whom the CA may write to, as `mailto:` URLs.
    pub contacts: Vec<String>,
    /// A directory of this server's own, where the keys of the account and of the certificate are kept.
    pub cache: PathBuf,
    /// The URL of the CA's directory, such as [`crate::acme::LETS_ENCRYPT`].
    pub directory: String,
    /// The root certificate (PEM) by which the CA's own web server is recognised, if the system does not know it.
    pub root_ca: Option<PathBuf>,
}

/// A certificate chain and its key, both PEM. They are read again when they change.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The chain, the server's own certificate first.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// What one signalling connection, or one address, may do.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Connections from one address (an IPv6 site counts as one).
    pub per_address: u32,
    /// Connections of every kind to the web port, from everywhere: fewer than the open files that there may be.
    pub in_all: usize,
    /// Messages per second in the long run; twenty times as many may come at once, as joining a large room needs.
    pub messages_per_s: u32,
    /// Bytes per second in the long run; eight times as many may come at once.
    pub bytes_per_s: u32,
    /// How long a connection may take to say hello.
    pub hello_timeout: Duration,
    /// How often a connection is pinged.
    pub ping_interval: Duration,
    /// A connection that says nothing for this long, not even a pong, is dropped.
    pub silence_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            per_address: 64,
            in_all: usize::MAX,
            messages_per_s: 100,
            bytes_per_s: 256 * 1024,
            hello_timeout: Duration::from_secs(5),
            ping_interval: Duration::from_secs(10),
            silence_timeout: Duration::from_secs(25),
        }
    }
}
