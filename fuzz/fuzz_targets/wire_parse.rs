//! Any bytes: parsing never panics, and what it accepts is written back as it was.
#![no_main]

use antiphon_core::wire::{
    self, AUDIO_HEADER_BYTES, Datagram, Kind, MAX_DATAGRAM_BYTES, MAX_DECODED_BYTES,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((header, samples)) = wire::parse_decoded(bytes) {
        assert!(bytes.len() <= MAX_DECODED_BYTES);
        let frame_bytes = usize::from(header.channels) * header.format.bytes();
        let whole = usize::from(header.frames) * frame_bytes;
        assert!(samples.is_empty() || samples.len() == whole);
    }
    let route = wire::route(bytes);
    match wire::parse(bytes) {
        Ok(Datagram::Audio(header, samples, copy)) => {
            assert_eq!(route, Ok((Kind::Audio, header.stream)));
            assert!(bytes.len() <= MAX_DATAGRAM_BYTES);
            let mut written = [0; AUDIO_HEADER_BYTES];
            header.write(&mut written);
            assert_eq!(written, bytes[..AUDIO_HEADER_BYTES]);
            let (own, rest) = bytes.split_at(AUDIO_HEADER_BYTES + samples.len());
            assert_eq!((samples, copy), (&own[AUDIO_HEADER_BYTES..], rest));
            assert_eq!(wire::without_copy(bytes), own);
            assert!(copy.is_empty() || copy.len() == header.copy_bytes());
            let frame_bytes = usize::from(header.channels) * header.format.bytes();
            assert_eq!(samples.len(), usize::from(header.frames) * frame_bytes);
        }
        Ok(Datagram::Opus(header, packet)) => {
            assert_eq!(route, Ok((Kind::Audio, header.stream)));
            assert!(bytes.len() <= MAX_DATAGRAM_BYTES && !packet.is_empty());
            let mut written = [0; AUDIO_HEADER_BYTES];
            header.write(&mut written);
            assert_eq!(written, bytes[..AUDIO_HEADER_BYTES]);
            assert_eq!(packet, &bytes[AUDIO_HEADER_BYTES..]);
        }
        Ok(Datagram::Probe(probe)) => {
            let is_reply = probe.replied_ns.is_some();
            let kind = if is_reply {
                Kind::ProbeReply
            } else {
                Kind::Probe
            };
            assert_eq!(route, Ok((kind, probe.stream)));
            assert_eq!(probe.to_bytes()[..], *bytes);
        }
        Ok(Datagram::Report(report)) => {
            assert_eq!(route, Ok((Kind::Report, report.stream)));
            assert_eq!(report.to_bytes()[..], *bytes);
        }
        Err(_) => {}
    }
});
