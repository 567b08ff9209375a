//! The messages of the signalling WebSocket (`docs/protocol.md`), read strictly and written once.
//!
//! What a page sends is hostile until [`parse`] has accepted it: every field is checked and bounded here, so nothing
//! past this module looks at raw text.

use std::{borrow::Cow, fmt, ops::RangeInclusive, str::FromStr, sync::Arc};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::{
    ice::IceServer,
    media::{CertificateHash, Token},
    secret::Secret,
};

/// The signalling version that this server speaks.
pub const VERSION: u32 = 1;

/// The longest message that a page may send.
pub const MAX_MESSAGE_BYTES: usize = 65_536;

/// A name has 1 to this many characters (Unicode code points).
pub const MAX_NAME_CHARACTERS: usize = 64;

/// A passphrase has 1 to this many characters (Unicode code points).
pub const MAX_PASSPHRASE_CHARACTERS: usize = 128;

/// A room's name: 16 to 64 characters of `A–Z a–z 0–9 - _`. Who knows it may enter, so it is treated as a secret.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoomName(Arc<str>);

/// Use a name of 16 to 64 letters, digits, `-` or `_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a room's name is 16 to 64 letters, digits, '-' or '_'")]
pub struct RoomNameError;

impl RoomName {
    /// A new name of 128 random bits: 22 characters.
    pub fn random() -> Self {
        let mut bits = [0; 16];
        SystemRandom::new()
            .fill(&mut bits)
            .expect("the operating system has randomness");
        Self(BASE64URL_NOPAD.encode(&bits).into())
    }

    /// The name itself, for links and the wire; logs use `Debug`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RoomName {
    type Err = RoomNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        if (16..=64).contains(&text.len()) && plain {
            Ok(Self(text.into()))
        } else {
            Err(RoomNameError)
        }
    }
}

/// Eight digits of the name's hash: enough to tell rooms apart in a log, not enough to enter one.
impl fmt::Debug for RoomName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&digest(&SHA256, self.0.as_bytes()).as_ref()[..4]))
    }
}

impl Serialize for RoomName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Who a participant is to the others: the first 16 bytes of SHA-256 of its secret, in 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParticipantId([u8; 16]);

impl ParticipantId {
    /// The identity that the holder of this secret has.
    pub fn of_secret(secret: &[u8; 32]) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&digest(&SHA256, secret).as_ref()[..16]);
        Self(id)
    }
}

impl fmt::Display for ParticipantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// Its first eight digits, for logs.
impl fmt::Debug for ParticipantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0[..4]))
    }
}

impl Serialize for ParticipantId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ParticipantId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut id = [0; 16];
        let digits = Cow::<'de, str>::deserialize(deserializer)?;
        match HEXLOWER.decode_len(digits.len()) {
            Ok(16) if HEXLOWER.decode_mut(digits.as_bytes(), &mut id).is_ok() => Ok(Self(id)),
            _ => Err(serde::de::Error::custom(
                "an id is 32 lower-case hex digits",
            )),
        }
    }
}

/// A participant's name as the others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(Arc<str>);

impl TryFrom<String> for Name {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if !(1..=MAX_NAME_CHARACTERS).contains(&text.chars().count()) {
            Err("a name has 1 to 64 characters")
        } else if text.chars().any(char::is_control) || !text.chars().any(is_seen) {
            Err("a name has something to see, and no control characters")
        } else {
            Ok(Self(text.into()))
        }
    }
}

/// What a page leaves out of a name, where it is not part of an emoji: format characters, those that are ignored by default, and the blank of Braille
/// (`UNSEEN` in `web/src/main/settings.ts`), of Unicode 17.
const UNSEEN: [RangeInclusive<char>; 26] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{202a}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{2800}'..='\u{2800}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

fn is_seen(character: char) -> bool {
    !character.is_whitespace() && !UNSEEN.iter().any(|unseen| unseen.contains(&character))
}

/// What opens a locked room. `Debug` hides it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Passphrase(Secret);

impl Passphrase {
    /// The text itself: to be compared, or for those who are in the room already.
    pub fn reveal(&self) -> &str {
        self.0.reveal()
    }
}

impl TryFrom<String> for Passphrase {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        // Nobody sees what is blank at its ends, or could tell another of it.
        let text = text.trim();
        if (1..=MAX_PASSPHRASE_CHARACTERS).contains(&text.chars().count()) {
            Ok(Self(text.to_owned().into()))
        } else {
            Err("a passphrase has 1 to 128 characters")
        }
    }
}

/// Shows it: the one place for that is the `locked` message.
impl Serialize for Passphrase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.reveal())
    }
}

/// The sample rate that everyone in a room uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32")]
pub struct SampleRateHz(u32);

impl SampleRateHz {
    /// Frames per second.
    pub const fn hz(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for SampleRateHz {
    type Error = &'static str;

    fn try_from(hz: u32) -> Result<Self, Self::Error> {
        match hz {
            44_100 | 48_000 | 88_200 | 96_000 => Ok(Self(hz)),
            _ => Err("a sample rate is 44100, 48000, 88200 or 96000 Hz"),
        }
    }
}

/// A message from a page.
#[derive(Debug, Clone)]
pub enum ClientMessage {
    /// The first one: who it is.
    Hello(Hello),
    /// To be passed on.
    Signal {
        /// The receiver.
        to: ParticipantId,
        /// A JSON object, never read.
        data: Box<RawValue>,
    },
    /// A new name.
    Rename {
        /// The new name.
        name: Name,
    },
    /// The owner does something about someone.
    Moderate {
        /// Whom.
        to: ParticipantId,
        /// What.
        action: Moderation,
    },
    /// The owner asks newcomers for a passphrase, or no longer.
    Lock {
        /// None opens the room.
        passphrase: Option<Passphrase>,
    },
    /// Leaves without the grace period.
    Leave,
}

/// What the owner can do about a participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moderation {
    /// Nobody hears it.
    Mute,
    /// Everybody hears it again.
    Unmute,
    /// It has to go, and cannot come back as the one it was.
    Remove,
}

/// Who a page says it is. The secret is turned into the id at once and kept nowhere.
#[derive(Debug, Clone)]
pub struct Hello {
    /// The identity that the secret proves.
    pub id: ParticipantId,
    /// The name to show.
    pub name: Name,
    /// Wanted, if the room is new.
    pub sample_rate_hz: SampleRateHz,
    /// Opens a locked room, and locks a new one.
    pub passphrase: Option<Passphrase>,
    /// A program that plays by itself. It owns a room only while nobody else is there.
    pub bot: bool,
    /// It says that it was in this room before: after a restart of the server that cannot be proved, and its passphrase locks a room that is new.
    pub returning: bool,
}

impl ClientMessage {
    /// The `type` field.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Signal { .. } => "signal",
            Self::Rename { .. } => "rename",
            Self::Moderate { .. } => "moderate",
            Self::Lock { .. } => "lock",
            Self::Leave => "leave",
        }
    }
}

/// Why a message was refused, in words for the developer of a page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Correct the message.
    #[error("{0}")]
    BadMessage(String),
    /// Take another name.
    #[error("{0}")]
    BadName(&'static str),
    /// Reload the page: server and page are of different versions.
    #[error("this server speaks version {VERSION}; reload the page")]
    BadVersion,
}

impl From<serde_json::Error> for ParseError {
    fn from(error: serde_json::Error) -> Self {
        // It may quote the message: as much of it as a developer needs.
        Self::BadMessage(error.to_string().chars().take(200).collect())
    }
}

/// Reads a message. Never panics, whatever the text.
pub fn parse(text: &str) -> Result<ClientMessage, ParseError> {
    if text.len() > MAX_MESSAGE_BYTES {
        return Err(ParseError::BadMessage(format!(
            "a message has at most {MAX_MESSAGE_BYTES} bytes"
        )));
    }
    let envelope: Envelope<'_> = serde_json::from_str(text)?;
    match &*envelope.kind {
        "hello" => {
            // Another version may have other fields, so it is recognised before they are judged.
            let version = envelope
                .version
                .and_then(|version| version.get().parse::<u32>().ok());
            if version.is_some_and(|version| version != VERSION) {
                return Err(ParseError::BadVersion);
            }
            let fields: HelloFields = serde_json::from_str(text)?;
            Ok(ClientMessage::Hello(Hello {
                id: fields.secret.0,
                name: fields.name,
                sample_rate_hz: fields.sample_rate_hz,
                passphrase: fields.passphrase,
                bot: fields.bot,
                returning: fields.returning,
            }))
        }
        "signal" => {
            let fields: SignalFields = serde_json::from_str(text)?;
            if !fields.data.get().starts_with('{') {
                return Err(ParseError::BadMessage("data is an object".into()));
            }
            Ok(ClientMessage::Signal {
                to: fields.to,
                data: fields.data,
            })
        }
        "rename" => {
            let fields: RenameFields = serde_json::from_str(text)?;
            let name = Name::try_from(fields.name).map_err(ParseError::BadName)?;
            Ok(ClientMessage::Rename { name })
        }
        "moderate" => {
            let fields: ModerateFields = serde_json::from_str(text)?;
            Ok(ClientMessage::Moderate {
                to: fields.to,
                action: fields.action,
            })
        }
        "lock" => {
            let fields: LockFields = serde_json::from_str(text)?;
            Ok(ClientMessage::Lock {
                passphrase: fields.passphrase,
            })
        }
        "leave" => {
            let LeaveFields { .. } = serde_json::from_str(text)?;
            Ok(ClientMessage::Leave)
        }
        _ => Err(ParseError::BadMessage("unknown type".into())),
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    version: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HelloFields {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    #[serde(rename = "version")]
    _version: u32,
    secret: ProvenId,
    name: Name,
    sample_rate_hz: SampleRateHz,
    #[serde(default, deserialize_with = "not_null")]
    passphrase: Option<Passphrase>,
    #[serde(default)]
    bot: bool,
    #[serde(default)]
    returning: bool,
}

/// A field that may be absent, but not null.
fn not_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignalFields {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    to: ParticipantId,
    data: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RenameFields {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModerateFields {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    to: ParticipantId,
    action: Moderation,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LockFields {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    // Named, because a plain `Option` may also be absent, and no mistake shall open a room.
    #[serde(deserialize_with = "Option::deserialize")]
    passphrase: Option<Passphrase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaveFields {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
}

/// The id of a secret that was read and forgotten.
struct ProvenId(ParticipantId);

impl<'de> Deserialize<'de> for ProvenId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut secret = [0; 32];
        let digits = Cow::<'de, str>::deserialize(deserializer)?;
        match HEXLOWER_PERMISSIVE.decode_len(digits.len()) {
            Ok(32)
                if HEXLOWER_PERMISSIVE
                    .decode_mut(digits.as_bytes(), &mut secret)
                    .is_ok() =>
            {
                Ok(Self(ParticipantId::of_secret(&secret)))
            }
            _ => Err(serde::de::Error::custom("a secret is 64 hex digits")),
        }
    }
}

/// A message to a page.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ServerMessage {
    /// You are in.
    Welcome {
        /// [`VERSION`].
        version: u32,
        /// Your own id.
        id: ParticipantId,
        /// Your own stream's number.
        stream: u16,
        /// The room.
        room: RoomName,
        /// The sample rate of the room, which may not be the one wanted.
        sample_rate_hz: SampleRateHz,
        /// The others, in order of joining.
        participants: Vec<Participant>,
        /// Who may moderate.
        owner: ParticipantId,
        /// Whether newcomers need a passphrase.
        locked: bool,
        /// Whether the owner muted you.
        muted: bool,
        /// STUN and TURN servers to use.
        ice_servers: Vec<IceServer>,
        /// How to reach the relay, if there is one.
        relay: Option<Relay>,
        /// Whether the room still knew you.
        resumed: bool,
    },
    /// Someone is new.
    Joined {
        /// Who.
        participant: Participant,
    },
    /// Someone else may moderate now.
    Owner {
        /// Who.
        id: ParticipantId,
    },
    /// The owner muted someone, or no longer.
    Muted {
        /// Whom.
        id: ParticipantId,
        /// Which of the two.
        muted: bool,
    },
    /// The owner asks newcomers for a passphrase, or no longer.
    Locked {
        /// Which of the two.
        locked: bool,
        /// To be said in the next hello: a server that was restarted makes the room again, and locks it.
        passphrase: Option<Passphrase>,
    },
    /// The relay's certificate changed.
    Relay {
        /// What holds from now on.
        relay: Relay,
    },
    /// Someone's connection to the server broke.
    Away {
        /// Who.
        id: ParticipantId,
    },
    /// Someone's connection to the server returned.
    Back {
        /// Who.
        id: ParticipantId,
    },
    /// Someone has another name.
    Renamed {
        /// Who.
        id: ParticipantId,
        /// The new name.
        name: Name,
    },
    /// Someone is gone for good.
    Left {
        /// Who.
        id: ParticipantId,
    },
    /// Passed on from another page.
    Signal {
        /// Its sender.
        from: ParticipantId,
        /// As it was sent.
        data: Box<RawValue>,
    },
    /// Something was refused.
    Error {
        /// What, for programs.
        code: ErrorCode,
        /// What, for developers.
        message: String,
    },
}

impl ServerMessage {
    /// An error, with the words that go with it.
    pub fn error(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Error {
            code,
            message: message.into(),
        }
    }

    /// The `type` field.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Welcome { .. } => "welcome",
            Self::Joined { .. } => "joined",
            Self::Owner { .. } => "owner",
            Self::Muted { .. } => "muted",
            Self::Locked { .. } => "locked",
            Self::Relay { .. } => "relay",
            Self::Away { .. } => "away",
            Self::Back { .. } => "back",
            Self::Renamed { .. } => "renamed",
            Self::Left { .. } => "left",
            Self::Signal { .. } => "signal",
            Self::Error { .. } => "error",
        }
    }
}

/// Another participant as a page sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Participant {
    /// Who.
    pub id: ParticipantId,
    /// Its stream's number: 1 to 65,534.
    pub stream: u16,
    /// Its name.
    pub name: Name,
    /// False while its connection to the server is broken.
    pub present: bool,
    /// Whether the owner muted it.
    pub muted: bool,
}

/// How one participant reaches the relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Relay {
    /// The UDP port, on the page's own host.
    pub port: u16,
    /// Its own.
    pub token: Token,
    /// Of the certificates it may meet; empty if browsers trust them anyway.
    pub certificate_hashes: Arc<[CertificateHash]>,
}

/// What was refused. The table is in `docs/protocol.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Not JSON, unknown type, wrong field, too long, too late.
    BadMessage,
    /// Another protocol version.
    BadVersion,
    /// The room's limit is reached.
    RoomFull,
    /// The server's limit is reached.
    ServerFull,
    /// More messages than the limit.
    TooFast,
    /// The room is locked, and the passphrase is missing or wrong.
    Passphrase,
    /// The owner removed this identity.
    Removed,
    /// `moderate` or `lock` by someone else than the owner.
    NotOwner,
    /// `rename`, `moderate` or `lock`: everybody was told enough for now.
    NotNow,
    /// `signal` or `moderate` to an id that is not in the room.
    UnknownPeer,
    /// Another connection resumed this identity.
    Replaced,
    /// The server stops.
    ShuttingDown,
}

impl ErrorCode {
    /// The WebSocket close code that follows this error, if it ends the connection.
    pub fn close_code(self) -> Option<u16> {
        match self {
            Self::UnknownPeer | Self::NotOwner | Self::NotNow => None,
            Self::Replaced => Some(1000),
            Self::ShuttingDown => Some(1001),
            Self::BadMessage
            | Self::BadVersion
            | Self::RoomFull
            | Self::ServerFull
            | Self::TooFast
            | Self::Passphrase
            | Self::Removed => Some(1008),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(changed: &[(&str, &str)]) -> String {
        let mut fields = vec![
            ("type", r#""hello""#.to_owned()),
            ("version", "1".into()),
            ("secret", format!("\"{}\"", "00".repeat(32))),
            ("name", r#""Ann""#.into()),
            ("sample_rate_hz", "48000".into()),
        ];
        for (key, value) in changed {
            fields.retain(|(known, _)| known != key);
            if !value.is_empty() {
                fields.push((key, (*value).to_owned()));
            }
        }
        let fields: Vec<String> = fields
            .iter()
            .map(|(key, value)| format!("\"{key}\":{value}"))
            .collect();
        format!("{{{}}}", fields.join(","))
    }

    fn is_bad(text: &str) -> bool {
        matches!(parse(text), Err(ParseError::BadMessage(_)))
    }

    #[test]
    fn hello_proves_an_identity() {
        let Ok(ClientMessage::Hello(read)) = parse(&hello(&[])) else {
            panic!("refused")
        };
        // printf of 32 zero bytes | sha256sum, the first 16 bytes.
        assert_eq!(read.id.to_string(), "66687aadf862bd776c8fc18b8e9f8e20");
        let upper = hello(&[("secret", &format!("\"{}\"", "AB".repeat(32)))]);
        let lower = hello(&[("secret", &format!("\"{}\"", "ab".repeat(32)))]);
        let ids = [parse(&upper), parse(&lower)].map(|read| match read {
            Ok(ClientMessage::Hello(read)) => read.id,
            other => panic!("{other:?}"),
        });
        assert_eq!(ids[0], ids[1], "the bytes are hashed, not the digits");
    }

    #[test]
    fn another_version_is_told_apart_from_a_mistake() {
        assert_eq!(
            parse(&hello(&[("version", "2")])).err(),
            Some(ParseError::BadVersion)
        );
        assert_eq!(
            parse(r#"{"type":"hello","version":7,"novelty":[]}"#).err(),
            Some(ParseError::BadVersion)
        );
        for version in ["", "\"1\"", "1.0", "null", "-1", "{}"] {
            assert!(is_bad(&hello(&[("version", version)])), "version {version}");
        }
    }

    #[test]
    fn every_field_is_checked() {
        let long = |count: usize| format!("\"{}\"", "é".repeat(count));
        assert!(
            parse(&hello(&[("name", &long(64))])).is_ok(),
            "characters, not bytes"
        );
        for (field, value) in [
            ("name", "\"\""),
            ("name", "\"  \""),
            ("name", "\"a\\u0000\""),
            ("name", "7"),
            ("name", ""),
            ("name", &long(65)),
            ("secret", ""),
            ("secret", "\"00\""),
            ("secret", &format!("\"{}\"", "zz".repeat(32))),
            ("sample_rate_hz", "47999"),
            ("sample_rate_hz", "48000.5"),
            ("sample_rate_hz", ""),
            ("surplus", "1"),
            ("passphrase", "\"\""),
            ("passphrase", "\"  \""),
            ("passphrase", "null"),
            ("passphrase", "7"),
            ("passphrase", &long(129)),
            ("returning", "null"),
            ("returning", "1"),
        ] {
            assert!(is_bad(&hello(&[(field, value)])), "{field}: {value}");
        }
    }

    #[test]
    fn a_name_has_something_to_see_as_pages_have_it() {
        let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/names.json");
        let vectors = std::fs::read_to_string(vectors).expect("vectors/names.json");
        let vectors: serde_json::Value = serde_json::from_str(&vectors).expect("JSON");
        for (list, is_name) in [("seen", true), ("unseen", false)] {
            for name in vectors[list].as_array().expect("a list") {
                let name = name.as_str().expect("text").to_owned();
                let escaped = name.escape_unicode().to_string();
                assert_eq!(Name::try_from(name).is_ok(), is_name, "{escaped}");
            }
        }
    }

    #[test]
    fn a_passphrase_is_read_and_hidden_from_logs() {
        let longest = format!("\"{}\"", "é".repeat(128));
        for text in ["\"x\"", "\" open sesame \"", &longest] {
            let read = parse(&hello(&[("passphrase", text)])).expect("valid");
            assert!(format!("{read:?}").contains("Passphrase(***)"), "{read:?}");
            let ClientMessage::Hello(Hello { passphrase, .. }) = read else {
                panic!("{read:?}")
            };
            let written = serde_json::to_string(&passphrase).expect("serialises");
            let expected = if text.contains("sesame") {
                "\"open sesame\""
            } else {
                text
            };
            assert_eq!(written, expected, "but for what is blank at its ends");
        }
        let lock = |passphrase: &str| format!(r#"{{"type":"lock"{passphrase}}}"#);
        assert!(matches!(
            parse(&lock(r#","passphrase":null"#)),
            Ok(ClientMessage::Lock { passphrase: None })
        ));
        assert!(matches!(
            parse(&lock(r#","passphrase":"x""#)),
            Ok(ClientMessage::Lock {
                passphrase: Some(_)
            })
        ));
        for bad in ["", r#","passphrase":"""#, r#","passphrase":false"#] {
            assert!(is_bad(&lock(bad)), "{bad}");
        }
    }

    #[test]
    fn moderation_is_one_of_three() {
        let id = "0123456789abcdef0123456789abcdef";
        let moderate =
            |action: &str| format!(r#"{{"type":"moderate","to":"{id}","action":"{action}"}}"#);
        for (action, expected) in [
            ("mute", Moderation::Mute),
            ("unmute", Moderation::Unmute),
            ("remove", Moderation::Remove),
        ] {
            let Ok(ClientMessage::Moderate { to, action }) = parse(&moderate(action)) else {
                panic!("{action} refused")
            };
            assert_eq!((to.to_string().as_str(), action), (id, expected));
        }
        for bad in ["Mute", "ban", ""] {
            assert!(is_bad(&moderate(bad)), "{bad}");
        }
    }

    #[test]
    fn signal_data_passes_unread() {
        let id = "0123456789abcdef0123456789abcdef";
        let data = r#"{ "kind":"candidate", "n": 1e400, "é":[ ] }"#;
        let text = format!(r#"{{"to":"{id}","data": {data} ,"type":"signal"}}"#);
        let Ok(ClientMessage::Signal { to, data: read }) = parse(&text) else {
            panic!("refused")
        };
        assert_eq!((to.to_string().as_str(), read.get()), (id, data));
        let written = serde_json::to_string(&ServerMessage::Signal {
            from: to,
            data: read,
        })
        .expect("serialises");
        assert_eq!(
            written,
            format!(r#"{{"type":"signal","from":"{id}","data":{data}}}"#)
        );
        for data in ["[]", "1", "null", "\"{\"", ""] {
            assert!(
                is_bad(&format!(r#"{{"type":"signal","to":"{id}","data":{data}}}"#)),
                "{data}"
            );
        }
        for to in ["", "0123", &id.to_uppercase(), &format!("{id}00")] {
            assert!(
                is_bad(&format!(r#"{{"type":"signal","to":"{to}","data":{{}}}}"#)),
                "{to}"
            );
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for text in [
            "",
            "{}",
            "[]",
            "null",
            "{\"type\":1}",
            r#"{"type":"Leave"}"#,
            r#"{"type":"leave","x":1}"#,
        ] {
            assert!(is_bad(text), "{text}");
        }
        assert!(
            is_bad(r#"{"type":"leave","type":"leave"}"#),
            "twice the same field"
        );
        assert!(is_bad(r#"{"type":"leave"} x"#), "something after it");
        assert!(matches!(
            parse(r#" {"type":"\u006ceave"} "#),
            Ok(ClientMessage::Leave)
        ));
        let nested = format!("{}{}", r#"{"type":"signal","data":"#, "[".repeat(60_000));
        assert!(is_bad(&nested), "deep nesting does not overflow the stack");
        let longest = format!(
            "{}{}",
            r#"{"type":"leave"}"#,
            " ".repeat(MAX_MESSAGE_BYTES - 16)
        );
        assert!(parse(&longest).is_ok());
        assert!(is_bad(&format!("{longest} ")));
    }

    #[test]
    fn a_room_name_is_checked_and_hidden_from_logs() {
        let name = "abcdefghijkl-_09";
        let room: RoomName = name.parse().expect("valid");
        assert!(!format!("{room:?}").contains(&name[..4]));
        for bad in [
            "",
            &name[1..],
            &"a".repeat(65),
            "abcdefghijklmn p",
            "abcdefghijklmnö",
            "../../../../etc/p",
        ] {
            assert_eq!(bad.parse::<RoomName>(), Err(RoomNameError), "{bad}");
        }
        let random = RoomName::random();
        assert_eq!(random.as_str().len(), 22);
        assert_ne!(random, RoomName::random());
        assert_eq!(random.as_str().parse(), Ok(random));
    }
}
