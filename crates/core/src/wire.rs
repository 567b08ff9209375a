//! The datagram format, byte for byte as in `docs/protocol.md`.
//!
//! Parsing trusts nothing: every length, range and enum is checked, no input panics, and what does not match is
//! refused with a [`Malformed`] reason for the caller to count.

use crate::{adpcm, pcm};

/// Protocol version in the first byte of every datagram.
pub const VERSION: u8 = 1;
/// Longest datagram, in bytes: Firefox's WebTransport carries 1,024, and relays need room for their own framing.
pub const MAX_DATAGRAM_BYTES: usize = 1_000;
/// Bytes before the samples of an audio datagram.
pub const AUDIO_HEADER_BYTES: usize = 20;
/// Exact length of a probe or its reply, in bytes.
pub const PROBE_BYTES: usize = 24;
/// Exact length of a report, in bytes.
pub const REPORT_BYTES: usize = 92;
/// Longest duration in a report, in us: what takes longer is no live music.
pub const MAX_REPORT_US: u32 = 60_000_000;
/// Longest time that a report's counts may cover, in ms.
pub const MAX_PERIOD_MS: u16 = 60_000;
/// Most channels in a stream.
pub const MAX_CHANNELS: usize = 8;
/// Fewest frames a sender may collect into a packet.
pub const MIN_PACKET_FRAMES: usize = 16;
/// Most frames in a packet, and so in a datagram.
pub const MAX_PACKET_FRAMES: usize = 512;
/// Most channels of an Opus stream.
pub const MAX_OPUS_CHANNELS: usize = 2;
/// Most frames of an Opus packet.
pub const MAX_OPUS_FRAMES: usize = 480;
/// Longest decoded Opus packet with its header, in bytes: see [`parse_decoded`].
pub const MAX_DECODED_BYTES: usize = AUDIO_HEADER_BYTES + MAX_OPUS_FRAMES * MAX_OPUS_CHANNELS * 4;

/// Stream number of a mix.
pub const MIX_STREAM: u16 = u16::MAX;

/// The format of Opus, beside those of [`SampleFormat`].
const FORMAT_OPUS: u8 = 4;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Samples or an Opus packet.
    Audio = 1,
    /// A [`Probe`] that asks.
    Probe = 2,
    /// A [`Probe`] that answers.
    ProbeReply = 3,
    /// A [`Report`].
    Report = 4,
}

impl Kind {
    /// Where a datagram of this kind holds its stream number.
    const fn stream_at(self) -> usize {
        match self {
            Self::Audio => 4,
            Self::Probe | Self::ProbeReply => 2,
            Self::Report => 54,
        }
    }

    /// Writes the stream number into a datagram of this kind, as [`route`] found it.
    ///
    /// RT: no alloc, no lock, O(1).
    ///
    /// # Panics
    /// If `bytes` is too short for a datagram of this kind.
    pub fn set_stream(self, bytes: &mut [u8], stream: u16) {
        bytes[self.stream_at()..][..2].copy_from_slice(&stream.to_le_bytes());
    }
}

/// How one sample is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SampleFormat {
    /// 16-bit signed integer.
    S16 = 1,
    /// 24-bit signed integer, three bytes.
    S24 = 2,
    /// 32-bit IEEE 754 float.
    F32 = 3,
}

impl SampleFormat {
    /// Bytes of one sample: 2, 3 or 4.
    pub const fn bytes(self) -> usize {
        self as usize + 1
    }

    /// From bits per sample: 16, 24 or 32; anything else is `None`.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            16 => Some(Self::S16),
            24 => Some(Self::S24),
            32 => Some(Self::F32),
            _ => None,
        }
    }

    /// Bits per sample: 16, 24 or 32.
    pub const fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }
}

/// The sample rates a room may agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SampleRate {
    /// 44,100 Hz.
    Hz44100 = 0,
    /// 48,000 Hz.
    Hz48000 = 1,
    /// 88,200 Hz.
    Hz88200 = 2,
    /// 96,000 Hz.
    Hz96000 = 3,
}

impl SampleRate {
    /// From a rate in Hz; one that no room may use is `None`.
    pub const fn from_hz(hz: u32) -> Option<Self> {
        match hz {
            44_100 => Some(Self::Hz44100),
            48_000 => Some(Self::Hz48000),
            88_200 => Some(Self::Hz88200),
            96_000 => Some(Self::Hz96000),
            _ => None,
        }
    }

    /// Frames per second.
    pub const fn hz(self) -> u32 {
        match self {
            Self::Hz44100 => 44_100,
            Self::Hz48000 => 48_000,
            Self::Hz88200 => 88_200,
            Self::Hz96000 => 96_000,
        }
    }

    /// Frames for about as long as `frames` last at 48 kHz: as many, or twice as many at the two higher rates. A power of two stays one.
    pub const fn scaled(self, frames: usize) -> usize {
        match self {
            Self::Hz44100 | Self::Hz48000 => frames,
            Self::Hz88200 | Self::Hz96000 => 2 * frames,
        }
    }
}

/// Everything in an audio datagram but its samples. Valid by construction when it comes from [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AudioHeader {
    /// How the samples are written.
    pub format: SampleFormat,
    /// The sender's sample rate.
    pub rate: SampleRate,
    /// 1 to [`MAX_CHANNELS`].
    pub channels: u8,
    /// 0 from the musician itself; a relay's number for the stream otherwise.
    pub stream: u16,
    /// 1 to [`MAX_PACKET_FRAMES`].
    pub frames: u16,
    /// Counts the stream's datagrams; wraps.
    pub sequence: u32,
    /// Media time of the first frame: its index on the sender's sample clock.
    pub timestamp: u64,
}

impl AudioHeader {
    /// Length of the whole datagram without a copy, in bytes. May exceed [`MAX_DATAGRAM_BYTES`] for a header nobody may send.
    pub const fn datagram_bytes(&self) -> usize {
        AUDIO_HEADER_BYTES + self.frames as usize * self.channels as usize * self.format.bytes()
    }

    /// Length of the copy that may follow: of as many frames, those before, a block of [`adpcm`] for each channel.
    pub const fn copy_bytes(&self) -> usize {
        self.channels as usize * adpcm::block_bytes(self.frames as usize)
    }

    /// The copy's blocks, one for each channel, of the room that it has from the front of `out` on.
    pub(crate) fn copy_blocks<'a>(&self, out: &'a mut [u8]) -> impl Iterator<Item = &'a mut [u8]> {
        out[..self.copy_bytes()].chunks_exact_mut(adpcm::block_bytes(self.frames.into()))
    }

    /// The header of the datagram that the copy is of.
    pub const fn before(&self) -> Self {
        Self {
            sequence: self.sequence.wrapping_sub(1),
            timestamp: self.timestamp.wrapping_sub(self.frames as u64),
            ..*self
        }
    }

    /// Writes the header to the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`AUDIO_HEADER_BYTES`].
    pub fn write(&self, out: &mut [u8]) {
        self.write_as(self.format as u8, out);
    }

    fn write_as(&self, format: u8, out: &mut [u8]) {
        out[0] = VERSION;
        out[1] = Kind::Audio as u8;
        out[2] = format | (self.rate as u8) << 4;
        out[3] = self.channels;
        out[4..6].copy_from_slice(&self.stream.to_le_bytes());
        out[6..8].copy_from_slice(&self.frames.to_le_bytes());
        out[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        out[12..20].copy_from_slice(&self.timestamp.to_le_bytes());
    }
}

/// Everything in an audio datagram of format Opus but its packet: always at 48,000 Hz. Valid by construction when it comes from
/// [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpusHeader {
    /// 1 to [`MAX_OPUS_CHANNELS`].
    pub channels: u8,
    /// As in [`AudioHeader`].
    pub stream: u16,
    /// 120, 240 or 480: 2.5, 5 or 10 ms.
    pub frames: u16,
    /// As in [`AudioHeader`]: a stream that changes its format goes on counting.
    pub sequence: u32,
    /// Media time of the first frame that the packet decodes to: the encoder's lookahead is taken off.
    pub timestamp: u64,
}

impl OpusHeader {
    /// The header of the samples that the packet decodes to.
    pub const fn decoded(&self) -> AudioHeader {
        AudioHeader {
            format: SampleFormat::F32,
            rate: SampleRate::Hz48000,
            channels: self.channels,
            stream: self.stream,
            frames: self.frames,
            sequence: self.sequence,
            timestamp: self.timestamp,
        }
    }

    /// Writes the header to the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`AUDIO_HEADER_BYTES`].
    pub fn write(&self, out: &mut [u8]) {
        self.decoded().write_as(FORMAT_OPUS, out);
    }
}

/// A probe of round-trip time and clock offset, or its reply, which repeats `stream`, `id` and `time_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// 0 on a direct lane; through a relay the number of the participant that it is for, or from.
    pub stream: u16,
    /// Chosen by the prober.
    pub id: u32,
    /// The prober's clock, ns.
    pub time_ns: u64,
    /// In a reply the replier's clock, ns; `None` in a probe.
    pub replied_ns: Option<u64>,
}

impl Probe {
    /// The bytes of the probe.
    pub fn to_bytes(self) -> [u8; PROBE_BYTES] {
        let mut out = [0; PROBE_BYTES];
        out[0] = VERSION;
        let kind = if self.replied_ns.is_some() {
            Kind::ProbeReply
        } else {
            Kind::Probe
        };
        out[1] = kind as u8;
        kind.set_stream(&mut out, self.stream);
        out[4..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..16].copy_from_slice(&self.time_ns.to_le_bytes());
        out[16..24].copy_from_slice(&self.replied_ns.unwrap_or(0).to_le_bytes());
        out
    }
}

/// What one end tells the other, twice a second: when it captures, and how it hears the other's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// As in [`Probe`].
    pub stream: u16,
    /// Counts the reports to this peer; wraps.
    pub id: u32,
    /// `None` while nothing is captured.
    pub capture: Option<CaptureReport>,
    /// `None` while the other's stream is not heard.
    pub heard: Option<HeardReport>,
}

/// The clock of a capture: one frame of it, and how long frames take from there to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureReport {
    /// Media time of the frame.
    pub timestamp: u64,
    /// When it was captured as far as the host knows, on the clock that the sender's probes and replies show, ns.
    pub time_ns: u64,
    /// `time_ns` may be wrong by so much, us; 0 to [`MAX_REPORT_US`].
    pub error_us: u32,
    /// From the capture of a block's first frame until the engine has the block, us; 0 to [`MAX_REPORT_US`].
    pub block_us: u32,
    /// From the capture of a datagram's first frame until it is handed to a lane, us; 0 to [`MAX_REPORT_US`].
    pub send_us: u32,
    /// What the input takes before the instant that `time_ns` names; `None`: unknown.
    pub input: Option<InputDelay>,
    /// Captured frames lost at the sender within the last seconds.
    pub overrun_frames: u32,
    /// Datagrams to this peer that the sender dropped within the last seconds, because every lane had a backlog.
    pub dropped_packets: u32,
}

/// Delay of a sound input beyond what its timestamps say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputDelay {
    /// True: measured by a loop-back. False: the word of the browser, or of the sound system.
    pub is_calibrated: bool,
    /// May be below 0, where the timestamps promise too much. Up to [`MAX_REPORT_US`] either way.
    pub delay_us: i32,
    /// 0 to [`MAX_REPORT_US`].
    pub error_us: u32,
}

/// How a stream is heard: counts of the last seconds, and the jitter buffer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardReport {
    /// It is heard in the server's mix. Then `concealed_frames` are the mix's and those that the mixer made up of the stream itself, and all else is the mix's.
    pub is_mixed: bool,
    /// What the counts cover, ms: 1 to [`MAX_PERIOD_MS`].
    pub period_ms: u16,
    /// Datagrams that arrived, without duplicates.
    pub received_packets: u32,
    /// Sequence numbers of which no copy came.
    pub lost_packets: u32,
    /// Datagrams that came after their turn.
    pub late_packets: u32,
    /// Frames received and played.
    pub played_frames: u32,
    /// Frames played in place of missing ones.
    pub concealed_frames: u32,
    /// Frames that wait, of at most `u32::MAX - 1`; `None` while nothing plays.
    pub buffer_frames: Option<u32>,
    /// Delay that the jitter buffer aims at.
    pub target_frames: u32,
    /// Spread of arrivals, of at most `u32::MAX - 1`; `None` before any is known.
    pub spread_frames: Option<u32>,
    /// Times the listener's own output ran dry, of at most `u32::MAX - 1`; `None` where its browser does not tell.
    pub output_underruns: Option<u32>,
}

const CAPTURE_KNOWN: u8 = 1;
const HEARD_KNOWN: u8 = 2;
/// Only with [`HEARD_KNOWN`].
const HEARD_MIXED: u8 = 4;
const INPUT_REPORTED: u8 = 1;
const INPUT_CALIBRATED: u8 = 2;
const CAPTURE_FIELDS: core::ops::Range<usize> = 8..52;
const HEARD_PERIOD: core::ops::Range<usize> = 52..54;
const HEARD_COUNTS: core::ops::Range<usize> = 56..REPORT_BYTES;
/// An optional count that is not known.
const UNKNOWN: u32 = u32::MAX;

impl Report {
    /// The bytes of the report.
    pub fn to_bytes(self) -> [u8; REPORT_BYTES] {
        let mut out = [0; REPORT_BYTES];
        out[0] = VERSION;
        out[1] = Kind::Report as u8;
        Kind::Report.set_stream(&mut out, self.stream);
        out[4..8].copy_from_slice(&self.id.to_le_bytes());
        if let Some(capture) = self.capture {
            out[2] |= CAPTURE_KNOWN;
            capture.write(&mut out);
        }
        if let Some(heard) = self.heard {
            out[2] |= HEARD_KNOWN;
            if heard.is_mixed {
                out[2] |= HEARD_MIXED;
            }
            heard.write(&mut out);
        }
        out
    }
}

impl CaptureReport {
    fn write(&self, out: &mut [u8; REPORT_BYTES]) {
        out[8..16].copy_from_slice(&self.timestamp.to_le_bytes());
        out[16..24].copy_from_slice(&self.time_ns.to_le_bytes());
        put_u32s(
            &mut out[24..36],
            [self.error_us, self.block_us, self.send_us],
        );
        if let Some(input) = self.input {
            out[3] = if input.is_calibrated {
                INPUT_CALIBRATED
            } else {
                INPUT_REPORTED
            };
            put_u32s(
                &mut out[36..44],
                [input.delay_us.cast_unsigned(), input.error_us],
            );
        }
        put_u32s(
            &mut out[44..52],
            [self.overrun_frames, self.dropped_packets],
        );
    }
}

impl HeardReport {
    fn write(&self, out: &mut [u8; REPORT_BYTES]) {
        out[HEARD_PERIOD].copy_from_slice(&self.period_ms.to_le_bytes());
        put_u32s(
            &mut out[HEARD_COUNTS],
            [
                self.received_packets,
                self.lost_packets,
                self.late_packets,
                self.played_frames,
                self.concealed_frames,
                self.buffer_frames.unwrap_or(UNKNOWN),
                self.target_frames,
                self.spread_frames.unwrap_or(UNKNOWN),
                self.output_underruns.unwrap_or(UNKNOWN),
            ],
        );
    }
}

fn put_u32s<const N: usize>(out: &mut [u8], numbers: [u32; N]) {
    for (field, number) in out.chunks_exact_mut(4).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
}

/// A datagram that matches the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// Audio: the header, exactly its samples, interleaved, and its copy of the datagram before, which may be empty.
    Audio(AudioHeader, &'a [u8], &'a [u8]),
    /// Audio: the header and one Opus packet (RFC 6716) of at least one byte, for the host to decode.
    Opus(OpusHeader, &'a [u8]),
    /// A probe or its reply.
    Probe(Probe),
    /// What the other end tells of its capture, and of how it hears us.
    Report(Report),
}

/// Why a datagram was refused. The caller drops and counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// Longer than [`MAX_DATAGRAM_BYTES`].
    Oversized,
    /// Too short for its header, or its length is not what its header says.
    Length,
    /// Another protocol version.
    Version,
    /// No kind of this version.
    Kind,
    /// No sample format or rate of this version.
    Encoding,
    /// No channels, or too many.
    Channels,
    /// No frames, or too many.
    Frames,
    /// A reserved field, or one of a part that is not there, is not zero.
    Reserved,
    /// A figure of a report that cannot be.
    Range,
}

fn le<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Malformed> {
    bytes
        .get(at..at + N)
        .and_then(|field| field.try_into().ok())
        .ok_or(Malformed::Length)
}

/// Reads a datagram.
///
/// # Errors
/// [`Malformed`]: drop it and count it.
///
/// RT: no alloc, no lock, O(1).
pub fn parse(bytes: &[u8]) -> Result<Datagram<'_>, Malformed> {
    match parse_kind(bytes)? {
        Kind::Audio => parse_audio(bytes),
        kind @ (Kind::Probe | Kind::ProbeReply) => parse_probe(bytes, kind == Kind::ProbeReply),
        Kind::Report => parse_report(bytes),
    }
}

/// What a relay must know of a datagram to pass it on: its kind, and the stream number that it carries. Nothing else is looked at but
/// the length, so what is inside may still be [`Malformed`] to whom it is for.
///
/// # Errors
/// [`Malformed`]: drop it and count it.
///
/// RT: no alloc, no lock, O(1).
pub fn route(bytes: &[u8]) -> Result<(Kind, u16), Malformed> {
    let kind = parse_kind(bytes)?;
    let is_whole = match kind {
        Kind::Audio => bytes.len() > AUDIO_HEADER_BYTES,
        Kind::Probe | Kind::ProbeReply => bytes.len() == PROBE_BYTES,
        Kind::Report => bytes.len() == REPORT_BYTES,
    };
    if !is_whole {
        return Err(Malformed::Length);
    }
    Ok((kind, parse_stream(bytes, kind)?))
}

/// The sequence number of an audio datagram that [`route`] has found whole.
///
/// RT: no alloc, no lock, O(1).
///
/// # Panics
/// If `bytes` is too short for one.
pub fn sequence(bytes: &[u8]) -> u32 {
    le(bytes, 8).map_or_else(|_| panic!("no audio datagram"), u32::from_le_bytes)
}

/// Gives a datagram of audio another sequence number.
///
/// RT: no alloc, no lock, O(1).
///
/// # Panics
/// If `bytes` is too short for one.
pub fn set_sequence(bytes: &mut [u8], sequence: u32) {
    bytes[8..12].copy_from_slice(&sequence.to_le_bytes());
}

/// A datagram without the copy that it may carry of the one before: what it is without, if it is one at all.
///
/// RT: no alloc, no lock, O(1).
pub fn without_copy(bytes: &[u8]) -> &[u8] {
    match parse(bytes) {
        Ok(Datagram::Audio(header, ..)) => &bytes[..header.datagram_bytes()],
        _ => bytes,
    }
}

/// Writes into `out` the copy that a datagram of samples may carry of the one `before`, as its sender would have, and returns its length: for who passes both
/// on. `None` if it has one already, has no room for one, or is not the next after that.
///
/// RT: no alloc, no lock, O(channels × frames).
///
/// # Panics
/// If `out` is shorter than [`MAX_DATAGRAM_BYTES`].
pub fn write_copy(before: &[u8], datagram: &[u8], out: &mut [u8]) -> Option<usize> {
    let (Ok(Datagram::Audio(earlier, samples, _)), Ok(Datagram::Audio(header, _, []))) =
        (parse(before), parse(datagram))
    else {
        return None;
    };
    let length = header.copy_bytes();
    if earlier != header.before() || datagram.len() + length > MAX_DATAGRAM_BYTES {
        return None;
    }
    let (channels, frames) = (usize::from(header.channels), usize::from(header.frames));
    let mut run = [0.0; MAX_PACKET_FRAMES];
    let run = &mut run[..frames];
    for (channel, block) in header.copy_blocks(out).enumerate() {
        pcm::decode_channel(header.format, samples, channel, channels, run);
        adpcm::encode(run.iter().copied(), block);
    }
    Some(length)
}

fn parse_kind(bytes: &[u8]) -> Result<Kind, Malformed> {
    if bytes.len() > MAX_DATAGRAM_BYTES {
        return Err(Malformed::Oversized);
    }
    let [version, kind] = le(bytes, 0)?;
    if version != VERSION {
        return Err(Malformed::Version);
    }
    match kind {
        1 => Ok(Kind::Audio),
        2 => Ok(Kind::Probe),
        3 => Ok(Kind::ProbeReply),
        4 => Ok(Kind::Report),
        _ => Err(Malformed::Kind),
    }
}

fn parse_stream(bytes: &[u8], kind: Kind) -> Result<u16, Malformed> {
    Ok(u16::from_le_bytes(le(bytes, kind.stream_at())?))
}

fn parse_audio(bytes: &[u8]) -> Result<Datagram<'_>, Malformed> {
    let [encoding, channels] = le(bytes, 2)?;
    if encoding & 0x0f == FORMAT_OPUS {
        let header = parse_opus_header(bytes)?;
        let packet = &bytes[AUDIO_HEADER_BYTES..];
        return if packet.is_empty() {
            Err(Malformed::Length)
        } else {
            Ok(Datagram::Opus(header, packet))
        };
    }
    let format = match encoding & 0x0f {
        1 => SampleFormat::S16,
        2 => SampleFormat::S24,
        3 => SampleFormat::F32,
        _ => return Err(Malformed::Encoding),
    };
    let rate = match encoding >> 4 {
        0 => SampleRate::Hz44100,
        1 => SampleRate::Hz48000,
        2 => SampleRate::Hz88200,
        3 => SampleRate::Hz96000,
        _ => return Err(Malformed::Encoding),
    };
    if !(1..=MAX_CHANNELS).contains(&(channels as usize)) {
        return Err(Malformed::Channels);
    }
    let frames = u16::from_le_bytes(le(bytes, 6)?);
    if !(1..=MAX_PACKET_FRAMES).contains(&(frames as usize)) {
        return Err(Malformed::Frames);
    }
    let header = AudioHeader {
        format,
        rate,
        channels,
        stream: parse_stream(bytes, Kind::Audio)?,
        frames,
        sequence: u32::from_le_bytes(le(bytes, 8)?),
        timestamp: u64::from_le_bytes(le(bytes, 12)?),
    };
    let end = header.datagram_bytes();
    if bytes.len() != end && bytes.len() != end + header.copy_bytes() {
        return Err(Malformed::Length);
    }
    let (own, copy) = bytes.split_at(end);
    Ok(Datagram::Audio(header, &own[AUDIO_HEADER_BYTES..], copy))
}

fn parse_opus_header(bytes: &[u8]) -> Result<OpusHeader, Malformed> {
    let [encoding, channels] = le(bytes, 2)?;
    if encoding != FORMAT_OPUS | (SampleRate::Hz48000 as u8) << 4 {
        return Err(Malformed::Encoding);
    }
    if !(1..=MAX_OPUS_CHANNELS).contains(&(channels as usize)) {
        return Err(Malformed::Channels);
    }
    let frames = u16::from_le_bytes(le(bytes, 6)?);
    if !matches!(frames, 120 | 240 | 480) {
        return Err(Malformed::Frames);
    }
    Ok(OpusHeader {
        channels,
        stream: parse_stream(bytes, Kind::Audio)?,
        frames,
        sequence: u32::from_le_bytes(le(bytes, 8)?),
        timestamp: u64::from_le_bytes(le(bytes, 12)?),
    })
}

/// Reads what the host decoded of a [`Datagram::Opus`]: that datagram's header, then its samples, `f32`, interleaved; or nothing, if the
/// host passed the packet over. No datagram from the network may be given here.
///
/// # Errors
/// [`Malformed`]: the host's mistake; drop it and count it.
///
/// RT: no alloc, no lock, O(1).
pub fn parse_decoded(bytes: &[u8]) -> Result<(AudioHeader, &[u8]), Malformed> {
    let [version, kind] = le(bytes, 0)?;
    if version != VERSION {
        return Err(Malformed::Version);
    }
    if kind != Kind::Audio as u8 {
        return Err(Malformed::Kind);
    }
    let header = parse_opus_header(bytes)?.decoded();
    if bytes.len() != AUDIO_HEADER_BYTES && bytes.len() != header.datagram_bytes() {
        return Err(Malformed::Length);
    }
    Ok((header, &bytes[AUDIO_HEADER_BYTES..]))
}

fn parse_probe(bytes: &[u8], is_reply: bool) -> Result<Datagram<'_>, Malformed> {
    if bytes.len() != PROBE_BYTES {
        return Err(Malformed::Length);
    }
    let replied_ns = u64::from_le_bytes(le(bytes, 16)?);
    if !is_reply && replied_ns != 0 {
        return Err(Malformed::Reserved);
    }
    Ok(Datagram::Probe(Probe {
        stream: parse_stream(bytes, Kind::Probe)?,
        id: u32::from_le_bytes(le(bytes, 4)?),
        time_ns: u64::from_le_bytes(le(bytes, 8)?),
        replied_ns: is_reply.then_some(replied_ns),
    }))
}

fn parse_report(bytes: &[u8]) -> Result<Datagram<'_>, Malformed> {
    if bytes.len() != REPORT_BYTES {
        return Err(Malformed::Length);
    }
    let [known, source] = le(bytes, 2)?;
    let has_any = |range: core::ops::Range<usize>| bytes[range].iter().any(|&byte| byte != 0);
    let has_capture = known & CAPTURE_KNOWN != 0;
    let has_heard = known & HEARD_KNOWN != 0;
    let is_mixed = known & HEARD_MIXED != 0;
    if known > CAPTURE_KNOWN | HEARD_KNOWN | HEARD_MIXED
        || (is_mixed && !has_heard)
        || source > INPUT_CALIBRATED
        || (source == 0 && has_any(36..44))
        || (!has_capture && (source != 0 || has_any(CAPTURE_FIELDS)))
        || (!has_heard && (has_any(HEARD_PERIOD) || has_any(HEARD_COUNTS)))
    {
        return Err(Malformed::Reserved);
    }
    let capture = has_capture.then(|| parse_capture(bytes, source));
    let heard = has_heard.then(|| parse_heard(bytes, is_mixed));
    Ok(Datagram::Report(Report {
        stream: parse_stream(bytes, Kind::Report)?,
        id: u32::from_le_bytes(le(bytes, 4)?),
        capture: capture.transpose()?,
        heard: heard.transpose()?,
    }))
}

fn parse_capture(bytes: &[u8], source: u8) -> Result<CaptureReport, Malformed> {
    let number = |at| Ok(u32::from_le_bytes(le(bytes, at)?));
    let duration = |at| match number(at)? {
        us if us > MAX_REPORT_US => Err(Malformed::Range),
        us => Ok(us),
    };
    let (error_us, block_us, send_us) = (duration(24)?, duration(28)?, duration(32)?);
    let delay_us = number(36)?.cast_signed();
    if delay_us.unsigned_abs() > MAX_REPORT_US {
        return Err(Malformed::Range);
    }
    let input = InputDelay {
        is_calibrated: source == INPUT_CALIBRATED,
        delay_us,
        error_us: duration(40)?,
    };
    Ok(CaptureReport {
        timestamp: u64::from_le_bytes(le(bytes, 8)?),
        time_ns: u64::from_le_bytes(le(bytes, 16)?),
        error_us,
        block_us,
        send_us,
        input: (source != 0).then_some(input),
        overrun_frames: number(44)?,
        dropped_packets: number(48)?,
    })
}

fn parse_heard(bytes: &[u8], is_mixed: bool) -> Result<HeardReport, Malformed> {
    let number = |at| Ok(u32::from_le_bytes(le(bytes, at)?));
    let known = |at| Ok(Some(number(at)?).filter(|&count| count != UNKNOWN));
    let period_ms = u16::from_le_bytes(le(bytes, 52)?);
    if !(1..=MAX_PERIOD_MS).contains(&period_ms) {
        return Err(Malformed::Range);
    }
    Ok(HeardReport {
        is_mixed,
        period_ms,
        received_packets: number(56)?,
        lost_packets: number(60)?,
        late_packets: number(64)?,
        played_frames: number(68)?,
        concealed_frames: number(72)?,
        buffer_frames: known(76)?,
        target_frames: number(80)?,
        spread_frames: known(84)?,
        output_underruns: known(88)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: AudioHeader = AudioHeader {
        format: SampleFormat::S24,
        rate: SampleRate::Hz96000,
        channels: 2,
        stream: 0x1234,
        frames: 3,
        sequence: 0xfedc_ba98,
        timestamp: 0x0102_0304_0506_0708,
    };

    fn datagram() -> alloc::vec::Vec<u8> {
        let mut bytes = alloc::vec![7; HEADER.datagram_bytes()];
        HEADER.write(&mut bytes);
        bytes
    }

    #[test]
    fn audio_header_survives_the_round_trip() {
        assert_eq!(
            parse(&datagram()),
            Ok(Datagram::Audio(HEADER, &[7; 18], &[]))
        );
    }

    #[test]
    fn probe_survives_the_round_trip() {
        for replied_ns in [None, Some(0), Some(u64::MAX)] {
            let probe = Probe {
                stream: 0xfffe,
                id: 0xdead_beef,
                time_ns: 1 << 60,
                replied_ns,
            };
            assert_eq!(parse(&probe.to_bytes()), Ok(Datagram::Probe(probe)));
        }
    }

    const REPORT: Report = Report {
        stream: 9,
        id: 7,
        capture: Some(CaptureReport {
            timestamp: 1 << 54,
            time_ns: 1 << 61,
            error_us: 1,
            block_us: 2,
            send_us: MAX_REPORT_US,
            input: Some(InputDelay {
                is_calibrated: true,
                delay_us: -1_500,
                error_us: 3,
            }),
            overrun_frames: 4,
            dropped_packets: 5,
        }),
        heard: Some(HeardReport {
            is_mixed: false,
            period_ms: 4_000,
            received_packets: 1_500,
            lost_packets: 5,
            late_packets: 6,
            played_frames: 191_000,
            concealed_frames: 1_000,
            buffer_frames: Some(384),
            target_frames: 256,
            spread_frames: None,
            output_underruns: Some(0),
        }),
    };

    #[test]
    fn report_survives_the_round_trip_whole_and_in_parts() {
        let mixed = REPORT.heard.map(|heard| HeardReport {
            is_mixed: true,
            ..heard
        });
        for (capture, heard) in [
            (REPORT.capture, REPORT.heard),
            (None, mixed),
            (None, REPORT.heard),
            (REPORT.capture, None),
            (None, None),
        ] {
            let report = Report {
                id: u32::MAX,
                capture,
                heard,
                ..REPORT
            };
            assert_eq!(parse(&report.to_bytes()), Ok(Datagram::Report(report)));
        }
    }

    #[test]
    fn a_report_that_cannot_be_is_refused() {
        let cases: [(usize, &[u8], Malformed); 9] = [
            (2, &[8 | 3], Malformed::Reserved),
            (2, &[4 | 1], Malformed::Reserved),
            (2, &[2], Malformed::Reserved),
            (2, &[1], Malformed::Reserved),
            (3, &[0], Malformed::Reserved),
            (3, &[3], Malformed::Reserved),
            (27, &[0x10], Malformed::Range),
            (36, &[0, 0, 0, 0x80], Malformed::Range),
            (52, &[0, 0], Malformed::Range),
        ];
        for (at, value, reason) in cases {
            let mut bytes = REPORT.to_bytes();
            bytes[at..at + value.len()].copy_from_slice(value);
            assert_eq!(parse(&bytes), Err(reason), "{value:?} at {at}");
        }
        let bytes = REPORT.to_bytes();
        assert_eq!(parse(&bytes[..91]), Err(Malformed::Length));
    }

    #[test]
    fn every_truncation_and_extension_is_refused() {
        let mut bytes = datagram();
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end]).is_err(), "accepted {end} bytes");
        }
        bytes.push(0);
        assert_eq!(parse(&bytes), Err(Malformed::Length));
    }

    #[test]
    fn a_copy_is_whole_or_none_and_comes_off() {
        let mut bytes = datagram();
        // Two channels of three frames: two bytes, a step, and a byte for two codes each.
        bytes.extend([5; 8]);
        assert_eq!(HEADER.copy_bytes(), 8);
        assert_eq!(
            parse(&bytes),
            Ok(Datagram::Audio(HEADER, &[7; 18], &[5; 8]))
        );
        assert_eq!(without_copy(&bytes), datagram());
        assert_eq!(without_copy(&datagram()), datagram());
        assert_eq!(without_copy(&[1, 1]), [1, 1]);
        for missing in 1..8 {
            let short = &bytes[..bytes.len() - missing];
            assert_eq!(parse(short), Err(Malformed::Length));
        }
        bytes.push(0);
        assert_eq!(parse(&bytes), Err(Malformed::Length));
    }

    const OPUS: OpusHeader = OpusHeader {
        channels: 2,
        stream: 0,
        frames: 120,
        sequence: 7,
        timestamp: 1 << 40,
    };

    #[test]
    fn opus_survives_the_round_trip_and_so_does_what_it_decodes_to() {
        let mut bytes = [9; AUDIO_HEADER_BYTES + 120 * 2 * 4];
        OPUS.write(&mut bytes);
        assert_eq!(
            parse(&bytes[..60]),
            Ok(Datagram::Opus(OPUS, &[9; 40])),
            "one packet of any length"
        );
        assert_eq!(
            parse_decoded(&bytes),
            Ok((OPUS.decoded(), &bytes[AUDIO_HEADER_BYTES..]))
        );
        let nothing = parse_decoded(&bytes[..AUDIO_HEADER_BYTES]);
        assert_eq!(nothing, Ok((OPUS.decoded(), &[][..])));
        assert_eq!(parse_decoded(&bytes[..60]), Err(Malformed::Length));
        assert_eq!(parse_decoded(&datagram()), Err(Malformed::Encoding));
    }

    #[test]
    fn opus_of_another_rate_shape_or_length_is_refused() {
        let mut good = [9; 60];
        OPUS.write(&mut good);
        for (at, value, reason) in [
            (2, 0x04, Malformed::Encoding),
            (2, 0x24, Malformed::Encoding),
            (3, 0, Malformed::Channels),
            (3, 3, Malformed::Channels),
            (6, 119, Malformed::Frames),
            (7, 1, Malformed::Frames),
        ] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(parse(&bytes), Err(reason), "byte {at} = {value}");
        }
        for end in 0..=AUDIO_HEADER_BYTES {
            assert_eq!(parse(&good[..end]), Err(Malformed::Length));
        }
    }

    #[test]
    fn each_bad_field_has_its_reason() {
        let cases: [(usize, u8, Malformed); 7] = [
            (0, 2, Malformed::Version),
            (1, 0, Malformed::Kind),
            (2, 0x15, Malformed::Encoding),
            (2, 0x42, Malformed::Encoding),
            (3, 9, Malformed::Channels),
            (3, 0, Malformed::Channels),
            (7, 3, Malformed::Frames),
        ];
        for (at, value, reason) in cases {
            let mut bytes = datagram();
            bytes[at] = value;
            assert_eq!(parse(&bytes), Err(reason), "byte {at} = {value}");
        }
        assert_eq!(
            parse(&[1; MAX_DATAGRAM_BYTES + 1]),
            Err(Malformed::Oversized)
        );
        let mut probe = PROBE.to_bytes();
        probe[16] = 1;
        assert_eq!(parse(&probe), Err(Malformed::Reserved));
    }

    const PROBE: Probe = Probe {
        stream: 0,
        id: 1,
        time_ns: 2,
        replied_ns: None,
    };

    #[test]
    fn a_relay_changes_the_stream_and_nothing_else() {
        let stream = 0xabcd;
        let reply = Probe {
            replied_ns: Some(3),
            ..PROBE
        };
        let header = AudioHeader { stream, ..HEADER };
        let moved = [
            (
                Kind::Audio,
                datagram(),
                Datagram::Audio(header, &[7; 18], &[]),
            ),
            (
                Kind::Probe,
                PROBE.to_bytes().into(),
                Datagram::Probe(Probe { stream, ..PROBE }),
            ),
            (
                Kind::ProbeReply,
                reply.to_bytes().into(),
                Datagram::Probe(Probe { stream, ..reply }),
            ),
            (
                Kind::Report,
                REPORT.to_bytes().into(),
                Datagram::Report(Report { stream, ..REPORT }),
            ),
        ];
        for (kind, mut bytes, expected) in moved {
            assert_eq!(route(&bytes).map(|(found, _)| found), Ok(kind));
            kind.set_stream(&mut bytes, stream);
            assert_eq!(route(&bytes), Ok((kind, stream)));
            assert_eq!(parse(&bytes), Ok(expected));
        }
    }

    #[test]
    fn a_relay_refuses_what_is_no_datagram_by_its_first_bytes_and_its_length() {
        let audio = datagram();
        for (bytes, least) in [
            (&audio[..], AUDIO_HEADER_BYTES + 1),
            (&PROBE.to_bytes()[..], PROBE_BYTES),
            (&REPORT.to_bytes()[..], REPORT_BYTES),
        ] {
            for length in 0..least {
                assert_eq!(route(&bytes[..length]), Err(Malformed::Length));
            }
            let mut other = bytes.to_vec();
            other[0] = 2;
            assert_eq!(route(&other), Err(Malformed::Version));
            (other[0], other[1]) = (VERSION, 5);
            assert_eq!(route(&other), Err(Malformed::Kind));
        }
        let long = [&PROBE.to_bytes()[..], &[0]].concat();
        assert_eq!(route(&long), Err(Malformed::Length));
        let mut oversized = [1; MAX_DATAGRAM_BYTES + 1];
        assert_eq!(route(&oversized), Err(Malformed::Oversized));
        // Whether the samples are whole is for the listener to find out.
        oversized[2] = 0xff;
        let longest = &oversized[..MAX_DATAGRAM_BYTES];
        assert_eq!(route(longest), Ok((Kind::Audio, 0x0101)));
    }
}
