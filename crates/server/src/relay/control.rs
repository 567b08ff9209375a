//! The control stream between a page and the relay (`docs/protocol.md`): JSON objects, one a line, read strictly.
//!
//! What a page sends is hostile until [`parse`] has accepted it.

use antiphon_core::wire::{MAX_PACKET_FRAMES, MIN_PACKET_FRAMES, MIX_STREAM};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{mixer::Source, rooms::MAX_PARTICIPANTS_PER_ROOM};

/// The longest line, without its `\n`.
pub const MAX_LINE_BYTES: usize = 16_384;

/// What a page says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum PageMessage {
    /// From now on it takes this, and nothing else.
    Listen(Listen),
    /// It is about to end this session: nothing more is to be sent on it, if there is another.
    Retire {},
}

/// All that a participant takes from the relay.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Numbers of the streams to forward, ascending, each once. Some may be of nobody.
    pub forward: Vec<u16>,
    /// A personal mix.
    #[serde(deserialize_with = "present")]
    pub mix: Option<Mix>,
    /// Whether forwarded Opus is of use.
    pub opus: bool,
}

/// A personal mix.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Bits per sample: 16 or 24.
    pub format: u32,
    /// 16 to 512.
    pub packet_frames: usize,
    /// What it is made of: each stream once. Some may be of nobody.
    pub sources: Vec<Source>,
}

impl Mix {
    /// What cannot change without a gap in the mix.
    pub(crate) fn shape(&self) -> (u32, usize) {
        (self.format, self.packet_frames)
    }
}

/// Why a line was refused, in words for the developer of a page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Longer than [`MAX_LINE_BYTES`].
    #[error("a line has at most {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// Not JSON, an unknown type, a missing, wrong or surplus field.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A number that cannot be.
    #[error("{0}")]
    Range(&'static str),
    /// More messages than the limit.
    #[error("too many messages")]
    TooFast,
}

/// Reads one line, without its `\n`. Never panics, whatever the bytes.
///
/// # Errors
/// [`ControlError`]: the session ends.
pub fn parse(line: &[u8]) -> Result<PageMessage, ControlError> {
    if line.len() > MAX_LINE_BYTES {
        return Err(ControlError::TooLong);
    }
    let mut message = serde_json::from_slice(line)?;
    let PageMessage::Listen(listen) = &mut message else {
        return Ok(message);
    };
    let mixed = listen.mix.as_ref().map_or(0, |mix| mix.sources.len());
    if listen.forward.len().max(mixed) > MAX_PARTICIPANTS_PER_ROOM {
        return Err(ControlError::Range("a list names at most 64 streams"));
    }
    listen.forward.sort_unstable();
    listen.forward.dedup();
    if !listen.forward.iter().copied().all(is_number) {
        return Err(ControlError::Range("a stream's number is 1 to 65534"));
    }
    if let Some(mix) = &listen.mix {
        check(mix)?;
    }
    Ok(message)
}

fn check(mix: &Mix) -> Result<(), ControlError> {
    if ![16, 24].contains(&mix.format) {
        return Err(ControlError::Range("a mix has 16 or 24 bits"));
    }
    if !(MIN_PACKET_FRAMES..=MAX_PACKET_FRAMES).contains(&mix.packet_frames) {
        return Err(ControlError::Range("a packet has 16 to 512 frames"));
    }
    let mut streams: Vec<u16> = mix.sources.iter().map(|source| source.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    if streams.len() < mix.sources.len() || !streams.into_iter().all(is_number) {
        return Err(ControlError::Range(
            "a source is a stream's number, 1 to 65534, and is there once",
        ));
    }
    let in_range =
        |source: &Source| (0.0..=4.0).contains(&source.gain) && (-1.0..=1.0).contains(&source.pan);
    if !mix.sources.iter().all(in_range) {
        return Err(ControlError::Range("gain is 0 to 4, pan -1 to 1"));
    }
    Ok(())
}

fn is_number(stream: u16) -> bool {
    (1..MIX_STREAM).contains(&stream)
}

/// The field must be there, be it null.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Mix>, D::Error> {
    Option::deserialize(deserializer)
}

/// What the relay says.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RelayMessage {
    /// Who takes this participant's stream.
    Wanted(Wanted),
    /// How the relay does for this participant.
    Statistics(Statistics),
}

/// Who takes a participant's stream.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Wanted {
    /// How many, forwarded or mixed.
    pub listeners: u32,
    /// Whether Opus is of use to all to whom it is forwarded.
    pub opus: bool,
}

/// Counts since the participant was admitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// Round trip of the session that the control stream is on, us.
    pub rtt_us: u64,
    /// Datagrams sent to it.
    pub forwarded: u64,
    /// Dropped for it because no session had room.
    pub aged: u64,
    /// Its own, dropped because they were over its rate, or more Opus than is decoded for mixes; and packets of its own, dropped unread because more came than the thread could do.
    pub over_rate: u64,
    /// Packets sent to it and lost, as QUIC counts them.
    pub lost: u64,
    /// Datagrams of its own sound that came in the last 4 s, each once.
    pub received: u64,
    /// Of the same seconds, sequence numbers that never came.
    pub missing: u64,
    /// From the last frame a mix needed to its datagram, mean of the last second, us; `None` if nothing was mixed.
    pub mix_us: Option<u32>,
    /// Who plays in its mix.
    pub mixed: Vec<MixedSource>,
    /// Whether it asked for a mix, and the server mixed enough already.
    pub mix_refused: bool,
}

/// A source of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MixedSource {
    /// The participant's number in the room.
    pub stream: u16,
    /// By so many frames the mix's media time is ahead of the source's own where both sound together.
    pub lead_frames: i64,
    /// Of its last 4 s in mixes, the share that the mixer made up in place of what did not come in time; 0 to 1.
    pub concealed_share: f32,
}

impl RelayMessage {
    /// The line, with its `\n`.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("a message is JSON");
        line.push(b'\n');
        line
    }
}

/// Cuts what arrives into lines. Holds at most one line and one chunk.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
}

impl Lines {
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
    }

    /// The next line without its `\n`, or `None` before it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, ControlError> {
        match self.bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) if end <= MAX_LINE_BYTES => {
                let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
                line.pop();
                Ok(Some(line))
            }
            None if self.bytes.len() <= MAX_LINE_BYTES => Ok(None),
            _ => Err(ControlError::TooLong),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn listen_is_read_sorted_and_once_each() {
        let line = br#"{"type":"listen","forward":[7,2,7],"mix":{"format":24,"packet_frames":128,
            "sources":[{"stream":3,"gain":0.5,"pan":-1,"muted":false}]},"opus":true}"#;
        let PageMessage::Listen(listen) = parse(line).expect("valid") else {
            panic!("it listens");
        };
        assert_eq!(listen.forward, [2, 7]);
        assert!(listen.opus);
        let mix = listen.mix.expect("a mix");
        assert_eq!((mix.format, mix.packet_frames), (24, 128));
        let source = Source {
            stream: 3,
            gain: 0.5,
            pan: -1.0,
            muted: false,
        };
        assert_eq!(mix.sources, [source]);
        let nothing =
            parse(br#"{"type":"listen","forward":[],"mix":null,"opus":false}"#).expect("valid");
        assert_eq!(nothing, PageMessage::Listen(Listen::default()));
        let retire = parse(br#"{"type":"retire"}"#).expect("valid");
        assert_eq!(retire, PageMessage::Retire {});
    }

    #[test]
    fn whatever_is_not_in_the_tables_is_refused() {
        let source = |stream: &str, gain: &str, pan: &str| {
            format!(r#"{{"stream":{stream},"gain":{gain},"pan":{pan},"muted":false}}"#)
        };
        let mix = |format: u32, frames: u32, sources: &str| {
            format!(
                r#"{{"type":"listen","forward":[],"mix":{{"format":{format},"packet_frames":{frames},"sources":[{sources}]}},"opus":true}}"#
            )
        };
        let good = source("1", "1", "0");
        assert!(parse(mix(16, 16, &good).as_bytes()).is_ok());
        let sources = |count: u32| {
            let sources = (1..=count).map(|stream| source(&stream.to_string(), "1", "0"));
            sources.collect::<Vec<_>>().join(",")
        };
        let forward = |count: usize| {
            format!(
                r#"{{"type":"listen","forward":[{}],"mix":null,"opus":true}}"#,
                vec!["1"; count].join(",")
            )
        };
        assert!(parse(mix(16, 16, &sources(64)).as_bytes()).is_ok());
        assert!(parse(forward(64).as_bytes()).is_ok());
        for bad in [
            "".to_owned(),
            "{}".into(),
            r#"{"type":"listen"}"#.into(),
            r#"{"type":"listen","forward":[1],"mix":null}"#.into(),
            r#"{"type":"listen","forward":[1],"opus":true}"#.into(),
            r#"{"type":"listen","mix":null,"opus":true}"#.into(),
            r#"{"type":"listen","forward":[1],"mix":null,"opus":true,"more":1}"#.into(),
            r#"{"type":"retire","forward":[1]}"#.into(),
            r#"{"type":"speak","forward":[1],"mix":null,"opus":true}"#.into(),
            r#"{"type":"listen","forward":[0],"mix":null,"opus":true}"#.into(),
            r#"{"type":"listen","forward":[65535],"mix":null,"opus":true}"#.into(),
            r#"{"type":"listen","forward":[65536],"mix":null,"opus":true}"#.into(),
            r#"{"type":"listen","forward":[-1],"mix":null,"opus":true}"#.into(),
            mix(32, 128, &good),
            mix(16, 15, &good),
            mix(16, 513, &good),
            mix(16, 128, &format!("{good},{good}")),
            mix(16, 128, &source("0", "1", "0")),
            mix(16, 128, &source("1", "4.1", "0")),
            mix(16, 128, &source("1", "-0.1", "0")),
            mix(16, 128, &source("1", "1e39", "0")),
            mix(16, 128, &source("1", "1", "1.1")),
            mix(16, 128, &sources(65)),
            forward(65),
            mix(16, 128, r#"{"stream":1,"gain":1,"pan":0}"#),
            mix(
                16,
                128,
                r#"{"stream":1,"gain":1,"pan":0,"muted":false,"solo":true}"#,
            ),
            format!(
                r#"{{"type":"listen","forward":[{}1],"mix":null,"opus":true}}"#,
                "1,".repeat(9_000)
            ),
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn messages_are_as_the_protocol_has_them() {
        assert_eq!(
            RelayMessage::Wanted(Wanted {
                listeners: 2,
                opus: false
            })
            .to_line(),
            b"{\"type\":\"wanted\",\"listeners\":2,\"opus\":false}\n"
        );
        let statistics = Statistics {
            rtt_us: 1,
            forwarded: 2,
            aged: 3,
            over_rate: 4,
            lost: 5,
            received: 6,
            missing: 7,
            mix_us: None,
            mixed: vec![MixedSource {
                stream: 8,
                lead_frames: -9,
                concealed_share: 0.25,
            }],
            mix_refused: true,
        };
        assert_eq!(
            RelayMessage::Statistics(statistics).to_line(),
            b"{\"type\":\"statistics\",\"rtt_us\":1,\"forwarded\":2,\"aged\":3,\"over_rate\":4,\"lost\":5,\"received\":6,\"missing\":7,\"mix_us\":null,\"mixed\":[{\"stream\":8,\"lead_frames\":-9,\"concealed_share\":0.25}],\"mix_refused\":true}\n"
        );
    }

    #[test]
    fn lines_are_cut_wherever_the_chunks_end() {
        let mut lines = Lines::default();
        let mut read = Vec::new();
        for byte in b"one\n\ntwo\nthr" {
            lines.push(&[*byte]);
            while let Some(line) = lines.next().expect("short") {
                read.push(String::from_utf8(line).expect("text"));
            }
        }
        assert_eq!(read, ["one", "", "two"]);
        lines.push(&[b'x'; MAX_LINE_BYTES - 3]);
        assert!(lines.next().expect("just short enough").is_none());
        lines.push(b"x");
        assert!(lines.next().is_err());
    }

    /// Parts of what arrives: some bytes, an end of a line, and as many bytes as a line may just have, or may not.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => vec(any::<u8>(), 0..40),
            4 => Just(b"\n".to_vec()),
            1 => (MAX_LINE_BYTES - 2..=MAX_LINE_BYTES + 2).prop_map(|length| vec![b'x'; length]),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn lines_are_the_same_wherever_the_chunks_end(parts in vec(part(), 0..12), chunks in vec(1..5_000usize, 1..8)) {
            let bytes = parts.concat();
            let whole = || bytes.split(|byte| *byte == b'\n');
            let is_short = |line: &&[u8]| line.len() <= MAX_LINE_BYTES;
            // What follows the last end is no line yet.
            let complete = whole().count() - 1;
            let expected: Vec<_> = whole().take_while(is_short).take(complete).collect();

            let mut lines = Lines::default();
            let (mut read, mut rest) = (Vec::new(), &bytes[..]);
            let mut is_refused = false;
            for chunk in chunks.into_iter().cycle() {
                if rest.is_empty() || is_refused {
                    break;
                }
                let (chunk, after) = rest.split_at(chunk.min(rest.len()));
                rest = after;
                lines.push(chunk);
                is_refused = loop {
                    match lines.next() {
                        Ok(Some(line)) => read.push(line),
                        Ok(None) => break false,
                        Err(_) => break true,
                    }
                };
                prop_assert!(is_refused || lines.bytes.len() <= MAX_LINE_BYTES);
            }
            prop_assert_eq!(read, expected);
            prop_assert_eq!(is_refused, !whole().all(|line| is_short(&line)));
        }
    }
}
