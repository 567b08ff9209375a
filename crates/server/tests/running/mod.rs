//! A real server on a free port, and the two ways to talk to it: plain HTTP requests and a page's WebSocket.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use antiphon_server::{Config, Server};
use data_encoding::HEXLOWER;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, Message, client::IntoClientRequest},
};
use web_transport_quinn::{ClientBuilder, Session, proto::ConnectRequest};

pub const ROOM: &str = "k3J9x0aQbW2mT7uYpL5sNg";
const SOON: Duration = Duration::from_secs(10);

pub struct Running {
    pub address: SocketAddr,
    pub metrics: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    pub ended: JoinHandle<std::io::Result<()>>,
}

impl Running {
    pub async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config {
            listen: any,
            metrics_listen: Some(any),
            relay: None,
            ..Config::default()
        };
        change(&mut config);
        Self::run(Server::bind(config).await.expect("the server starts"))
    }

    /// A server that was bound before, with metrics.
    pub fn run(server: Server) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self {
            address: server.address(),
            metrics: server.metrics_address().expect("metrics are on"),
            stop: Some(stop),
            ended: tokio::spawn(server.run(async {
                let _ = stopped.await;
            })),
        }
    }

    pub fn stop(&mut self) {
        let _ = self.stop.take().expect("stopped once").send(());
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        get(
            TcpStream::connect(self.address).await.expect("connects"),
            "localhost",
            path,
            headers,
        )
        .await
    }

    /// From the operator's port.
    pub async fn operator(&self, path: &str) -> Answer {
        let stream = TcpStream::connect(self.metrics).await.expect("connects");
        get(stream, "localhost", path, &[]).await
    }

    /// A value from `/metrics`; 0 if it is not there.
    pub async fn metric(&self, name: &str) -> u64 {
        let answer = self.operator("/metrics").await;
        let line = answer
            .body
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} ")).map(str::to_owned));
        line.map_or(0, |value| value.parse().expect("a whole number"))
    }

    pub async fn dropped(&self, reason: &str) -> u64 {
        self.metric(&format!("antiphon_dropped_total{{reason=\"{reason}\"}}"))
            .await
    }

    /// Waits until a metric has a value: what happens on another connection takes a moment.
    pub async fn expect_metric(&self, name: &str, value: u64) {
        let reached = async {
            while self.metric(name).await != value {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, reached)
            .await
            .unwrap_or_else(|_| panic!("{name} did not become {value}"));
    }

    pub async fn connect(&self) -> Page {
        self.try_connect(ROOM, None).await.expect("connects")
    }

    /// Connects, or answers the HTTP status of the refusal.
    pub async fn try_connect(&self, room: &str, origin: Option<&str>) -> Result<Page, u16> {
        let mut request = format!("ws://{}/ws/{room}", self.address)
            .into_client_request()
            .expect("a request");
        if let Some(origin) = origin {
            request
                .headers_mut()
                .insert("origin", origin.parse().expect("a header"));
        }
        match connect_async(request).await {
            Ok((socket, _)) => Ok(Page { socket }),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Connects and says hello; answers the welcome too.
    pub async fn join(&self, person: u8) -> (Page, Value) {
        let mut page = self.connect().await;
        page.say(hello(person)).await;
        let welcome = page.hear().await;
        assert_eq!(welcome["type"], "welcome", "{welcome}");
        (page, welcome)
    }
}

/// The hello of a person whose secret is a number, over and over.
pub fn hello(person: u8) -> Value {
    json!({
        "type": "hello", "version": 1, "secret": format!("{person:02x}").repeat(32),
        "name": format!("Person {person}"), "sample_rate_hz": 48000,
    })
}

pub struct Page {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Page {
    pub async fn say(&mut self, message: Value) {
        self.send(Message::text(message.to_string())).await;
    }

    pub async fn send(&mut self, message: Message) {
        self.socket.send(message).await.expect("sent");
    }

    /// The next message; pings are answered on the way.
    pub async fn hear(&mut self) -> Value {
        match self.next().await {
            Some(Ok(Message::Text(text))) => serde_json::from_str(&text).expect("JSON"),
            other => panic!("expected a message, got {other:?}"),
        }
    }

    async fn next(&mut self) -> Option<Result<Message, Error>> {
        loop {
            let next = timeout(SOON, self.socket.next()).await;
            match next.expect("something to hear") {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                next => return next,
            }
        }
    }

    /// The error that comes next, and the close code after it.
    pub async fn refused(&mut self) -> (String, u16) {
        let error = self.hear().await;
        assert_eq!(error["type"], "error", "{error}");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
        (
            error["code"].as_str().expect("a code").to_owned(),
            self.closed().await,
        )
    }

    /// The close code that comes next.
    pub async fn closed(&mut self) -> u16 {
        match self.next().await {
            Some(Ok(Message::Close(Some(frame)))) => frame.code.into(),
            other => panic!("expected a close, got {other:?}"),
        }
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: String,
}

/// One HTTP/1.1 request on a connection of its own.
pub async fn get(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Answer {
    let mut request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    stream
        .write_all(format!("{request}\r\n").as_bytes())
        .await
        .expect("sent");
    let mut bytes = Vec::new();
    timeout(SOON, stream.read_to_end(&mut bytes))
        .await
        .expect("an answer in time")
        .expect("an answer");
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|code| code.parse().ok());
    let headers = lines.filter_map(|line| line.split_once(": "));
    Answer {
        status: status.expect("a status"),
        headers: headers
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}

/// A session for what a page was told in its `welcome`.
pub async fn connect_as_told(relay: &Value) -> Session {
    let hashes = relay["certificate_hashes"].as_array().expect("a list");
    let hashes = hashes.iter().map(|hash| {
        let digits = hash.as_str().expect("digits").as_bytes();
        HEXLOWER.decode(digits).expect("hex digits")
    });
    let client = ClientBuilder::new().with_server_certificate_hashes(hashes.collect());
    let token = relay["token"].as_str().expect("a token");
    let url = format!("https://127.0.0.1:{}/relay/{token}", relay["port"]);
    let request = ConnectRequest::new(url.parse::<url::Url>().expect("a URL"));
    client
        .expect("a client")
        .connect(request)
        .await
        .expect("connects")
}
