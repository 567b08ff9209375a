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
    /// It is of no use.
    Refuse(u32),
    /// The connection is over.
    Close(VarInt),
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
        for id in self
            .streams
            .iter()
            .map(|stream| stream.id)
            .collect::<Vec<_>>()
        {
            self.understand(quic, id);
        }
    }

    /// Refuses the session. The client closes the connection when it has read that.
    pub(super) fn reject(&mut self, quic: &mut Connection, status: StatusCode) {
        self.respond(quic, status);
        if let Some(id) = self.request {
            finish(quic, id);
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
        finish(quic, id);
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
        self.understand(quic, id);
    }

    /// Goes on with what has come of a stream.
    fn understand(&mut self, quic: &mut Connection, id: StreamId) {
        while let Some(index) = self.streams.iter().position(|stream| stream.id == id) {
            if self.is_closed {
                return;
            }
            let next = match (self.streams[index].role, id.dir()) {
                (Role::Unknown, Dir::Uni) => self.begin_uni(index),
                (Role::Unknown, Dir::Bi) => self.begin_bi(index),
                (Role::Http, _) => self.skip(index),
                (Role::Request, _) => self.read_capsules(index),
                (Role::Session, _) => self.hand_on(quic, index),
            };
            match next {
                Next::Is(role) => self.streams[index].role = role,
                Next::Refuse(code) => {
                    self.streams.swap_remove(index);
                    refuse(quic, id, code);
                }
                Next::Close(code) => self.close_with(code),
                Next::Wait => {
                    let Some(stream) = self.streams.get(index).filter(|stream| stream.id == id)
                    else {
                        return;
                    };
                    if stream.is_finished || stream.held.len() > MAX_HELD {
                        self.close_with(general_protocol_error());
                    }
                    return;
                }
            }
        }
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
            Ok(_) => Next::Refuse(STREAM_CREATION_ERROR),
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
                _ if stream.is_finished => Next::Refuse(REQUEST_REJECTED),
                _ => Next::Wait,
            };
        }
        let mut rest = &stream.held[..];
        match ConnectRequest::decode(&mut rest) {
            Ok(_) if self.request.is_some() => Next::Refuse(REQUEST_REJECTED),
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

    fn hand_on(&mut self, quic: &mut Connection, index: usize) -> Next {
        let stream = &mut self.streams[index];
        let is_current = self.stream == Some(stream.id);
        let bytes = stream.held.split().freeze();
        if is_current && !bytes.is_empty() {
            self.events.push_back(WebEvent::Received(bytes));
        }
        if stream.is_finished {
            finish(quic, stream.id);
            self.streams.swap_remove(index);
            if is_current {
                self.stream = None;
                self.events.push_back(WebEvent::Finished);
            }
        }
        Next::Wait
    }
}

/// The client's code, as HTTP/3 carries it.
fn session_error(code: u32) -> VarInt {
    VarInt::from_u64(error_to_http3(code)).expect("such a code has 48 bits")
}

fn general_protocol_error() -> VarInt {
    VarInt::from_u64(GENERAL_PROTOCOL_ERROR).expect("short")
}

/// Ends what the server writes to a stream. It may be over already.
fn finish(quic: &mut Connection, id: StreamId) {
    let _ = quic.send_stream(id).finish();
}

/// Ends a stream both ways. It may be over already.
fn refuse(quic: &mut Connection, id: StreamId, code: u32) {
    let _ = quic.recv_stream(id).stop(code.into());
    if id.dir() == Dir::Bi {
        let _ = quic.send_stream(id).reset(code.into());
    }
}
