//! What a participant knows of itself and of the others: an output, for the terminal and for scripts. Figures are measured; one
//! that is not known (yet) is `None`, never 0. `antiphon join --json` writes it: `docs/automation.md`.

use antiphon_core::{SampleFormat, StreamFormat};
use serde::Serialize;

use crate::relay::RelayStatistics;
use antiphon_opus::outgoing::{Listener, Rung};

/// Everything, at some moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// One's own id; `None` before joining.
    pub id: Option<String>,
    /// The connection to the server; sound does not need it once connected.
    pub signalling: Signalling,
    /// Why the last attempt at that connection failed, for people; `None` while it is there.
    pub offline: Option<String>,
    /// Why it is all over, for people; `None` while it is not.
    pub ended: Option<String>,
    /// What the user should know and can do something about; for half a minute.
    pub notice: Option<String>,
    /// Why no sound card is connected, or which of its inputs it has not, for people; `None` while nothing is wrong with it.
    pub refused: Option<String>,
    /// The room's, Hz.
    pub sample_rate_hz: u32,
    /// Frames of the device's last quantum.
    pub quantum_frames: u32,
    /// Frames per packet sent.
    pub packet_frames: usize,
    /// Quanta that came late, as the device counts them.
    pub xruns: u64,
    /// No sound card is connected to what is captured, so that it is silence.
    pub has_no_input: bool,
    /// Nor to what is played, so that nothing is heard.
    pub has_no_output: bool,
    /// Frames that were not captured because a cycle of the graph was missed, or were lost on their way to the network; they are made up.
    pub overrun_frames: u64,
    /// Datagrams that did not fit the ring to the audio thread.
    pub ring_overflows: u64,
    /// Datagrams sent: each counts once, whoever gets it.
    pub packets: u64,
    /// One does not send one's sound, but silence.
    pub is_muted: bool,
    /// The owner muted one.
    pub is_muted_by_owner: bool,
    /// One owns the room: may mute and remove others.
    pub is_owner: bool,
    /// Who wants to come in says a passphrase; as it was while the connection to the server was there last.
    pub is_locked: bool,
    /// Linear, of each channel captured, since the last status.
    pub input_peaks: Vec<f32>,
    /// Linear, of the mix, since the last status.
    pub output_peaks: [f32; 2],
    /// The way through the server.
    pub relay: RelayStatus,
    /// The others, in order of joining; where the server mixes, the mix is the last.
    pub peers: Vec<PeerStatus>,
}

/// The connection to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Signalling {
    /// Not yet, or not any more: it is being made.
    #[default]
    Connecting,
    /// There.
    Online,
}

/// The way through the server.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RelayStatus {
    /// Sessions that are open.
    pub sessions: usize,
    /// Why none is, for people, where it should be.
    pub trouble: Option<String>,
    /// Least round-trip time of the sessions' last probes, ms; `None` if none was answered within 3 s.
    pub rtt_ms: Option<f64>,
    /// How many take our stream from the relay; `None` before it said so.
    pub listeners: Option<u32>,
    /// Datagrams of ours that no session had room for.
    pub dropped_packets: u64,
    /// The relay's own figures.
    pub statistics: Option<RelayStatistics>,
    /// What it is sent; `None` while nothing is.
    pub sent: Option<SentStatus>,
}

/// What a listener is sent.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SentStatus {
    /// `s16`, `s24`, `f32` or `opus`.
    pub format: &'static str,
    /// Of Opus, bit/s.
    pub opus_bps: Option<u32>,
    /// Steps down from the format that was chosen.
    pub rung: usize,
    /// Copies are sent.
    pub copies: bool,
    /// Datagrams that carried a copy, and those of Opus that were sent a second time.
    pub copies_sent: u64,
    /// Changes of the format.
    pub switches: u64,
}

impl SentStatus {
    /// `main`: what samples are sent as.
    pub(crate) fn of(listener: &Listener, main: SampleFormat) -> Self {
        let named = |format| format_name(StreamFormat::Samples(format));
        let (format, opus_bps) = match listener.rung() {
            Rung::Main => (named(main), None),
            Rung::Narrow => (named(SampleFormat::S16), None),
            Rung::Opus { kbps, .. } => (format_name(StreamFormat::Opus), Some(kbps * 1_000)),
        };
        Self {
            format,
            opus_bps,
            rung: listener.step(),
            copies: listener.sends_copies(),
            copies_sent: listener.copies_sent,
            switches: listener.switches,
        }
    }
}

/// As the page's statistics call it.
pub(crate) fn format_name(format: StreamFormat) -> &'static str {
    match format {
        StreamFormat::Samples(SampleFormat::S16) => "s16",
        StreamFormat::Samples(SampleFormat::S24) => "s24",
        StreamFormat::Samples(SampleFormat::F32) => "f32",
        StreamFormat::Opus => "opus",
    }
}

/// One other.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PeerStatus {
    /// The participant; empty for the server's mix.
    pub id: String,
    /// For people.
    pub name: String,
    /// Its connection to the server is there.
    pub is_present: bool,
    /// The owner muted it.
    pub is_muted_by_owner: bool,
    /// Linear, 0 to 4.
    pub gain: f32,
    /// −1 (left) to 1 (right).
    pub pan: f32,
    /// By us.
    pub is_muted: bool,
    /// By us.
    pub is_solo: bool,
    /// Open data channels.
    pub direct_lanes: usize,
    /// Its sound came by them within the last second.
    pub is_heard_directly: bool,
    /// Its sound came through the relay within the last second.
    pub is_relayed: bool,
    /// It is in the server's mix.
    pub is_mixed: bool,
    /// Least round-trip time of the lanes' last probes, ms; `None` if none was answered within 3 s.
    pub rtt_ms: Option<f64>,
    /// Left, right; linear, before gain.
    pub peaks: [f32; 2],
    /// Datagrams that arrived, without duplicates.
    pub received_packets: u64,
    /// Sequence numbers not seen.
    pub lost_packets: u64,
    /// Datagrams that came after their turn.
    pub late_packets: u64,
    /// Frames received and played.
    pub played_frames: u64,
    /// Frames made up in place of missing ones.
    pub concealed_frames: u64,
    /// Times the buffer ran dry.
    pub underruns: u64,
    /// Frames waiting now.
    pub buffer_frames: Option<u64>,
    /// The delay aimed at, frames.
    pub target_frames: u64,
    /// By how much its clock is faster, ppm.
    pub drift_ppm: Option<f32>,
    /// From its microphone to our ear.
    pub mouth_to_ear: Option<MouthToEarStatus>,
    /// What comes from it: `s16`, `s24`, `f32` or `opus`; `None` before anything has.
    pub format: Option<&'static str>,
    /// What its lanes are sent; `None` while nothing is.
    pub sent: Option<SentStatus>,
    /// Whether it captures anything, by its own report; `None` while it does not report.
    pub captures: Option<bool>,
    /// How we hear it, over the last 4 s; `None` before that is known, and while the owner mutes it.
    pub hearing: Option<HeardStatus>,
    /// How it hears us, by its own report.
    pub heard: Option<HeardStatus>,
}

/// Delay from a peer's microphone to our ear.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MouthToEarStatus {
    /// The stages that are known, ms.
    pub known_ms: f64,
    /// It may be wrong by so much, ms.
    pub error_ms: f64,
    /// All stages are known; otherwise it is more than that.
    pub is_whole: bool,
}

/// How a peer hears us, or we hear it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HeardStatus {
    /// It is heard in the server's mix: loss, lateness and buffer are those of the mix.
    pub is_mixed: bool,
    /// 0 to 1, of the frames that it played, the server's mixer included; `None` where it played none.
    pub concealed_share: Option<f64>,
    /// 0 to 1, of the datagrams that should have come; `None` when none should.
    pub lost_share: Option<f64>,
    /// Ditto, those that came too late.
    pub late_share: Option<f64>,
    /// Of its jitter buffer.
    pub buffer_frames: Option<u32>,
}
