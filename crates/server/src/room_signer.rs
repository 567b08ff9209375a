//! Rooms that nobody but the operator makes: their names end in a signature.

use data_encoding::BASE64URL_NOPAD;
use ring::hmac;
use subtle::ConstantTimeEq;

use crate::{secret::Secret, signalling::RoomName};

/// Characters of a signature: 128 bits, as many as a random name has.
const SIGNATURE_LENGTH: usize = 22;
const SIGNATURE_BYTES: usize = 16;
/// What a room may be called, in characters: what a name has room for beside `-` and the signature.
const MAX_LABEL_LENGTH: usize = 64 - 1 - SIGNATURE_LENGTH;
/// Whoever has one link can try secrets at home, as fast as their computer does.
const LEAST_SECRET_LENGTH: usize = 16;
/// So that the same secret may serve for something else, too.
const CONTEXT: &[u8] = b"antiphon room\0";

/// Makes rooms, and knows those that it made: their names are a label, `-`, and the first 128 bits of its HMAC-SHA256 (RFC 2104) in base64url. So nothing has to be
/// kept of a room, and its link is the same each time.
#[derive(Debug, Clone)]
pub struct RoomSigner(hmac::Key);

/// Use at least 16 characters that nobody can guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected at least {LEAST_SECRET_LENGTH} characters that nobody guesses, such as those that `openssl rand -hex 32` prints"
)]
pub struct WeakSecret;

/// Use a label of 1 to 41 letters, digits, `-` or `_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to {MAX_LABEL_LENGTH} letters, digits, '-' or '_'")]
pub struct LabelError;

impl RoomSigner {
    /// With another secret every room is another one.
    pub fn new(secret: &Secret) -> Result<Self, WeakSecret> {
        let secret = secret.reveal();
        if secret.len() < LEAST_SECRET_LENGTH {
            return Err(WeakSecret);
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())))
    }

    /// The room that is called so.
    pub fn room(&self, label: &str) -> Result<RoomName, LabelError> {
        if label.is_empty() {
            return Err(LabelError);
        }
        let signature = BASE64URL_NOPAD.encode(&self.signature(label));
        format!("{label}-{signature}")
            .parse()
            .map_err(|_| LabelError)
    }

    /// A room that nobody has been in.
    pub fn random(&self) -> RoomName {
        self.room(RoomName::random().as_str())
            .expect("a random name is a label")
    }

    /// Whether this made it.
    pub fn has_made(&self, room: &RoomName) -> bool {
        let name = room.as_str();
        let Some(at) = name.len().checked_sub(SIGNATURE_LENGTH) else {
            return false;
        };
        let (label, signature) = name.split_at(at);
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes());
        let (Some(label), Ok(signature)) = (label.strip_suffix('-'), signature) else {
            return false;
        };
        self.signature(label).ct_eq(&signature).into()
    }

    fn signature(&self, label: &str) -> [u8; SIGNATURE_BYTES] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(CONTEXT);
        context.update(label.as_bytes());
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(&context.sign().as_ref()[..SIGNATURE_BYTES]);
        signature
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn signer(secret: &str) -> RoomSigner {
        RoomSigner::new(&Secret::new(secret)).expect("long enough")
    }

    fn name(text: &str) -> RoomName {
        text.parse().expect("a room's name")
    }

    #[test]
    fn the_link_to_a_room_is_the_same_each_time() {
        let room = signer("correct horse battery").room("violin-3a");
        // Python: base64.urlsafe_b64encode(hmac.digest(b"correct horse battery", b"antiphon room\0violin-3a", "sha256")[:16])
        assert_eq!(room, Ok(name("violin-3a-9pb6JQEZ7nwwkMpBKfoUaQ")));
    }

    #[test]
    fn a_weak_secret_and_what_is_no_label_are_refused() {
        assert!(matches!(
            RoomSigner::new(&Secret::new("fifteen letters")),
            Err(WeakSecret)
        ));
        let signer = signer("correct horse battery");
        for label in ["", "choir practice", "choir/1", "chœur", &"a".repeat(42)] {
            assert_eq!(signer.room(label), Err(LabelError), "{label}");
        }
        assert!(signer.room(&"a".repeat(41)).is_ok());
    }

    #[test]
    fn rooms_that_others_made_are_none() {
        let signer = signer("correct horse battery");
        let others = super::tests::signer("correct horse batterie");
        assert!(!signer.has_made(&RoomName::random()));
        assert!(!signer.has_made(&others.random()));
        // Shorter than a signature, as long as one, and one without a label.
        for text in [
            "sixteen-letters-",
            "twenty-two-characters-",
            "-twenty-two-characters-",
        ] {
            assert!(!signer.has_made(&name(text)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_room_is_known_until_a_character_changes(label in "[A-Za-z0-9_-]{1,41}", at in any::<prop::sample::Index>(), other in "[A-Za-z0-9_-]") {
            let signer = signer("correct horse battery");
            let room = signer.room(&label).expect("a label");
            prop_assert!(signer.has_made(&room));
            let mut changed = room.as_str().to_owned();
            let at = at.index(changed.len());
            changed.replace_range(at..=at, &other);
            prop_assert_eq!(signer.has_made(&name(&changed)), changed == room.as_str());
        }
    }
}
