//! One session: the handshake, then its datagrams and its control stream, each read by a task of its own.

use std::{cell::RefCell, rc::Rc, time::Duration, time::Instant};

use tokio::{
    sync::watch,
    task,
    time::{self, MissedTickBehavior},
};
use web_transport_quinn::{
    RecvStream, Request, SendStream, Session,
    http::{HeaderMap, StatusCode, header},
    quinn::{Connection, Incoming},
};

use super::{
    Relay,
    control::{ControlError, Lines, PageMessage, RelayMessage, Wanted, parse},
    quic::CloseCode,
    room::Room,
};
use crate::media::Token;

/// How long a connection may take to become a session.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How often a page is told its statistics.
const STATISTICS: Duration = Duration::from_secs(1);

/// A participant's place, as its sessions know it.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) room: Rc<RefCell<Room>>,
    pub(super) stream: u16,
}

/// Makes a session of a connection that was admitted, and serves it to its end.
pub(super) async fn serve(relay: Rc<Relay>, incoming: Incoming) {
    // A session may move to another address later.
    let address = incoming.remote_address().ip();
    let opened = time::timeout(HANDSHAKE, open(&relay, incoming)).await;
    relay.handshake_ended(address);
    if let Ok(Some((session, token))) = opened {
        attend(&relay, session, token).await;
    }
    relay.left(address);
}

async fn attend(relay: &Relay, session: Session, token: Token) {
    let seat = match relay.seat(token, &session) {
        Ok(seat) => seat,
        Err(code) => {
            tracing::info!(?code, "refused a session");
            code.close(&session);
            session.closed().await;
            return;
        }
    };
    let controlled = task::spawn_local(control(seat.clone(), session.clone()));
    while let Ok(datagram) = Connection::read_datagram(&session).await {
        let arrived = Instant::now();
        seat.room
            .borrow_mut()
            .handle_datagram(seat.stream, &session, datagram, arrived);
    }
    controlled.abort();
    seat.room.borrow_mut().ended(seat.stream, &session);
}

/// The handshakes of QUIC and of WebTransport. None if either failed, or was refused.
async fn open(relay: &Relay, incoming: Incoming) -> Option<(Session, Token)> {
    let connection = incoming.await.ok()?;
    let request = Request::accept(connection.clone()).await.ok()?;
    let status = if !is_own_origin(&request.headers, request.url.host_str(), relay) {
        tracing::warn!("refused a page of another site");
        StatusCode::FORBIDDEN
    } else {
        let path = request.url.path().strip_prefix("/relay/");
        // What is no token at all is as unknown as any other.
        match path.map(|token| token.parse().unwrap_or_else(|_| Token::random())) {
            Some(token) => return Some((request.ok().await.ok()?, token)),
            None => StatusCode::NOT_FOUND,
        }
    };
    let _ = request.reject(status).await;
    // Letting go of the connection would end it before the answer is there.
    connection.closed().await;
    None
}

/// Whether the page comes from the host that it connects to, which is also the server's (a page at `localhost` connects to 127.0.0.1). Their ports differ where a firewall maps them, so
/// only the names are compared; the token is what proves anything. Programs other than browsers send no origin, and may.
fn is_own_origin(headers: &HeaderMap, host: Option<&str>, relay: &Relay) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    let own = relay.public_origin.as_deref();
    let origin_host = host_of(origin);
    own.is_some_and(|own| own.eq_ignore_ascii_case(origin))
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

/// The control streams of a session, one after the other. A page that breaks the rules, or asks for more than the server has, loses the session.
async fn control(seat: Seat, session: Session) {
    while let Ok((sender, receiver)) = session.accept_bi().await {
        let Some(wanted) = seat.room.borrow().wanted(seat.stream) else {
            return;
        };
        let told = async {
            tell(&seat, &session, wanted, sender).await;
            // A page that does not want to be told still has its say.
            std::future::pending().await
        };
        let heard = tokio::select! {
            heard = hear(&seat, receiver) => heard,
            () = told => Ok(()),
        };
        if let Err(error) = heard {
            tracing::info!(%error, "closed a session");
            let code = match error {
                ControlError::ServerFull => CloseCode::ServerFull,
                _ => CloseCode::MalformedControl,
            };
            return code.close(&session);
        }
    }
}

async fn hear(seat: &Seat, mut receiver: RecvStream) -> Result<(), ControlError> {
    let mut lines = Lines::default();
    let mut chunk = [0; 2_048];
    while let Ok(Some(length)) = receiver.read(&mut chunk).await {
        lines.push(&chunk[..length]);
        while let Some(line) = lines.next()? {
            let PageMessage::Listen(listen) = parse(&line)?;
            seat.room.borrow_mut().handle_listen(seat.stream, listen)?;
        }
    }
    Ok(())
}

async fn tell(
    seat: &Seat,
    session: &Session,
    mut wanted: watch::Receiver<Wanted>,
    mut sender: SendStream,
) {
    let mut ticks = time::interval_at(time::Instant::now() + STATISTICS, STATISTICS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    wanted.mark_changed();
    loop {
        let message = tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                RelayMessage::Wanted(*wanted.borrow_and_update())
            }
            _ = ticks.tick() => {
                let Some(statistics) = seat.room.borrow_mut().statistics(seat.stream, session) else {
                    return;
                };
                RelayMessage::Statistics(statistics)
            }
        };
        if sender.write_all(&message.to_line()).await.is_err() {
            return;
        }
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
