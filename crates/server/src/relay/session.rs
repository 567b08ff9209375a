//! One session: the handshake, then its datagrams and its control stream.

use std::{
    cell::RefCell,
    net::IpAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Buf, Bytes};
use quinn_proto::{ConnectionHandle, Event, Incoming, VarInt};
use web_transport_proto::ConnectRequest;

use super::{
    Relay,
    connections::{Connection, Connections},
    control::{ControlError, Lines, PageMessage, RelayMessage, Wanted, parse},
    load::Account,
    quic::CloseCode,
    room::Room,
    webtransport::{WebEvent, session_error},
};
use crate::media::Token;

/// How long a connection may take to become a session.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a page may take to end a session that was closed, at least; and in round trips.
const FAREWELL: Duration = Duration::from_millis(100);
const FAREWELL_RTTS: u32 = 3;
/// How often a page is told its statistics.
const STATISTICS: Duration = Duration::from_secs(1);

/// A participant's place, as its sessions know it.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) room: Rc<RefCell<Room>>,
    pub(super) stream: u16,
}

/// What the relay knows of a connection.
#[derive(Debug)]
pub(super) struct Session {
    /// Where it came from at first: it may move to another address later.
    address: IpAddr,
    stage: Stage,
    seat: Option<Seat>,
    /// All strangers' until it has a seat, then its participant's.
    pub(super) account: Rc<Account>,
    control: Option<Control>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has so long to become a session.
    Handshake(Instant),
    Open,
    /// It was told to end, and has so long to do so.
    Closing(Instant, CloseCode),
    /// Nobody counts on it any more.
    Ended,
}

/// What is said on a control stream.
#[derive(Debug)]
struct Control {
    lines: Lines,
    /// What the page does not take yet.
    unsent: Bytes,
    /// To be told as soon as it does.
    wanted: Option<Wanted>,
    statistics_at: Instant,
}

impl Session {
    /// Of a connection that was admitted.
    pub(super) fn new(address: IpAddr, strangers: Rc<Account>, now: Instant) -> Self {
        Self {
            address,
            stage: Stage::Handshake(now + HANDSHAKE),
            seat: None,
            account: strangers,
            control: None,
        }
    }

    /// Whether nobody counts on it any more.
    pub(super) fn is_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// When there is something to do although nothing comes.
    pub(super) fn timeout(&self) -> Option<Instant> {
        match self.stage {
            Stage::Handshake(until) | Stage::Closing(until, _) => Some(until),
            Stage::Open => Some(self.control.as_ref()?.statistics_at),
            Stage::Ended => None,
        }
    }
}

impl Connections {
    /// Tells a page why its session is over, and lets it end.
    pub(super) fn close(&mut self, handle: ConnectionHandle, code: CloseCode) {
        if let Some(connection) = self.get(handle)
            && connection.session.stage == Stage::Open
        {
            let until = Instant::now() + FAREWELL.max(connection.quic.rtt() * FAREWELL_RTTS);
            connection.session.stage = Stage::Closing(until, code);
            let Connection { quic, web, .. } = connection;
            web.close(quic, code as u32, code.reason());
            self.touch(handle);
        }
    }

    /// Tells a page who takes its participant's stream, if this is the session that it wants to be told on.
    pub(super) fn tell(&mut self, handle: ConnectionHandle, wanted: Wanted) {
        if let Some(connection) = self.get(handle)
            && let Some(control) = &mut connection.session.control
        {
            control.wanted = Some(wanted);
            connection.say();
            self.touch(handle);
        }
    }
}

impl Connection {
    /// Says what is to be said, as far as the page takes it.
    fn say(&mut self) {
        let Self {
            quic, web, session, ..
        } = self;
        let Some(control) = &mut session.control else {
            return;
        };
        loop {
            if control.unsent.is_empty() {
                let Some(wanted) = control.wanted.take() else {
                    return;
                };
                control.unsent = RelayMessage::Wanted(wanted).to_line().into();
            }
            match web.write(quic, &control.unsent) {
                Some(0) => return,
                Some(written) => control.unsent.advance(written),
                // It does not want to be told. What it says is still heard.
                None => {
                    control.unsent.clear();
                    return;
                }
            }
        }
    }
}

impl Relay {
    /// An address has to prove that it is its own, which costs a round trip: otherwise anyone could use up what another's may open, and
    /// have certificates sent there.
    pub(super) fn handle_incoming(&mut self, incoming: Incoming, now: Instant) {
        let address = incoming.remote_address().ip();
        if !incoming.remote_address_validated() {
            self.connections.retry(incoming);
        } else if self.admit(address) {
            let session = Session::new(address, self.connections.strangers(), now);
            if self.connections.accept(incoming, session, now).is_none() {
                self.handshake_ended(address);
                self.left(address);
            }
        } else {
            self.refused += 1;
            self.connections.refuse(incoming);
        }
    }

    /// Does all that has happened to a connection by `now`.
    pub(super) fn serve(&mut self, handle: ConnectionHandle, now: Instant) {
        while let Some(event) = self.connections.poll(handle) {
            match event {
                Event::DatagramReceived => self.handle_datagrams(handle, now),
                Event::Stream(event) => {
                    if let Some(Connection { quic, web, .. }) = self.connections.get(handle) {
                        web.handle(quic, event);
                    }
                }
                Event::Connected => {
                    if let Some(Connection { quic, web, .. }) = self.connections.get(handle) {
                        web.open(quic);
                    }
                }
                Event::ConnectionLost { .. } => self.ended(handle),
                Event::HandshakeDataReady | Event::DatagramsUnblocked => {}
            }
            while let Some(event) = self
                .connections
                .get(handle)
                .and_then(|connection| connection.web.poll())
            {
                self.handle_web_event(handle, event, now);
            }
        }
    }

    fn handle_datagrams(&mut self, handle: ConnectionHandle, now: Instant) {
        let Some(connection) = self.connections.get(handle) else {
            return;
        };
        let is_open = connection.session.stage == Stage::Open;
        let seat = connection.session.seat.clone().filter(|_| is_open);
        while let Some(connection) = self.connections.get(handle)
            && let Some(raw) = connection.quic.datagrams().recv()
        {
            if let Some(Seat { room, stream }) = &seat {
                room.borrow_mut()
                    .handle_datagram(*stream, handle, raw, now, &mut self.connections);
            }
        }
    }

    fn handle_web_event(&mut self, handle: ConnectionHandle, event: WebEvent, now: Instant) {
        match event {
            WebEvent::Requested(request) => self.handle_request(handle, &request),
            WebEvent::Opened => self.begin_control(handle, now),
            WebEvent::Received(bytes) => {
                if let Err(error) = self.hear(handle, &bytes) {
                    if self.lines.take(1, self.start.elapsed()) {
                        // It may quote what the page said: as much of it as a developer needs, and as text, which the log writes in quotes.
                        let error: String = error.to_string().chars().take(200).collect();
                        tracing::info!(error, "closed a session");
                    }
                    self.connections.close(handle, CloseCode::MalformedControl);
                }
            }
            WebEvent::Writable => {
                if let Some(connection) = self.connections.get(handle) {
                    connection.say();
                }
            }
            WebEvent::Finished => {
                if let Some(connection) = self.connections.get(handle) {
                    connection.session.control = None;
                }
            }
            WebEvent::Closed(code) => self.end(handle, code, now),
        }
    }

    fn handle_request(&mut self, handle: ConnectionHandle, request: &ConnectRequest) {
        let own = self.public_origin.as_deref();
        let answer = if !is_own_origin(&request.headers, request.url.host_str(), own) {
            if self.lines.take(1, self.start.elapsed()) {
                tracing::warn!("refused a page of another site");
            }
            Err(StatusCode::FORBIDDEN)
        } else {
            let path = request.url.path().strip_prefix("/relay/");
            // What is no token at all is as unknown as any other.
            path.map(|token| token.parse().unwrap_or_else(|_| Token::random()))
                .ok_or(StatusCode::NOT_FOUND)
        };
        let Some(connection) = self.connections.get(handle) else {
            return;
        };
        let Connection {
            quic, web, session, ..
        } = connection;
        if !matches!(session.stage, Stage::Handshake(_)) {
            return;
        }
        match answer {
            // The handshake's time goes on until the page is gone.
            Err(status) => web.reject(quic, status),
            Ok(token) => {
                web.accept(quic);
                session.stage = Stage::Open;
                let address = session.address;
                self.handshake_ended(address);
                self.take_seat(handle, token);
            }
        }
    }

    /// Gives a session its participant's place, or closes it.
    fn take_seat(&mut self, handle: ConnectionHandle, token: Token) {
        let seat = self.seats.get(&token).cloned();
        let seated = seat.ok_or(CloseCode::UnknownToken).and_then(|seat| {
            let account =
                (seat.room.borrow_mut()).open(seat.stream, handle, &mut self.connections)?;
            Ok((seat, account))
        });
        match (seated, self.connections.get(handle)) {
            (Ok((seat, account)), Some(connection)) => {
                connection.session.seat = Some(seat);
                connection.session.account = account;
            }
            (Ok(_), None) => {}
            (Err(code), _) => {
                if self.lines.take(1, self.start.elapsed()) {
                    tracing::info!(?code, "refused a session");
                }
                self.connections.close(handle, code);
            }
        }
    }

    fn begin_control(&mut self, handle: ConnectionHandle, now: Instant) {
        let Some(connection) = self.connections.get(handle) else {
            return;
        };
        let Some(Seat { room, stream }) = &connection.session.seat else {
            return;
        };
        connection.session.control = Some(Control {
            lines: Lines::default(),
            unsent: Bytes::new(),
            wanted: room.borrow().wanted(*stream),
            statistics_at: now + STATISTICS,
        });
        connection.say();
    }

    /// A page that breaks the rules loses the session.
    fn hear(&mut self, handle: ConnectionHandle, bytes: &[u8]) -> Result<(), ControlError> {
        let mut heard = bytes;
        loop {
            let Some(connection) = self.connections.get(handle) else {
                return Ok(());
            };
            let Session {
                stage: Stage::Open,
                seat: Some(seat),
                control: Some(control),
                ..
            } = &mut connection.session
            else {
                return Ok(());
            };
            control.lines.push(std::mem::take(&mut heard));
            let Some(line) = control.lines.next()? else {
                return Ok(());
            };
            let message = parse(&line)?;
            let Seat { room, stream } = seat.clone();
            let mut room = room.borrow_mut();
            match message {
                // It may have been overtaken by what was said on another since.
                PageMessage::Listen(_) if room.is_retired(stream, handle) => {}
                PageMessage::Listen(listen) => {
                    room.handle_listen(stream, listen, &mut self.connections)?;
                }
                PageMessage::Retire {} => room.retire(stream, handle, &mut self.connections)?,
            }
        }
    }

    /// Does what is due on a connection by `now`.
    pub(super) fn handle_connection_timeout(&mut self, handle: ConnectionHandle, now: Instant) {
        let Some(connection) = self.connections.get(handle) else {
            return;
        };
        connection.quic.handle_timeout(now);
        if connection.session.timeout().is_some_and(|due| due <= now) {
            match connection.session.stage {
                Stage::Open => self.tell_statistics(handle, now),
                Stage::Handshake(_) => self.end(handle, 0_u32.into(), now),
                Stage::Closing(_, code) => self.end(handle, session_error(code as u32), now),
                Stage::Ended => {}
            }
        }
        self.serve(handle, now);
    }

    fn tell_statistics(&mut self, handle: ConnectionHandle, now: Instant) {
        let Some(connection) = self.connections.get(handle) else {
            return;
        };
        let Session {
            seat: Some(seat),
            control: Some(control),
            ..
        } = &mut connection.session
        else {
            return;
        };
        control.statistics_at = now + STATISTICS;
        // A page that does not read hears the next ones.
        if !control.unsent.is_empty() {
            return;
        }
        let Seat { room, stream } = seat.clone();
        let mut room = room.borrow_mut();
        if room.is_retired(stream, handle) {
            return;
        }
        let statistics = room.statistics(stream, handle, &mut self.connections);
        if let Some(statistics) = statistics
            && let Some(connection) = self.connections.get(handle)
            && let Some(control) = &mut connection.session.control
        {
            control.unsent = RelayMessage::Statistics(statistics).to_line().into();
            connection.say();
        }
    }

    /// Ends a connection, whatever its page may still have to say.
    fn end(&mut self, handle: ConnectionHandle, code: VarInt, now: Instant) {
        if let Some(connection) = self.connections.get(handle) {
            connection.quic.close(now, code, Bytes::new());
        }
        self.ended(handle);
    }

    /// A connection is over, for everyone but QUIC.
    fn ended(&mut self, handle: ConnectionHandle) {
        let Some(Connection { session, .. }) = self.connections.get(handle) else {
            return;
        };
        let stage = std::mem::replace(&mut session.stage, Stage::Ended);
        let (address, seat) = (session.address, session.seat.take());
        session.control = None;
        if stage == Stage::Ended {
            return;
        }
        if matches!(stage, Stage::Handshake(_)) {
            self.handshake_ended(address);
        }
        self.left(address);
        if let Some(Seat { room, stream }) = seat {
            room.borrow_mut()
                .ended(stream, handle, &mut self.connections);
        }
        self.connections.touch(handle);
    }
}

/// Whether the page comes from the host that it connects to, which is also the server's (a page at `localhost` connects to 127.0.0.1). Their ports differ where a firewall maps them, so
/// only the names are compared; the token is what proves anything. Programs other than browsers send no origin, and may.
fn is_own_origin(headers: &HeaderMap, host: Option<&str>, public_origin: Option<&str>) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    let origin_host = host_of(origin);
    public_origin.is_some_and(|own| own.eq_ignore_ascii_case(origin))
        || (host.is_some() && host == origin_host)
        || (host == Some("127.0.0.1") && origin_host == Some("localhost"))
}

/// The host of an origin: `scheme://host` or `scheme://host:port`.
fn host_of(origin: &str) -> Option<&str> {
    let (_, authority) = origin.split_once("://")?;
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(host),
        _ => Some(authority),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_a_host_with_or_without_a_port() {
        for (origin, host) in [
            ("https://music.example.org", Some("music.example.org")),
            ("http://localhost:8080", Some("localhost")),
            ("http://[::1]:8080", Some("[::1]")),
            ("http://[::1]", Some("[::1]")),
            ("null", None),
        ] {
            assert_eq!(host_of(origin), host, "{origin}");
        }
    }
}
