//! A certificate from two files, read again when they change.

use std::{io, time::Duration, time::SystemTime};

use axum_server::tls_rustls::RustlsConfig;
use tokio::time;

use crate::config::TlsFiles;

/// How often the files are looked at. Certificates are renewed weeks before they expire.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Reads both files.
pub(crate) async fn load(files: &TlsFiles) -> io::Result<RustlsConfig> {
    RustlsConfig::from_pem_file(&files.cert, &files.key).await
}

/// Calls `read` after every SIGHUP and after every change of the files, for ever. What cannot be read must change nothing.
/// From the moment of the call, a SIGHUP no longer ends the process.
pub(crate) fn keep_fresh(
    files: TlsFiles,
    read: impl AsyncFn() -> io::Result<()>,
) -> impl Future<Output = ()> {
    let hang_ups = HangUps::new();
    reload(files, read, hang_ups)
}

async fn reload(files: TlsFiles, read: impl AsyncFn() -> io::Result<()>, mut hang_ups: HangUps) {
    let mut seen = modified(&files);
    loop {
        let asked = tokio::select! {
            () = hang_ups.next() => true,
            () = time::sleep(CHECK_INTERVAL) => false,
        };
        let now = modified(&files);
        if !asked && now == seen {
            continue;
        }
        match read().await {
            Ok(()) => {
                seen = now;
                tracing::info!(cert = %files.cert.display(), "certificate read again");
            }
            // `seen` stays: a file caught half-written is tried again.
            Err(error) => {
                tracing::error!(%error, cert = %files.cert.display(), "certificate not readable; the old one stays")
            }
        }
    }
}

fn modified(files: &TlsFiles) -> [Option<SystemTime>; 2] {
    [&files.cert, &files.key].map(|file| {
        file.metadata()
            .and_then(|metadata| metadata.modified())
            .ok()
    })
}

#[cfg(unix)]
struct HangUps(Option<tokio::signal::unix::Signal>);

#[cfg(unix)]
impl HangUps {
    fn new() -> Self {
        Self(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).ok())
    }

    async fn next(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(not(unix))]
struct HangUps;

#[cfg(not(unix))]
impl HangUps {
    fn new() -> Self {
        Self
    }

    async fn next(&mut self) {
        std::future::pending().await
    }
}
