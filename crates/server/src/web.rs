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
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::{hub::Hub, signalling::RoomName};

#[derive(RustEmbed)]
#[folder = "../../web/dist"]
struct App;

/// Whether the binary has the web app in it.
pub fn is_embedded() -> bool {
    App::get("index.html").is_some()
}

/// `GET /`: the app, which makes a room.
pub(crate) async fn index(headers: HeaderMap) -> Response {
    match App::get("index.html") {
        Some(file) => answer(file, &headers, "no-cache"),
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            Html(include_str!("../pages/not-built.html")),
        )
            .into_response(),
    }
}

/// `GET /r/{room}`: the same app, which enters the room.
pub(crate) async fn room(Path(room): Path<String>, headers: HeaderMap) -> Response {
    match room.parse::<RoomName>() {
        Ok(_) => index(headers).await,
        Err(_) => not_found(),
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
    match App::get(path) {
        Some(file) => answer(file, &headers, cache_control),
        None => not_found(),
    }
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

fn answer(file: EmbeddedFile, request: &HeaderMap, cache_control: &'static str) -> Response {
    // Weak, because the same file goes out in more than one compression.
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
    ];
    let headers = headers.map(|(name, value)| (name, value.expect("printable ASCII")));
    if known {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, body(file.data)).into_response()
    }
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
}
