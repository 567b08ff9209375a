//! WebTransport over HTTP/3, the server's side of one connection (RFC 9114, RFC 9220, RFC 9297, draft-ietf-webtrans-http3): the settings, the
//! one session that a connection may have, and the one stream in it that is of use at a time.
//!
//! It reads and writes QUIC's streams, and no socket. What a client sends is hostile: of what is not understood yet it holds [`MAX_HELD`]
//! bytes a stream, of as many streams as `quic::transport` allows.

use std::collections::VecDeque;

use axum::http::StatusCode;
use bytes::{Buf, Bytes, BytesMut};
use quinn_proto::{Connection, Dir, ReadError, StreamEvent, StreamId, VarInt, WriteError};
use web_transport_proto::{
    Capsule, CapsuleError, ConnectError, ConnectRequest, ConnectResponse, Frame, Settings,
    SettingsError, StreamUni, error_to_http3,
};

/// Twice the longest request that is read.
const MAX_HELD: usize = 32 * 1_024;
/// Errors of HTTP/3 (RFC 9114, section 8.1).
const GENERAL_PROTOCOL_ERROR: u64 = 0x101;
const STREAM_CREATION_ERROR: u32 = 0x103;
const REQUEST_REJECTED: u32 = 0x10b;

/// What the client did, as far as the session's owner has to know.
#[derive(Debug)]
pub(super) enum WebEvent {
    /// It asks for a session: to be answered by [`WebTransport::accept`] or [`WebTransport::reject`].
    Requested(Box<ConnectRequest>),
    /// It has opened a stream in the session; the one before, if any, is over.
    Opened,
    /// Bytes of that stream.
    Received(Bytes),
    /// More can be written to that stream.
    Writable,
    /// The client will write no more to it.
    Finished,
    /// The session is over, or the rules were broken: the connection has to be closed with this code.
    Closed(VarInt),
}

/// HTTP/3 on one connection.
#[derive(Debug, Default)]
pub(super) struct WebTransport {
    /// What the client has opened and still may write to.
    streams: Vec<Stream>,
    has_settings: bool,
    /// The stream of the first request, which is also the session's number.
    request: Option<StreamId>,
    /// That request, until the settings are there too.
    waiting: Option<Box<ConnectRequest>>,
    is_accepted: bool,
    /// The stream of the session.
    stream: Option<StreamId>,
    is_closed: bool,
    events: VecDeque<WebEvent>,
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    role: Role,
    /// What has come and is not understood yet.
    held: BytesMut,
    is_finished: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Too little has come to know.
    Unknown,
    /// HTTP/3's own: what comes after the settings is of no use here.
    Http,
    /// The request, then capsules about its session.
    Request,
    /// A stream of the session.
    Session,
}

/// What to do with a stream after what has come of it was looked at.
enum Next {
    /// Nothing more can be done before more comes.
    Wait,
    /// It is known what it is; there may be more in what has come.
    Is(Role),
    /// It is over, one way or the other.
    End(End),
    /// The connection is over.
    Close(VarInt),
}

/// How the server ends its part of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client has said all, and so has the server.
    Finish,
    /// It is of no use.
    Refuse(u32),
}

impl WebTransport {
    /// Begins HTTP/3, as soon as QUIC is connected.
    pub(super) fn open(&mut self, quic: &mut Connection) {
        let mut settings = Settings::default();
        settings.enable_webtransport(1);
        let mut bytes = Vec::new();
        settings.encode(&mut bytes);
        match quic.streams().open(Dir::Uni) {
            Some(id) => self.write_all(quic, id, &bytes),
            // A client that lets HTTP/3 have no stream has no use for it.
            None => self.close_with(general_protocol_error()),
        }
    }

    /// To be called with each of QUIC's; [`Self::poll`] then says what it means.
    pub(super) fn handle(&mut self, quic: &mut Connection, event: StreamEvent) {
        match event {
            StreamEvent::Opened { dir } => {
                while let Some(id) = quic.streams().accept(dir) {
                    self.streams.push(Stream {
                        id,
                        role: Role::Unknown,
                        held: BytesMut::new(),
                        is_finished: false,
                    });
                    self.read(quic, id);
                }
            }
            StreamEvent::Readable { id } => self.read(quic, id),
            StreamEvent::Writable { id } if self.stream == Some(id) => {
                self.events.push_back(WebEvent::Writable);
            }
            _ => {}
        }
    }

    pub(super) fn poll(&mut self) -> Option<WebEvent> {
        self.events.pop_front()
    }

    /// Gives the client the session that it asked for.
    pub(super) fn accept(&mut self, quic: &mut Connection) {
        self.respond(quic, StatusCode::OK);
        self.is_accepted = true;
        // Streams may have overtaken the request.
        let ids: Vec<_> = self.streams.iter().map(|stream| stream.id).collect();
        for id in ids {
            if let Some(end) = self.understand(id) {
                end.apply(quic, id);
            }
        }
    }

    /// Refuses the session. The client closes the connection when it has read that.
    pub(super) fn reject(&mut self, quic: &mut Connection, status: StatusCode) {
        self.respond(quic, status);
        if let Some(id) = self.request {
            End::Finish.apply(quic, id);
        }
    }

    /// Writes to the session's stream, and answers how much of it was written; none if there is no such stream any more.
    pub(super) fn write(&mut self, quic: &mut Connection, bytes: &[u8]) -> Option<usize> {
        match quic.send_stream(self.stream?).write(bytes) {
            Ok(written) => Some(written),
            Err(WriteError::Blocked) => Some(0),
            Err(_) => None,
        }
    }

    /// Tells the client why its session is over, which then closes the connection. False if there is no session: nobody is told.
    pub(super) fn close(&mut self, quic: &mut Connection, code: u32, reason: &str) -> bool {
        let Some(id) = self.request.filter(|_| self.is_accepted) else {
            return false;
        };
        let reason = reason.to_owned();
        let mut capsule = Vec::new();
        Capsule::CloseWebTransportSession { code, reason }.encode(&mut capsule);
        let mut frame = Vec::new();
        Frame::DATA.encode(&mut frame);
        web_transport_proto::VarInt::from_u32(capsule.len() as u32).encode(&mut frame);
        frame.extend_from_slice(&capsule);
        self.write_all(quic, id, &frame);
        End::Finish.apply(quic, id);
        true
    }

    fn respond(&mut self, quic: &mut Connection, status: StatusCode) {
        let Some(id) = self.request else { return };
        let mut response = Vec::new();
        let encoded = ConnectResponse::new(status).encode(&mut response);
        debug_assert!(encoded.is_ok(), "a status and nothing else");
        self.write_all(quic, id, &response);
    }

    /// Writes what is so short that a client has room for it, or breaks the rules.
    fn write_all(&mut self, quic: &mut Connection, id: StreamId, bytes: &[u8]) {
        if quic.send_stream(id).write(bytes) != Ok(bytes.len()) {
            self.close_with(general_protocol_error());
        }
    }

    fn close_with(&mut self, code: VarInt) {
        if !std::mem::replace(&mut self.is_closed, true) {
            self.events.push_back(WebEvent::Closed(code));
        }
    }

    /// Takes all that has come of a stream.
    fn read(&mut self, quic: &mut Connection, id: StreamId) {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.id == id) else {
            return;
        };
        let mut receiving = quic.recv_stream(id);
        let Ok(mut chunks) = receiving.read(true) else {
            return;
        };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => stream.held.extend_from_slice(&chunk.bytes),
                Err(ReadError::Blocked) => break,
                Ok(None) | Err(ReadError::Reset(_)) => {
                    stream.is_finished = true;
                    break;
                }
            }
        }
        // Whoever calls lets the connection send.
        let _ = chunks.finalize();
        if let Some(end) = self.understand(id) {
            end.apply(quic, id);
        }
    }

    /// Goes on with what has come of a stream. Answers how it ends, if it does.
    fn understand(&mut self, id: StreamId) -> Option<End> {
        let index = self.streams.iter().position(|stream| stream.id == id)?;
        while !self.is_closed {
            let next = match (self.streams[index].role, id.dir()) {
                (Role::Unknown, Dir::Uni) => self.begin_uni(index),
                (Role::Unknown, Dir::Bi) => self.begin_bi(index),
                (Role::Http, _) => self.skip(index),
                (Role::Request, _) => self.read_capsules(index),
                (Role::Session, _) => self.hand_on(index),
            };
            match next {
                Next::Is(role) => self.streams[index].role = role,
                Next::End(end) => {
                    self.streams.swap_remove(index);
                    return Some(end);
                }
                Next::Close(code) => self.close_with(code),
                Next::Wait => {
                    let stream = &self.streams[index];
                    if stream.is_finished || stream.held.len() > MAX_HELD {
                        self.close_with(general_protocol_error());
                    }
                    return None;
                }
            }
        }
        None
    }

    fn begin_uni(&mut self, index: usize) -> Next {
        let held = &self.streams[index].held;
        match StreamUni::decode(&mut &held[..]) {
            Err(_) => Next::Wait,
            Ok(StreamUni::CONTROL) if self.has_settings => Next::Close(general_protocol_error()),
            Ok(StreamUni::CONTROL) => match Settings::decode(&mut &held[..]) {
                Ok(settings) if settings.supports_webtransport() > 0 => {
                    self.has_settings = true;
                    self.ask();
                    Next::Is(Role::Http)
                }
                Err(SettingsError::UnexpectedEnd) => Next::Wait,
                Ok(_) | Err(_) => Next::Close(general_protocol_error()),
            },
            Ok(StreamUni::QPACK_ENCODER | StreamUni::QPACK_DECODER) => Next::Is(Role::Http),
            Ok(_) => Next::End(End::Refuse(STREAM_CREATION_ERROR)),
        }
    }

    fn begin_bi(&mut self, index: usize) -> Next {
        let stream = &mut self.streams[index];
        let mut rest = &stream.held[..];
        if let Ok(Frame::WEBTRANSPORT) = Frame::decode(&mut rest) {
            let Ok(session) = web_transport_proto::VarInt::decode(&mut rest) else {
                return Next::Wait;
            };
            let begin = stream.held.len() - rest.len();
            return match self.request {
                Some(request) if session.into_inner() != u64::from(request) => {
                    Next::Close(general_protocol_error())
                }
                Some(_) if self.is_accepted => {
                    stream.held.advance(begin);
                    self.stream = Some(stream.id);
                    self.events.push_back(WebEvent::Opened);
                    Next::Is(Role::Session)
                }
                _ if stream.is_finished => Next::End(End::Refuse(REQUEST_REJECTED)),
                _ => Next::Wait,
            };
        }
        let mut rest = &stream.held[..];
        match ConnectRequest::decode(&mut rest) {
            Ok(_) if self.request.is_some() => Next::End(End::Refuse(REQUEST_REJECTED)),
            Ok(request) => {
                let begin = stream.held.len() - rest.len();
                stream.held.advance(begin);
                self.request = Some(stream.id);
                self.waiting = Some(Box::new(request));
                self.ask();
                Next::Is(Role::Request)
            }
            Err(ConnectError::UnexpectedEnd) => Next::Wait,
            Err(_) => Next::Close(general_protocol_error()),
        }
    }

    fn ask(&mut self) {
        if self.has_settings
            && let Some(request) = self.waiting.take()
        {
            self.events.push_back(WebEvent::Requested(request));
        }
    }

    fn skip(&mut self, index: usize) -> Next {
        self.streams[index].held.clear();
        Next::Wait
    }

    fn read_capsules(&mut self, index: usize) -> Next {
        let stream = &mut self.streams[index];
        let mut rest = &stream.held[..];
        if let Ok((frame, mut payload)) = Frame::read(&mut rest) {
            let capsule = match frame {
                // Longer ones would come in several frames: one that closes a session does not.
                Frame::DATA => Capsule::decode(&mut payload),
                _ => Err(CapsuleError::UnexpectedEnd),
            };
            if let Ok(Capsule::CloseWebTransportSession { code, .. }) = capsule {
                return Next::Close(session_error(code));
            }
            payload.advance(payload.remaining());
            let begin = stream.held.len() - rest.len();
            stream.held.advance(begin);
            return Next::Is(Role::Request);
        }
        match stream.is_finished {
            true => Next::Close(session_error(0)),
            false => Next::Wait,
        }
    }

    fn hand_on(&mut self, index: usize) -> Next {
        let stream = &mut self.streams[index];
        let is_current = self.stream == Some(stream.id);
        let bytes = stream.held.split().freeze();
        if is_current && !bytes.is_empty() {
            self.events.push_back(WebEvent::Received(bytes));
        }
        if !stream.is_finished {
            return Next::Wait;
        }
        if is_current {
            self.stream = None;
            self.events.push_back(WebEvent::Finished);
        }
        Next::End(End::Finish)
    }
}

impl End {
    /// The stream may be over already.
    fn apply(self, quic: &mut Connection, id: StreamId) {
        match self {
            Self::Finish => {
                let _ = quic.send_stream(id).finish();
            }
            Self::Refuse(code) => {
                let _ = quic.recv_stream(id).stop(code.into());
                if id.dir() == Dir::Bi {
                    let _ = quic.send_stream(id).reset(code.into());
                }
            }
        }
    }
}

/// The client's code, as HTTP/3 carries it.
pub(super) fn session_error(code: u32) -> VarInt {
    VarInt::from_u64(error_to_http3(code)).expect("such a code has 48 bits")
}

fn general_protocol_error() -> VarInt {
    VarInt::from_u64(GENERAL_PROTOCOL_ERROR).expect("short")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quinn_proto::Side;
    use web_transport_proto::VarInt as WebVarInt;

    /// Streams that a client opens.
    fn uni(index: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Uni, index)
    }

    fn bi(index: u64) -> StreamId {
        StreamId::new(Side::Client, Dir::Bi, index)
    }

    fn settings() -> Vec<u8> {
        let mut settings = Settings::default();
        settings.enable_webtransport(1);
        let mut bytes = Vec::new();
        settings.encode(&mut bytes);
        bytes
    }

    fn request() -> Vec<u8> {
        let url: url::Url = "https://music.example.org/relay/1".parse().expect("a URL");
        let mut bytes = Vec::new();
        let encoded = ConnectRequest::new(url).encode(&mut bytes);
        encoded.expect("a request");
        bytes
    }

    /// The beginning of a stream of the session, then what is said on it.
    fn said(session: StreamId, what: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Frame::WEBTRANSPORT.encode(&mut bytes);
        let session = WebVarInt::try_from(u64::from(session)).expect("short");
        session.encode(&mut bytes);
        bytes.extend_from_slice(what);
        bytes
    }

    fn in_frame(frame: Frame, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        WebVarInt::try_from(payload.len())
            .expect("short")
            .encode(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes
    }

    fn closing(code: u32) -> Vec<u8> {
        let reason = "bye".to_owned();
        let mut capsule = Vec::new();
        Capsule::CloseWebTransportSession { code, reason }.encode(&mut capsule);
        in_frame(Frame::DATA, &capsule)
    }

    /// QUIC's part of [`WebTransport::read`], and the answer to a request.
    fn take(web: &mut WebTransport, id: StreamId, bytes: &[u8], is_finished: bool) -> Option<End> {
        if !web.streams.iter().any(|stream| stream.id == id) {
            web.streams.push(Stream {
                id,
                role: Role::Unknown,
                held: BytesMut::new(),
                is_finished: false,
            });
        }
        let stream = web.streams.iter_mut().find(|stream| stream.id == id)?;
        stream.held.extend_from_slice(bytes);
        stream.is_finished |= is_finished;
        web.understand(id)
    }

    fn events(web: &mut WebTransport) -> Vec<String> {
        let mut events = Vec::new();
        while let Some(event) = web.poll() {
            match event {
                WebEvent::Requested(request) => events.push(request.url.path().to_owned()),
                WebEvent::Received(bytes) => match events.last_mut() {
                    // However it was cut.
                    Some(last) if last.starts_with("heard ") => {
                        last.push_str(&String::from_utf8_lossy(&bytes));
                    }
                    _ => events.push(format!("heard {}", String::from_utf8_lossy(&bytes))),
                },
                other => events.push(format!("{other:?}")),
            }
        }
        events
    }

    /// With its session accepted.
    fn in_session() -> WebTransport {
        let mut web = WebTransport::default();
        take(&mut web, uni(0), &settings(), false);
        take(&mut web, bi(0), &request(), false);
        assert_eq!(events(&mut web), ["/relay/1"]);
        web.is_accepted = true;
        web
    }

    fn closed_with(code: u64) -> String {
        format!("Closed({code})")
    }

    #[test]
    fn a_session_is_asked_for_once_the_settings_are_there() {
        let mut web = WebTransport::default();
        take(&mut web, bi(0), &request(), false);
        assert_eq!(events(&mut web), [] as [&str; 0]);
        let ends: [_; 3] = [
            take(&mut web, uni(0), &settings(), false),
            take(&mut web, uni(1), &[2], false),
            take(&mut web, uni(2), &[3, 1, 2, 3], false),
        ];
        assert_eq!(ends, [None; 3], "what HTTP/3 keeps open stays open");
        assert_eq!(events(&mut web), ["/relay/1"]);
    }

    #[test]
    fn what_is_said_in_the_session_is_handed_on_to_its_end() {
        let mut web = in_session();
        assert_eq!(take(&mut web, bi(1), &said(bi(0), b"one"), false), None);
        let end = take(&mut web, bi(1), b", two", true);
        assert_eq!(end, Some(End::Finish));
        assert_eq!(events(&mut web), ["Opened", "heard one, two", "Finished"]);
        take(&mut web, bi(2), &said(bi(0), b"three"), false);
        assert_eq!(events(&mut web), ["Opened", "heard three"]);
    }

    #[test]
    fn a_stream_that_overtakes_its_request_waits_for_the_answer() {
        let mut web = WebTransport::default();
        take(&mut web, bi(1), &said(bi(0), b"early"), false);
        take(&mut web, uni(0), &settings(), false);
        take(&mut web, bi(0), &request(), false);
        assert_eq!(events(&mut web), ["/relay/1"]);
        web.is_accepted = true;
        assert_eq!(web.understand(bi(1)), None);
        assert_eq!(events(&mut web), ["Opened", "heard early"]);
    }

    #[test]
    fn the_client_ends_its_session_with_a_code_or_without() {
        let grease = in_frame(Frame(WebVarInt::from_u32(0x21)), b"any");
        let unknown = in_frame(Frame::DATA, &[0x3f, 2, 1, 2]);
        for (bytes, is_finished, code) in [
            ([grease, unknown, closing(7)].concat(), false, 7),
            (closing(0), true, 0),
            (Vec::new(), true, 0),
        ] {
            let mut web = in_session();
            take(&mut web, bi(0), &bytes, is_finished);
            assert_eq!(events(&mut web), [closed_with(error_to_http3(code))]);
        }
    }

    #[test]
    fn what_breaks_the_rules_ends_the_connection() {
        let wrong_request = in_frame(Frame::HEADERS, b"\xff\xff\xff");
        let without_webtransport = [0, 4, 2, 1, 0].to_vec();
        for (name, id, bytes, is_finished) in [
            ("settings twice", uni(3), settings(), false),
            (
                "settings without WebTransport",
                uni(4),
                without_webtransport,
                false,
            ),
            ("its first stream ended", uni(0), Vec::new(), true),
            ("another session's stream", bi(1), said(bi(5), b""), false),
            ("no request", bi(1), wrong_request, false),
            (
                "no end of a frame",
                bi(0),
                in_frame(Frame::DATA, &[0; 40_000])[..39_000].to_vec(),
                false,
            ),
            ("a beginning without an end", bi(1), vec![0x40], true),
        ] {
            let mut web = in_session();
            take(&mut web, id, &bytes, is_finished);
            let closed = [closed_with(GENERAL_PROTOCOL_ERROR)];
            assert_eq!(events(&mut web), closed, "{name}");
        }
    }

    #[test]
    fn what_is_of_no_use_is_refused_and_the_session_goes_on() {
        let mut web = in_session();
        let second = take(&mut web, bi(1), &request(), false);
        assert_eq!(second, Some(End::Refuse(REQUEST_REJECTED)));
        let pushed = take(&mut web, uni(3), &[1], false);
        assert_eq!(pushed, Some(End::Refuse(STREAM_CREATION_ERROR)));
        assert_eq!(events(&mut web), [] as [&str; 0]);
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_a_stream_is_cut(cuts in prop::collection::vec(1_usize..9, 1..200)) {
            let mut web = WebTransport::default();
            let mut cuts = cuts.into_iter().cycle();
            let mut feed = |web: &mut WebTransport, id, bytes: &[u8]| {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let (piece, later) = rest.split_at(cuts.next().expect("cycles").min(rest.len()));
                    rest = later;
                    prop_assert_eq!(take(web, id, piece, false), None);
                }
                Ok(())
            };
            feed(&mut web, bi(0), &request())?;
            feed(&mut web, uni(0), &settings())?;
            web.is_accepted = true;
            feed(&mut web, bi(1), &said(bi(0), b"what is said"))?;
            feed(&mut web, bi(0), &closing(3))?;
            prop_assert_eq!(
                events(&mut web),
                ["/relay/1", "Opened", "heard what is said", &closed_with(error_to_http3(3))]
            );
        }

        #[test]
        fn whatever_comes_it_holds_little_and_says_at_most_once_that_it_is_over(
            pieces in prop::collection::vec(
                (0_u64..6, prop::collection::vec(any::<u8>(), 0..60), 0_usize..12, any::<bool>()), 0..60,
            ),
        ) {
            let beginnings = [
                settings(), request(), said(bi(0), b""), closing(1), vec![0x54], vec![0x40, 0x41],
                in_frame(Frame::HEADERS, b"?"), in_frame(Frame::DATA, b"??"), vec![2],
            ];
            let mut web = WebTransport::default();
            let mut closed = 0;
            for (stream, bytes, beginning, is_finished) in pieces {
                let id = if stream < 3 { bi(stream) } else { uni(stream - 3) };
                let begin = beginnings.get(beginning).cloned().unwrap_or_default();
                take(&mut web, id, &[begin, bytes].concat(), is_finished);
                while let Some(event) = web.poll() {
                    closed += usize::from(matches!(event, WebEvent::Closed(_)));
                    web.is_accepted |= matches!(event, WebEvent::Requested(_));
                }
                let held = web.streams.iter().map(|stream| stream.held.len());
                prop_assert!(web.is_closed || held.max() <= Some(MAX_HELD));
            }
            prop_assert!(closed <= 1);
        }
    }
}
