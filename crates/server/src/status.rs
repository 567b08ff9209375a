//! For the operator, on a port that no visitor reaches: a page that shows what happens now, and what programs collect.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::header,
    response::{Html, IntoResponse, Response},
};
use serde::Serialize;

use crate::{
    hub::Hub,
    media::{Media, MediaStatus},
    rooms::RoomStatus,
};

/// What the page shows. No room's name and no participant's is in it.
#[derive(Debug, Serialize)]
struct Status {
    version: &'static str,
    uptime_s: u64,
    /// Open signalling connections.
    connections: usize,
    /// Signalling messages and connections refused since the start, by reason.
    dropped: BTreeMap<&'static str, u64>,
    rooms: Vec<RoomStatus>,
    /// None if there is no relay.
    relay: Option<Arc<MediaStatus>>,
}

/// `GET /`.
pub(crate) async fn page() -> Response {
    Html(include_str!("../pages/operator.html")).into_response()
}

/// `GET /operator.css`.
pub(crate) async fn css() -> Response {
    let css = include_str!("../pages/operator.css");
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], css).into_response()
}

/// `GET /operator.js`.
pub(crate) async fn js() -> Response {
    let js = include_str!("../pages/operator.js");
    (
        [(header::CONTENT_TYPE, "text/javascript; charset=utf-8")],
        js,
    )
        .into_response()
}

/// `GET /status.json`.
pub(crate) async fn json(State(hub): State<Arc<Hub>>) -> Response {
    let (mut rooms, connections) = hub.status();
    rooms.sort_unstable_by(|a, b| a.room.cmp(&b.room));
    let status = Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime_s: hub.now().as_secs(),
        connections,
        dropped: hub.metrics.dropped(),
        rooms,
        relay: hub.media.as_ref().map(Media::status),
    };
    ([(header::CACHE_CONTROL, "no-store")], Json(status)).into_response()
}

/// `GET /metrics`, in the OpenMetrics text format.
pub(crate) async fn metrics(State(hub): State<Arc<Hub>>) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], hub.metrics.text()).into_response()
}
