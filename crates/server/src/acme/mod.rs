//! Certificates from a CA, by ACME (RFC 8555): ordered, kept, shown and renewed while the server runs.
//!
//! ```text
//! CA ◀── orders ── Acme ── watch ──┬──▶ Resolver     what the web port shows
//!  │                │              └──▶ relay
//!  │                ▼
//!  │              Store             the account and the newest certificate, in files
//!  └── looks for proofs ──▶ Resolver
//! ```
//!
//! The CA finds its proofs on the web port itself (TLS-ALPN-01, RFC 8737). Why it is so: `docs/adr/0021-acme.md`.

mod order;
mod resolver;
mod store;

use std::{
    fmt, io,
    ops::Range,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use prometheus_client::metrics::gauge::Gauge;
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    sign::CertifiedKey,
};
use tokio::{sync::watch, task, time};

use self::{
    order::{OrderError, order},
    resolver::Proofs,
    store::Store,
};
use crate::{config::AcmeConfig, metrics::unix_s, server::StartError, tls};

pub(crate) use self::resolver::Resolver;

/// The directory of Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// What is shown; none before there is a first one.
pub(crate) type Shown = Option<Arc<CertifiedKey>>;

const DAY_S: i64 = 24 * 60 * 60;
/// After a first failure. Each further one doubles it.
const FIRST_RETRY: Duration = Duration::from_secs(60);
/// Let's Encrypt allows 5 failed proofs of a name per hour.
const LAST_RETRY: Duration = Duration::from_secs(60 * 60);
/// After an order that the CA may have signed. Let's Encrypt issues 5 certificates a week for the same names.
const LOST_RETRY: Duration = Duration::from_secs(36 * 60 * 60);
/// How often it is looked whether a certificate is due, because a host may sleep.
const DUE_CHECK: Duration = Duration::from_secs(10 * 60);

/// Why a text is no name that a certificate can be had for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// A CA gives those for proofs in the DNS only.
    #[error("for each name one --acme-domain: there are no certificates for wildcards here")]
    Wildcard,
    /// Take the name that leads to it.
    #[error("expected a name, such as music.example.org, and no address")]
    Address,
    /// Correct it; a name in other scripts is written in its xn-- form.
    #[error("expected a name, such as music.example.org")]
    Invalid,
}

/// Whether a certificate can be ordered for this name.
pub fn check_domain(name: &str) -> Result<(), DomainError> {
    if name.starts_with("*.") {
        return Err(DomainError::Wildcard);
    }
    match ServerName::try_from(name) {
        Ok(ServerName::DnsName(_)) if !name.ends_with('.') => Ok(()),
        Ok(ServerName::IpAddress(_)) => Err(DomainError::Address),
        _ => Err(DomainError::Invalid),
    }
}

/// A certificate and its key, and when it is valid. Without `Debug`, because of the key.
struct Issued {
    /// The key, then the chain.
    pem: String,
    key: Arc<CertifiedKey>,
    validity: Range<SystemTime>,
}

impl Issued {
    /// Reads the key, then the chain.
    ///
    /// # Errors
    /// It is no such thing, or the key is another's.
    fn parse(pem: String) -> io::Result<Self> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|_| invalid("no private key".to_owned()))?;
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| invalid(error.to_string()))?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|error| invalid(error.to_string()))?;
        // There is one: keys without a certificate match none.
        let validity = tls::validity(&key.cert[0])?;
        if validity.is_empty() {
            return Err(invalid("it is valid at no time".to_owned()));
        }
        Ok(Self {
            pem,
            key: Arc::new(key),
            validity,
        })
    }
}

/// How long one waits with the next order, from when one that is valid so long was made.
fn used(validity: &Range<SystemTime>) -> Duration {
    let lifetime = validity.end.duration_since(validity.start);
    lifetime.unwrap_or_default() * 2 / 3
}

/// Keeps a certificate of the names that were configured.
pub(crate) struct Acme {
    config: AcmeConfig,
    store: Store,
    shown: watch::Sender<Shown>,
    proofs: Proofs,
    /// When the next one is ordered.
    due: SystemTime,
    /// Of the one that is shown; empty before there is one.
    validity: Range<SystemTime>,
    expiry: Gauge,
}

impl Acme {
    /// Takes up the certificate that was kept, if it is still valid. `expiry` is set to when the one that is shown expires, Unix time in seconds.
    ///
    /// # Errors
    /// Nothing can be kept in the directory, or the root certificate is none.
    pub(crate) fn open(config: AcmeConfig, expiry: Gauge) -> Result<Self, StartError> {
        let unusable = |source| StartError::AcmeCache {
            path: config.cache.clone(),
            source,
        };
        let store = Store::open(&config).map_err(unusable)?;
        let kept = store.certificate().map_err(unusable)?;
        if let Err(error) = order::client(config.root_ca.as_deref()) {
            let of_root = |path: &Path| format!("its root certificate {}: ", path.display());
            let root = config.root_ca.as_deref().map(of_root).unwrap_or_default();
            return Err(StartError::AcmeClient {
                directory: config.directory,
                reason: format!("{root}{error}"),
            });
        }
        let now = SystemTime::now();
        let mut acme = Self {
            config,
            shown: watch::Sender::default(),
            proofs: Proofs::default(),
            due: now,
            validity: now..now,
            expiry,
            store,
        };
        match kept.map(Issued::parse).transpose() {
            Ok(Some(kept)) if kept.validity.end > now => {
                acme.due = kept.validity.start + used(&kept.validity);
                acme.show(&kept);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the certificate that was kept is none"),
        }
        Ok(acme)
    }

    /// What is shown from now on.
    pub(crate) fn shown(&self) -> watch::Receiver<Shown> {
        self.shown.subscribe()
    }

    /// For the web port.
    pub(crate) fn resolver(&self) -> Resolver {
        Resolver::new(self.shown(), self.proofs.clone())
    }

    /// Orders a certificate when it is due, for ever.
    pub(crate) async fn keep_fresh(mut self) {
        let names = self.config.domains.join(", ");
        if self.shown.borrow().is_none() {
            tracing::info!(
                "ordering a certificate for {names}; browsers cannot load the page before it is there"
            );
        }
        let mut failures = 0;
        loop {
            while let Some(wait) = self.wait(SystemTime::now()) {
                time::sleep(wait.min(DUE_CHECK)).await;
            }
            let ordered = order(&self.config, &self.store, &self.proofs).await;
            self.proofs.clear();
            match ordered {
                Ok(issued) => {
                    failures = 0;
                    // By this host's clock: one that is wrong by months must not order again and again.
                    self.due = SystemTime::now() + used(&issued.validity);
                    self.show(&issued);
                    let left_s = self.expiry.get() - unix_s(SystemTime::now());
                    tracing::info!(
                        "a new certificate for {names}, valid for {} days",
                        left_s / DAY_S
                    );
                    if let Err(error) = self.store.keep_certificate(issued.pem).await {
                        tracing::error!(%error, "it cannot be kept: a server that starts again has to order another");
                    }
                    // Let's Encrypt issues few, however often the clock is set.
                    time::sleep(LOST_RETRY.min(used(&self.validity) / 8)).await;
                }
                Err(error) => {
                    let wait = retry_after(&error, failures);
                    failures += 1;
                    let minutes = wait.as_secs() / 60;
                    // 1970 if there is none.
                    let left_s = self.expiry.get() - unix_s(SystemTime::now());
                    if left_s > 0 {
                        tracing::warn!(
                            "the certificate for {names} is valid for {} days and not renewed yet: {error}. Next attempt \
                             in {minutes} min",
                            left_s / DAY_S
                        );
                    } else {
                        tracing::error!(
                            "no valid certificate for {names}, so browsers cannot load the page: {error}. Next attempt in \
                             {minutes} min"
                        );
                    }
                    time::sleep(wait).await;
                }
            }
        }
    }

    /// How long until the next one is ordered, unless it is due.
    fn wait(&mut self, now: SystemTime) -> Option<Duration> {
        let used = used(&self.validity);
        // The clock was ahead when this one was ordered, and has been put right.
        if self.due > now + used {
            self.due = self.due.min(now.max(self.validity.start + used));
        }
        let wait = self.due.duration_since(now).ok()?;
        (!wait.is_zero()).then_some(wait)
    }

    fn show(&mut self, issued: &Issued) {
        self.validity = issued.validity.clone();
        self.expiry.set(unix_s(issued.validity.end));
        self.shown.send_replace(Some(Arc::clone(&issued.key)));
    }
}

impl fmt::Debug for Acme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acme")
    }
}

/// How long to wait after an attempt failed that as many failed before.
fn retry_after(error: &OrderError, failures: u32) -> Duration {
    if let OrderError::Lost(_) = error {
        return LOST_RETRY;
    }
    FIRST_RETRY
        .saturating_mul(1 << failures.min(16))
        .min(LAST_RETRY)
}

/// Does what may block, such as reading and writing files, where nobody else waits for it.
async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    task::spawn_blocking(work).await.expect("it does not panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_fail_stay_within_what_lets_encrypt_allows() {
        const HOUR_S: f64 = 60.0 * 60.0;
        let lost = OrderError::Lost(OrderError::Late.into());
        // 5 at once, and one more every 12 minutes; or every 34 hours if it may have issued one.
        for (error, one_more_s, most) in [
            (OrderError::Late, HOUR_S / 5.0, LAST_RETRY),
            (lost, 34.0 * HOUR_S, LOST_RETRY),
        ] {
            let mut allowed = 5.0;
            for failures in 0..1000 {
                allowed -= 1.0;
                assert!(allowed >= 0.0, "{error} after {failures}");
                let wait = retry_after(&error, failures);
                assert!((FIRST_RETRY..=most).contains(&wait), "{wait:?}");
                allowed = f64::min(5.0, allowed + wait.as_secs_f64() / one_more_s);
            }
        }
    }

    #[test]
    fn a_certificate_is_ordered_for_names_only() {
        for name in ["music.example.org", "localhost", "xn--bcher-kva.example"] {
            assert_eq!(check_domain(name), Ok(()), "{name}");
        }
        for (text, error) in [
            ("*.example.org", DomainError::Wildcard),
            ("192.0.2.1", DomainError::Address),
            ("2001:db8::1", DomainError::Address),
            ("", DomainError::Invalid),
            ("music.example.org.", DomainError::Invalid),
            ("music.example.org:443", DomainError::Invalid),
            ("https://music.example.org", DomainError::Invalid),
            ("bücher.example", DomainError::Invalid),
        ] {
            assert_eq!(check_domain(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_certificate_is_due_when_two_thirds_of_its_life_are_over() {
        let key = rcgen::KeyPair::generate().expect("made");
        let mut parameters =
            rcgen::CertificateParams::new(["localhost".to_owned()]).expect("valid");
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        parameters.not_before = start.into();
        parameters.not_after = (start + Duration::from_secs(90)).into();
        let certificate = parameters.self_signed(&key).expect("signed").pem();
        let issued = Issued::parse(key.serialize_pem() + &certificate).expect("a certificate");
        assert_eq!(issued.validity, start..start + Duration::from_secs(90));
        assert_eq!(used(&issued.validity), Duration::from_secs(60));

        let other = rcgen::KeyPair::generate().expect("made").serialize_pem();
        for useless in [
            other.clone() + &certificate,
            other,
            certificate,
            String::new(),
        ] {
            assert!(Issued::parse(useless).is_err());
        }
    }

    #[test]
    fn a_clock_that_was_ahead_when_it_was_ordered_does_not_put_off_the_next_order() {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let folder = tempfile::tempdir().expect("a folder");
        let config = AcmeConfig {
            domains: vec!["localhost".to_owned()],
            contacts: Vec::new(),
            cache: folder.path().to_owned(),
            directory: LETS_ENCRYPT.to_owned(),
            root_ca: None,
        };
        let mut acme = Acme::open(config, Gauge::default()).expect("opened");
        let now = SystemTime::now();
        assert_eq!(acme.wait(now), None, "there is no certificate");

        acme.validity = now..now + 90 * DAY;
        let ahead = now + 200 * DAY;
        acme.due = ahead + 60 * DAY;
        assert_eq!(
            acme.wait(ahead),
            Some(60 * DAY),
            "that it is wrong is not known"
        );
        assert_eq!(acme.wait(now + DAY), Some(59 * DAY), "it is right");
        assert_eq!(acme.wait(now + 60 * DAY), None);

        acme.due = ahead + 60 * DAY;
        assert_eq!(acme.wait(now + 70 * DAY), None, "it was put right late");
    }
}
