//! Binds the sockets, serves, and stops in good order.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router, middleware,
    routing::{any, get},
};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use hyper_util::rt::TokioTimer;
use prometheus_client::registry::Registry;
use tower_http::compression::CompressionLayer;

use crate::{
    config::Config,
    connection,
    headers::{secure, secure_tls},
    hub::Hub,
    media::Media,
    metrics::Metrics,
    relay::{BoundRelay, Lifetime},
    status, tls, web,
};

/// How long open connections may take to end after the server was asked to stop.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Take another address, or stop the program that has this one.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Correct the files.
    #[error("cannot use the certificate {} with the key {}: {source}", cert.display(), key.display())]
    Tls {
        /// The certificate chain.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A server with its sockets bound, ready to [`Server::run`].
#[derive(Debug)]
pub struct Server {
    hub: Arc<Hub>,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<RustlsConfig>,
    relay: Option<BoundRelay>,
    metrics: Option<(TcpListener, SocketAddr)>,
}

impl Server {
    /// Binds the sockets and reads the certificate.
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        let (listener, address) = listen(config.listen)?;
        let metrics = config.metrics_listen.map(listen).transpose()?;
        let tls = match &config.tls {
            Some(files) => {
                // Fails when one is installed already, which is as good.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let loaded = tls::load(files).await;
                Some(loaded.map_err(|source| StartError::Tls {
                    cert: files.cert.clone(),
                    key: files.key.clone(),
                    source,
                })?)
            }
            None => None,
        };
        let mut registry = Registry::with_prefix("antiphon");
        let (relay, media) = match bind_relay(&config, address)? {
            Some((relay, media)) => {
                registry.register_collector(Box::new(relay.metrics()));
                (Some(relay), Some(media))
            }
            None => (None, None),
        };
        Ok(Self {
            hub: Hub::new(config, Metrics::new(registry), media),
            listener,
            address,
            tls,
            relay,
            metrics,
        })
    }

    /// Where it listens, with the port that was really taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the relay listens, if there is one, with the port that was really taken.
    pub fn relay_address(&self) -> Option<SocketAddr> {
        self.relay.as_ref().map(BoundRelay::address)
    }

    /// Where it serves metrics and the operator's page, if it does.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(|(_, address)| *address)
    }

    /// Serves until `stop` is ready; then tells every page, and returns when all have gone or three seconds later.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let Self {
            hub,
            listener,
            tls,
            relay,
            metrics,
            ..
        } = self;
        let relay = relay.map(BoundRelay::start).transpose()?;
        let timers = Arc::clone(&hub);
        let mut background = tokio::task::JoinSet::new();
        background.spawn(async move { timers.run_timers().await });
        let followers = Arc::clone(&hub);
        background.spawn(async move { followers.follow_relay().await });
        if let Some((listener, _)) = metrics {
            let app = operator_app(Arc::clone(&hub));
            let server = impatient(axum_server::from_tcp(listener)?);
            background.spawn(async move {
                if let Err(error) = server.serve(app.into_make_service()).await {
                    tracing::error!(%error, "metrics are no longer served");
                }
            });
        }
        if let (Some(tls), Some(files)) = (&tls, &hub.config.tls) {
            let (tls, named) = (tls.clone(), files.clone());
            let reload = async move || tls.reload_from_pem_file(&named.cert, &named.key).await;
            background.spawn(tls::keep_fresh(files.clone(), reload));
        }

        let handle = Handle::new();
        let app = app(Arc::clone(&hub), tls.is_some())
            .into_make_service_with_connect_info::<SocketAddr>();
        let serving = async {
            match tls {
                Some(tls) => {
                    let server =
                        axum_server::from_tcp_rustls(listener, tls)?.handle(handle.clone());
                    server.serve(app).await
                }
                None => {
                    impatient(axum_server::from_tcp(listener)?)
                        .handle(handle.clone())
                        .serve(app)
                        .await
                }
            }
        };
        let stopping = async {
            stop.await;
            tracing::info!("stopping");
            hub.shut_down(PATIENCE).await;
            handle.graceful_shutdown(Some(Duration::from_secs(1)));
        };
        let (served, ()) = tokio::join!(serving, stopping);
        if let Some(relay) = relay {
            relay.stop().await?;
        }
        served
    }
}

/// A client that opens connections and never finishes asking cannot hold them.
fn impatient<A>(
    mut server: axum_server::Server<SocketAddr, A>,
) -> axum_server::Server<SocketAddr, A> {
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    server
}

fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    bind().map_err(|source| StartError::Listen { address, source })
}

/// The relay, if there shall be one. `web` is where the web app is.
fn bind_relay(config: &Config, web: SocketAddr) -> Result<Option<(BoundRelay, Media)>, StartError> {
    let Some(relay) = &config.relay else {
        return Ok(None);
    };
    let bind = |address| {
        let origin = config.public_origin.clone();
        BoundRelay::bind(address, relay, origin, Lifetime::default())
    };
    let bound = match relay.listen {
        Some(address) => bind(address),
        // The web app may have any free port; the same number need not be free for UDP.
        None if config.listen.port() == 0 => {
            bind(web).or_else(|_| bind(SocketAddr::new(web.ip(), 0)))
        }
        None => bind(web),
    };
    bound.map(Some)
}

fn app(hub: Arc<Hub>, tls: bool) -> Router {
    let app = Router::new()
        .route("/", get(web::index))
        .route("/r/{room}", get(web::room))
        .route("/plain.css", get(web::plain_css))
        .route("/healthz", get(web::health))
        .fallback(get(web::file))
        .layer(CompressionLayer::new())
        .route("/ws/{room}", any(connection::upgrade))
        .with_state(hub);
    if tls {
        app.layer(middleware::from_fn(secure_tls))
    } else {
        app.layer(middleware::from_fn(secure))
    }
}

fn operator_app(hub: Arc<Hub>) -> Router {
    Router::new()
        .route("/", get(status::page))
        .route("/operator.css", get(status::css))
        .route("/operator.js", get(status::js))
        .route("/status.json", get(status::json))
        .route("/metrics", get(status::metrics))
        .layer(middleware::from_fn(secure))
        .with_state(hub)
}
