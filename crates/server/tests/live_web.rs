//! The web app and the pages around it, over real HTTP and real TLS.

mod running;

use std::{fs, sync::Arc, time::Duration};

use antiphon_server::{
    RelayConfig, RoomSigner, Secret, Tls, TlsFiles, has_web_app, signalling::RoomName,
};
use axum::http::Request;
use data_encoding::BASE64;
use running::{ROOM, Running, get};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName},
    },
};
use tokio_tungstenite::tungstenite::Message;

#[tokio::test]
async fn every_answer_isolates_the_page_and_hides_where_it_is() {
    let server = Running::start(|_| {}).await;
    for path in [
        "/",
        &format!("/r/{ROOM}"),
        "/r/short",
        "/plain.css",
        "/healthz",
        "/nothing",
        "/ws/short",
    ] {
        let answer = server.get(path, &[]).await;
        for (name, value) in [
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-embedder-policy", "require-corp"),
            ("cross-origin-resource-policy", "same-origin"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
        ] {
            assert_eq!(
                answer.headers.get(name).map(String::as_str),
                Some(value),
                "{name} of {path}"
            );
        }
        let policy = &answer.headers["content-security-policy"];
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self' 'wasm-unsafe-eval';"),
            "{policy}"
        );
        assert!(answer.headers["permissions-policy"].contains("microphone=(self)"));
        assert!(
            !answer.headers.contains_key("strict-transport-security"),
            "not on plain HTTP"
        );
    }
}

#[tokio::test]
async fn pages_may_reach_the_relay_in_every_version_of_http() {
    let server = Running::start(|config| {
        config.relay = Some(RelayConfig {
            public_port: Some(4433),
            ..RelayConfig::default()
        });
    })
    .await;
    let reaches_relay =
        |policy: &str| policy.ends_with("connect-src 'self' https://127.0.0.1:4433");
    let answer = server.get("/", &[]).await;
    let policy = &answer.headers["content-security-policy"];
    assert!(reaches_relay(policy), "{policy}");

    let stream = TcpStream::connect(server.address).await.expect("connects");
    let (requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let request = Request::get("http://localhost/").body(());
    let request = request.expect("a request");
    let (response, _) = requests
        .ready()
        .await
        .expect("ready")
        .send_request(request, true)
        .expect("sent");
    let response = response.await.expect("an answer");
    let policy = response.headers()["content-security-policy"].to_str();
    let policy = policy.expect("a policy is ASCII");
    assert!(reaches_relay(policy), "{policy}");
    connection.abort();
}

#[tokio::test]
async fn a_connection_has_few_answers_on_their_way_at_once() {
    let server = Running::start(|_| {}).await;
    let stream = TcpStream::connect(server.address).await.expect("connects");
    let (requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let mut requests = requests.ready().await.expect("ready");
    let request = Request::get("http://localhost/healthz").body(());
    let request = request.expect("a request");
    let (response, _) = requests.send_request(request, true).expect("sent");
    // The server's settings come before its answers.
    assert_eq!(response.await.expect("an answer").status(), 200);
    assert_eq!(requests.current_max_send_streams(), 16);
    connection.abort();
}

#[tokio::test]
async fn pages_are_found_or_explained() {
    let server = Running::start(|_| {}).await;
    // Without the app, a page that says how to build it.
    let expected = if has_web_app() { 200 } else { 503 };
    for path in ["/", &format!("/r/{ROOM}")] {
        let answer = server.get(path, &[]).await;
        assert_eq!(answer.status, expected, "{path}");
        assert_eq!(answer.headers["content-type"], "text/html; charset=utf-8");
        assert!(has_web_app() || answer.body.contains("make build"));
    }
    for path in [
        "/r/short",
        &format!("/r/{ROOM}/x"),
        "/nothing",
        "/../Cargo.toml",
        "/%2e%2e/Cargo.toml",
        "/r/",
    ] {
        let answer = server.get(path, &[]).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains("ask for it again"), "{path}");
    }
    let health = server.get("/healthz", &[]).await;
    assert_eq!(
        (health.status, health.headers["content-type"].as_str()),
        (200, "application/json")
    );
    assert!(health.body.contains(r#""status":"ok""#));
    assert_eq!(
        server.get("/metrics", &[]).await.status,
        404,
        "only on a port of its own"
    );
}

#[tokio::test]
async fn where_the_operator_makes_rooms_nobody_else_does() {
    let signer = RoomSigner::new(&Secret::new("correct horse battery")).expect("long enough");
    let choir = signer.room("choir").expect("a room");
    let choir = choir.as_str();
    let server = Running::start(|config| config.room_signer = Some(signer.clone())).await;
    for path in ["/", "/index.html"] {
        let answer = server.get(path, &[]).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body.contains("made by those who run it"), "{path}");
    }
    let expected = if has_web_app() { 200 } else { 503 };
    let enters = async |room: &str| {
        let page = server.get(&format!("/r/{room}"), &[]).await;
        (page.status, server.try_connect(room, None).await.err())
    };
    assert_eq!(enters(choir).await, (expected, None));
    let unsigned = RoomName::random();
    let another = choir.replacen("choir", "chair", 1);
    for room in [ROOM, unsigned.as_str(), &another, "short"] {
        assert_eq!(enters(room).await, (404, Some(404)), "{room}");
    }
}

/// Debug builds read the app from its folder: where it was built, its files are served as they should be.
#[tokio::test]
async fn files_have_types_tags_and_ages() {
    if !has_web_app() {
        return;
    }
    let server = Running::start(|_| {}).await;
    let page = server.get("/", &[]).await;
    assert_eq!(page.headers["cache-control"], "no-cache");
    let tag = page.headers["etag"].clone();
    assert_eq!(
        server.get("/", &[("if-none-match", &tag)]).await.status,
        304
    );
    assert_eq!(
        server
            .get("/", &[("if-none-match", "W/\"other\"")])
            .await
            .status,
        200
    );

    let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/dist/assets");
    for entry in fs::read_dir(assets).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().expect("a name");
        let answer = server.get(&format!("/assets/{name}"), &[]).await;
        assert_eq!(answer.status, 200, "{name}");
        assert_eq!(
            answer.headers["cache-control"],
            "public, max-age=31536000, immutable"
        );
        let expected = match name.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("wasm") => "application/wasm",
            _ => continue,
        };
        assert_eq!(answer.headers["content-type"], expected, "{name}");
        assert!(!answer.headers.contains_key("content-encoding"), "{name}");
        let compressed = server
            .get(
                &format!("/assets/{name}"),
                &[("accept-encoding", "gzip, br")],
            )
            .await;
        assert_eq!(compressed.headers["content-encoding"], "br", "{name}");
        assert_eq!(compressed.headers["content-type"], expected, "{name}");
        assert_eq!(compressed.headers["vary"], "accept-encoding", "{name}");
    }
}

#[tokio::test]
async fn who_says_nothing_or_never_finishes_asking_is_not_waited_for() {
    let plain = Running::start(|_| {}).await;
    let folder = tempfile::tempdir().expect("a folder");
    let files = TlsFiles {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
    };
    let trusted = new_certificate(&files);
    let tls = Running::start(|config| config.tls = Some(Tls::Files(files))).await;
    let (mut page, _) = plain.join(1).await;
    let sayings: [&[u8]; 4] = [
        b"",
        b"PRI ",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ];
    let mut held = Vec::new();
    for saying in sayings {
        let stream = TcpStream::connect(plain.address).await.expect("connects");
        let by_tls = connect_tls(&tls, trusted.clone()).await.expect("trusted");
        held.push(async move {
            tokio::join!(is_dropped(stream, saying), is_dropped(by_tls, saying));
        });
    }
    let deaf = TcpStream::connect(tls.address).await.expect("connects");
    tokio::join!(futures_util::future::join_all(held), is_dropped(deaf, b""));
    page.say(json!({ "type": "signal", "to": "0".repeat(32), "data": {} }))
        .await;
    assert_eq!(page.hear().await["code"], "unknown_peer", "it stays");
}

async fn is_dropped(mut stream: impl AsyncRead + AsyncWrite + Unpin, saying: &[u8]) {
    stream.write_all(saying).await.expect("sent");
    stream.flush().await.expect("sent");
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the server keeps the connection");
}

#[tokio::test]
async fn an_address_holds_so_many_connections_unless_it_is_a_proxy() {
    let hold = async |server: &Running, count| {
        let mut held = Vec::new();
        for _ in 0..count {
            held.push(TcpStream::connect(server.address).await.expect("connects"));
        }
        held
    };
    // Eight times as many.
    let server = Running::start(|config| config.connections.per_address = 5).await;
    let refused = "antiphon_dropped_total{reason=\"too_many_connections\"}";
    let held = hold(&server, 41).await;
    server.expect_metric(refused, 1).await;
    drop(held);
    let again = async {
        let mut answer = [0];
        loop {
            let mut stream = TcpStream::connect(server.address).await.expect("connects");
            let _ = stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await;
            if stream.read(&mut answer).await.is_ok_and(|read| read > 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(20), again).await;
    again.expect("its places are free again");

    let few = Running::start(|config| config.connections.in_all = 3).await;
    let held = hold(&few, 4).await;
    few.expect_metric(refused, 1).await;
    drop(held);

    let behind_proxy = Running::start(|config| {
        config.connections.per_address = 2;
        config.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    })
    .await;
    let _held = hold(&behind_proxy, 50).await;
    assert_eq!(behind_proxy.get("/healthz", &[]).await.status, 200);
}

#[tokio::test]
async fn serves_tls_from_files_and_reads_them_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = TlsFiles {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
    };
    let trusted = new_certificate(&files);
    let server = Running::start(|config| config.tls = Some(Tls::Files(files.clone()))).await;
    let answer = get_tls(&server, trusted.clone())
        .await
        .expect("a trusted connection");
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.headers["strict-transport-security"],
        "max-age=31536000"
    );
    // rcgen's certificates expire in 4096, on New Year's Day.
    let expiry = "antiphon_certificate_expiry_time_seconds";
    assert_eq!(server.metric(expiry).await, 67_090_118_400);

    #[cfg(target_os = "linux")]
    {
        let renewed = new_certificate(&files);
        let hang_up = std::process::Command::new("kill")
            .args(["-HUP", &std::process::id().to_string()])
            .status();
        assert!(hang_up.expect("kill runs").success());
        let reloaded = async {
            while get_tls(&server, renewed.clone()).await.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reloaded)
            .await
            .expect("the new certificate");
        assert!(
            get_tls(&server, trusted).await.is_none(),
            "the old one is gone"
        );
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_certificate_that_expires_is_warned_of_and_none_that_has_follows_a_valid_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let file = std::sync::Mutex::new(fs::File::create(&log).expect("created"));
    // The test's tasks all run on its own thread.
    let _logging =
        tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
    let logged = async |words: &str| {
        let logged = async {
            while !fs::read_to_string(&log).expect("UTF-8").contains(words) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let logged = tokio::time::timeout(Duration::from_secs(10), logged).await;
        logged.unwrap_or_else(|_| panic!("{words}: {:?}", fs::read_to_string(&log)));
    };
    let read_again = || {
        let hang_up = std::process::Command::new("kill")
            .args(["-HUP", &std::process::id().to_string()])
            .status();
        assert!(hang_up.expect("kill runs").success());
    };
    let files = TlsFiles {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
    };
    certificate_until(&files, -1);
    let server = Running::start(|config| config.tls = Some(Tls::Files(files.clone()))).await;
    logged("the certificate has expired: browsers refuse it").await;
    let valid = certificate_until(&files, 13);
    read_again();
    logged("the certificate expires soon").await;
    assert!(get_tls(&server, valid.clone()).await.is_some());
    certificate_until(&files, -1);
    read_again();
    logged("the certificate has expired; the old one stays").await;
    assert!(get_tls(&server, valid).await.is_some());
    let before = fs::read(&log).expect("there").len();
    let renewed = certificate_until(&files, 15);
    read_again();
    let reloaded = async {
        while get_tls(&server, renewed.clone()).await.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reloaded = tokio::time::timeout(Duration::from_secs(10), reloaded).await;
    reloaded.expect("the new certificate");
    let log = fs::read_to_string(&log).expect("UTF-8");
    assert!(!log[before..].contains("expires soon"), "{log}");
}

#[tokio::test]
async fn a_certificate_is_shown_even_if_it_is_not_known_when_it_expires() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = TlsFiles {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
    };
    let mut certificate = new_certificate(&files).to_vec();
    // New Year's Day of 4096.
    let expiry = certificate
        .windows(15)
        .position(|text| text == b"40960101000000Z");
    // There is no 99th month.
    certificate[expiry.expect("it is there") + 4..][..2].fill(b'9');
    let pem = BASE64.encode(&certificate);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{pem}\n-----END CERTIFICATE-----\n");
    fs::write(&files.cert, pem).expect("written");
    let server = Running::start(|config| config.tls = Some(Tls::Files(files))).await;
    let metrics = server.operator("/metrics").await.body;
    assert!(
        metrics.contains("\nantiphon_certificate_expiry_time_seconds 0\n"),
        "{metrics}"
    );
    let stream = TcpStream::connect(server.address).await.expect("connects");
    let client = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let refused = TlsConnector::from(Arc::new(client)).connect(name, stream);
    let refused = refused.await.expect_err("the client does not trust it");
    let refused = refused.downcast::<rustls::Error>().expect("by TLS");
    assert!(
        matches!(refused, rustls::Error::InvalidCertificate(_)),
        "{refused}"
    );
}

#[tokio::test]
async fn an_unusable_certificate_is_an_error_that_names_it() {
    let config = antiphon_server::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        tls: Some(Tls::Files(TlsFiles {
            cert: "no-such-cert.pem".into(),
            key: "no-such-key.pem".into(),
        })),
        ..Default::default()
    };
    let error = antiphon_server::Server::bind(config)
        .await
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("no-such-cert.pem") && error.contains("no-such-key.pem"),
        "{error}"
    );
}

fn new_certificate(files: &TlsFiles) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    fs::write(&files.cert, made.cert.pem()).expect("written");
    fs::write(&files.key, made.signing_key.serialize_pem()).expect("written");
    made.cert.der().clone()
}

/// One that expires in so many days.
#[cfg(target_os = "linux")]
fn certificate_until(files: &TlsFiles, days: i64) -> CertificateDer<'static> {
    let key = rcgen::KeyPair::generate().expect("a key");
    let name = "localhost".to_owned();
    let mut parameters = rcgen::CertificateParams::new([name]).expect("a certificate");
    let day = Duration::from_secs(24 * 60 * 60);
    let now = std::time::SystemTime::now();
    let shift = day * days.unsigned_abs() as u32;
    parameters.not_before = (now - 2 * day).into();
    parameters.not_after = if days < 0 { now - shift } else { now + shift }.into();
    let made = parameters.self_signed(&key).expect("a certificate");
    fs::write(&files.cert, made.pem()).expect("written");
    fs::write(&files.key, key.serialize_pem()).expect("written");
    made.der().clone()
}

async fn get_tls(server: &Running, trusted: CertificateDer<'static>) -> Option<running::Answer> {
    let stream = connect_tls(server, trusted).await?;
    Some(get(stream, "localhost", "/healthz", &[]).await)
}

async fn connect_tls(
    server: &Running,
    trusted: CertificateDer<'static>,
) -> Option<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).expect("a root");
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.expect("connects");
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.ok()
}

#[tokio::test]
async fn a_page_elsewhere_does_not_get_in_by_a_name_that_leads_here() {
    let asked = async |address: std::net::SocketAddr, host: &str, path: &str| {
        let stream = TcpStream::connect(address).await.expect("connects");
        get(stream, host, path, &[]).await.status
    };
    let own = Running::start(|_| {}).await;
    for (address, path) in [(own.address, "/healthz"), (own.metrics, "/status.json")] {
        assert_eq!(
            asked(address, "evil.example.org", path).await,
            421,
            "{path}"
        );
        let ip = address.to_string();
        assert_eq!(asked(address, &ip, path).await, 200, "{path}");
    }
    let public = "https://music.example.org".to_owned();
    let public = Running::start(|config| config.public_origin = Some(public)).await;
    let as_named = asked(public.address, "music.example.org", "/healthz").await;
    assert_eq!(as_named, 200);
    let operator = asked(public.metrics, "music.example.org", "/metrics").await;
    assert_eq!(operator, 421, "the operator's stays its own");
}

#[tokio::test]
async fn the_operator_sees_what_happens_and_no_visitor_does() {
    let server = Running::start(|_| {}).await;
    let (_ann, welcome) = server.join(1).await;
    let mut page = server.connect().await;
    page.send(Message::text("no JSON")).await;
    assert_eq!(page.refused().await, ("bad_message".into(), 1008));
    server.expect_metric("antiphon_connections", 1).await;

    let answer = server.operator("/status.json").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["cache-control"], "no-store");
    let status: Value = serde_json::from_str(&answer.body).expect("JSON");
    let name: RoomName = ROOM.parse().expect("a name");
    assert_eq!(
        status["rooms"],
        json!([{
            "room": format!("{name:?}"), "sample_rate_hz": 48_000, "participants": 1, "away": 0, "muted": 0,
            "locked": false,
        }])
    );
    assert_eq!(status["dropped"], json!({ "bad_message": 1 }));
    assert_eq!(
        (&status["connections"], &status["relay"]),
        (&json!(1), &Value::Null)
    );
    assert!(status["uptime_s"].is_u64());
    for secret in [ROOM, welcome["id"].as_str().expect("an id"), "Person 1"] {
        assert!(!answer.body.contains(secret), "{secret}: {}", answer.body);
    }

    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/operator.css", "text/css; charset=utf-8"),
        ("/operator.js", "text/javascript; charset=utf-8"),
    ] {
        let answer = server.operator(path).await;
        assert_eq!(
            (answer.status, &*answer.headers["content-type"]),
            (200, content_type)
        );
        assert!(
            answer.headers["content-security-policy"]
                .starts_with("default-src 'none'; script-src 'self'"),
            "{path}"
        );
        assert!(
            !answer.body.contains("://"),
            "{path} fetches nothing foreign"
        );
    }
    for path in ["/status.json", "/operator.js", "/metrics"] {
        assert_eq!(server.get(path, &[]).await.status, 404, "{path} in public");
    }
}
