//! The datagram format, byte for byte as in `docs/protocol.md`.
//!
//! Parsing trusts nothing: every length, range and enum is checked, no input panics, and what does not match is
//! refused with a [`Malformed`] reason for the caller to count.

/// Protocol version in the first byte of every datagram.
pub const VERSION: u8 = 1;
/// Longest datagram, in bytes: Firefox's WebTransport carries 1,024, and relays need room for their own framing.
pub const MAX_DATAGRAM_BYTES: usize = 1_000;
/// Bytes before the samples of an audio datagram.
pub const AUDIO_HEADER_BYTES: usize = 20;
/// Exact length of a probe or its reply, in bytes.
pub const PROBE_BYTES: usize = 16;
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

const KIND_AUDIO: u8 = 1;
const KIND_PROBE: u8 = 2;
const KIND_PROBE_REPLY: u8 = 3;
/// The format of Opus, beside those of [`SampleFormat`].
const FORMAT_OPUS: u8 = 4;

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
    /// Length of the whole datagram, in bytes. May exceed [`MAX_DATAGRAM_BYTES`] for a header nobody may send.
    pub const fn datagram_bytes(&self) -> usize {
        AUDIO_HEADER_BYTES + self.frames as usize * self.channels as usize * self.format.bytes()
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
        out[1] = KIND_AUDIO;
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

/// A round-trip time probe, or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// True in the reply, which repeats the rest.
    pub is_reply: bool,
    /// Chosen by the prober.
    pub id: u32,
    /// The prober's clock, ns.
    pub time_ns: u64,
}

impl Probe {
    /// The bytes of the probe.
    pub fn to_bytes(self) -> [u8; PROBE_BYTES] {
        let mut out = [0; PROBE_BYTES];
        out[0] = VERSION;
        out[1] = if self.is_reply {
            KIND_PROBE_REPLY
        } else {
            KIND_PROBE
        };
        out[4..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..16].copy_from_slice(&self.time_ns.to_le_bytes());
        out
    }
}

/// A datagram that matches the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram<'a> {
    /// Audio: the header and exactly its samples, interleaved.
    Audio(AudioHeader, &'a [u8]),
    /// Audio: the header and one Opus packet (RFC 6716) of at least one byte, for the host to decode.
    Opus(OpusHeader, &'a [u8]),
    /// A probe or its reply.
    Probe(Probe),
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
    /// A reserved field is not zero.
    Reserved,
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
    if bytes.len() > MAX_DATAGRAM_BYTES {
        return Err(Malformed::Oversized);
    }
    let [version, kind] = le(bytes, 0)?;
    if version != VERSION {
        return Err(Malformed::Version);
    }
    match kind {
        KIND_AUDIO => parse_audio(bytes),
        KIND_PROBE | KIND_PROBE_REPLY => parse_probe(bytes, kind == KIND_PROBE_REPLY),
        _ => Err(Malformed::Kind),
    }
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
        stream: u16::from_le_bytes(le(bytes, 4)?),
        frames,
        sequence: u32::from_le_bytes(le(bytes, 8)?),
        timestamp: u64::from_le_bytes(le(bytes, 12)?),
    };
    if bytes.len() != header.datagram_bytes() {
        return Err(Malformed::Length);
    }
    Ok(Datagram::Audio(header, &bytes[AUDIO_HEADER_BYTES..]))
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
        stream: u16::from_le_bytes(le(bytes, 4)?),
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
    if kind != KIND_AUDIO {
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
    if u16::from_le_bytes(le(bytes, 2)?) != 0 {
        return Err(Malformed::Reserved);
    }
    Ok(Datagram::Probe(Probe {
        is_reply,
        id: u32::from_le_bytes(le(bytes, 4)?),
        time_ns: u64::from_le_bytes(le(bytes, 8)?),
    }))
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
        assert_eq!(parse(&datagram()), Ok(Datagram::Audio(HEADER, &[7; 18])));
    }

    #[test]
    fn probe_survives_the_round_trip() {
        for is_reply in [false, true] {
            let probe = Probe {
                is_reply,
                id: 0xdead_beef,
                time_ns: 1 << 60,
            };
            assert_eq!(parse(&probe.to_bytes()), Ok(Datagram::Probe(probe)));
        }
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
        let mut probe = Probe {
            is_reply: false,
            id: 1,
            time_ns: 2,
        }
        .to_bytes();
        probe[3] = 1;
        assert_eq!(parse(&probe), Err(Malformed::Reserved));
    }
}
