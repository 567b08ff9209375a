//! One signalling WebSocket: hello first, then messages, within the limits, for as long as both sides are alive.

use std::{
    net::{IpAddr, SocketAddr},
    ops::ControlFlow,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::{
        ConnectInfo, Path, State,
        ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade},
    },
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use tokio::time;

use crate::{
    headers::host,
    hub::{Connection, Hub},
    metrics::DropReason,
    outbox::{End, Next},
    rate::TokenBucket,
    signalling::{ClientMessage, ErrorCode, MAX_MESSAGE_BYTES, ParseError, RoomName, parse},
};

/// What the WebSocket itself takes: more than a page may send, so that a page that sends too much is told.
const MAX_FRAME_BYTES: usize = 4 * MAX_MESSAGE_BYTES;
/// What is read at once, in bytes. The library zeroes it all at the first reading, and has 128 KiB by itself: two thirds of what a participant took.
const READ_BUFFER_BYTES: usize = 4 * 1_024;
/// What may wait inside the WebSocket: a message and its answers to pings, which a page that does not read could ask for without end.
/// More than the longest message, and than what the library gathers before it writes.
const MAX_WRITE_BUFFER_BYTES: usize = 512 * 1_024;
/// How long the last words and the close handshake may take.
const CLOSING: Duration = Duration::from_secs(2);
/// What is told to everybody in the room counts as so many messages: it could fill everybody's outbox, which cuts their connections.
const TOLD_TO_ALL: usize = 20;

/// What proxies say for whom they connect.
const FORWARDED: [&str; 2] = ["x-forwarded-for", "forwarded"];

/// `GET /ws/{room}`.
pub(crate) async fn upgrade(
    State(hub): State<Arc<Hub>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path(room): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let Some(room) = hub.config.room(&room) else {
        return (StatusCode::NOT_FOUND, "there is no such room\n").into_response();
    };
    if !is_own_origin(&headers, &uri, hub.config.public_origin.as_deref()) {
        hub.metrics.count_dropped(DropReason::ForeignOrigin);
        if hub.may_log() {
            let origin = headers.get(header::ORIGIN).map(beginning);
            tracing::warn!(
                ?origin,
                "refused a page of another site; is --public-url right?"
            );
        }
        return (
            StatusCode::FORBIDDEN,
            "only this server's own pages may connect\n",
        )
            .into_response();
    }
    let address = client_address(peer.ip(), &headers, |address| hub.config.trusts(address));
    if !hub.config.trusts(peer.ip()) && FORWARDED.iter().any(|name| headers.contains_key(*name)) {
        hub.tell_of_proxy(peer.ip().to_canonical());
    }
    let connection = match hub.admit(address) {
        Ok(connection) => connection,
        Err(None) => {
            return (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response();
        }
        Err(Some(network)) => {
            hub.metrics.count_dropped(DropReason::TooManyConnections);
            if hub.may_log() {
                tracing::warn!(
                    %network,
                    "refused a connection: its address has too many, or opens them too fast; is it a whole school, or a \
                     proxy? See --max-connections-per-address, --trusted-proxy"
                );
            }
            let why = "too many connections from this address\n";
            return (StatusCode::TOO_MANY_REQUESTS, why).into_response();
        }
    };
    upgrade
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_write_buffer_size(MAX_WRITE_BUFFER_BYTES)
        .max_message_size(MAX_FRAME_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .on_upgrade(move |socket| serve(socket, connection, room))
}

/// As much of a stranger's words as the log needs.
fn beginning(value: &HeaderValue) -> String {
    let text = String::from_utf8_lossy(value.as_bytes());
    text.chars().take(100).collect()
}

/// Whether the page that connects came from this server. Programs other than browsers send no origin, and may.
fn is_own_origin(headers: &HeaderMap, uri: &Uri, public_origin: Option<&str>) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    if public_origin.is_some_and(|public| public.eq_ignore_ascii_case(origin)) {
        return true;
    }
    let (Some((scheme, origin_host)), Some(host)) = (origin.split_once("://"), host(headers, uri))
    else {
        return false;
    };
    let default_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let without_port = |host: &'_ str| {
        host.strip_suffix(default_port)
            .unwrap_or(host)
            .to_ascii_lowercase()
    };
    without_port(origin_host) == without_port(host)
}

/// The address of the client itself: the last one in `X-Forwarded-For` that is no trusted proxy. What stands before it, the client may have
/// written.
fn client_address(
    peer: IpAddr,
    headers: &HeaderMap,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let peer = peer.to_canonical();
    if !is_trusted(peer) {
        return peer;
    }
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    lines
        .flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','))
        .map(hop_address)
        .find(|hop| hop.is_none_or(|hop| !is_trusted(hop)))
        .flatten()
        .unwrap_or(peer)
}

/// An address, some with a port: `192.0.2.1`, `192.0.2.1:50000`, `2001:db8::1` or `[2001:db8::1]:50000`.
fn hop_address(hop: &[u8]) -> Option<IpAddr> {
    let hop = str::from_utf8(hop).ok()?.trim();
    let address = hop.parse().ok();
    let address = address.or_else(|| hop.parse().ok().map(|hop: SocketAddr| hop.ip()));
    address.map(|address| address.to_canonical())
}

/// Runs a connection to its end.
async fn serve(socket: WebSocket, connection: Connection, room: RoomName) {
    let (mut sink, mut stream) = socket.split();
    let mut writing = pin!(write(&mut sink, &connection));
    let written = tokio::select! {
        written = &mut writing => Some(written),
        () = read(&mut stream, &connection, &room) => time::timeout(CLOSING, &mut writing).await.ok(),
        () = connection.outbox.aborted() => None,
    };
    // A socket closed with unread input is reset, and the reset may overtake the last words.
    if matches!(written, Some(End::Close(_))) {
        let rest = async { while let Some(Ok(_)) = stream.next().await {} };
        let _ = time::timeout(CLOSING, rest).await;
    }
}

/// Sends what comes into the outbox, and pings, until the end. Answers how it ended.
async fn write(sink: &mut SplitSink<WebSocket, Message>, connection: &Connection) -> End {
    let limits = connection.hub.config.connections;
    let first_ping = time::Instant::now() + limits.ping_interval;
    let mut pings = time::interval_at(first_ping, limits.ping_interval);
    loop {
        let (message, end) = tokio::select! {
            next = connection.outbox.next() => match next {
                Next::Send(text) => (Message::Text(text), None),
                Next::End(end @ End::Close(code)) => {
                    let frame = CloseFrame { code, reason: Utf8Bytes::default() };
                    (Message::Close(Some(frame)), Some(end))
                }
                Next::End(End::Abort) => return End::Abort,
            },
            _ = pings.tick() => (Message::Ping(Default::default()), None),
        };
        // A page that does not read blocks this. It may not be silent, and its outbox, which has ended or takes no more signals, may never overflow.
        match time::timeout(limits.silence_timeout, sink.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return End::Abort,
            Err(_) => {
                let (id, reason) = (connection.id, DropReason::SlowClient);
                connection.hub.tell_dropped(id, reason, "it does not read");
                return End::Abort;
            }
        }
        if let Some(end) = end {
            return end;
        }
    }
}

/// Reads until the connection ends or is refused; the outbox then has its end.
async fn read(stream: &mut SplitStream<WebSocket>, connection: &Connection, room: &RoomName) {
    let hub = &connection.hub;
    let limits = hub.config.connections;
    let mut messages = TokenBucket::new(
        limits.messages_per_s.saturating_mul(20),
        limits.messages_per_s,
        hub.now(),
    );
    let mut bytes = TokenBucket::new(
        limits.bytes_per_s.saturating_mul(8),
        limits.bytes_per_s,
        hub.now(),
    );
    let hello_by = time::Instant::now() + limits.hello_timeout;
    let mut greeted = false;
    loop {
        let silent_at = time::Instant::now() + limits.silence_timeout;
        let deadline = if greeted {
            silent_at
        } else {
            hello_by.min(silent_at)
        };
        let Ok(received) = time::timeout_at(deadline, stream.next()).await else {
            if greeted {
                hub.tell_dropped(connection.id, DropReason::Silent, "silent");
                connection.outbox.end(End::Abort);
            } else {
                // No error, which would be final: a bad network may have kept it, and whoever it was may try again.
                hub.metrics.count_dropped(DropReason::HelloTimeout);
                connection.outbox.end(End::Close(1001));
            }
            return;
        };
        let text = match received {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) if messages.take(1, hub.now()) => {
                continue;
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {
                return connection.refuse(
                    DropReason::TooFast,
                    ErrorCode::TooFast,
                    "too many messages",
                );
            }
            Some(Ok(Message::Binary(_))) => {
                return connection.refuse(
                    DropReason::NotText,
                    ErrorCode::BadMessage,
                    "messages are text",
                );
            }
            Some(Ok(Message::Close(_))) | None => return connection.outbox.end(End::Close(1000)),
            Some(Err(error)) => return broken(connection, &error),
        };
        if !messages.take(1, hub.now()) || !bytes.take(text.len(), hub.now()) {
            return connection.refuse(DropReason::TooFast, ErrorCode::TooFast, "too many messages");
        }
        if handle_text(connection, room, &text, &mut greeted, &mut messages).is_break() {
            return;
        }
    }
}

/// A frame beyond any measure, text that is not UTF-8, or a connection that is gone: the last words are a try.
fn broken(connection: &Connection, error: &axum::Error) {
    let error = error.to_string();
    if error.contains("too long") || error.contains("too big") {
        connection.refuse(
            DropReason::Oversized,
            ErrorCode::BadMessage,
            "this message is far too long",
        );
    } else if error.contains("UTF-8") {
        connection.refuse(
            DropReason::NotText,
            ErrorCode::BadMessage,
            "messages are UTF-8 text",
        );
    } else {
        tracing::debug!(connection = connection.id.0, error, "broken");
        connection.outbox.end(End::Abort);
    }
}

fn handle_text(
    connection: &Connection,
    room: &RoomName,
    text: &str,
    greeted: &mut bool,
    messages: &mut TokenBucket,
) -> ControlFlow<()> {
    let refuse = |reason, code, why: &str| {
        connection.refuse(reason, code, why);
        ControlFlow::Break(())
    };
    let message = match parse(text) {
        Ok(message) => message,
        Err(error @ ParseError::BadVersion) => {
            return refuse(
                DropReason::BadVersion,
                ErrorCode::BadVersion,
                &error.to_string(),
            );
        }
        // Nobody loses the connection for it, only the name.
        Err(ParseError::BadName(_)) if *greeted => {
            connection.hub.metrics.count_dropped(DropReason::BadMessage);
            return ControlFlow::Continue(());
        }
        Err(error) => {
            let oversized = text.len() > MAX_MESSAGE_BYTES;
            let reason = if oversized {
                DropReason::Oversized
            } else {
                DropReason::BadMessage
            };
            return refuse(reason, ErrorCode::BadMessage, &error.to_string());
        }
    };
    connection.hub.metrics.count_received(message.kind());
    match message {
        ClientMessage::Hello(hello) if !*greeted => {
            *greeted = true;
            connection.handle_hello(room.clone(), hello);
        }
        message if *greeted => {
            let is_for_all = matches!(
                message,
                ClientMessage::Rename { .. }
                    | ClientMessage::Moderate { .. }
                    | ClientMessage::Lock { .. }
            );
            if is_for_all && !messages.take(TOLD_TO_ALL - 1, connection.hub.now()) {
                return refuse(DropReason::TooFast, ErrorCode::TooFast, "too many messages");
            }
            if matches!(message, ClientMessage::Rename { .. }) && !connection.may_tell_all() {
                // It may be that others at its address did all of it.
                connection.decline();
            } else {
                connection.handle_message(message)
            }
        }
        _ => {
            return refuse(
                DropReason::BadMessage,
                ErrorCode::BadMessage,
                "hello comes first",
            );
        }
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;
    use crate::network::Network;

    #[test]
    fn a_client_cannot_choose_its_address() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let trusted = ["127.0.0.1", "192.0.2.0/31"].map(|it| it.parse::<Network>().expect(it));
        let proxy = ip("127.0.0.1");
        let address = |peer, lines: &[&[u8]]| {
            let lines = lines.iter().map(|line| {
                let value = HeaderValue::from_bytes(line).expect("a header");
                (HeaderName::from_static("x-forwarded-for"), value)
            });
            let is_trusted = |address| trusted.iter().any(|it| it.contains(address));
            client_address(peer, &lines.collect(), is_trusted)
        };
        let real = ip("203.0.113.9");
        for lines in [
            &[&b"203.0.113.9"[..]][..],
            &[b"198.51.100.7, x, 203.0.113.9"],
            &[b"198.51.100.7, 203.0.113.9, 192.0.2.1"],
            &[b"198.51.100.7", b"203.0.113.9", b"192.0.2.1"],
            &[b"198.51.100.7, \xe9, 203.0.113.9,192.0.2.1"],
            &[b"203.0.113.9:50000, 192.0.2.1:443"],
            &[b"::ffff:203.0.113.9"],
        ] {
            assert_eq!(address(proxy, lines), real, "{lines:?}");
        }
        let ipv6 = address(proxy, &[b"198.51.100.7, [2001:db8::1]:50000"]);
        assert_eq!(ipv6, ip("2001:db8::1"));
        for lines in [
            &[][..],
            &[&b"192.0.2.1"[..]][..],
            &[b"198.51.100.7, x"],
            &[b"198.51.100.7, \xe9, 192.0.2.1"],
            &[b"198.51.100.7, unknown, 192.0.2.1"],
        ] {
            assert_eq!(address(proxy, lines), proxy, "{lines:?}");
        }
        assert_eq!(address(real, &[b"198.51.100.7"]), real, "no proxy");
    }
}
