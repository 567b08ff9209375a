//! One listener's personal mix of other participants: for who cannot receive every stream.
//!
//! Sans-IO, on the engine's two halves: a [`Player`] aligns the sources and reconciles their clocks as in a client, and a
//! [`Sender`] makes datagrams of what it renders. The host tells the time, as a [`Duration`] on its monotonic clock, and sends what
//! [`poll_datagram`](Mixer::poll_datagram) gives: first after each arrival, then when [`poll_timeout`](Mixer::poll_timeout) says so.
//!
//! A packet of the mix is due when the clock, in frames of the nominal rate, reaches its end: by then each source's jitter buffer has given its
//! frames time enough. But it leaves before that, as soon as every source that plays is there, within the call that brought the
//! last frame of it. So the mix runs ahead of the clock by as much as the slowest source allows, and adds no delay of its own; what
//! varies is for the listener's jitter buffer, which has to take the network's jitter anyway.
//!
//! Nobody hears themselves only because the host does not name a listener's own stream as a source.

use std::time::Duration;

use antiphon_core::conceal::Concealment;
use antiphon_core::limiter::Limiter;
use antiphon_core::player::StreamId;
use antiphon_core::wire::{self, Datagram, Kind, MAX_PACKET_FRAMES, MIN_PACKET_FRAMES, MIX_STREAM};
use antiphon_core::{
    Command, Player, PlayerConfig, SampleFormat, SampleRate, Sender, SenderConfig, StreamStats,
};
use serde::Deserialize;

/// Channels of a mix.
const CHANNELS: usize = 2;
/// What a source's jitter buffer begins with, until its spread is known: half of what a page begins with, for there are no
/// bursts of rendering here. Less would have a musician with a browser's bursts of capture begin with gaps.
const FIRST_TARGET_SECONDS: f64 = 0.01;
/// Slots of a source's jitter buffer at up to 48 kHz; twice as many above.
const BUFFER_FRAMES: usize = 8_192;
/// A host that is behind by more has been asleep: what it missed is not made up for.
const ASLEEP: Duration = Duration::from_millis(250);

/// A participant in a mix, and how loud.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The participant's number in the room.
    pub stream: u16,
    /// Linear, 0 to 4; clamped.
    pub gain: f32,
    /// -1 (left) to 1 (right); clamped.
    pub pan: f32,
    /// Silent, whatever the gain.
    pub muted: bool,
}

/// A datagram of the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixed {
    /// Its length, in bytes.
    pub length: usize,
    /// When the last frame that it needed came; `None` if it did not wait for all, because it was due.
    pub complete_at: Option<Duration>,
}

/// See the module.
#[derive(Debug)]
pub struct Mixer {
    player: Player,
    sender: Sender,
    limiter: Limiter,
    rate: SampleRate,
    packet_frames: usize,
    /// The host's clock at media time 0 of the mix.
    epoch: Duration,
    /// The participants in the mix, and what the player calls their streams: a new name each time one is added.
    sources: Vec<(u16, StreamId)>,
    next_id: StreamId,
    /// The newest packet, `[channel][frame]`.
    packet: Box<[f32]>,
    /// When the newest datagram came.
    newest_at: Duration,
    /// When the next packet became complete.
    complete_at: Option<Duration>,
    /// The same of the packet whose datagrams are polled.
    polled_complete_at: Option<Duration>,
    unmixable: u64,
}

impl Mixer {
    /// A mix of nobody, from `now` on. `format` is that of its samples; `packet_frames` is clamped to 16 to 512.
    pub fn new(
        rate: SampleRate,
        format: SampleFormat,
        packet_frames: usize,
        now: Duration,
    ) -> Self {
        let packet_frames = packet_frames.clamp(MIN_PACKET_FRAMES, MAX_PACKET_FRAMES);
        let is_high_rate = rate.hz() > SampleRate::Hz48000.hz();
        Self {
            player: Player::new(PlayerConfig {
                rate,
                output_channels: CHANNELS,
                max_streams: 0,
                buffer_frames: BUFFER_FRAMES * if is_high_rate { 2 } else { 1 },
                concealment: Concealment::Prediction,
            }),
            sender: Sender::new(SenderConfig {
                rate,
                format,
                channels: CHANNELS,
                packet_frames,
            }),
            limiter: Limiter::new(rate.hz()),
            rate,
            packet_frames,
            epoch: now,
            sources: Vec::new(),
            next_id: 0,
            packet: vec![0.0; CHANNELS * packet_frames].into_boxed_slice(),
            newest_at: now,
            complete_at: None,
            polled_complete_at: None,
            unmixable: 0,
        }
    }

    /// Changes who is in the mix, and how loud. Changes of gain are ramped, and who stays goes on undisturbed. Of a participant who is
    /// named twice, the last counts.
    ///
    /// Allocates, where there are more sources than ever before.
    pub fn set_sources(&mut self, sources: &[Source]) {
        let player = &mut self.player;
        self.sources.retain(|&(stream, id)| {
            let stays = sources.iter().any(|source| source.stream == stream);
            if !stays {
                carry_out(player, Command::Remove(id));
            }
            stays
        });
        for source in sources {
            let id = self
                .id(source.stream)
                .unwrap_or_else(|| self.add(source.stream));
            for command in [
                Command::Gain(id, source.gain),
                Command::Pan(id, source.pan),
                Command::Mute(id, source.muted),
            ] {
                carry_out(&mut self.player, command);
            }
        }
        // Perhaps only who has left was waited for.
        self.look_for_packet();
    }

    /// Takes an audio datagram of a participant. Who is not in the mix is ignored; Opus cannot be mixed, and is counted.
    ///
    /// RT: no alloc, no lock, O(frames + sources).
    pub fn handle_audio(&mut self, stream: u16, bytes: &[u8], now: Duration) {
        let Some(id) = self.id(stream) else {
            return;
        };
        if matches!(wire::parse(bytes), Ok(Datagram::Opus(..))) {
            self.unmixable += 1;
            return;
        }
        let rendered = self.player.rendered_frames();
        let lead = rendered.wrapping_sub(self.clock(now)) as i64;
        self.player.set_lead(lead);
        self.player.handle_datagram(id, bytes);
        self.newest_at = now;
        self.look_for_packet();
    }

    /// Writes the mix's next datagram into `out`, if its frames are there or it is due. To be called until it gives `None`.
    ///
    /// RT: no alloc, no lock, O(sources × frames).
    ///
    /// # Panics
    /// If `out` is shorter than [`wire::MAX_DATAGRAM_BYTES`].
    pub fn poll_datagram(&mut self, now: Duration, out: &mut [u8]) -> Option<Mixed> {
        if let Some(mixed) = self.poll_packet(out) {
            return Some(mixed);
        }
        if self.sources.is_empty() {
            return None;
        }
        if self.complete_at.is_none() {
            let behind = self.clock(now).checked_sub(self.due())?;
            if behind > self.clock(self.epoch + ASLEEP) {
                self.player.pass(behind);
                self.sender.pass(behind);
            }
        }
        self.render();
        self.poll_packet(out)
    }

    /// When [`poll_datagram`](Self::poll_datagram) gives a datagram even if nothing comes; `None` while there are no sources.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.sources.is_empty() {
            return None;
        }
        let nanos = u128::from(self.due()) * 1_000_000_000;
        let due = nanos.div_ceil(u128::from(self.rate.hz()));
        let due = self.epoch + Duration::from_nanos(due as u64);
        Some(self.complete_at.unwrap_or(due))
    }

    /// Datagrams that could not be mixed, because they carry Opus.
    pub fn unmixable(&self) -> u64 {
        self.unmixable
    }

    /// What is known of a participant's stream; `None` if it is not in the mix.
    pub fn source_stats(&self, stream: u16) -> Option<StreamStats> {
        self.player.stream_stats(self.id(stream)?)
    }

    /// Frames of the nominal rate since the epoch.
    fn clock(&self, now: Duration) -> u64 {
        let nanos = now.saturating_sub(self.epoch).as_nanos();
        (nanos * u128::from(self.rate.hz()) / 1_000_000_000) as u64
    }

    /// The clock when the next packet is due: at its end, so that its last frame has as long as the first.
    fn due(&self) -> u64 {
        self.player.rendered_frames() + self.packet_frames as u64
    }

    fn id(&self, stream: u16) -> Option<StreamId> {
        let known = |&&(known, _): &&(u16, StreamId)| known == stream;
        self.sources.iter().find(known).map(|&(_, id)| id)
    }

    fn add(&mut self, stream: u16) -> StreamId {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.sources.push((stream, id));
        self.player.reserve(self.sources.len());
        let target = f64::from(self.rate.hz()) * FIRST_TARGET_SECONDS;
        for command in [Command::Add(id), Command::Expect(id, target as u32)] {
            carry_out(&mut self.player, command);
        }
        id
    }

    /// Finds out whether the next packet is complete, and since when.
    fn look_for_packet(&mut self) {
        self.complete_at = if self.player.is_ready(self.packet_frames) {
            self.complete_at.or(Some(self.newest_at))
        } else {
            None
        };
    }

    fn render(&mut self) {
        self.player.process_quantum(&mut self.packet);
        self.limiter.process(&mut self.packet, self.packet_frames);
        self.sender.push(&self.packet, self.packet_frames);
        self.polled_complete_at = self.complete_at.take();
        self.look_for_packet();
    }

    /// The next datagram of what was rendered.
    fn poll_packet(&mut self, out: &mut [u8]) -> Option<Mixed> {
        let length = self.sender.poll_datagram(out)?;
        Kind::Audio.set_stream(&mut out[..length], MIX_STREAM);
        Some(Mixed {
            length,
            complete_at: self.polled_complete_at,
        })
    }
}

/// Carries out a command on a stream that is known, or that there is room for.
fn carry_out(player: &mut Player, command: Command) {
    let done = player.handle_command(command);
    debug_assert_eq!(done, Ok(()), "{command:?}");
}
