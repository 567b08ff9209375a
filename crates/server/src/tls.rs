//! A certificate from two files, read again when they change.

use std::{
    io,
    ops::Range,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum_server::tls_rustls::RustlsConfig;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::time;
use x509_parser::{certificate::X509Certificate, prelude::FromDer, time::ASN1Time};

use crate::{config::TlsFiles, metrics::unix_s};

/// How often the files are looked at. Certificates are renewed weeks before they expire.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Reads both files.
pub(crate) async fn load(files: &TlsFiles) -> io::Result<RustlsConfig> {
    RustlsConfig::from_pem_file(&files.cert, &files.key).await
}

/// When the certificate in the file expires, Unix time in seconds; 0 if that cannot be read, which is no reason not to show it.
pub(crate) fn expiry_s(files: &TlsFiles) -> i64 {
    let read = || {
        let certificate = CertificateDer::from_pem_file(&files.cert);
        let certificate =
            certificate.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        validity(&certificate)
    };
    match read() {
        Ok(validity) => unix_s(validity.end),
        Err(error) => {
            tracing::warn!(%error, cert = %files.cert.display(), "it is not known when the certificate expires");
            0
        }
    }
}

/// From when until when a certificate is valid.
pub(crate) fn validity(certificate: &CertificateDer<'_>) -> io::Result<Range<SystemTime>> {
    let (_, certificate) = X509Certificate::from_der(certificate)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let time = |time: ASN1Time| {
        let since_epoch = time.timestamp().try_into().unwrap_or_default();
        UNIX_EPOCH + Duration::from_secs(since_epoch)
    };
    let validity = certificate.validity();
    Ok(time(validity.not_before)..time(validity.not_after))
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
