//! The STUN and TURN servers that a page is told about.

use std::str::FromStr;

use data_encoding::BASE64;
use ring::hmac;
use serde::{Deserialize, Serialize, Serializer};

use crate::{secret::Secret, signalling::ParticipantId};

/// What the operator configured.
#[derive(Debug, Clone, Default)]
pub struct IceConfig {
    /// Told to everyone as they are.
    pub servers: Vec<IceServer>,
    /// A TURN service for which this server makes credentials.
    pub turn: Option<TurnService>,
}

/// A TURN service that shares a secret with this server (coturn's `use-auth-secret`).
#[derive(Debug, Clone)]
pub struct TurnService {
    /// `turn:` and `turns:` addresses.
    pub urls: Vec<String>,
    /// coturn's `static-auth-secret`.
    pub secret: Secret,
    /// How long a credential is valid. It must outlast the session, or a relayed connection cannot be restarted.
    pub ttl_s: u64,
}

/// One entry of `RTCConfiguration.iceServers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IceServer {
    /// `stun:`, `stuns:`, `turn:` or `turns:` addresses.
    pub urls: Vec<String>,
    /// Needed by TURN only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// Needed by TURN only. The one place where it is shown is the participant's own `welcome`.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "reveal")]
    pub credential: Option<Secret>,
}

fn reveal<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(Secret::reveal).serialize(serializer)
}

impl IceConfig {
    /// The list for one participant, with a TURN credential of its own that starts now.
    pub fn servers_for(&self, participant: ParticipantId, unix_now_s: u64) -> Vec<IceServer> {
        let turn = self
            .turn
            .as_ref()
            .map(|turn| turn.server_for(participant, unix_now_s));
        self.servers.iter().cloned().chain(turn).collect()
    }
}

impl TurnService {
    /// Source: draft-uberti-behave-turn-rest-00, section 2.2: `base64(HMAC-SHA1(secret, "expiry:user"))`.
    fn server_for(&self, participant: ParticipantId, unix_now_s: u64) -> IceServer {
        let username = format!("{}:{participant}", unix_now_s.saturating_add(self.ttl_s));
        let key = hmac::Key::new(
            hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            self.secret.reveal().as_bytes(),
        );
        let credential = BASE64.encode(hmac::sign(&key, username.as_bytes()).as_ref());
        IceServer {
            urls: self.urls.clone(),
            username: Some(username),
            credential: Some(Secret::new(credential)),
        }
    }
}

/// Why a text is no ICE server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IceServerError {
    /// Begin it with one of the four schemes.
    #[error(
        "an ICE server begins with stun:, stuns:, turn: or turns:, for example stun:stun.example.org:3478"
    )]
    Scheme,
    /// Add both.
    #[error(
        "a TURN server needs a user and a credential: turn:turn.example.org:3478,USER,CREDENTIAL"
    )]
    Credentials,
}

/// The scheme is the one thing checked: the browser judges the rest, and says so to the user.
fn check_scheme(url: &str, schemes: &[&str]) -> Result<(), IceServerError> {
    let known = url
        .split_once(':')
        .is_some_and(|(scheme, rest)| schemes.contains(&scheme) && !rest.is_empty());
    known.then_some(()).ok_or(IceServerError::Scheme)
}

/// Checks the address of a TURN service.
pub fn check_turn_url(url: &str) -> Result<(), IceServerError> {
    check_scheme(url, &["turn", "turns"])
}

/// `URL` or `URL,USER,CREDENTIAL`.
impl FromStr for IceServer {
    type Err = IceServerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.splitn(3, ',').map(str::trim);
        let url = parts.next().unwrap_or_default();
        check_scheme(url, &["stun", "stuns", "turn", "turns"])?;
        let username = parts.next().filter(|part| !part.is_empty());
        let credential = parts.next().filter(|part| !part.is_empty());
        if username.is_some() != credential.is_some()
            || (url.starts_with("turn") && username.is_none())
        {
            return Err(IceServerError::Credentials);
        }
        Ok(Self {
            urls: vec![url.to_owned()],
            username: username.map(str::to_owned),
            credential: credential.map(Secret::new),
        })
    }
}

impl<'de> Deserialize<'de> for IceServer {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checked against `printf 1700003600:… | openssl dgst -sha1 -hmac north -binary | base64`.
    #[test]
    fn makes_the_credential_that_coturn_expects() {
        let turn = TurnService {
            urls: vec!["turn:turn.example.org".into()],
            secret: Secret::new("north"),
            ttl_s: 3_600,
        };
        let ice = IceConfig {
            servers: vec![],
            turn: Some(turn),
        };
        let servers = ice.servers_for(ParticipantId::of_secret(&[0; 32]), 1_700_000_000);
        assert_eq!(
            servers[0].username.as_deref(),
            Some("1700003600:66687aadf862bd776c8fc18b8e9f8e20")
        );
        assert_eq!(
            servers[0].credential.as_ref().map(Secret::reveal),
            Some("5XoVGoTX9pEcQPGjqDSXg7PhLYU=")
        );
        assert!(!format!("{ice:?} {servers:?}").contains("north"));
        assert!(!format!("{servers:?}").contains("5XoVGoTX9pEcQPGjqDSXg7PhLYU="));
    }

    #[test]
    fn reads_what_an_operator_writes() {
        let stun: IceServer = "stun:stun.example.org:3478".parse().expect("valid");
        assert_eq!(
            serde_json::to_string(&stun).expect("serialises"),
            r#"{"urls":["stun:stun.example.org:3478"]}"#
        );
        let turn: IceServer = "turns:turn.example.org?transport=tcp,ann,pass,word"
            .parse()
            .expect("valid");
        assert_eq!(
            serde_json::to_string(&turn).expect("serialises"),
            r#"{"urls":["turns:turn.example.org?transport=tcp"],"username":"ann","credential":"pass,word"}"#
        );
        assert_eq!(
            "https://example.org".parse::<IceServer>(),
            Err(IceServerError::Scheme)
        );
        assert_eq!("stun:".parse::<IceServer>(), Err(IceServerError::Scheme));
        assert_eq!(
            "turn:turn.example.org".parse::<IceServer>(),
            Err(IceServerError::Credentials)
        );
        assert_eq!(
            "turn:turn.example.org,ann".parse::<IceServer>(),
            Err(IceServerError::Credentials)
        );
        assert_eq!(
            check_turn_url("stun:stun.example.org"),
            Err(IceServerError::Scheme)
        );
    }
}
