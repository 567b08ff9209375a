//! Any text: the server's parser of messages never panics, and accepts only what the rooms can take.
#![no_main]

use antiphon_server::signalling::{
    self, ClientMessage, MAX_MESSAGE_BYTES, MAX_NAME_CHARACTERS, MAX_PASSPHRASE_CHARACTERS, Name,
    Passphrase,
};
use libfuzzer_sys::fuzz_target;

fn check_name(name: &Name) {
    let name = serde_json::to_value(name).expect("serialises");
    let name = name.as_str().expect("text");
    assert!((1..=MAX_NAME_CHARACTERS).contains(&name.chars().count()));
    assert!(!name.contains(char::is_control) && !name.trim().is_empty());
}

fn check_passphrase(passphrase: Option<&Passphrase>) {
    if let Some(text) = passphrase.map(Passphrase::reveal) {
        assert!((1..=MAX_PASSPHRASE_CHARACTERS).contains(&text.chars().count()));
        assert_eq!(text, text.trim());
    }
}

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let Ok(message) = signalling::parse(&text) else {
        return;
    };
    assert!(text.len() <= MAX_MESSAGE_BYTES);
    match message {
        ClientMessage::Hello(hello) => {
            check_name(&hello.name);
            check_passphrase(hello.passphrase.as_ref());
            assert!([44_100, 48_000, 88_200, 96_000].contains(&hello.sample_rate_hz.hz()));
        }
        ClientMessage::Signal { data, .. } => {
            assert!(text.contains(data.get()), "passed on as it was");
            assert!(data.get().starts_with('{') && data.get().ends_with('}'));
        }
        ClientMessage::Rename { name } => check_name(&name),
        ClientMessage::Lock { passphrase } => check_passphrase(passphrase.as_ref()),
        ClientMessage::Moderate { .. } | ClientMessage::Leave => {}
    }
    // Blanks may follow, as many as make it as long as can be.
    let blanks = " ".repeat(MAX_MESSAGE_BYTES - text.len());
    let longest = format!("{text}{blanks}");
    assert!(signalling::parse(&longest).is_ok());
    assert!(signalling::parse(&(longest + " ")).is_err());
});
