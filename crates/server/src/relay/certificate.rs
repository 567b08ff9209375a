//! The relay's certificate: from files, from a CA, or its own, which browsers accept by their hashes.
//!
//! A browser takes a certificate by its hash (`serverCertificateHashes`) only if it is ECDSA with P-256 and valid for at most 14 days
//! (W3C WebTransport, "custom certificate requirements"). So it is renewed all the time: the next one is made, and its hash
//! told, one period before it is used. A page that heard both hashes once reaches the relay for that long.

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use quinn_proto::{ServerConfig, TransportConfig, crypto::rustls::QuicServerConfig};
use ring::digest::{SHA256, digest};
use rustls::{
    SignatureScheme,
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer,
        pem::{self, PemObject},
    },
    sign::{CertifiedKey, SingleCertAndKey},
};

use crate::{config::TlsFiles, media::CertificateHash, tls};

/// Its name in TLS (RFC 9114, section 3.1).
const HTTP3: &[u8] = b"h3";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long certificates of the relay's own are valid, and for how long they are used.
#[derive(Debug, Clone, Copy)]
pub struct Lifetime {
    /// Each is used for this long.
    pub used: Duration,
    /// It is valid for so much longer at both ends, for those whose clocks are wrong.
    pub margin: Duration,
}

impl Default for Lifetime {
    fn default() -> Self {
        Self {
            used: 11 * DAY,
            margin: DAY,
        }
    }
}

/// A chain with its key. Without `Debug`, because of the key.
pub(crate) struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Certificate {
    /// Reads the files.
    pub(crate) fn read(files: &TlsFiles) -> io::Result<Self> {
        tls::check(files)?;
        let invalid = |error: pem::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let chain = CertificateDer::pem_file_iter(&files.cert)
            .and_then(Iterator::collect)
            .map_err(invalid)?;
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(invalid)?;
        Ok(Self { chain, key })
    }

    /// A new one, signed by itself. The name in it is looked at by nobody.
    fn self_signed(not_before: SystemTime, not_after: SystemTime) -> Self {
        let made = || {
            let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
            let mut parameters = rcgen::CertificateParams::new(["antiphon".to_owned()])?;
            parameters.not_before = not_before.into();
            parameters.not_after = not_after.into();
            let certificate = parameters.self_signed(&key)?;
            Ok::<_, rcgen::Error>(Self {
                chain: vec![certificate.into()],
                key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            })
        };
        made().expect("the operating system has randomness")
    }

    /// See [`tls::is_public`].
    pub(crate) fn is_public(&self) -> bool {
        tls::is_public(&self.chain)
    }

    /// Whether a signature by it, of which each handshake needs one, takes the thread much longer than by ECDSA with P-256, 0.02 ms: with P-384 0.4, by RSA of 2,048 bits 0.6, of 4,096 4.
    pub(crate) fn is_slow(&self) -> bool {
        let key = rustls::crypto::ring::sign::any_supported_type(&self.key);
        key.is_ok_and(|key| {
            let quick = [
                SignatureScheme::ECDSA_NISTP256_SHA256,
                SignatureScheme::ED25519,
            ];
            key.choose_scheme(&quick).is_none()
        })
    }

    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    fn hash(&self) -> CertificateHash {
        let hash = digest(&SHA256, &self.chain[0]);
        CertificateHash(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// What QUIC needs to show it.
    ///
    /// # Errors
    /// The key is not the certificate's, or of a kind that TLS 1.3 does not know.
    pub(crate) fn server_config(
        &self,
        transport: &Arc<TransportConfig>,
    ) -> Result<ServerConfig, rustls::Error> {
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(self.chain.clone(), self.key.clone_key(), &provider)?;
        Ok(server_config(Arc::new(key), transport))
    }
}

/// What QUIC needs to show a certificate.
pub(crate) fn server_config(
    certificate: Arc<CertifiedKey>,
    transport: &Arc<TransportConfig>,
) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring has cipher suites for TLS 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate)));
    tls.alpn_protocols = vec![HTTP3.to_vec()];
    // A page opens its lanes once, so that nobody resumes a session of TLS.
    tls.send_tls13_tickets = 0;
    let crypto = QuicServerConfig::try_from(tls).expect("ring has QUIC's initial cipher suite");
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::clone(transport));
    config
}

/// Certificates of the relay's own, one after the other.
pub(crate) struct Rotation {
    lifetime: Lifetime,
    current: Certificate,
    next: Certificate,
    /// When the next one's turn comes.
    turn: SystemTime,
}

impl Rotation {
    pub(crate) fn new(lifetime: Lifetime, now: SystemTime) -> Self {
        let turn = now + lifetime.used;
        Self {
            current: made_for(lifetime, now),
            next: made_for(lifetime, turn),
            lifetime,
            turn,
        }
    }

    /// What QUIC needs to show the one in use.
    pub(crate) fn server_config(&self, transport: &Arc<TransportConfig>) -> ServerConfig {
        let config = self.current.server_config(transport);
        config.expect("the key was made for it, of a kind that ring knows")
    }

    /// Of the one in use and the next.
    pub(crate) fn hashes(&self) -> Arc<[CertificateHash]> {
        [self.current.hash(), self.next.hash()].into()
    }

    /// How long the one in use stays so.
    pub(crate) fn remaining(&self, now: SystemTime) -> Duration {
        if self.is_early(now) {
            return Duration::ZERO;
        }
        self.turn.duration_since(now).unwrap_or_default()
    }

    /// Goes on to the next one. A host that slept over several turns, or whose clock was ahead, gets one that is made for now.
    pub(crate) fn advance(&mut self, now: SystemTime) {
        if self.is_early(now) || now >= self.turn + self.lifetime.used {
            *self = Self::new(self.lifetime, now);
            return;
        }
        self.turn += self.lifetime.used;
        let after = made_for(self.lifetime, self.turn);
        self.current = std::mem::replace(&mut self.next, after);
    }

    /// Whether the clock was ahead when the one in use was made, and has been set so far back that browsers may not take it yet.
    fn is_early(&self, now: SystemTime) -> bool {
        now + self.lifetime.used + self.lifetime.margin / 2 < self.turn
    }
}

impl fmt::Debug for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rotation")
    }
}

fn made_for(lifetime: Lifetime, from: SystemTime) -> Certificate {
    let until = from + lifetime.used + lifetime.margin;
    Certificate::self_signed(from - lifetime.margin, until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_would_accept_each_certificate_while_it_is_used() {
        let lifetime = Lifetime::default();
        assert!(lifetime.used + 2 * lifetime.margin < 14 * DAY);
        let start = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        let mut rotation = Rotation::new(lifetime, start);
        assert_eq!(rotation.remaining(start), 11 * DAY);
        let [first, second] = *rotation.hashes() else {
            panic!("two hashes")
        };
        rotation.advance(start + 11 * DAY);
        let [third, fourth] = *rotation.hashes() else {
            panic!("two hashes")
        };
        assert_eq!(second, third, "what was next is in use");
        assert_ne!(first, fourth);
        assert_eq!(rotation.remaining(start + 12 * DAY), 10 * DAY);
        let woken = start + 100 * DAY;
        rotation.advance(woken);
        assert_eq!(rotation.remaining(woken), 11 * DAY);
        assert!(
            !rotation.hashes().contains(&fourth),
            "it has expired long ago"
        );
    }

    #[test]
    fn a_clock_that_is_set_back_gets_one_that_is_valid_now() {
        let start = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        let mut rotation = Rotation::new(Lifetime::default(), start);
        let made_early = rotation.hashes();
        let little = start - Duration::from_secs(60);
        assert!(
            rotation.remaining(little) > 11 * DAY,
            "the margin is for that"
        );
        let back = start - 2 * DAY;
        assert_eq!(rotation.remaining(back), Duration::ZERO);
        rotation.advance(back);
        assert_eq!(rotation.remaining(back), 11 * DAY);
        let hashes = rotation.hashes();
        assert!(made_early.iter().all(|early| !hashes.contains(early)));
    }
}
