//! No input makes the parser panic, and what it accepts it would accept again.

use antiphon_server::signalling::{ClientMessage, parse};
use proptest::prelude::*;

/// One message of each type.
fn valid() -> impl Strategy<Value = String> {
    let secret = "[0-9a-fA-F]{64}";
    let id = "[0-9a-f]{32}";
    let name = "[a-z é👩‍🎤]{0,20}[A-Z]";
    // Not of blanks alone.
    let passphrase = r"[ !#-\[\]-~é]{0,127}[!#-\[\]-~é]";
    let object = r#"\{("[a-z]{0,5}":(null|[1-9][0-9]{0,4}|"[a-z]{0,9}"|\[\]))?\}"#;
    prop_oneof![
        (secret, name).prop_map(|(secret, name)| format!(
            r#"{{"type":"hello","version":1,"secret":"{secret}","name":"{name}","sample_rate_hz":48000}}"#
        )),
        (secret, name, passphrase).prop_map(|(secret, name, passphrase)| format!(
            r#"{{"type":"hello","version":1,"secret":"{secret}","name":"{name}","sample_rate_hz":48000,"passphrase":"{passphrase}","returning":true}}"#
        )),
        (id, "mute|unmute|remove").prop_map(|(id, action)| format!(r#"{{"type":"moderate","to":"{id}","action":"{action}"}}"#)),
        passphrase.prop_map(|passphrase| format!(r#"{{"type":"lock","passphrase":"{passphrase}"}}"#)),
        Just(r#"{"type":"lock","passphrase":null}"#.to_owned()),
        (id, object).prop_map(|(id, data)| format!(r#"{{"type":"signal","to":"{id}","data":{data}}}"#)),
        name.prop_map(|name| format!(r#"{{"type":"rename","name":"{name}"}}"#)),
        Just(r#"{"type":"leave"}"#.to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_damage_makes_it_panic(text in valid(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut: bool) {
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if cut {
            bytes.truncate(at + 1);
        }
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn valid_messages_are_read(text in valid()) {
        let read = parse(&text);
        prop_assert!(read.is_ok(), "{text}: {read:?}");
        if let Ok(ClientMessage::Signal { data, .. }) = read {
            prop_assert!(text.contains(data.get()), "passed on as it was");
        }
    }

    #[test]
    fn one_more_field_is_one_too_many(text in valid()) {
        let text = format!(r#"{},"surplus":0}}"#, text.strip_suffix('}').expect("an object"));
        prop_assert!(parse(&text).is_err());
    }
}
