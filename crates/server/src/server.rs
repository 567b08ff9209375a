//! Binds the sockets, serves, and stops in good order.

use std::{
    convert::Infallible,
    future, io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router, middleware,
    routing::{any, get},
};
use axum_server::{
    Handle,
    accept::DefaultAcceptor,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use hyper_util::rt::TokioTimer;
use prometheus_client::{
    metrics::gauge::Gauge,
    registry::{Registry, Unit},
};
use tokio::task::JoinSet;

use crate::{
    acme::Acme,
    config::{Config, Tls},
    connection,
    headers::{only_here, secure, secure_tls},
    hub::Hub,
    listener::{Listener, Prompt, Visitor},
    media::Media,
    metrics::Metrics,
    relay::{self, BoundRelay, Lifetime},
    status, tls, web,
};

/// How long open connections may take to end after the server was asked to stop.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a client that speaks HTTP/2 has to show that it is there.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How much a client that speaks HTTP/2 may ask for at once. A page has fewer files.
const MAX_STREAMS: u32 = 16;

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
    /// Take another address for metrics and the operator's page, or stop the program that has this one.
    #[error("cannot listen for metrics on {address}: {source}")]
    ListenMetrics {
        /// The address that was asked for.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Take another UDP address, stop the program that has this one, or do without a relay.
    #[error("the relay cannot listen on UDP {address}: {source}")]
    ListenRelay {
        /// The address that was asked for, or that of the web app.
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
    /// Make the directory writable, or take another.
    #[error("cannot keep certificates in {}: {source}", path.display())]
    AcmeCache {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Correct the root certificate, or whatever else the way to the CA needs.
    #[error("cannot ask the CA at {directory}: {reason}")]
    AcmeClient {
        /// The URL of the CA's directory.
        directory: String,
        /// Why not.
        reason: String,
    },
}

/// A server with its sockets bound, ready to [`Server::run`].
#[derive(Debug)]
pub struct Server {
    hub: Arc<Hub>,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<RustlsConfig>,
    acme: Option<Acme>,
    expiry: Gauge,
    relay: Option<BoundRelay>,
    metrics: Option<(TcpListener, SocketAddr)>,
}

impl Server {
    /// Binds the sockets and reads the certificate.
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        let (listener, address) = listen(config.listen).map_err(|source| StartError::Listen {
            address: config.listen,
            source,
        })?;
        let metrics = config.metrics_listen.map(|address| {
            listen(address).map_err(|source| StartError::ListenMetrics { address, source })
        });
        let metrics = metrics.transpose()?;
        let expiry = Gauge::default();
        let (tls, acme) = match &config.tls {
            Some(source) => {
                if let Tls::Files(files) = source {
                    tls::check_name(files, config.public_origin.as_deref());
                }
                // Fails when one is installed already, which is as good.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let (tls, acme) = bind_tls(source, &expiry).await?;
                (Some(tls), acme)
            }
            None => (None, None),
        };
        let mut registry = Registry::with_prefix("antiphon");
        if tls.is_some() {
            registry.register_with_unit(
                "certificate_expiry_time",
                "When the web port's certificate expires, Unix time; 0 while there is none, or if it is not known",
                Unit::Seconds,
                expiry.clone(),
            );
        }
        let (relay, media) = match bind_relay(&config, address, acme.as_ref())? {
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
            acme,
            expiry,
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

    /// Whether it reads certificates again on SIGHUP; the signal is for nobody otherwise.
    pub fn reads_files(&self) -> bool {
        let relay = self.relay.as_ref();
        matches!(self.hub.config.tls, Some(Tls::Files(_)))
            || relay.is_some_and(BoundRelay::reads_files)
    }

    /// Serves until `stop` is ready; then tells every page, and returns when all have gone or four seconds later.
    pub async fn run(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let Self {
            hub,
            listener,
            tls,
            acme,
            expiry,
            relay,
            metrics,
            ..
        } = self;
        let mut relay = relay.map(BoundRelay::start).transpose()?;
        let timers = Arc::clone(&hub);
        let mut background = JoinSet::new();
        background.spawn(async move { timers.run_timers().await });
        let followers = Arc::clone(&hub);
        background.spawn(async move { followers.follow_relay().await });
        if let Some((listener, address)) = metrics {
            let mut app = operator_app(Arc::clone(&hub));
            // Elsewhere it is for those of a network, who may have any name for it.
            if address.ip().is_loopback() {
                app = app.layer(middleware::from_fn(only_here));
            }
            let listener = Listener::operator(listener, Arc::clone(&hub))?;
            let server = impatient(listener, DefaultAcceptor);
            background.spawn(async move {
                if let Err(error) = server.serve(app.into_make_service()).await {
                    tracing::error!(%error, "metrics are no longer served");
                }
            });
        }
        if let (Some(tls), Some(Tls::Files(files))) = (&tls, &hub.config.tls) {
            let (tls, named) = (tls.clone(), files.clone());
            let reload = async move || {
                tls::check(&named)?;
                tls.reload_from_pem_file(&named.cert, &named.key).await?;
                expiry.set(tls::expiry_s(&named));
                Ok(true)
            };
            background.spawn(tls::keep_fresh("web port", files.clone(), reload));
        }
        if let Some(acme) = acme {
            background.spawn(acme.keep_fresh());
        }

        let handle = Handle::new();
        let app = app(Arc::clone(&hub), tls.is_some())
            .into_make_service_with_connect_info::<SocketAddr>();
        let listener = Listener::public(listener, Arc::clone(&hub))?;
        let serving = async {
            match tls {
                Some(tls) => {
                    impatient(listener, RustlsAcceptor::new(tls))
                        .handle(handle.clone())
                        .serve(app)
                        .await
                }
                None => {
                    impatient(listener, DefaultAcceptor)
                        .handle(handle.clone())
                        .serve(app)
                        .await
                }
            }
        };
        let stopping = async {
            let gone = async {
                match &mut relay {
                    Some(relay) => relay.gone().await,
                    None => future::pending().await,
                }
            };
            tokio::select! {
                () = stop => tracing::info!("stopping"),
                // Pages would go on asking for it. Whoever started the server may do so again.
                () = gone => tracing::error!("stopping, because the relay has ended"),
            }
            let silenced = async {
                match relay {
                    Some(relay) => relay.stop().await,
                    None => Ok(()),
                }
            };
            let ((), silenced) = tokio::join!(hub.shut_down(PATIENCE), silenced);
            handle.graceful_shutdown(Some(Duration::from_secs(1)));
            silenced
        };
        tokio::select! {
            (served, silenced) = async { tokio::join!(serving, stopping) } => served.and(silenced),
            never = watch(&mut background, &hub) => match never {},
        }
    }
}

/// Tells of tasks that panicked, for ever. The others go on.
async fn watch(background: &mut JoinSet<()>, hub: &Hub) -> Infallible {
    while let Some(ended) = background.join_next().await {
        if let Err(error) = ended {
            hub.handle_broken();
            tracing::error!(%error, "a background task has ended; restart the server");
        }
    }
    future::pending().await
}

/// A client that opens connections and says nothing, never finishes asking, or has gone without a word cannot hold them.
fn impatient<A>(listener: Listener, acceptor: A) -> axum_server::Server<Visitor, Prompt<A>> {
    let mut server = axum_server::Server::from_listener(listener).acceptor(Prompt(acceptor));
    let http = server.http_builder();
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .max_concurrent_streams(MAX_STREAMS);
    server
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// What the web port shows from the start, and who orders its certificates, if they are ordered.
async fn bind_tls(
    source: &Tls,
    expiry: &Gauge,
) -> Result<(RustlsConfig, Option<Acme>), StartError> {
    match source {
        Tls::Files(files) => {
            let unusable = |source| StartError::Tls {
                cert: files.cert.clone(),
                key: files.key.clone(),
                source,
            };
            let loaded = tls::load(files).await.map_err(unusable)?;
            expiry.set(tls::expiry_s(files));
            Ok((loaded, None))
        }
        Tls::Acme(config) => {
            let acme = Acme::open(config.clone(), expiry.clone())?;
            let shown = acme.resolver().server_config();
            Ok((RustlsConfig::from_config(Arc::new(shown)), Some(acme)))
        }
    }
}

/// The relay, if there shall be one. `web` is where the web app is.
fn bind_relay(
    config: &Config,
    web: SocketAddr,
    acme: Option<&Acme>,
) -> Result<Option<(BoundRelay, Media)>, StartError> {
    let Some(relay) = &config.relay else {
        return Ok(None);
    };
    let mut relay = relay.clone();
    relay.tls = relay.tls.filter(|files| !relay::is_private(files));
    let bind = |address| BoundRelay::bind(config, &relay, address, Lifetime::default());
    let bound = match relay.listen {
        Some(address) => bind(address),
        // The web app may have any free port; the same number need not be free for UDP.
        None if config.listen.port() == 0 => {
            bind(web).or_else(|_| bind(SocketAddr::new(web.ip(), 0)))
        }
        None => bind(web),
    };
    let (mut bound, media) = bound?;
    if let (Some(acme), None) = (acme, &relay.tls) {
        bound.show(acme.shown());
    }
    Ok(Some((bound, media)))
}

fn app(hub: Arc<Hub>, tls: bool) -> Router {
    let relay_port = hub.media.as_ref().map(|media| media.offer().port);
    let config = &hub.config;
    let is_own = !tls && config.public_origin.is_none() && config.listen.ip().is_loopback();
    let app = Router::new()
        .route("/", get(web::index))
        .route("/index.html", get(web::index))
        .route("/r/{room}", get(web::room))
        .route("/plain.css", get(web::plain_css))
        .route("/healthz", get(web::health))
        .fallback(get(web::file))
        .route("/ws/{room}", any(connection::upgrade))
        .with_state(hub);
    let app = if is_own {
        app.layer(middleware::from_fn(only_here))
    } else {
        app
    };
    if tls {
        app.layer(middleware::from_fn_with_state(relay_port, secure_tls))
    } else {
        app.layer(middleware::from_fn_with_state(relay_port, secure))
    }
}

fn operator_app(hub: Arc<Hub>) -> Router {
    Router::new()
        .route("/", get(status::page))
        .route("/operator.css", get(status::css))
        .route("/operator.js", get(status::js))
        .route("/status.json", get(status::json))
        .route("/metrics", get(status::metrics))
        .layer(middleware::from_fn_with_state(None::<u16>, secure))
        .with_state(hub)
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Mutex};

    use axum::{extract, http::StatusCode};
    use tokio::{task::yield_now, time::timeout};

    use super::*;
    use crate::config::RelayConfig;

    fn hub() -> Arc<Hub> {
        let metrics = Metrics::new(Registry::default());
        Hub::new(Config::default(), metrics, None)
    }

    async fn health(hub: &Arc<Hub>) -> StatusCode {
        web::health(extract::State(Arc::clone(hub))).await.status()
    }

    #[tokio::test]
    async fn a_certificate_for_the_relay_that_browsers_refuse_there_is_not_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = tls::self_signed(folder.path());
        let bind = async |tls| {
            Server::bind(Config {
                listen: ([127, 0, 0, 1], 0).into(),
                relay: Some(RelayConfig {
                    tls: Some(tls),
                    ..RelayConfig::default()
                }),
                ..Config::default()
            })
            .await
        };
        let server = bind(files.clone()).await.expect("binds");
        let offer = server.hub.media.as_ref().expect("a relay").offer();
        assert_eq!(offer.certificate_hashes.len(), 2, "its own");
        assert!(!server.reads_files());
        fs::remove_file(&files.key).expect("removed");
        assert!(
            bind(files).await.is_err(),
            "what cannot be read is an error"
        );
    }

    #[tokio::test]
    async fn a_server_that_stops_is_not_healthy() {
        let hub = hub();
        assert_eq!(health(&hub).await, StatusCode::OK);
        hub.shut_down(Duration::ZERO).await;
        assert_eq!(health(&hub).await, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn a_background_task_that_panics_is_told_and_the_others_go_on() {
        let hub = hub();
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let file = Mutex::new(fs::File::create(&log).expect("created"));
        // The test's tasks all run on its own thread.
        let _logging =
            tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
        let mut background = JoinSet::new();
        background.spawn(async { panic!("on purpose") });
        background.spawn(async {});
        let logged = async {
            loop {
                let log = fs::read_to_string(&log).expect("UTF-8");
                if log.contains("on purpose") {
                    return log;
                }
                yield_now().await;
            }
        };
        let log = tokio::select! {
            log = timeout(Duration::from_secs(30), logged) => log.expect("it is logged"),
            never = watch(&mut background, &hub) => match never {},
        };
        assert_eq!(log.matches("ERROR").count(), 1, "{log}");
        assert_eq!(health(&hub).await, StatusCode::SERVICE_UNAVAILABLE);
    }
}
