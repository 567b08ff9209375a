//! The web app, embedded in the binary (a debug build reads it from `web/dist` at each request).

use std::{borrow::Cow, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{Html, IntoResponse, Response},
};
use bytes::Bytes;
use data_encoding::HEXLOWER;
use rust_embed::RustEmbed;

use crate::hub::Hub;

#[derive(RustEmbed)]
#[folder = "../../web/dist"]
struct App;

/// Whether the binary has the web app in it.
pub fn is_embedded() -> bool {
    App::get("index.html").is_some()
}

/// `GET /`: the app, which makes a room. Where only the operator makes rooms, a page says so instead.
pub(crate) async fn index(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    match hub.config.room_signer {
        Some(_) => Html(include_str!("../pages/by-link.html")).into_response(),
        None => app(&headers),
    }
}

fn app(headers: &HeaderMap) -> Response {
    match answer("index.html", headers, "no-cache") {
        Some(answer) => answer,
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            Html(include_str!("../pages/not-built.html")),
        )
            .into_response(),
    }
}

/// `GET /r/{room}`: the same app, which enters the room.
pub(crate) async fn room(
    State(hub): State<Arc<Hub>>,
    Path(room): Path<String>,
    headers: HeaderMap,
) -> Response {
    match hub.config.room(&room) {
        Some(_) => app(&headers),
        None => not_found(),
    }
}

/// Everything else that Vite wrote. Names under `assets/` contain a hash of the content, so they may be kept for ever.
pub(crate) async fn file(uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let cache_control = if path.starts_with("assets/") {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    answer(path, &headers, cache_control).unwrap_or_else(not_found)
}

/// `GET /plain.css`, for the pages that the server writes itself.
pub(crate) async fn plain_css() -> Response {
    (
        [(header::CONTENT_TYPE, "text/css; charset=utf-8")],
        include_str!("../pages/plain.css"),
    )
        .into_response()
}

/// `GET /healthz`.
pub(crate) async fn health(State(hub): State<Arc<Hub>>) -> Response {
    let (code, status) = match hub.trouble() {
        None => (StatusCode::OK, "ok"),
        Some(trouble) => (StatusCode::SERVICE_UNAVAILABLE, trouble),
    };
    let body = serde_json::json!({ "status": status, "version": env!("CARGO_PKG_VERSION") });
    (code, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

fn not_found() -> Response {
    (
        StatusCode::NOT_FOUND,
        Html(include_str!("../pages/not-found.html")),
    )
        .into_response()
}

/// The file, or its compressed form for who takes that. `None` without such a file.
fn answer(path: &str, request: &HeaderMap, cache_control: &'static str) -> Option<Response> {
    let file = App::get(path)?;
    // Weak, because the same file goes out in two forms.
    let tag = format!(
        "W/\"{}\"",
        HEXLOWER.encode(&file.metadata.sha256_hash()[..8])
    );
    let known = request
        .get(header::IF_NONE_MATCH)
        .and_then(|tags| tags.to_str().ok());
    let known = known.is_some_and(|tags| tags.split(',').any(|known| known.trim() == tag));
    let mut mime = file.metadata.mimetype().to_owned();
    if mime.starts_with("text/") {
        mime.push_str("; charset=utf-8");
    }
    let headers = [
        (header::ETAG, HeaderValue::try_from(tag)),
        (
            header::CACHE_CONTROL,
            Ok(HeaderValue::from_static(cache_control)),
        ),
        (header::CONTENT_TYPE, HeaderValue::try_from(mime)),
        (
            header::VARY,
            Ok(HeaderValue::from_name(header::ACCEPT_ENCODING)),
        ),
    ];
    let headers = headers.map(|(name, value)| (name, value.expect("printable ASCII")));
    if known {
        return Some((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let compressed = takes_brotli(request)
        .then(|| App::get(&format!("{path}.br")))
        .flatten();
    Some(match compressed {
        Some(compressed) => (
            headers,
            [(header::CONTENT_ENCODING, "br")],
            body(compressed.data),
        )
            .into_response(),
        None => (headers, body(file.data)).into_response(),
    })
}

/// Whether `Accept-Encoding` names Brotli, with a weight other than zero (RFC 9110, section 12.5.3). Browsers do, over TLS and to localhost.
fn takes_brotli(request: &HeaderMap) -> bool {
    request
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|codings| codings.to_str().ok())
        .flat_map(|codings| codings.split(','))
        .any(|coding| {
            let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
            let weight = weight.trim().trim_start_matches("q=").parse::<f32>();
            name.trim().eq_ignore_ascii_case("br") && weight.is_ok_and(|weight| weight > 0.0)
        })
}

/// A client that asks and does not read shall not hold a copy of what is in the binary already.
fn body(data: Cow<'static, [u8]>) -> Bytes {
    match data {
        Cow::Borrowed(data) => Bytes::from_static(data),
        Cow::Owned(data) => data.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_binary_is_not_copied() {
        static EMBEDDED: &[u8] = b"embedded";
        let body = body(EMBEDDED.into());
        assert_eq!((body.as_ptr(), &*body), (EMBEDDED.as_ptr(), EMBEDDED));
    }

    #[test]
    fn brotli_is_for_who_takes_it() {
        let takes = |codings: &'static str| {
            let headers = [(header::ACCEPT_ENCODING, HeaderValue::from_static(codings))];
            takes_brotli(&headers.into_iter().collect())
        };
        for codings in ["br", "gzip, deflate, br, zstd", "gzip;q=1, BR ; q=0.5"] {
            assert!(takes(codings), "{codings}");
        }
        for codings in [
            "",
            "gzip, deflate",
            "br;q=0",
            "br; q=0.000",
            "br;q=x",
            "brotli",
            "*",
        ] {
            assert!(!takes(codings), "{codings}");
        }
        assert!(!takes_brotli(&HeaderMap::new()));
    }
}
