//! Text that must never reach a log.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// A text whose `Debug` form is [`Secret::HIDDEN`], and so is what it serialises to: only [`Secret::reveal`] shows it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// What stands for a secret, and is none.
    pub const HIDDEN: &str = "***";

    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself: for a key or the wire, never for a log.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::HIDDEN)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_debug_nor_serialisation_shows_it() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{:?} {secret:#?}", Some(&secret)), "Some(***) ***");
        assert_eq!(
            serde_json::to_string(&secret).expect("serialises"),
            r#""***""#
        );
        assert_eq!(secret.reveal(), "hunter2");
    }
}
