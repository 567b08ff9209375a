//! Certificates from a real CA: Pebble, which Let's Encrypt made for this, and which looks for its proofs on our web port.

// Only Linux has all of 127.0.0.0/8, where each CA gets an address of its own.
#![cfg(target_os = "linux")]

mod running;

use std::{
    fs::{self, File},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, SystemTime},
};

use antiphon_core::wire::Probe;
use antiphon_server::{AcmeConfig, Config, Server, Tls};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{client_async, tungstenite::Message};

use running::{ROOM, Running, connect_as_told, get, hello};

const NAMES: [&str; 2] = ["music.example.org", "school.example.org"];
/// Less than the minute after which a failed order is tried again: the first must succeed.
const SOON: Duration = Duration::from_secs(45);
const MOMENT: Duration = Duration::from_millis(50);

/// A CA, and a DNS that knows every name. Both end with the test.
struct Ca {
    folder: TempDir,
    host: String,
    processes: Vec<Child>,
}

impl Ca {
    /// One that does not run yet.
    fn new() -> Self {
        static MADE: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let host = format!("127.{}.{high}.{low}", MADE.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().expect("a folder");
        let own = rcgen::generate_simple_self_signed([host.clone()]).expect("made");
        fs::write(folder.path().join("cert.pem"), own.cert.pem()).expect("written");
        let key = own.signing_key.serialize_pem();
        fs::write(folder.path().join("key.pem"), key).expect("written");
        Self {
            folder,
            host,
            processes: Vec::new(),
        }
    }

    /// From now on it issues certificates that are valid for so long. It looks for its proofs at `web`.
    async fn start(&mut self, web: SocketAddr, validity_s: u64) {
        let host = &self.host;
        let config = json!({ "pebble": {
            "listenAddress": format!("{host}:14000"),
            "managementListenAddress": format!("{host}:15000"),
            "certificate": "cert.pem",
            "privateKey": "key.pem",
            "httpPort": 1,
            "tlsPort": web.port(),
            "certificateValidityPeriod": validity_s,
        } });
        let config_file = self.folder.path().join("pebble.json");
        fs::write(config_file, config.to_string()).expect("written");
        let mut dns = Command::new("pebble-challtestsrv");
        dns.args(["-dns01", &format!("{host}:8053")])
            .args(["-management", &format!("{host}:8055")])
            .args(["-http01", "", "-https01", "", "-tlsalpn01", ""])
            .args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]);
        let mut pebble = Command::new("pebble");
        pebble
            .args(["-config", "pebble.json"])
            .args(["-dnsserver", &format!("{host}:8053")])
            .env("PEBBLE_VA_NOSLEEP", "1")
            // Otherwise it rejects some by chance, at times as many in a row as the client tries.
            .env("PEBBLE_WFE_NONCEREJECT", "0");
        for mut command in [dns, pebble] {
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let started = command.current_dir(self.folder.path()).spawn();
            let started = started.expect("Debian's package pebble: scripts/install-test-packages");
            self.processes.push(started);
        }
        let listening = async {
            for port in [8053, 14000, 15000] {
                while TcpStream::connect((&*self.host, port)).await.is_err() {
                    sleep(MOMENT).await;
                }
            }
        };
        timeout(SOON, listening).await.expect("the CA starts");
    }

    fn stop(&mut self) {
        for mut process in self.processes.drain(..) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn config(&self, cache: &Path) -> AcmeConfig {
        AcmeConfig {
            domains: NAMES.map(str::to_owned).into(),
            contacts: vec!["mailto:ann@example.org".to_owned()],
            cache: cache.to_owned(),
            directory: format!("https://{}:14000/dir", self.host),
            root_ca: Some(self.folder.path().join("cert.pem")),
        }
    }

    /// What its certificates are signed with.
    async fn root(&self) -> CertificateDer<'static> {
        let own = CertificateDer::from_pem_file(self.folder.path().join("cert.pem"));
        let tls = client(own.expect("a certificate"), &[]);
        let name = ServerName::try_from(self.host.clone()).expect("an address");
        let stream = TcpStream::connect((&*self.host, 15000)).await;
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream.expect("connects"));
        let answer = get(stream.await.expect("trusted"), &self.host, "/roots/0", &[]).await;
        CertificateDer::from_pem_slice(answer.body.as_bytes()).expect("a certificate")
    }
}

impl Drop for Ca {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Not yet running: a CA has to be told first where it looks for proofs.
async fn bind(acme: AcmeConfig) -> Server {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config {
        listen: any,
        metrics_listen: Some(any),
        tls: Some(Tls::Acme(acme)),
        ..Config::default()
    };
    Server::bind(config).await.expect("the server starts")
}

/// A client that trusts only what `root` has signed.
fn client(root: CertificateDer<'static>, alpn: &[&str]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = alpn.iter().map(|alpn| alpn.as_bytes().to_vec()).collect();
    tls
}

/// Trusts whatever is shown, so that only a server that shows nothing is refused.
#[derive(Debug)]
struct Gullible(Arc<CryptoProvider>);

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = self.0.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// A client that trusts everyone.
fn gullible(alpn: &[&str]) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = alpn.iter().map(|alpn| alpn.as_bytes().to_vec()).collect();
    tls
}

/// A connection as a browser opens it, or none while the server shows nothing that it trusts.
async fn connect(
    web: SocketAddr,
    root: &CertificateDer<'static>,
    name: &str,
) -> Option<TlsStream<TcpStream>> {
    let tls = TlsConnector::from(Arc::new(client(root.clone(), &["http/1.1"])));
    let stream = TcpStream::connect(web).await.expect("connects");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    tls.connect(name, stream).await.ok()
}

/// Tries until there is something.
async fn eventually<T>(mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let tried = async {
        loop {
            if let Some(there) = attempt().await {
                return there;
            }
            sleep(MOMENT).await;
        }
    };
    timeout(SOON, tried).await.expect("it is there in time")
}

/// What a server shows on the web port, once it is trusted.
async fn shown_on_web(web: SocketAddr, root: &CertificateDer<'static>) -> CertificateDer<'static> {
    let stream = eventually(async || connect(web, root, NAMES[0]).await).await;
    let chain = stream.get_ref().1.peer_certificates();
    chain.expect("a chain")[0].clone()
}

#[tokio::test]
async fn the_web_port_shows_what_the_ca_issued_and_a_second_start_orders_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("new").join("cache");
    let mut ca = Ca::new();
    let server = bind(ca.config(&cache)).await;
    ca.start(server.address(), 90 * 24 * 60 * 60).await;
    let root = ca.root().await;
    let mut first = Running::run(server);
    let issued = shown_on_web(first.address, &root).await;
    for name in NAMES {
        let stream = connect(first.address, &root, name).await;
        let answer = get(stream.expect("trusted"), name, "/healthz", &[]).await;
        assert_eq!(answer.status, 200, "{name}");
    }
    let expiry = first
        .metric("antiphon_certificate_expiry_time_seconds")
        .await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let days = (expiry - now.expect("after 1970").as_secs()) / (24 * 60 * 60);
    assert!((88..=90).contains(&days), "{days}");

    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&cache), 0o700);
    // The certificate is shown first, kept then.
    let kept = || {
        fs::read_dir(&cache)
            .expect("a directory")
            .map(|entry| entry.expect("read").path())
    };
    eventually(async || {
        kept()
            .any(|file| file.extension() == Some("pem".as_ref()))
            .then_some(())
    })
    .await;
    for file in kept() {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    assert_eq!(kept().count(), 2, "the account and the certificate");
    first.stop();
    first
        .ended
        .await
        .expect("no panic")
        .expect("it ends in good order");

    ca.stop();
    let server = bind(ca.config(&cache)).await;
    let mut second = Running::run(server);
    assert_eq!(shown_on_web(second.address, &root).await, issued);
    second.stop();
    second
        .ended
        .await
        .expect("no panic")
        .expect("it ends in good order");
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_and_sessions_stay() {
    let cache = tempfile::tempdir().expect("a folder");
    let mut ca = Ca::new();
    let server = bind(ca.config(cache.path())).await;
    // It is renewed after 10 s.
    ca.start(server.address(), 15).await;
    let root = ca.root().await;
    let server = Running::run(server);

    let stream = eventually(async || connect(server.address, &root, NAMES[0]).await).await;
    let first = stream.get_ref().1.peer_certificates().expect("a chain")[0].clone();
    let url = format!("wss://{}/ws/{ROOM}", NAMES[0]);
    let (mut page, _) = client_async(url, stream).await.expect("a WebSocket");
    page.send(Message::text(hello(1).to_string()))
        .await
        .expect("sent");
    let welcome = timeout(SOON, page.next())
        .await
        .expect("in time")
        .expect("open");
    let welcome: Value =
        serde_json::from_str(welcome.expect("read").to_text().expect("text")).expect("JSON");
    assert_eq!(welcome["type"], "welcome", "{welcome}");
    // Browsers take none of a private CA here.
    let session = connect_as_told(&welcome["relay"]).await;

    let renewed = eventually(async || {
        let shown = shown_on_web(server.address, &root).await;
        (shown != first).then_some(shown)
    });
    let renewed = renewed.await;
    assert_ne!(renewed, first);
    let probe = Probe {
        stream: 0,
        id: 7,
        time_ns: 7_000,
        replied_ns: None,
    };
    let probe = Bytes::copy_from_slice(&probe.to_bytes());
    session.send_datagram(probe).expect("sent");
    let reply = timeout(SOON, session.read_datagram()).await;
    assert_eq!(reply.expect("in time").expect("it is open")[4], 7);
    let ping = page.send(Message::Ping(Bytes::new())).await;
    ping.expect("the page's connection is open, too");
}

#[tokio::test]
async fn a_ca_that_forgot_the_account_and_a_certificate_that_is_none_hinder_nothing() {
    let cache = tempfile::tempdir().expect("a folder");
    let mut ca = Ca::new();
    for _ in 0..2 {
        let server = bind(ca.config(cache.path())).await;
        // It remembers nothing of what it was before.
        ca.start(server.address(), 90 * 24 * 60 * 60).await;
        let root = ca.root().await;
        let server = Running::run(server);
        shown_on_web(server.address, &root).await;
        ca.stop();
        // It is shown first, and then kept.
        let certificate = eventually(async || {
            let mut kept = fs::read_dir(cache.path())
                .expect("a directory")
                .map(|entry| entry.expect("read").path());
            kept.find(|file| file.extension() == Some("pem".as_ref()))
        });
        fs::write(certificate.await, "no certificate").expect("written");
    }
}

#[tokio::test]
async fn without_a_certificate_no_handshake_succeeds_and_the_server_goes_on() {
    let cache = tempfile::tempdir().expect("a folder");
    // It never runs.
    let ca = Ca::new();
    let server = bind(ca.config(cache.path())).await;
    let server = Running::run(server);
    // Whatever it showed, it would be accepted.
    for alpn in [&[][..], &["h2", "http/1.1"], &["acme-tls/1"]] {
        for name in NAMES {
            let name = ServerName::try_from(name).expect("a name");
            let stream = TcpStream::connect(server.address).await.expect("connects");
            let tls = TlsConnector::from(Arc::new(gullible(alpn)));
            let refused = tls.connect(name, stream).await.expect_err("refused");
            let refused = refused.downcast::<rustls::Error>().expect("by TLS");
            let denied = rustls::Error::AlertReceived(AlertDescription::AccessDenied);
            assert_eq!(refused, denied, "{alpn:?}");
        }
    }
    assert_eq!(
        server
            .metric("antiphon_certificate_expiry_time_seconds")
            .await,
        0
    );
    assert_eq!(fs::read_dir(cache.path()).expect("a directory").count(), 0);
}

/// The first order fails, and the log says all of that. The CA looks for its proofs at `web`, or where the server is.
async fn fails(web: Option<SocketAddr>, validity_s: u64, explained: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let file = Mutex::new(File::create(&log).expect("created"));
    // The test's tasks all run on its own thread.
    let _logging =
        tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
    let mut ca = Ca::new();
    let server = bind(ca.config(&folder.path().join("cache"))).await;
    ca.start(web.unwrap_or(server.address()), validity_s).await;
    let _server = Running::run(server);
    let error = eventually(async || {
        let log = fs::read_to_string(&log).expect("UTF-8");
        log.lines()
            .find(|line| line.contains("ERROR"))
            .map(str::to_owned)
    });
    let error = error.await;
    let names = "no valid certificate for music.example.org, school.example.org";
    for words in [&[names], explained].concat() {
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[tokio::test]
async fn a_ca_that_does_not_find_the_server_is_explained() {
    let nobody = ([127, 0, 0, 1], 1).into();
    let explained = [
        "does not find this server at",
        "DNS entries",
        "TCP port 443",
        "Next attempt in 1 min",
    ];
    fails(Some(nobody), 60, &explained).await;
}

#[tokio::test]
async fn a_useless_certificate_is_not_replaced_before_the_ca_issues_another() {
    let explained = [
        "cannot be used: it is valid at no time",
        "may have issued a certificate",
        "Next attempt in 2160 min",
    ];
    // It ends in the second in which it begins.
    fails(None, 1, &explained).await;
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = Ca::new();
    let file = folder.path().join("file");
    fs::write(&file, "no certificate").expect("written");
    let in_a_file = ca.config(&file.join("cache"));
    let no_root = AcmeConfig {
        root_ca: Some(file.clone()),
        ..ca.config(folder.path())
    };
    let no_root_file = file.display().to_string();
    for (acme, named) in [
        (in_a_file, "file/cache"),
        (no_root.clone(), &*ca.host),
        (no_root, &*no_root_file),
    ] {
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            tls: Some(Tls::Acme(acme)),
            ..Config::default()
        };
        let error = Server::bind(config).await.expect_err("refused").to_string();
        assert!(error.contains(named), "{error}");
    }
}
