//! What every answer says to the browser: isolated, nothing foreign, nothing stored about where a link was followed.

use std::net::IpAddr;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

/// `connect-src 'self'` covers this server's WebSocket too; STUN and TURN are no concern of this policy. `connect-src` is last, so
/// that the relay's origin can follow.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; \
    img-src 'self' data:; font-src 'self'; worker-src 'self'; media-src 'self' blob:; \
    manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'";

/// Off is what Chromium 156 knows by name and a page of ours will never ask for: a name it does not know is a warning in
/// its console. What is not listed stays as the browser has it, for this origin only.
const PERMISSIONS_POLICY: &str = "microphone=(self), speaker-selection=(self), display-capture=(self), \
    screen-wake-lock=(self), fullscreen=(self), clipboard-write=(self), autoplay=(self), \
    cross-origin-isolated=(self), accelerometer=(), browsing-topics=(), camera=(), clipboard-read=(), \
    encrypted-media=(), gamepad=(), geolocation=(), gyroscope=(), hid=(), identity-credentials-get=(), \
    idle-detection=(), keyboard-map=(), local-fonts=(), magnetometer=(), midi=(), otp-credentials=(), payment=(), \
    picture-in-picture=(), private-state-token-issuance=(), private-state-token-redemption=(), \
    publickey-credentials-create=(), publickey-credentials-get=(), serial=(), storage-access=(), sync-xhr=(), \
    usb=(), window-management=(), xr-spatial-tracking=()";

/// On every answer. Cross-origin isolation is what gives the page its SharedArrayBuffer; the referrer would
/// carry a room's name, which is its key.
const ALWAYS: [(HeaderName, &str); 6] = [
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-embedder-policy"),
        "require-corp",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("permissions-policy"),
        PERMISSIONS_POLICY,
    ),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// Middleware for plain HTTP. `relay_port`: where pages find the relay, if there is one.
pub(crate) async fn secure(
    State(relay_port): State<Option<u16>>,
    request: Request,
    next: Next,
) -> Response {
    let policy = policy(host(request.headers(), request.uri()), relay_port);
    let mut response = next.run(request).await;
    response
        .headers_mut()
        .insert(header::CONTENT_SECURITY_POLICY, policy);
    for (name, value) in ALWAYS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Middleware for TLS: also asks the browser to keep to it.
pub(crate) async fn secure_tls(
    relay_port: State<Option<u16>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = secure(relay_port, request, next).await;
    let value = HeaderValue::from_static("max-age=31536000");
    response
        .headers_mut()
        .insert(header::STRICT_TRANSPORT_SECURITY, value);
    response
}

/// Middleware for ports that are this machine's own: a page elsewhere does not reach them by a name of its own that it has lead here (DNS rebinding). Such a
/// name has a dot in it; `localhost`, and the name of a container, have none.
pub(crate) async fn only_here(request: Request, next: Next) -> Response {
    if host(request.headers(), request.uri()).is_none_or(is_here) {
        return next.run(request).await;
    }
    let why = "this port answers to localhost and to IP addresses, not to names with a dot; behind a proxy, start the server with \
               --public-url (the operator's port: let the proxy ask for localhost)\n";
    (StatusCode::MISDIRECTED_REQUEST, why).into_response()
}

fn is_here(host: &str) -> bool {
    host.parse::<Authority>().is_ok_and(|authority| {
        let host = authority.host();
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        !host.contains('.') || ip.is_ok()
    })
}

/// The host that a request is for, with its port if it names one: in a header, or in HTTP/2 in its URI.
pub(crate) fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    host.or_else(|| uri.authority().map(|authority| authority.as_str()))
}

/// The relay has the page's own host and a port of its own. Where the host cannot stand in a policy (an IPv6 address cannot), `'self'`
/// still covers a relay with the page's port.
fn policy(host: Option<&str>, relay_port: Option<u16>) -> HeaderValue {
    let relay = || {
        let host = host?.split(':').next()?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
        let is_host = !host.is_empty() && host.bytes().all(is_name);
        // As the page has it: Chromium tries `::1` alone for `localhost`, where a server that listens on 127.0.0.1 is not.
        let host = if host == "localhost" {
            "127.0.0.1"
        } else {
            host
        };
        let (host, port) = is_host.then_some((host, relay_port?))?;
        HeaderValue::try_from(format!("{CONTENT_SECURITY_POLICY} https://{host}:{port}")).ok()
    };
    relay().unwrap_or(HeaderValue::from_static(CONTENT_SECURITY_POLICY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_dot_may_be_of_anywhere() {
        for host in [
            "localhost",
            "localhost:9090",
            "127.0.0.1",
            "192.0.2.1:9090",
            "[::1]:9090",
            "antiphon:9090",
        ] {
            assert!(is_here(host), "{host}");
        }
        for host in [
            "evil.example.org",
            "evil.example.org:9090",
            "127.0.0.1.example.org",
            "localhost.",
            "",
        ] {
            assert!(!is_here(host), "{host}");
        }
    }

    #[test]
    fn pages_may_connect_to_the_relay_on_their_own_host_alone() {
        let allowed = |host: &'static str, port| {
            let policy = policy(Some(host), port);
            let policy = policy.to_str().expect("a policy is ASCII");
            let (_, sources) = policy
                .split_once("connect-src ")
                .expect("a policy names them");
            sources.to_owned()
        };
        assert_eq!(allowed("play.example", None), "'self'");
        let both = "'self' https://play.example:4433";
        assert_eq!(allowed("play.example", Some(4433)), both);
        assert_eq!(allowed("play.example:8443", Some(4433)), both);
        let loopback = "'self' https://127.0.0.1:8080";
        assert_eq!(allowed("localhost:8080", Some(8080)), loopback);
        assert_eq!(allowed("[::1]:8443", Some(4433)), "'self'");
        assert_eq!(allowed("a; script-src *", Some(4433)), "'self'");
        assert_eq!(policy(None, Some(4433)), CONTENT_SECURITY_POLICY);
    }
}
