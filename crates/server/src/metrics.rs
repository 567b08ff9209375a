//! What the server counts, in Prometheus's text format. No label holds a name or an address; a
//! room is named as in logs.

use std::{
    collections::BTreeMap,
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use crate::{rooms::Moderated, signalling::ErrorCode};

/// Why something was not accepted, or not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DropReason {
    /// A page of another site tried to connect.
    ForeignOrigin,
    /// An address has too many connections, or opens them too fast.
    TooManyConnections,
    /// No hello in time.
    HelloTimeout,
    /// Nothing was heard of a connection for too long.
    Silent,
    /// A page did not read what it was sent.
    SlowClient,
    /// Too much waits for a participant that is away.
    PeerAway,
    /// Too much waits for a participant that is there: a signal to it was dropped.
    PeerSlow,
    /// A binary message, or text that is not UTF-8.
    NotText,
    /// A message longer than the limit.
    Oversized,
    /// [`ErrorCode::BadMessage`], and none of the more precise reasons.
    BadMessage,
    /// [`ErrorCode::BadVersion`].
    BadVersion,
    /// [`ErrorCode::RoomFull`].
    RoomFull,
    /// [`ErrorCode::ServerFull`].
    ServerFull,
    /// [`ErrorCode::TooFast`].
    TooFast,
    /// [`ErrorCode::Passphrase`].
    Passphrase,
    /// [`ErrorCode::Removed`]: whoever is removed, and each try to come back.
    Removed,
    /// [`ErrorCode::NotOwner`].
    NotOwner,
    /// [`ErrorCode::NotNow`].
    NotNow,
    /// [`ErrorCode::UnknownPeer`].
    UnknownPeer,
    /// [`ErrorCode::Replaced`].
    Replaced,
    /// [`ErrorCode::ShuttingDown`].
    ShuttingDown,
}

impl DropReason {
    /// All of them.
    pub(crate) const ALL: [Self; 21] = [
        Self::ForeignOrigin,
        Self::TooManyConnections,
        Self::HelloTimeout,
        Self::Silent,
        Self::SlowClient,
        Self::PeerAway,
        Self::PeerSlow,
        Self::NotText,
        Self::Oversized,
        Self::BadMessage,
        Self::BadVersion,
        Self::RoomFull,
        Self::ServerFull,
        Self::TooFast,
        Self::Passphrase,
        Self::Removed,
        Self::NotOwner,
        Self::NotNow,
        Self::UnknownPeer,
        Self::Replaced,
        Self::ShuttingDown,
    ];

    /// The `reason` label.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ForeignOrigin => "foreign_origin",
            Self::TooManyConnections => "too_many_connections",
            Self::HelloTimeout => "hello_timeout",
            Self::Silent => "silent",
            Self::SlowClient => "slow_client",
            Self::PeerAway => "peer_away",
            Self::PeerSlow => "peer_slow",
            Self::NotText => "not_text",
            Self::Oversized => "oversized",
            Self::BadMessage => "bad_message",
            Self::BadVersion => "bad_version",
            Self::RoomFull => "room_full",
            Self::ServerFull => "server_full",
            Self::TooFast => "too_fast",
            Self::Passphrase => "passphrase",
            Self::Removed => "removed",
            Self::NotOwner => "not_owner",
            Self::NotNow => "not_now",
            Self::UnknownPeer => "unknown_peer",
            Self::Replaced => "replaced",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

impl From<ErrorCode> for DropReason {
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::BadMessage => Self::BadMessage,
            ErrorCode::BadVersion => Self::BadVersion,
            ErrorCode::RoomFull => Self::RoomFull,
            ErrorCode::ServerFull => Self::ServerFull,
            ErrorCode::TooFast => Self::TooFast,
            ErrorCode::Passphrase => Self::Passphrase,
            ErrorCode::Removed => Self::Removed,
            ErrorCode::NotOwner => Self::NotOwner,
            ErrorCode::NotNow => Self::NotNow,
            ErrorCode::UnknownPeer => Self::UnknownPeer,
            ErrorCode::Replaced => Self::Replaced,
            ErrorCode::ShuttingDown => Self::ShuttingDown,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAction {
    action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByType {
    r#type: &'static str,
}

/// The counters of one server.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) rooms: Gauge,
    pub(crate) participants: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) welcome_seconds: Histogram,
    received: Family<ByType, Counter>,
    sent: Family<ByType, Counter>,
    dropped: Family<ByReason, Counter>,
    moderated: Family<ByAction, Counter>,
}

impl Metrics {
    /// Adds these to a registry in which other parts of the server have theirs already.
    pub(crate) fn new(mut registry: Registry) -> Self {
        let metrics = Self {
            rooms: Gauge::default(),
            participants: Gauge::default(),
            connections: Gauge::default(),
            welcome_seconds: Histogram::new([0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1]),
            received: Family::default(),
            sent: Family::default(),
            dropped: Family::default(),
            moderated: Family::default(),
            registry: Registry::default(),
        };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The server that runs", build);
        let started: Gauge = Gauge::default();
        started.set(unix_s(SystemTime::now()));
        registry.register_with_unit(
            "start_time",
            "When the server started, Unix time",
            Unit::Seconds,
            started,
        );
        registry.register("rooms", "Rooms with someone in them", metrics.rooms.clone());
        registry.register(
            "participants",
            "Participants in all rooms, those who are away included",
            metrics.participants.clone(),
        );
        registry.register(
            "connections",
            "Open signalling connections",
            metrics.connections.clone(),
        );
        registry.register_with_unit(
            "welcome_latency",
            "From reading a hello to queueing its welcome",
            Unit::Seconds,
            metrics.welcome_seconds.clone(),
        );
        registry.register(
            "messages_received",
            "Signalling messages from pages",
            metrics.received.clone(),
        );
        registry.register(
            "messages_sent",
            "Signalling messages queued for pages",
            metrics.sent.clone(),
        );
        registry.register(
            "dropped",
            "What was refused or not delivered, by reason",
            metrics.dropped.clone(),
        );
        registry.register(
            "moderated",
            "What owners did in their rooms, and those who returned to them, by action",
            metrics.moderated.clone(),
        );
        Self {
            registry,
            ..metrics
        }
    }

    /// Everything, in the OpenMetrics text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a String takes any text");
        text
    }

    pub(crate) fn count_received(&self, kind: &'static str) {
        self.received.get_or_create(&ByType { r#type: kind }).inc();
    }

    pub(crate) fn count_sent(&self, kind: &'static str) {
        self.sent.get_or_create(&ByType { r#type: kind }).inc();
    }

    pub(crate) fn count_dropped(&self, reason: DropReason) {
        self.dropped
            .get_or_create(&ByReason {
                reason: reason.name(),
            })
            .inc();
    }

    pub(crate) fn count_moderated(&self, what: Moderated) {
        let action = what.name();
        self.moderated.get_or_create(&ByAction { action }).inc();
    }

    /// What was dropped since the start, by reason; reasons that did not occur are not there.
    pub(crate) fn dropped(&self) -> BTreeMap<&'static str, u64> {
        let count = |reason: DropReason| {
            let labels = ByReason {
                reason: reason.name(),
            };
            Some((reason.name(), self.dropped.get(&labels)?.get()))
        };
        DropReason::ALL.into_iter().filter_map(count).collect()
    }
}

/// Whole seconds since 1970; 0 before that.
pub(crate) fn unix_s(time: SystemTime) -> i64 {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since_epoch.as_secs().try_into().unwrap_or(i64::MAX)
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_is_shown_every_reason() {
        let known: Vec<_> = DropReason::ALL
            .iter()
            .map(|reason| *reason as usize)
            .collect();
        let expected: Vec<_> = (0..=DropReason::ShuttingDown as usize).collect();
        assert_eq!(known, expected, "ALL lists them as they are declared");
        let metrics = Metrics::new(Registry::default());
        for reason in DropReason::ALL {
            metrics.count_dropped(reason);
        }
        assert_eq!(metrics.dropped().len(), DropReason::ALL.len());
    }
}
