//! What Prometheus is told of the relay. Who has left has no series any more; a room is named by its hash, as in logs, a participant by its
//! number in the room: its id could be made like another's.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter},
    registry::Unit,
};
use tokio::sync::watch;

use super::{latency::Latencies, room::Counts};

/// All that is counted, as it was at one time. The media thread makes one each second, so that a scrape costs it nothing.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(super) participants: Vec<Traffic>,
    pub(super) forward: Latencies,
    pub(super) transit: Latencies,
    pub(super) mix: Latencies,
    pub(super) lag: Latencies,
    /// Sessions of addresses that had as many as they may, or opened them too fast.
    pub(super) refused: u64,
    /// Mixes that were one too many for the server.
    pub(super) mixes_refused: u64,
    /// Packets dropped unread because more came than the thread could do.
    pub(super) overloaded: u64,
}

/// One participant's datagrams.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) room: String,
    /// The participant's number in the room.
    pub(super) stream: String,
    pub(super) counts: Counts,
    /// Packets to it that QUIC found lost.
    pub(super) lost: u64,
}

/// Shows the newest snapshot at each scrape.
#[derive(Debug)]
pub(crate) struct RelayMetrics(pub(super) watch::Receiver<Arc<Snapshot>>);

impl Collector for RelayMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = Arc::clone(&self.0.borrow());
        // Each once, or Prometheus takes none at all: rooms can be given names whose hashes begin alike. Of such, one is shown.
        let participants: BTreeMap<_, _> = (snapshot.participants.iter())
            .map(|traffic| ((traffic.room.as_str(), traffic.stream.as_str()), traffic))
            .collect();
        for (index, (name, help)) in NAMES.into_iter().enumerate() {
            if participants.is_empty() {
                break;
            }
            let name = format!("relay_datagrams_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for ((room, stream), traffic) in &participants {
                let labels = [("room", *room), ("stream", *stream)];
                let counter = ConstCounter::new(traffic.values()[index]);
                counter.encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, count) in [
            (
                "relay_sessions_refused",
                "Sessions refused because their address had too many, opened them too fast or had 64 handshakes under way, or because all had 512",
                snapshot.refused,
            ),
            (
                "relay_mixes_refused",
                "Mixes refused because the server mixed enough already",
                snapshot.mixes_refused,
            ),
            (
                "relay_packets_overloaded",
                "Packets dropped unread because more came than the media thread could do, of those who caused the most",
                snapshot.overloaded,
            ),
        ] {
            let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(count).encode(counter)?;
        }
        for (name, help, latencies) in [
            (
                "relay_forward_latency",
                "From a datagram's arrival until its last copy was handed to QUIC",
                &snapshot.forward,
            ),
            (
                "relay_transit_latency",
                "From reading a datagram from the socket, with all that came at the same moment, until its last copy was written there",
                &snapshot.transit,
            ),
            (
                "relay_mix_latency",
                "From the last frame a mix needed until its datagram was written to the socket",
                &snapshot.mix,
            ),
            (
                "relay_loop_lag",
                "How late the media thread's loop comes round to what is due, up to 1 ms of it the grain of its timers",
                &snapshot.lag,
            ),
        ] {
            let mut histogram = encoder.encode_descriptor(
                name,
                help,
                Some(&Unit::Seconds),
                MetricType::Histogram,
            )?;
            let (sum, count) = (latencies.sum().as_secs_f64(), latencies.count());
            histogram.encode_histogram::<NoLabelSet>(sum, count, &latencies.octaves(), None)?;
        }
        Ok(())
    }
}

/// What is counted of each participant, and what of.
const NAMES: [(&str, &str); 7] = [
    ("received", "From a participant"),
    (
        "malformed",
        "From a participant, dropped because they match the protocol in no way",
    ),
    (
        "over_rate",
        "From a participant, dropped because they were over its rate, or not decoded for mixes because that was too much Opus; and packets dropped unread because it caused more work than the media thread could do",
    ),
    ("sent", "To a participant"),
    (
        "copied",
        "To a participant, within the one after or a second time, because its downlink loses some",
    ),
    (
        "aged",
        "To a participant, dropped because no session had room",
    ),
    (
        "lost",
        "Packets to a participant, of one or more datagrams, that QUIC found lost; copies may have made up for them",
    ),
];

impl Traffic {
    /// In the order of [`NAMES`].
    fn values(&self) -> [u64; NAMES.len()] {
        let Counts {
            received,
            malformed,
            over_rate,
            sent,
            copied,
            aged,
            ..
        } = self.counts;
        [
            received, malformed, over_rate, sent, copied, aged, self.lost,
        ]
    }
}
