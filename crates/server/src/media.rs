//! The seam between signalling and the relay: who may use the relay goes there, what pages are told about it comes back.
//!
//! The relay runs on a thread of its own and shares no state with the hub: it builds its own from [`MediaCommand`]s, in
//! the order in which they were sent, and publishes snapshots that the hub reads when it likes.

use std::{fmt, str::FromStr, sync::Arc};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Serialize, Serializer};
use tokio::sync::{mpsc, watch};

use crate::signalling::{ParticipantId, RoomName, SampleRateHz};

/// Opens sessions with the relay as one participant of one room: 128 random bits, 32 hex digits on the wire.
///
/// It is the participant's own secret, so `Debug` hides it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

/// A token is 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token is 32 hex digits")]
pub struct TokenError;

impl Token {
    /// A new one.
    pub fn random() -> Self {
        let mut bits = [0; 16];
        SystemRandom::new()
            .fill(&mut bits)
            .expect("the operating system has randomness");
        Self(bits)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(digits: &str) -> Result<Self, Self::Err> {
        let mut bits = [0; 16];
        match HEXLOWER_PERMISSIVE.decode_len(digits.len()) {
            Ok(16)
                if HEXLOWER_PERMISSIVE
                    .decode_mut(digits.as_bytes(), &mut bits)
                    .is_ok() =>
            {
                Ok(Self(bits))
            }
            _ => Err(TokenError),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Shows it: the one place for that is the participant's own `welcome` or `relay` message.
impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(&self.0))
    }
}

/// SHA-256 of a certificate's DER form, 64 hex digits on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateHash(pub [u8; 32]);

impl Serialize for CertificateHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(&self.0))
    }
}

/// How pages reach the relay. The same for everyone; each has a [`Token`] of its own besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayOffer {
    /// The UDP port that pages are told.
    pub port: u16,
    /// Of the certificate in use, and of the next one before it is; empty if browsers trust the certificate anyway.
    pub certificate_hashes: Arc<[CertificateHash]>,
}

/// What the relay has to know of the rooms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MediaCommand {
    /// From now on this token opens sessions. Comes before the participant is told the token. It stays valid while the
    /// participant is away, so that its sound goes on when only its signalling connection breaks.
    Admit {
        /// New: a token is admitted once.
        token: Token,
        /// Where.
        room: RoomName,
        /// Who, in the room no more than once.
        participant: ParticipantId,
        /// Its number in the room, 1 to 65,534; nobody else there has it.
        stream: u16,
        /// The room's: everyone in a room is admitted with the same.
        sample_rate_hz: SampleRateHz,
    },
    /// The participant has left or was removed: its sessions end, and nobody hears it any more.
    Withdraw {
        /// As admitted.
        token: Token,
    },
    /// By the room's owner: its audio is dropped from now on, or no longer. Whoever is admitted is not muted.
    Mute {
        /// As admitted.
        token: Token,
        /// Which of the two.
        muted: bool,
    },
}

/// The hub's end of the seam.
#[derive(Debug, Clone)]
pub struct Media {
    commands: mpsc::UnboundedSender<MediaCommand>,
    offer: watch::Receiver<RelayOffer>,
    status: watch::Receiver<Arc<MediaStatus>>,
}

/// The relay's end of the seam.
#[derive(Debug)]
pub struct MediaEnd {
    /// In order. It closes when the hub is gone.
    pub commands: mpsc::UnboundedReceiver<MediaCommand>,
    /// Whenever another offer is sent here, every page is told.
    pub offer: watch::Sender<RelayOffer>,
    /// A new snapshot each second, for the operator's page. Only the pointer is exchanged under its lock.
    pub status: watch::Sender<Arc<MediaStatus>>,
}

impl Media {
    /// Both ends.
    pub fn new(offer: RelayOffer) -> (Self, MediaEnd) {
        let (command_sender, command_receiver) = mpsc::unbounded_channel();
        let (offer_sender, offer_receiver) = watch::channel(offer);
        let (status_sender, status_receiver) = watch::channel(Arc::default());
        let media = Self {
            commands: command_sender,
            offer: offer_receiver,
            status: status_receiver,
        };
        let end = MediaEnd {
            commands: command_receiver,
            offer: offer_sender,
            status: status_sender,
        };
        (media, end)
    }

    /// How pages reach the relay now.
    pub fn offer(&self) -> RelayOffer {
        self.offer.borrow().clone()
    }

    /// Returns after the offer has changed (a certificate was renewed), or never again if the relay has ended.
    pub async fn offer_changed(&mut self) {
        if self.offer.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Never waits. A relay that has ended is told nothing.
    pub fn tell(&self, command: MediaCommand) {
        let _ = self.commands.send(command);
    }

    /// The newest snapshot.
    pub fn status(&self) -> Arc<MediaStatus> {
        Arc::clone(&self.status.borrow())
    }
}

/// What the operator's page shows of the relay. Rates, latencies and lags are of the last second or a little more.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MediaStatus {
    /// How late the media thread's loop comes round to what is due; up to 1 ms of it is the grain of its timers.
    pub loop_lag_us: Option<Quantiles>,
    /// From reading a datagram from the socket until its last copy was written to it, QUIC included; none if none was followed.
    pub transit_us: Option<Quantiles>,
    /// Sessions refused since the start, because their address had too many, opened them too fast or had too many handshakes under way, or because all had.
    pub refused: u64,
    /// Those with a session, in any order.
    pub rooms: Vec<RoomMedia>,
}

/// One room's sound.
#[derive(Debug, Clone, Serialize)]
pub struct RoomMedia {
    /// Written as in logs: the name is the room's key.
    #[serde(serialize_with = "as_in_logs")]
    pub room: RoomName,
    /// From a datagram's arrival until its last copy was handed to QUIC; none if nothing was forwarded.
    pub forward_us: Option<Quantiles>,
    /// From the last frame a mix needed until its datagram was written to the socket; none if nothing was mixed.
    pub mix_us: Option<Quantiles>,
    /// Those with a session, in any order.
    pub participants: Vec<ParticipantMedia>,
}

/// One participant's sound.
#[derive(Debug, Clone, Serialize)]
pub struct ParticipantMedia {
    /// Its first eight digits, as in logs.
    #[serde(serialize_with = "as_in_logs")]
    pub participant: ParticipantId,
    /// Its number in the room.
    pub stream: u16,
    /// Open sessions, 1 to 4.
    pub sessions: u8,
    /// Streams that are forwarded to it.
    pub forwarded: u16,
    /// What its mix is sent as; none if it takes no mix.
    pub mix: Option<MixFormat>,
    /// Whether copies are sent of all that it is sent, because its downlink loses some.
    pub copies: bool,
    /// Round trip of its quickest session, us; none before it is known.
    pub rtt_us: Option<u32>,
    /// Datagrams from it, per second.
    pub packets_in_per_s: u32,
    /// Datagrams to it, per second.
    pub packets_out_per_s: u32,
    /// Sent to it and lost, since it came.
    pub lost: u64,
    /// Dropped for it because no session had room, since it came.
    pub aged: u64,
    /// Dropped of its own because they were over its rate, or more Opus than is decoded for mixes, since it came; and packets of its own, dropped unread because more came
    /// than the relay could do.
    pub over_rate: u64,
}

/// What a mix is sent as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MixFormat {
    /// As it was asked for, or in 16 bits.
    Samples,
    /// For want of room.
    Opus,
}

/// Of a distribution, us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: u32,
    /// 99 of 100 are at most this.
    pub p99: u32,
}

fn as_in_logs<T: fmt::Debug, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_hidden_from_logs() {
        let token = Token::random();
        let written = serde_json::to_string(&token).expect("serialises");
        let digits = written.trim_matches('"');
        assert_eq!(digits.len(), 32);
        assert_eq!(digits.parse(), Ok(token));
        assert_eq!(digits.to_uppercase().parse(), Ok(token));
        assert_ne!(token, Token::random());
        assert_eq!(format!("{token:?}"), "***");
        for bad in [
            "",
            "00",
            &digits[1..],
            &format!("{digits}00"),
            &"g".repeat(32),
        ] {
            assert_eq!(bad.parse::<Token>(), Err(TokenError), "{bad}");
        }
    }

    #[test]
    fn a_snapshot_shows_no_key() {
        let room: RoomName = "abcdefghijkl-_09".parse().expect("valid");
        let status = MediaStatus {
            loop_lag_us: Some(Quantiles { p50: 1, p99: 2 }),
            transit_us: None,
            refused: 0,
            rooms: vec![RoomMedia {
                room: room.clone(),
                forward_us: None,
                mix_us: None,
                participants: vec![],
            }],
        };
        let written = serde_json::to_value(&status).expect("serialises");
        assert_eq!(written["rooms"][0]["room"], format!("{room:?}"));
        assert!(!written.to_string().contains(room.as_str()));
    }
}
