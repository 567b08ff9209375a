//! A room's link, as `antiphon serve` prints it.

use url::Url;

/// `https://HOST[:PORT]/r/ROOM`, or `http` for a server on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomLink {
    /// Whether the server has a certificate.
    pub is_secure: bool,
    /// Name or address.
    pub host: String,
    /// TCP port of the signalling.
    pub port: u16,
    /// The room's name.
    pub room: String,
}

impl std::str::FromStr for RoomLink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            |why: &str| format!("{text} is no room's link ({why}): expected http(s)://HOST/r/ROOM");
        let url = Url::parse(text).map_err(|error| bad(&error.to_string()))?;
        let is_secure = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(bad("neither http nor https")),
        };
        let host = url.host_str().ok_or_else(|| bad("no host"))?;
        let room = (url.path().strip_prefix("/r/")).ok_or_else(|| bad("no /r/ in it"))?;
        let room = room.strip_suffix('/').unwrap_or(room);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !(16..=64).contains(&room.len()) || !room.chars().all(is_name) {
            return Err(bad("a room has 16 to 64 letters, digits, - or _"));
        }
        Ok(Self {
            is_secure,
            host: host.to_owned(),
            port: url.port_or_known_default().unwrap_or(443),
            room: room.to_owned(),
        })
    }
}

impl RoomLink {
    /// Another room of the same server.
    pub fn with_room(&self, room: String) -> Self {
        Self {
            room,
            ..self.clone()
        }
    }

    /// Where the signalling is.
    pub fn signalling_url(&self) -> String {
        let scheme = if self.is_secure { "wss" } else { "ws" };
        format!("{scheme}://{}:{}/ws/{}", self.host, self.port, self.room)
    }

    /// The host without the brackets that an IPv6 address has in a link.
    pub fn host_name(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_they_are_printed() {
        let link: RoomLink = "http://localhost:8080/r/abcdefghij0123456789-_"
            .parse()
            .expect("a link");
        assert_eq!(
            link.signalling_url(),
            "ws://localhost:8080/ws/abcdefghij0123456789-_"
        );
        let link: RoomLink = "https://[2001:db8::1]/r/abcdefghijklmnop/?autojoin=1"
            .parse()
            .expect("a link");
        assert_eq!((link.port, link.host_name()), (443, "2001:db8::1"));
        for bad in [
            "localhost:8080/r/abcdefghijklmnop",
            "ftp://a/r/abcdefghijklmnop",
            "http://a/",
            "http://a/r/short",
            "http://a/r/abcdefghijklmno!",
        ] {
            assert!(bad.parse::<RoomLink>().is_err(), "{bad}");
        }
    }
}
