//! What one socket has to do with one STUN or TURN server: the address that the socket has there, and an address of the server's that
//! relays to it. RFC 8489 (STUN), RFC 8656 (TURN).
//!
//! It has no socket and no clock of its own. Data goes in indications, not by channels: 32 bytes more for each datagram, and nothing
//! that this end and the server could disagree about.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rtc::crypto::{RTCCryptoProvider, default_provider};
use rtc::shared::error::Result;
use rtc::stun::attributes::{ATTR_MESSAGE_INTEGRITY, ATTR_NONCE, ATTR_REALM, ATTR_USERNAME};
use rtc::stun::error_code::{CODE_STALE_NONCE, CODE_UNAUTHORIZED, ErrorCodeAttribute};
use rtc::stun::integrity::MessageIntegrity;
use rtc::stun::message::{
    CLASS_ERROR_RESPONSE, CLASS_INDICATION, CLASS_REQUEST, CLASS_SUCCESS_RESPONSE, Getter,
    METHOD_ALLOCATE, METHOD_BINDING, METHOD_CREATE_PERMISSION, METHOD_DATA, METHOD_REFRESH,
    METHOD_SEND, Message, MessageType, Method, Setter, TransactionId,
};
use rtc::stun::textattrs::TextAttribute;
use rtc::stun::xoraddr::XorMappedAddress;
use rtc::turn::proto::PROTO_UDP;
use rtc::turn::proto::data::Data;
use rtc::turn::proto::lifetime::Lifetime;
use rtc::turn::proto::peeraddr::PeerAddress;
use rtc::turn::proto::relayaddr::RelayedAddress;
use rtc::turn::proto::reqtrans::RequestedTransport;

use crate::signalling::Credential;

/// The first wait for an answer; doubled each time. RFC 8489, section 6.2.1.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// So often a request is sent: it fails 7.5 s after the first time, before its lane gives up.
const MAX_SENDS: u32 = 4;
/// A server that asks for our credentials more often for one request is not answered.
const MAX_CHALLENGES: u32 = 3;
/// A permission lasts 300 s. RFC 8656, section 9.
const PERMISSION_RENEWAL: Duration = Duration::from_secs(240);
/// Addresses that one lane's peer may make us ask permissions for.
const MAX_PERMISSIONS: usize = 64;
/// An allocation is refreshed when half of its lifetime is over, but not more often or more seldom than this.
const SHORTEST_REFRESH: Duration = Duration::from_secs(10);
const LONGEST_REFRESH: Duration = Duration::from_secs(300);

/// What a server let us know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TurnEvent {
    /// The socket's address as the server sees it.
    Reflexive(SocketAddr),
    /// Datagrams to this address come to us, from those that have our permission.
    Relayed(SocketAddr),
    /// Nothing comes to that address any more.
    Lost(SocketAddr),
    /// One came, from there.
    Data(SocketAddr, BytesMut),
    /// Nothing is to be had from it: why, for people.
    Failed(String),
}

/// Who we are to a TURN server.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub(crate) username: String,
    pub(crate) credential: Credential,
}

/// A long-term credential in use. RFC 8489, section 9.2.
struct Challenge {
    realm: TextAttribute,
    nonce: TextAttribute,
    key: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Request {
    Binding,
    Allocate,
    Refresh,
    Permission(IpAddr),
}

impl Request {
    fn method(self) -> Method {
        match self {
            Self::Binding => METHOD_BINDING,
            Self::Allocate => METHOD_ALLOCATE,
            Self::Refresh => METHOD_REFRESH,
            Self::Permission(_) => METHOD_CREATE_PERMISSION,
        }
    }
}

/// A request without an answer so far.
struct Transaction {
    id: TransactionId,
    request: Request,
    bytes: Vec<u8>,
    sends: u32,
    challenges: u32,
    next: Instant,
}

enum Permission {
    Asked,
    /// Until it is asked for again then.
    Granted(Instant),
    /// That is asked, and it holds meanwhile.
    Renewed,
    Refused,
}

/// One socket at one server.
pub(crate) struct TurnClient {
    /// `None`: it does STUN only.
    credentials: Option<Credentials>,
    challenge: Option<Challenge>,
    crypto: Arc<dyn RTCCryptoProvider>,
    transactions: Vec<Transaction>,
    relayed: Option<SocketAddr>,
    refresh: Option<Instant>,
    permissions: BTreeMap<IpAddr, Permission>,
    transmits: VecDeque<Vec<u8>>,
    events: VecDeque<TurnEvent>,
}

impl TurnClient {
    /// Asks for the socket's address and, with credentials, for a relayed one.
    pub(crate) fn new(credentials: Option<Credentials>, now: Instant) -> Result<Self> {
        let request = match credentials {
            Some(_) => Request::Allocate,
            None => Request::Binding,
        };
        let crypto = default_provider()
            .map_err(|error| rtc::shared::error::Error::Crypto(error.to_string()))?;
        let mut client = Self {
            credentials,
            challenge: None,
            crypto,
            transactions: Vec::new(),
            relayed: None,
            refresh: None,
            permissions: BTreeMap::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        };
        client.ask(request, 0, now)?;
        Ok(client)
    }

    /// The address at the server that relays to us.
    pub(crate) fn relayed(&self) -> Option<SocketAddr> {
        self.relayed
    }

    /// The next message to the server.
    pub(crate) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.transmits.pop_front()
    }

    /// What has happened.
    pub(crate) fn poll_event(&mut self) -> Option<TurnEvent> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let renewals = self.permissions.values().filter_map(|it| match it {
            Permission::Granted(until) => Some(*until),
            Permission::Asked | Permission::Renewed | Permission::Refused => None,
        });
        let sends = self.transactions.iter().map(|it| it.next);
        renewals.chain(sends).chain(self.refresh).min()
    }

    /// Sends again, gives up, and renews what would end.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<()> {
        for at in (0..self.transactions.len()).rev() {
            let transaction = &mut self.transactions[at];
            if transaction.next > now {
                continue;
            }
            if transaction.sends < MAX_SENDS {
                transaction.next = now + FIRST_WAIT * (1 << transaction.sends);
                transaction.sends += 1;
                self.transmits.push_back(transaction.bytes.clone());
                continue;
            }
            match self.transactions.swap_remove(at).request {
                Request::Binding | Request::Allocate => {
                    // With it end the other requests.
                    self.fail("does not answer".into());
                    return Ok(());
                }
                Request::Refresh => self.refresh = Some(now + SHORTEST_REFRESH),
                // Asked for again when there is something to send.
                Request::Permission(ip) => drop(self.permissions.remove(&ip)),
            }
        }
        if self.refresh.is_some_and(|at| at <= now) {
            self.refresh = None;
            self.ask(Request::Refresh, 0, now)?;
        }
        let is_due = |it: &Permission| matches!(it, Permission::Granted(until) if *until <= now);
        let due = self.permissions.iter().filter(|(_, it)| is_due(it));
        for ip in due.map(|(ip, _)| *ip).collect::<Vec<_>>() {
            self.permissions.insert(ip, Permission::Renewed);
            self.ask(Request::Permission(ip), 0, now)?;
        }
        Ok(())
    }

    /// Sends through the relay. What has no permission yet is lost, as it may be in the network, and the permission is asked for.
    pub(crate) fn send(&mut self, peer: SocketAddr, bytes: &[u8], now: Instant) -> Result<()> {
        if self.relayed.is_none() {
            return Ok(());
        }
        match self.permissions.get(&peer.ip()) {
            Some(Permission::Granted(_) | Permission::Renewed) => {
                let peer = PeerAddress {
                    ip: peer.ip(),
                    port: peer.port(),
                };
                let message = [
                    Box::new(TransactionId::new()) as Box<dyn Setter>,
                    Box::new(MessageType::new(METHOD_SEND, CLASS_INDICATION)),
                    Box::new(peer),
                    Box::new(Data(bytes.to_vec())),
                ];
                self.transmits.push_back(build(&message)?.raw);
            }
            Some(Permission::Asked | Permission::Refused) => {}
            None if self.permissions.len() >= MAX_PERMISSIONS => {}
            None => {
                self.permissions.insert(peer.ip(), Permission::Asked);
                self.ask(Request::Permission(peer.ip()), 0, now)?;
            }
        }
        Ok(())
    }

    /// What ends the allocation, if there is one.
    pub(crate) fn release(&mut self) -> Option<Vec<u8>> {
        self.relayed.take()?;
        let lifetime = Box::new(Lifetime(Duration::ZERO));
        self.message(Request::Refresh, Some(lifetime))
            .ok()
            .map(|message| message.raw)
    }

    /// What came from the server. Nonsense is passed over.
    pub(crate) fn handle_read(&mut self, bytes: &[u8], now: Instant) -> Result<()> {
        let mut message = Message::new();
        message.unmarshal_binary(bytes)?;
        if message.typ == MessageType::new(METHOD_DATA, CLASS_INDICATION) {
            let (mut peer, mut data) = (PeerAddress::default(), Data::default());
            peer.get_from(&message)?;
            data.get_from(&message)?;
            if self.relayed.is_some() && self.permissions.contains_key(&peer.ip) {
                let peer = SocketAddr::new(peer.ip, peer.port);
                let data = BytesMut::from(&data.0[..]);
                self.events.push_back(TurnEvent::Data(peer, data));
            }
            return Ok(());
        }
        let id = message.transaction_id;
        let is_answered =
            |it: &Transaction| it.id == id && it.request.method() == message.typ.method;
        let Some(at) = self.transactions.iter().position(is_answered) else {
            return Ok(());
        };
        let is_success = message.typ.class == CLASS_SUCCESS_RESPONSE;
        if is_success && let Some(challenge) = &self.challenge {
            MessageIntegrity::check(&mut message, &challenge.key, self.crypto.crypto())?;
        } else if !is_success && message.typ.class != CLASS_ERROR_RESPONSE {
            return Ok(());
        }
        // Nobody vouches for what follows it. RFC 8489, section 14.5.
        let attributes = &mut message.attributes.0;
        if let Some(at) = (attributes.iter()).position(|it| it.typ == ATTR_MESSAGE_INTEGRITY) {
            attributes.truncate(at);
        }
        let Transaction {
            request,
            challenges,
            ..
        } = self.transactions.swap_remove(at);
        let handled = if is_success {
            self.handle_success(request, &message, now)
        } else {
            self.handle_error(request, challenges, &message, now)
        };
        if handled.is_err() {
            // The request has had its answer, and gets no other.
            self.fail("answers nonsense".into());
        }
        handled
    }

    fn handle_success(&mut self, request: Request, message: &Message, now: Instant) -> Result<()> {
        match request {
            Request::Binding => self.reflexive(message),
            Request::Allocate => {
                let mut relayed = RelayedAddress::default();
                relayed.get_from(message)?;
                let relayed = SocketAddr::new(relayed.ip, relayed.port);
                self.refresh_after(message, now)?;
                // It is on the way, so that it comes without another question.
                self.reflexive(message)?;
                self.relayed = Some(relayed);
                self.events.push_back(TurnEvent::Relayed(relayed));
                Ok(())
            }
            Request::Refresh => self.refresh_after(message, now),
            Request::Permission(ip) => {
                let granted = Permission::Granted(now + PERMISSION_RENEWAL);
                self.permissions.insert(ip, granted);
                Ok(())
            }
        }
    }

    fn handle_error(
        &mut self,
        request: Request,
        challenges: u32,
        message: &Message,
        now: Instant,
    ) -> Result<()> {
        let mut error = ErrorCodeAttribute::default();
        error.get_from(message)?;
        let is_challenge = error.code == CODE_STALE_NONCE
            || (error.code == CODE_UNAUTHORIZED && self.challenge.is_none());
        if is_challenge
            && challenges < MAX_CHALLENGES
            && let Some(credentials) = &self.credentials
        {
            let realm = TextAttribute::get_from_as(message, ATTR_REALM)?;
            let key = MessageIntegrity::long_term_integrity_key(
                credentials.username.clone(),
                realm.text.clone(),
                credentials.credential.reveal().to_owned(),
                self.crypto.crypto(),
            )?;
            let nonce = TextAttribute::get_from_as(message, ATTR_NONCE)?;
            self.challenge = Some(Challenge { realm, nonce, key });
            return self.ask(request, challenges + 1, now);
        }
        match request {
            Request::Binding | Request::Allocate | Request::Refresh => {
                self.fail(format!("refuses, error {}", error.code.0));
            }
            Request::Permission(ip) => drop(self.permissions.insert(ip, Permission::Refused)),
        }
        Ok(())
    }

    fn reflexive(&mut self, message: &Message) -> Result<()> {
        let mut mapped = XorMappedAddress::default();
        mapped.get_from(message)?;
        let mapped = SocketAddr::new(mapped.ip, mapped.port);
        self.events.push_back(TurnEvent::Reflexive(mapped));
        Ok(())
    }

    fn refresh_after(&mut self, message: &Message, now: Instant) -> Result<()> {
        let mut lifetime = Lifetime::default();
        lifetime.get_from(message)?;
        self.refresh = Some(now + (lifetime.0 / 2).clamp(SHORTEST_REFRESH, LONGEST_REFRESH));
        Ok(())
    }

    /// Nothing more is to be had from it, and what it relays has ended.
    pub(crate) fn fail(&mut self, why: String) {
        self.refresh = None;
        self.transactions.clear();
        self.permissions.clear();
        self.events.push_back(TurnEvent::Failed(why));
        // Last: it may end the lane.
        let lost = self.relayed.take().map(TurnEvent::Lost);
        self.events.extend(lost);
    }

    fn ask(&mut self, request: Request, challenges: u32, now: Instant) -> Result<()> {
        let detail: Option<Box<dyn Setter>> = match request {
            Request::Binding | Request::Refresh => None,
            Request::Allocate => Some(Box::new(RequestedTransport {
                protocol: PROTO_UDP,
            })),
            // Of an address a permission has no port.
            Request::Permission(ip) => Some(Box::new(PeerAddress { ip, port: 0 })),
        };
        let message = self.message(request, detail)?;
        self.transmits.push_back(message.raw.clone());
        self.transactions.push(Transaction {
            id: message.transaction_id,
            request,
            bytes: message.raw,
            sends: 1,
            challenges,
            next: now + FIRST_WAIT,
        });
        Ok(())
    }

    fn message(&self, request: Request, detail: Option<Box<dyn Setter>>) -> Result<Message> {
        let mut setters: Vec<Box<dyn Setter + '_>> = vec![
            Box::new(TransactionId::new()),
            Box::new(MessageType::new(request.method(), CLASS_REQUEST)),
        ];
        if let Some(detail) = detail {
            setters.push(detail);
        }
        if let (Some(credentials), Some(challenge)) = (&self.credentials, &self.challenge) {
            let username = TextAttribute::new(ATTR_USERNAME, credentials.username.clone());
            setters.push(Box::new(username));
            setters.push(Box::new(challenge.realm.clone()));
            setters.push(Box::new(challenge.nonce.clone()));
            setters.push(Box::new(MessageIntegrity::new_raw_integrity_with_provider(
                challenge.key.clone(),
                self.crypto.crypto(),
            )));
        }
        build(&setters)
    }
}

fn build(setters: &[Box<dyn Setter + '_>]) -> Result<Message> {
    let mut message = Message::new();
    message.build(setters)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};
    use rtc::stun::attributes::{
        ATTR_DATA, ATTR_ERROR_CODE, ATTR_LIFETIME, ATTR_XOR_PEER_ADDRESS, ATTR_XOR_RELAYED_ADDRESS,
        ATTR_XORMAPPED_ADDRESS, AttrType,
    };
    use rtc::stun::error_code::ErrorCode;
    use rtc::stun::message::MessageClass;

    use super::*;

    const LIFETIME: Lifetime = Lifetime(Duration::from_secs(600));
    const PEER: ([u8; 4], u16) = ([198, 51, 100, 7], 9);

    /// A TURN server's part, said by the test.
    struct Server {
        key: Vec<u8>,
        crypto: Arc<dyn RTCCryptoProvider>,
    }

    impl Server {
        fn new(credential: &str) -> Self {
            let crypto = default_provider().expect("ring");
            let [user, realm, credential] = ["ann", "here", credential].map(str::to_owned);
            let key =
                MessageIntegrity::long_term_integrity_key(user, realm, credential, crypto.crypto());
            let key = key.expect("a key");
            Self { key, crypto }
        }

        fn answer(&self, request: &Message, with: Vec<Box<dyn Setter>>) -> Vec<u8> {
            self.answer_and(request, with, vec![])
        }

        /// `after`: behind what it vouches for.
        fn answer_and(
            &self,
            request: &Message,
            with: Vec<Box<dyn Setter>>,
            after: Vec<Box<dyn Setter>>,
        ) -> Vec<u8> {
            let typ = MessageType::new(request.typ.method, CLASS_SUCCESS_RESPONSE);
            let mut setters: Vec<Box<dyn Setter + '_>> =
                vec![Box::new(request.transaction_id), Box::new(typ)];
            setters.extend(with.into_iter().map(|it| it as Box<dyn Setter + '_>));
            let crypto = self.crypto.crypto();
            setters.push(Box::new(MessageIntegrity::new_raw_integrity_with_provider(
                self.key.clone(),
                crypto,
            )));
            setters.extend(after.into_iter().map(|it| it as Box<dyn Setter + '_>));
            build(&setters).expect("built").raw
        }

        fn allocation(&self, request: &Message) -> Vec<u8> {
            let mut all = Self::addresses();
            all.push(Box::new(LIFETIME));
            self.answer(request, all)
        }

        fn addresses() -> Vec<Box<dyn Setter>> {
            let relayed = RelayedAddress {
                ip: [203, 0, 113, 1].into(),
                port: 50_000,
            };
            let mapped = XorMappedAddress {
                ip: [203, 0, 113, 2].into(),
                port: 40_000,
            };
            vec![Box::new(relayed), Box::new(mapped)]
        }
    }

    fn refusal(request: &Message, code: ErrorCode, nonce: &str) -> Vec<u8> {
        let typ = MessageType::new(request.typ.method, CLASS_ERROR_RESPONSE);
        let error = ErrorCodeAttribute {
            code,
            reason: Vec::new(),
        };
        let realm = TextAttribute::new(ATTR_REALM, "here".into());
        let nonce = TextAttribute::new(ATTR_NONCE, nonce.into());
        let setters: [Box<dyn Setter>; 5] = [
            Box::new(request.transaction_id),
            Box::new(typ),
            Box::new(error),
            Box::new(realm),
            Box::new(nonce),
        ];
        build(&setters).expect("built").raw
    }

    fn data(from: SocketAddr) -> Vec<u8> {
        let peer = PeerAddress {
            ip: from.ip(),
            port: from.port(),
        };
        let setters: [Box<dyn Setter>; 4] = [
            Box::new(TransactionId::new()),
            Box::new(MessageType::new(METHOD_DATA, CLASS_INDICATION)),
            Box::new(peer),
            Box::new(Data(vec![1, 2, 3])),
        ];
        build(&setters).expect("built").raw
    }

    fn client(now: Instant) -> TurnClient {
        let credentials = Credentials {
            username: "ann".into(),
            credential: "hush".into(),
        };
        TurnClient::new(Some(credentials), now).expect("a client")
    }

    /// What it sends next, and nothing after it.
    fn sent(client: &mut TurnClient) -> Message {
        let mut message = Message::new();
        let bytes = client.poll_transmit().expect("a message");
        message.unmarshal_binary(&bytes).expect("STUN");
        assert_eq!(client.poll_transmit(), None);
        message
    }

    fn nonce(message: &Message) -> String {
        TextAttribute::get_from_as(message, ATTR_NONCE)
            .expect("a nonce")
            .text
    }

    fn allocated(server: &Server, now: Instant) -> TurnClient {
        let mut client = client(now);
        let first = sent(&mut client);
        assert!(
            !first.contains(ATTR_USERNAME),
            "who it is, only when asked for"
        );
        let refused = refusal(&first, CODE_UNAUTHORIZED, "one");
        client.handle_read(&refused, now).expect("read");
        let second = sent(&mut client);
        assert_eq!(nonce(&second), "one");
        let answer = server.allocation(&second);
        client.handle_read(&answer, now).expect("read");
        let reflexive = TurnEvent::Reflexive(([203, 0, 113, 2], 40_000).into());
        let relayed = TurnEvent::Relayed(([203, 0, 113, 1], 50_000).into());
        assert_eq!(client.poll_event(), Some(reflexive));
        assert_eq!(client.poll_event(), Some(relayed));
        client
    }

    #[test]
    fn an_allocation_lasts_with_a_new_nonce_when_the_old_one_is_stale() {
        let (server, now) = (Server::new("hush"), Instant::now());
        let mut client = allocated(&server, now);
        let later = client.poll_timeout().expect("a refresh");
        assert_eq!(later - now, Duration::from_secs(300));
        client.handle_timeout(later).expect("asked");
        let refresh = sent(&mut client);
        assert_eq!(refresh.typ.method, METHOD_REFRESH);
        let stale = refusal(&refresh, CODE_STALE_NONCE, "two");
        client.handle_read(&stale, later).expect("read");
        let again = sent(&mut client);
        assert_eq!(
            (again.typ.method, nonce(&again)),
            (METHOD_REFRESH, "two".into())
        );
        // A lifetime of nothing does not have it ask at once.
        let answer = server.answer(&again, vec![Box::new(Lifetime(Duration::ZERO))]);
        client.handle_read(&answer, later).expect("read");
        assert_eq!(client.poll_timeout(), Some(later + SHORTEST_REFRESH));
        assert!(client.release().is_some());
        assert_eq!(client.relayed(), None);
    }

    #[test]
    fn data_passes_with_permission_only_which_is_renewed() {
        let (server, now) = (Server::new("hush"), Instant::now());
        let peer = SocketAddr::from(PEER);
        let mut client = allocated(&server, now);
        client.handle_read(&data(peer), now).expect("read");
        assert_eq!(client.poll_event(), None, "nobody is permitted");
        client.send(peer, b"lost", now).expect("asked");
        let request = sent(&mut client);
        assert_eq!(request.typ.method, METHOD_CREATE_PERMISSION);
        client.send(peer, b"lost too", now).expect("waits");
        assert_eq!(client.poll_transmit(), None, "it is asked for already");
        let answer = server.answer(&request, vec![]);
        client.handle_read(&answer, now).expect("read");
        client.send(peer, b"sent", now).expect("sent");
        assert_eq!(sent(&mut client).typ.method, METHOD_SEND);
        client.handle_read(&data(peer), now).expect("read");
        let came = TurnEvent::Data(peer, BytesMut::from(&[1, 2, 3][..]));
        assert_eq!(client.poll_event(), Some(came));
        let later = client.poll_timeout().expect("a renewal");
        assert_eq!(later - now, PERMISSION_RENEWAL);
        client.handle_timeout(later).expect("asked");
        let renewal = sent(&mut client);
        assert_eq!(renewal.typ.method, METHOD_CREATE_PERMISSION);
        client.send(peer, b"meanwhile", later).expect("sent");
        assert_eq!(sent(&mut client).typ.method, METHOD_SEND);
        // One renewal at a time, however long it takes.
        let stale = refusal(&renewal, CODE_STALE_NONCE, "two");
        let late = later + FIRST_WAIT;
        client.handle_read(&stale, late).expect("read");
        assert_eq!(nonce(&sent(&mut client)), "two");
        let (mut end, mut again) = (late, 0);
        while let Some(next) = client.poll_timeout().filter(|_| again < 100) {
            if next > late + FIRST_WAIT * 16 {
                break;
            }
            end = next;
            client.handle_timeout(next).expect("asked");
            again += std::iter::from_fn(|| client.poll_transmit()).count();
        }
        assert_eq!(again, MAX_SENDS as usize - 1);
        let later = end;
        client.send(peer, b"lost again", later).expect("asked");
        assert_eq!(
            sent(&mut client).typ.method,
            METHOD_CREATE_PERMISSION,
            "the renewal failed"
        );
        // A peer may name many addresses.
        for last in 0..=255 {
            client
                .send(([192, 0, 2, last], 9).into(), b"x", later)
                .expect("asked");
        }
        let asked = std::iter::from_fn(|| client.poll_transmit()).count();
        assert_eq!(asked, MAX_PERMISSIONS - 1);
    }

    #[test]
    fn what_a_server_does_not_say_or_says_too_often_ends() {
        let mut now = Instant::now();
        let mut silent = client(now);
        let mut sends = 0;
        while let Some(next) = silent.poll_timeout() {
            now = next;
            silent.handle_timeout(now).expect("asked");
            sends += std::iter::from_fn(|| silent.poll_transmit()).count();
        }
        assert_eq!(sends, MAX_SENDS as usize);
        let failed = TurnEvent::Failed("does not answer".into());
        assert_eq!(silent.poll_event(), Some(failed));

        let mut curious = client(now);
        let mut challenges = 0;
        while let Some(bytes) = curious.poll_transmit() {
            let mut request = Message::new();
            request.unmarshal_binary(&bytes).expect("STUN");
            let stale = refusal(&request, CODE_STALE_NONCE, "again");
            curious.handle_read(&stale, now).expect("read");
            challenges += 1;
        }
        assert_eq!(challenges, 1 + MAX_CHALLENGES);
        let failed = TurnEvent::Failed("refuses, error 438".into());
        assert_eq!(curious.poll_event(), Some(failed));
        assert_eq!(curious.poll_timeout(), None);
    }

    #[test]
    fn what_is_forged_or_malformed_changes_nothing() {
        let (server, now) = (Server::new("hush"), Instant::now());
        let mut client = client(now);
        let first = sent(&mut client);
        let refused = refusal(&first, CODE_UNAUTHORIZED, "one");
        client.handle_read(&refused, now).expect("read");
        let second = sent(&mut client);
        // By who does not know the credential, and for what was not asked.
        let forged = Server::new("guess").allocation(&second);
        assert!(client.handle_read(&forged, now).is_err());
        let stranger = server.allocation(&first);
        client.handle_read(&stranger, now).expect("passed over");
        let good = server.allocation(&second);
        for length in 0..good.len() {
            let _ = client.handle_read(&good[..length], now);
            assert_eq!((client.relayed(), client.poll_event()), (None, None));
        }
        client.handle_read(&good, now).expect("read");
        assert!(client.relayed().is_some());
    }

    #[test]
    fn an_answer_that_makes_no_sense_ends_its_request() {
        let (server, now) = (Server::new("hush"), Instant::now());
        let error = |request: &Message, code, attributes: &[(_, Vec<u8>)]| {
            let typ = MessageType::new(request.typ.method, CLASS_ERROR_RESPONSE);
            let reason = Vec::new();
            let setters: [Box<dyn Setter>; 3] = [
                Box::new(request.transaction_id),
                Box::new(typ),
                Box::new(ErrorCodeAttribute { code, reason }),
            ];
            let mut message = build(&setters).expect("built");
            for (typ, value) in attributes {
                message.add(*typ, value);
            }
            message.raw
        };
        let is_over = |mut client: TurnClient, answer: &[u8]| {
            assert!(client.handle_read(answer, now).is_err());
            let failed = TurnEvent::Failed("answers nonsense".into());
            assert_eq!(client.poll_event(), Some(failed));
            assert_eq!((client.poll_event(), client.poll_timeout()), (None, None));
        };
        let mut asked = client(now);
        let first = sent(&mut asked);
        let without_realm = [(ATTR_NONCE, b"one".to_vec())];
        is_over(asked, &error(&first, CODE_UNAUTHORIZED, &without_realm));
        let mut asked = client(now);
        let first = sent(&mut asked);
        let long = [
            (ATTR_REALM, b"here".to_vec()),
            (ATTR_NONCE, vec![b'x'; 764]),
        ];
        is_over(asked, &error(&first, CODE_STALE_NONCE, &long));
        // A lifetime that nobody vouches for is none.
        let after: [Vec<Box<dyn Setter>>; 2] = [vec![], vec![Box::new(LIFETIME)]];
        for after in after {
            let mut asked = client(now);
            let first = sent(&mut asked);
            let refused = refusal(&first, CODE_UNAUTHORIZED, "one");
            asked.handle_read(&refused, now).expect("read");
            let second = sent(&mut asked);
            let answer = server.answer_and(&second, Server::addresses(), after);
            is_over(asked, &answer);
        }

        let mut asked = allocated(&server, now);
        asked.send(PEER.into(), b"lost", now).expect("asked");
        let request = sent(&mut asked);
        let nonsense = error(&request, CODE_STALE_NONCE, &[]);
        assert!(asked.handle_read(&nonsense, now).is_err());
        let relayed = ([203, 0, 113, 1], 50_000).into();
        let failed = TurnEvent::Failed("answers nonsense".into());
        assert_eq!(asked.poll_event(), Some(failed));
        assert_eq!(asked.poll_event(), Some(TurnEvent::Lost(relayed)));
        assert_eq!((asked.relayed(), asked.poll_timeout()), (None, None));
    }

    /// What happens to a client. Answers are to what it asked last.
    #[derive(Clone, Debug)]
    enum Happening {
        Bytes(Vec<u8>),
        Refusal(u16),
        /// By who knows the credential, or only guesses it; and one byte of it may be another.
        Success(bool, Option<(prop::sample::Index, u8)>),
        Attributes(MessageClass, Vec<(AttrType, Vec<u8>)>),
        Data(u8),
        Send(u8),
        Wait(u64),
    }

    fn happening() -> impl Strategy<Value = Happening> {
        let types = vec![
            ATTR_XORMAPPED_ADDRESS,
            ATTR_XOR_RELAYED_ADDRESS,
            ATTR_XOR_PEER_ADDRESS,
            ATTR_LIFETIME,
            ATTR_ERROR_CODE,
            ATTR_REALM,
            ATTR_NONCE,
            ATTR_DATA,
            ATTR_MESSAGE_INTEGRITY,
        ];
        let value = vec(prop_oneof![0..=2u8, any::<u8>()], 0..24);
        let attributes = vec((select(types), value), 0..5);
        let classes = vec![
            CLASS_SUCCESS_RESPONSE,
            CLASS_ERROR_RESPONSE,
            CLASS_INDICATION,
        ];
        let damage = prop::option::of((any::<prop::sample::Index>(), 1..=u8::MAX));
        let codes = vec![CODE_UNAUTHORIZED.0, CODE_STALE_NONCE.0, 508];
        prop_oneof![
            vec(any::<u8>(), 0..100).prop_map(Happening::Bytes),
            select(codes).prop_map(Happening::Refusal),
            (any::<bool>(), damage).prop_map(|(knows, damage)| Happening::Success(knows, damage)),
            Just(Happening::Success(true, None)),
            (select(classes), attributes)
                .prop_map(|(class, attributes)| Happening::Attributes(class, attributes)),
            any::<u8>().prop_map(Happening::Data),
            any::<u8>().prop_map(Happening::Send),
            (0..400_000u64).prop_map(Happening::Wait),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

        #[test]
        fn whatever_comes_little_is_asked_and_nothing_believed_without_the_credential(
            is_turn in prop::bool::weighted(0.9),
            is_challenged in prop::bool::weighted(0.9),
            happenings in vec(happening(), 0..40),
        ) {
            let (knowing, guessing) = (Server::new("hush"), Server::new("guess"));
            let mut now = Instant::now();
            let mut client = if is_turn { client(now) } else { TurnClient::new(None, now).expect("a client") };
            let challenge = Happening::Refusal(CODE_UNAUTHORIZED.0);
            let mut asked = Message::new();
            for happening in is_challenged.then_some(challenge).into_iter().chain(happenings) {
                while let Some(bytes) = client.poll_transmit() {
                    let mut message = Message::new();
                    message.unmarshal_binary(&bytes).expect("STUN");
                    if message.typ.class == CLASS_REQUEST {
                        asked = message;
                    }
                }
                let peer = |last| SocketAddr::from(([198, 51, 100, last], 9));
                let bytes = match &happening {
                    Happening::Bytes(bytes) => bytes.clone(),
                    Happening::Refusal(code) => refusal(&asked, ErrorCode(*code), "one"),
                    Happening::Success(knows, damage) => {
                        let server = if *knows { &knowing } else { &guessing };
                        let mut bytes = server.allocation(&asked);
                        if let Some((at, change)) = damage {
                            let at = at.index(bytes.len());
                            bytes[at] ^= change;
                        }
                        bytes
                    }
                    Happening::Attributes(class, attributes) => {
                        let is_data = *class == CLASS_INDICATION;
                        let method = if is_data { METHOD_DATA } else { asked.typ.method };
                        let setters: [Box<dyn Setter>; 2] =
                            [Box::new(asked.transaction_id), Box::new(MessageType::new(method, *class))];
                        let mut message = build(&setters).expect("built");
                        for (typ, value) in attributes {
                            message.add(*typ, value);
                        }
                        message.raw
                    }
                    Happening::Data(last) => data(peer(*last)),
                    Happening::Send(last) => {
                        client.send(peer(*last), b"sound", now).expect("asked");
                        continue;
                    }
                    Happening::Wait(ms) => {
                        now += Duration::from_millis(*ms);
                        client.handle_timeout(now).expect("asked");
                        client.events.clear();
                        prop_assert!(client.poll_timeout().is_none_or(|next| next > now));
                        continue;
                    }
                };
                let was_challenged = client.challenge.is_some();
                let _ = client.handle_read(&bytes, now);
                prop_assert!(client.transmits.len() <= 1 && client.events.len() <= 2);
                prop_assert!(client.permissions.len() <= MAX_PERMISSIONS);
                prop_assert!(client.transactions.len() <= MAX_PERMISSIONS + 2);
                while let Some(event) = client.poll_event() {
                    match event {
                        TurnEvent::Data(peer, data) => {
                            prop_assert!(client.relayed.is_some() && data.len() < bytes.len());
                            prop_assert!(client.permissions.contains_key(&peer.ip()));
                        }
                        TurnEvent::Reflexive(_) | TurnEvent::Relayed(_) => {
                            let is_vouched = matches!(happening, Happening::Success(true, None));
                            prop_assert!(is_vouched || !was_challenged, "{happening:?}");
                        }
                        TurnEvent::Failed(_) => prop_assert_eq!(client.poll_timeout(), None),
                        TurnEvent::Lost(_) => prop_assert_eq!(client.relayed, None),
                    }
                }
            }
        }
    }
}
