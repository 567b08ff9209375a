//! Certificates: from two files, read again when they change, and who vouches for one.

use std::{
    fs, io,
    net::IpAddr,
    ops::Range,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::Uri;
use axum_server::tls_rustls::RustlsConfig;
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier, verify_server_name},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use tokio::time;
use x509_parser::{
    certificate::X509Certificate, extensions::GeneralName, prelude::FromDer, time::ASN1Time,
    x509::X509Version,
};

use crate::{config::TlsFiles, metrics::unix_s};

/// How often the files are looked at. Certificates are renewed weeks before they expire.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Whoever renews it has not, if it expires so soon.
const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// How often that is said.
const WARNING_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads both files.
pub(crate) async fn load(files: &TlsFiles) -> io::Result<RustlsConfig> {
    check(files)?;
    RustlsConfig::from_pem_file(&files.cert, &files.key).await
}

/// Says what is in the files, if that is no certificate or no key: libraries say what they miss.
pub(crate) fn check(files: &TlsFiles) -> io::Result<()> {
    let TlsFiles { cert, key } = files;
    let wrong = |file: &Path, what: &str| {
        let what = format!("{} {what}", file.display());
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    };
    let exchanged = "are the two files exchanged?";
    let in_cert = Pem::read(cert)?;
    if !in_cert.has("CERTIFICATE") {
        return match in_cert.no_pem() {
            Some(what) => wrong(cert, what),
            None if in_cert.has_key() => wrong(
                cert,
                &format!("has a key in it, no certificate: {exchanged}"),
            ),
            None => wrong(
                cert,
                &format!("has no certificate in it, but {:?}", in_cert.labels),
            ),
        };
    }
    let in_key = Pem::read(key)?;
    if in_key.is_encrypted() {
        let advice = format!(
            "is encrypted: `openssl pkey -in {} -out FILE` writes it plain",
            key.display()
        );
        return wrong(key, &advice);
    }
    if !in_key.has_key() {
        return match in_key.no_pem() {
            Some(what) => wrong(key, what),
            None if in_key.has("CERTIFICATE") => wrong(
                key,
                &format!("has a certificate in it, no key: {exchanged}"),
            ),
            None => wrong(key, &format!("has no key in it, but {:?}", in_key.labels)),
        };
    }
    let first = CertificateDer::from_pem_slice(&in_cert.bytes).ok();
    let version = first
        .as_ref()
        .and_then(|first| X509Certificate::from_der(first).ok());
    match version {
        Some((_, first)) if first.version() != X509Version::V3 => {
            let advice = "is an X.509 certificate of version 1, which browsers refuse: have one made that has names in it \
                          (subjectAltName)";
            wrong(cert, advice)
        }
        _ => Ok(()),
    }
}

/// A file that should have certificates or keys in it.
struct Pem {
    bytes: Vec<u8>,
    labels: Vec<String>,
}

impl Pem {
    fn read(file: &Path) -> io::Result<Self> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        let bytes = fs::read(file).map_err(named)?;
        let text = String::from_utf8_lossy(&bytes);
        let label = |line: &str| {
            let label = line.trim().strip_prefix("-----BEGIN ")?;
            Some(label.strip_suffix("-----")?.to_owned())
        };
        let labels = text.lines().filter_map(label).collect();
        Ok(Self { bytes, labels })
    }

    fn has(&self, label: &str) -> bool {
        self.labels.iter().any(|it| it == label)
    }

    fn has_key(&self) -> bool {
        let kinds = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];
        kinds.into_iter().any(|kind| self.has(kind))
    }

    fn is_encrypted(&self) -> bool {
        let old = b"Proc-Type: 4,ENCRYPTED";
        self.has("ENCRYPTED PRIVATE KEY") || self.bytes.windows(old.len()).any(|it| it == old)
    }

    /// What it is instead, if it is no PEM.
    fn no_pem(&self) -> Option<&'static str> {
        match self.bytes.first() {
            _ if !self.labels.is_empty() => None,
            None => Some("is empty"),
            // What certificates and keys begin with.
            Some(0x30) => Some(
                "is DER, not PEM: `openssl x509` or `openssl pkey`, with `-inform der`, writes that",
            ),
            Some(_) => Some("is no PEM: there is no line -----BEGIN …----- in it"),
        }
    }
}

/// Warns if the certificate is not for the name that people type.
pub(crate) fn check_name(files: &TlsFiles, public_origin: Option<&str>) {
    let Some(uri) = public_origin.and_then(|origin| origin.parse::<Uri>().ok()) else {
        return;
    };
    let host = uri.host().unwrap_or_default();
    let name = ServerName::try_from(host.trim_matches(['[', ']']));
    let certificate = CertificateDer::from_pem_file(&files.cert);
    let (Ok(name), Ok(certificate)) = (name, certificate) else {
        return;
    };
    let parsed = ParsedCertificate::try_from(&certificate);
    if parsed.is_ok_and(|parsed| verify_server_name(&parsed, &name).is_err()) {
        tracing::warn!(
            cert = %files.cert.display(),
            "the certificate is not for {host}, which --public-url has: browsers will refuse it there"
        );
    }
}

/// When the certificate in the file expires, Unix time in seconds; 0 if that cannot be read, which is no reason not to show it.
pub(crate) fn expiry_s(files: &TlsFiles) -> i64 {
    match expiry(files) {
        Ok(expiry) => unix_s(expiry),
        Err(error) => {
            tracing::warn!(%error, cert = %files.cert.display(), "it is not known when the certificate expires");
            0
        }
    }
}

fn expiry(files: &TlsFiles) -> io::Result<SystemTime> {
    let certificate = CertificateDer::from_pem_file(&files.cert)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(validity(&certificate)?.end)
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

/// Whether a public CA vouches for the first certificate of a chain, for the first name in it: one of those that Mozilla trusts. Where only this organisation's own
/// machines know the CA, Chromium loads pages, but opens no WebTransport (`CreateProofVerifier` in its `dedicated_web_transport_http3_client.cc`).
pub(crate) fn is_public(chain: &[CertificateDer<'_>]) -> bool {
    is_vouched_for(
        chain,
        webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect(),
    )
}

fn is_vouched_for(chain: &[CertificateDer<'_>], roots: RootCertStore) -> bool {
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let (Ok(verifier), [first, rest @ ..]) = (verifier.build(), chain) else {
        return false;
    };
    // One that has expired is renewed; that is another matter.
    let Ok((_, parsed)) = X509Certificate::from_der(first) else {
        return false;
    };
    let [begin, end] = [parsed.validity().not_before, parsed.validity().not_after]
        .map(|time| time.timestamp().max(0).unsigned_abs());
    let now = UnixTime::now().as_secs().clamp(begin, end.max(begin));
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
    let vouched = |name| verifier.verify_server_cert(first, rest, &name, &[], now);
    first_name(&parsed).is_some_and(|name| vouched(name).is_ok())
}

fn first_name(certificate: &X509Certificate<'_>) -> Option<ServerName<'static>> {
    let names = certificate.subject_alternative_name().ok()??;
    names
        .value
        .general_names
        .iter()
        .find_map(|name| match name {
            // Of a wildcard, any name will do.
            GeneralName::DNSName(name) => name.replacen('*', "any", 1).try_into().ok(),
            GeneralName::IPAddress(bytes) => address(bytes).map(ServerName::from),
            _ => None,
        })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// Calls `read` after every SIGHUP and after every change of the files, for ever. What cannot be read must change nothing, nor what it does not take, of which it
/// answers false after saying why.
/// A certificate that has expired does not follow one that has not. Warns every day of one that has, or soon will; `of` is what
/// shows it.
/// From the moment of the call, a SIGHUP no longer ends the process.
pub(crate) fn keep_fresh(
    of: &'static str,
    files: TlsFiles,
    read: impl AsyncFn() -> io::Result<bool>,
) -> impl Future<Output = ()> {
    let mut hang_ups = HangUps::new();
    let woken = async move || {
        tokio::select! {
            () = hang_ups.next() => true,
            () = time::sleep(CHECK_INTERVAL) => false,
        }
    };
    reload(of, files, read, woken, SystemTime::now)
}

/// `woken` is ready when it is time to look again: true if somebody asked for it.
async fn reload(
    of: &'static str,
    files: TlsFiles,
    read: impl AsyncFn() -> io::Result<bool>,
    mut woken: impl AsyncFnMut() -> bool,
    clock: impl Fn() -> SystemTime,
) {
    let cert = files.cert.display();
    let mut seen = modified(&files);
    let mut shown = expiry(&files).ok();
    let mut warned: Option<SystemTime> = None;
    loop {
        // By the wall clock, because a host may sleep. One that was put back does not silence it.
        let since = warned.map(|warned| clock().duration_since(warned));
        if !since.is_some_and(|since| since.is_ok_and(|since| since < WARNING_INTERVAL)) {
            let now = clock();
            warn_of(shown, of, &files, now);
            warned = Some(now);
        }
        let asked = woken().await;
        let now = modified(&files);
        if !asked && now == seen {
            continue;
        }
        let next = expiry(&files).ok();
        if has_expired(next) && shown.is_some() && !has_expired(shown) {
            seen = now;
            tracing::error!(of, %cert, "the certificate has expired; the old one stays");
            continue;
        }
        match read().await {
            Ok(false) => seen = now,
            Ok(true) => {
                seen = now;
                shown = next;
                tracing::info!(of, %cert, "certificate read again");
                warned = None;
            }
            // `seen` stays: a file caught half-written is tried again.
            Err(error) => {
                tracing::error!(%error, of, %cert, "certificate not readable; the old one stays")
            }
        }
    }
}

fn has_expired(expiry: Option<SystemTime>) -> bool {
    expiry.is_some_and(|expiry| expiry <= SystemTime::now())
}

/// Says so if a certificate is of no use, or soon will be.
fn warn_of(expiry: Option<SystemTime>, of: &str, files: &TlsFiles, now: SystemTime) {
    let cert = files.cert.display();
    let left = expiry.map(|expiry| expiry.duration_since(now));
    match left {
        Some(Err(_)) => {
            tracing::warn!(of, %cert, "the certificate has expired: browsers refuse it")
        }
        Some(Ok(left)) if left < SOON => {
            let hours = left.as_secs() / 3_600;
            tracing::warn!(of, %cert, hours, "the certificate expires soon");
        }
        _ => {}
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

/// Writes a certificate of its own for `localhost` into a folder.
#[cfg(test)]
pub(crate) fn self_signed(folder: &std::path::Path) -> TlsFiles {
    let files = TlsFiles {
        cert: folder.join("cert.pem"),
        key: folder.join("key.pem"),
    };
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    std::fs::write(&files.cert, made.cert.pem()).expect("written");
    std::fs::write(&files.key, made.signing_key.serialize_pem()).expect("written");
    files
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs::File, future, sync::Mutex};

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_ca_vouches_for_what_it_has_signed() {
        let ca_key = rcgen::KeyPair::generate().expect("made");
        let mut ca = rcgen::CertificateParams::default();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let root = ca.self_signed(&ca_key).expect("signed");
        let issuer = rcgen::Issuer::new(ca, ca_key);
        let roots = || {
            let mut roots = RootCertStore::empty();
            roots.add(root.der().clone()).expect("a root");
            roots
        };
        let signed = |names: &[&str]| {
            let key = rcgen::KeyPair::generate().expect("made");
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            let parameters = rcgen::CertificateParams::new(names).expect("valid");
            let leaf = parameters.signed_by(&key, &issuer).expect("signed");
            [leaf.der().clone()]
        };
        for name in ["music.example.org", "*.example.org"] {
            let chain = signed(&[name]);
            assert!(is_vouched_for(&chain, roots()), "{name}");
            assert!(!is_public(&chain), "{name}");
        }
        assert!(!is_vouched_for(&signed(&[]), roots()), "of no name");
        assert!(!is_vouched_for(&[], roots()), "nothing");
    }

    #[test]
    fn what_is_no_certificate_or_no_key_is_called_what_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let checked = |cert: &[u8], key: &[u8]| {
            let file = |name: &str, content| {
                let path = folder.path().join(name);
                fs::write(&path, content).expect("written");
                path
            };
            let files = TlsFiles {
                cert: file("cert.pem", cert),
                key: file("key.pem", key),
            };
            check(&files).map_err(|error| error.to_string())
        };
        let (cert, key, der) = (cert.as_bytes(), key.as_bytes(), made.cert.der());
        assert_eq!(checked(cert, key), Ok(()));
        let both = [key, cert].concat();
        assert_eq!(checked(&both, &both), Ok(()), "some keep both in one file");
        let encrypted =
            b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let old = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMA==\n-----END RSA PRIVATE KEY-----\n";
        for (cert, key, said) in [
            (
                key,
                cert,
                "cert.pem has a key in it, no certificate: are the two files exchanged?",
            ),
            (key, key, "cert.pem has a key in it"),
            (
                cert,
                cert,
                "key.pem has a certificate in it, no key: are the two files exchanged?",
            ),
            (der, key, "cert.pem is DER, not PEM"),
            (cert, b"", "key.pem is empty"),
            (b"", key, "cert.pem is empty"),
            (b"hello", key, "cert.pem is no PEM"),
            (cert, encrypted, "key.pem is encrypted: `openssl pkey"),
            (cert, old, "key.pem is encrypted"),
            (
                b"-----BEGIN CERTIFICATE REQUEST-----\n",
                key,
                "but [\"CERTIFICATE REQUEST\"]",
            ),
            (
                OF_VERSION_1,
                key,
                "cert.pem is an X.509 certificate of version 1",
            ),
        ] {
            let error = checked(cert, key).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
    }

    /// By `openssl x509 -req` without extensions.
    const OF_VERSION_1: &[u8] = b"-----BEGIN CERTIFICATE-----
MIIBIzCBywIUJh0bpL4Fk8JPaEL0Uk+/PVvcT/kwCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyODA1MTUxMVoYDzIxMjYxMTA0MDUxNTEx
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AASCmQMpJ4bQnaH0XOk4wLPAjpbQNWAtuPNO/jJo+zEliVIOTL/94EpRwr/1T3ph
f10XEfJPk7l4ebK1NOkn4lhTMAoGCCqGSM49BAMCA0cAMEQCIAIucNdlL6dLq6On
rYQ4k114f/hLwTBJ+R292g3Lkg8rAiAVPPMNpcTi0Hq+wziND7k/bQ+5Pi7Dq0uV
M+8b2ukrYg==
-----END CERTIFICATE-----
";

    #[test]
    fn who_does_not_renew_a_certificate_is_warned_every_day() {
        const HOUR: Duration = Duration::from_secs(60 * 60);
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let file = Mutex::new(File::create(&log).expect("created"));
        let _logging =
            tracing::subscriber::set_default(tracing_subscriber::fmt().with_writer(file).finish());
        let files = TlsFiles {
            cert: folder.path().join("cert.pem"),
            key: folder.path().join("key.pem"),
        };
        let key = rcgen::KeyPair::generate().expect("made");
        let mut parameters =
            rcgen::CertificateParams::new(["localhost".to_owned()]).expect("valid");
        let start = SystemTime::now();
        parameters.not_after = (start + 36 * HOUR).into();
        let certificate = parameters.self_signed(&key).expect("signed");
        fs::write(&files.cert, certificate.pem()).expect("written");
        fs::write(&files.key, key.serialize_pem()).expect("written");

        let hours = Cell::new(0);
        let woken = async || {
            hours.set(hours.get() + 1);
            if hours.get() > 4 * 24 {
                future::pending::<()>().await;
            }
            false
        };
        let clock = || start + HOUR * hours.get();
        let ended = reload("web port", files, async || Ok(true), woken, clock).now_or_never();
        assert!(ended.is_none());
        let log = fs::read_to_string(log).expect("UTF-8");
        // At the start and a day later; then there is nothing left.
        assert_eq!(log.matches("expires soon").count(), 2, "{log}");
        assert_eq!(log.matches("has expired").count(), 3, "{log}");
    }
}
