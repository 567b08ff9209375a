//! What every answer says to the browser: isolated, nothing foreign, nothing stored about where a link was followed.

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, header},
    middleware::Next,
    response::Response,
};

/// `connect-src 'self'` covers this server's WebSocket too; STUN and TURN are no concern of this policy.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; \
    img-src 'self' data:; font-src 'self'; connect-src 'self'; worker-src 'self'; media-src 'self' blob:; \
    manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

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
const ALWAYS: [(HeaderName, &str); 7] = [
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
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (
        HeaderName::from_static("permissions-policy"),
        PERMISSIONS_POLICY,
    ),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// Middleware for plain HTTP.
pub(crate) async fn secure(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in ALWAYS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Middleware for TLS: also asks the browser to keep to it.
pub(crate) async fn secure_tls(request: Request, next: Next) -> Response {
    let mut response = secure(request, next).await;
    let value = HeaderValue::from_static("max-age=31536000");
    response
        .headers_mut()
        .insert(header::STRICT_TRANSPORT_SECURITY, value);
    response
}
