//! The golden files of `vectors/`, which the TypeScript tests read as well.

use std::path::Path;

use antiphon_core::wire::{
    self, AudioHeader, CaptureReport, Datagram, HeardReport, InputDelay, Kind, Malformed,
    OpusHeader, Probe, Report,
};
use antiphon_core::{SampleFormat, SampleRate, pcm};
use serde_json::Value;

fn vectors(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    let text = std::fs::read_to_string(folder.join(name)).expect("vectors/ is written");
    let value: Value = serde_json::from_str(&text).expect("is JSON");
    assert_eq!(value["version"], 1);
    value
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().expect("is a string")
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().expect("is a number")
}

fn bytes(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("is hex"))
        .collect()
}

fn refusal(name: &str) -> Malformed {
    match name {
        "oversized" => Malformed::Oversized,
        "length" => Malformed::Length,
        "version" => Malformed::Version,
        "kind" => Malformed::Kind,
        "encoding" => Malformed::Encoding,
        "channels" => Malformed::Channels,
        "frames" => Malformed::Frames,
        "reserved" => Malformed::Reserved,
        "range" => Malformed::Range,
        other => panic!("no such reason: {other}"),
    }
}

#[test]
fn every_datagram_is_read_and_written_as_it_stands() {
    let golden = vectors("wire.json");
    let cases = golden["datagrams"].as_array().expect("is a list");
    assert!(cases.len() > 100);
    for case in cases {
        let name = text(case, "name");
        let bytes = bytes(text(case, "bytes"));
        let meaning = &case["meaning"];
        let parsed = wire::parse(&bytes);
        if let Some(reason) = meaning["malformed"].as_str() {
            assert_eq!(parsed, Err(refusal(reason)), "{name}");
            continue;
        }
        let kind = match text(meaning, "kind") {
            "audio" | "opus" => Kind::Audio,
            "probe" => Kind::Probe,
            "probe_reply" => Kind::ProbeReply,
            _ => Kind::Report,
        };
        let stream = number(meaning, "stream") as u16;
        assert_eq!(wire::route(&bytes), Ok((kind, stream)), "{name}");
        match text(meaning, "kind") {
            "audio" => {
                let header = AudioHeader {
                    format: SampleFormat::from_bits(number(meaning, "bits") as u32)
                        .expect("a format"),
                    rate: SampleRate::from_hz(number(meaning, "rate_hz") as u32).expect("a rate"),
                    channels: number(meaning, "channels") as u8,
                    stream: number(meaning, "stream") as u16,
                    frames: number(meaning, "frames") as u16,
                    sequence: number(meaning, "sequence") as u32,
                    timestamp: text(meaning, "timestamp").parse().expect("a number"),
                };
                let (samples, copy) =
                    bytes[20..].split_at(number(meaning, "sample_bytes") as usize);
                assert_eq!(parsed, Ok(Datagram::Audio(header, samples, copy)), "{name}");
                assert_eq!(number(meaning, "copy_bytes") as usize, copy.len());
                let mut written = [0xee; 20];
                header.write(&mut written);
                assert_eq!(written, bytes[..20], "{name}");
            }
            "opus" => {
                let header = OpusHeader {
                    channels: number(meaning, "channels") as u8,
                    stream: number(meaning, "stream") as u16,
                    frames: number(meaning, "frames") as u16,
                    sequence: number(meaning, "sequence") as u32,
                    timestamp: text(meaning, "timestamp").parse().expect("a number"),
                };
                assert_eq!(parsed, Ok(Datagram::Opus(header, &bytes[20..])), "{name}");
                assert_eq!(number(meaning, "packet_bytes") as usize, bytes.len() - 20);
                let mut written = [0xee; 20];
                header.write(&mut written);
                assert_eq!(written, bytes[..20], "{name}");
            }
            "report" => {
                let report = report_of(meaning);
                assert_eq!(parsed, Ok(Datagram::Report(report)), "{name}");
                assert_eq!(report.to_bytes()[..], bytes, "{name}");
            }
            _ => {
                let probe = Probe {
                    stream: number(meaning, "stream") as u16,
                    id: number(meaning, "id") as u32,
                    time_ns: text(meaning, "time_ns").parse().expect("a number"),
                    replied_ns: meaning["replied_ns"]
                        .as_str()
                        .map(|text| text.parse().expect("a number")),
                };
                assert_eq!(parsed, Ok(Datagram::Probe(probe)), "{name}");
                assert_eq!(probe.to_bytes()[..], bytes, "{name}");
            }
        }
    }
}

fn report_of(meaning: &Value) -> Report {
    let present = |value: &'_ Value| (!value.is_null()).then(|| value.clone());
    let known = |value: &Value, field: &str| value[field].as_u64().map(|count| count as u32);
    Report {
        stream: number(meaning, "stream") as u16,
        id: number(meaning, "id") as u32,
        capture: present(&meaning["capture"]).map(|capture| CaptureReport {
            timestamp: text(&capture, "timestamp").parse().expect("a number"),
            time_ns: text(&capture, "time_ns").parse().expect("a number"),
            error_us: number(&capture, "error_us") as u32,
            block_us: number(&capture, "block_us") as u32,
            send_us: number(&capture, "send_us") as u32,
            input: present(&capture["input"]).map(|input| InputDelay {
                is_calibrated: input["is_calibrated"].as_bool().expect("is a flag"),
                delay_us: input["delay_us"].as_i64().expect("is a number") as i32,
                error_us: number(&input, "error_us") as u32,
            }),
            overrun_frames: number(&capture, "overrun_frames") as u32,
            dropped_packets: number(&capture, "dropped_packets") as u32,
        }),
        heard: present(&meaning["heard"]).map(|heard| HeardReport {
            is_mixed: heard["is_mixed"].as_bool().expect("is a flag"),
            period_ms: number(&heard, "period_ms") as u16,
            received_packets: number(&heard, "received_packets") as u32,
            lost_packets: number(&heard, "lost_packets") as u32,
            late_packets: number(&heard, "late_packets") as u32,
            played_frames: number(&heard, "played_frames") as u32,
            concealed_frames: number(&heard, "concealed_frames") as u32,
            buffer_frames: known(&heard, "buffer_frames"),
            target_frames: number(&heard, "target_frames") as u32,
            spread_frames: known(&heard, "spread_frames"),
            output_underruns: known(&heard, "output_underruns"),
        }),
    }
}

#[test]
fn every_sample_is_converted_as_it_stands() {
    let golden = vectors("pcm.json");
    let sample_of = |case: &Value| {
        let bytes = bytes(text(case, "sample_f32"));
        f32::from_le_bytes(bytes.try_into().expect("4 bytes"))
    };
    let format_of = |case: &Value| SampleFormat::from_bits(number(case, "bits") as u32);
    for case in golden["encode"].as_array().expect("is a list") {
        let format = format_of(case).expect("a format");
        let mut out = vec![0xee; format.bytes()];
        pcm::encode_channel(format, &[sample_of(case)], 0, 1, &mut out);
        assert_eq!(out, bytes(text(case, "bytes")), "{case}");
    }
    for case in golden["decode"].as_array().expect("is a list") {
        let format = format_of(case).expect("a format");
        let mut out = [f32::NAN];
        pcm::decode_channel(format, &bytes(text(case, "bytes")), 0, 1, &mut out);
        assert_eq!(out[0].to_bits(), sample_of(case).to_bits(), "{case}");
    }
}
