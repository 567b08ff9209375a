//! What the web port shows in a handshake: the certificate, or to the CA the proof that a name leads here.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::PrivatePkcs8KeyDer,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::sync::watch;

use super::Shown;

/// The protocol that a CA asks for to see a proof (RFC 8737, section 6.2).
const ACME_TLS: &[u8] = b"acme-tls/1";

/// The proofs that the CA may look for now, by name.
#[derive(Clone, Default)]
pub(super) struct Proofs(Arc<Mutex<HashMap<String, Arc<CertifiedKey>>>>);

impl Proofs {
    /// Shows the CA that a name leads here: `digest` is that of the key authorization.
    ///
    /// Source: RFC 8737, section 3.
    pub(super) fn show(&self, name: &str, digest: &[u8]) -> Result<(), rcgen::Error> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let mut parameters = rcgen::CertificateParams::new([name.to_owned()])?;
        parameters.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(digest)];
        let certificate = parameters.self_signed(&key)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let key = ring::sign::any_ecdsa_type(&key).expect("ring knows its own kind of key");
        // Not checked against each other as others are: rustls refuses to read the extension, which is critical.
        let proof = CertifiedKey::new(vec![certificate.into()], key);
        self.lock().insert(name.to_owned(), Arc::new(proof));
        Ok(())
    }

    /// Shows none any more.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<CertifiedKey>>> {
        // Whoever panicked with it has changed nothing by halves.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers handshakes on the web port. Those that nothing can be shown to fail.
pub(crate) struct Resolver {
    shown: watch::Receiver<Shown>,
    proofs: Proofs,
}

impl Resolver {
    pub(super) fn new(shown: watch::Receiver<Shown>, proofs: Proofs) -> Self {
        Self { shown, proofs }
    }

    /// What the web port needs to use it.
    pub(crate) fn server_config(self) -> ServerConfig {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has cipher suites for both")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self));
        config.alpn_protocols = [&b"h2"[..], b"http/1.1", ACME_TLS]
            .map(<[u8]>::to_vec)
            .into();
        config
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asks_for_proof = hello
            .alpn()
            .is_some_and(|protocols| protocols.eq([ACME_TLS]));
        if asks_for_proof {
            return self.proofs.lock().get(hello.server_name()?).cloned();
        }
        self.shown.borrow().clone()
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

#[cfg(test)]
mod tests {
    use rustls::{
        ClientConfig, ClientConnection, RootCertStore, pki_types::ServerName, server::Acceptor,
    };

    use super::*;

    const NAME: &str = "music.example.org";

    /// The certificate, and the protocol agreed upon, that a client is shown who asks for one of these.
    fn answer(config: &Arc<ServerConfig>, name: &str, alpn: &[&str]) -> Option<(Vec<u8>, String)> {
        let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            // Its first words do not depend on whom it trusts.
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        client.alpn_protocols = alpn.iter().map(|alpn| alpn.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).expect("a name or an address");
        let mut client = ClientConnection::new(Arc::new(client), name).expect("begins");
        let mut sent = Vec::new();
        client.write_tls(&mut sent).expect("written");
        let mut acceptor = Acceptor::default();
        acceptor.read_tls(&mut &*sent).expect("read");
        let accepted = acceptor.accept().expect("a hello").expect("a whole one");
        let shown = config.cert_resolver.resolve(accepted.client_hello());
        let agreed = accepted.into_connection(Arc::clone(config)).ok();
        assert_eq!(
            shown.is_some(),
            agreed.is_some(),
            "without one there is no connection"
        );
        let agreed = agreed?.alpn_protocol().unwrap_or_default().to_vec();
        let agreed = String::from_utf8(agreed).expect("ASCII");
        Some((shown?.cert[0].to_vec(), agreed))
    }

    fn certificate() -> Arc<CertifiedKey> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("made");
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let chain = vec![made.cert.der().clone()];
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider());
        Arc::new(key.expect("they belong together"))
    }

    #[test]
    fn proofs_are_shown_to_who_asks_for_nothing_else_and_only_while_an_order_runs() {
        let (show, shown) = watch::channel(None);
        let proofs = Proofs::default();
        let config = Arc::new(Resolver::new(shown, proofs.clone()).server_config());
        let browsers: [&[&str]; 4] = [
            &[],
            &["h2", "http/1.1"],
            &["http/1.1"],
            &["acme-tls/1", "h2"],
        ];
        let proof = || answer(&config, NAME, &["acme-tls/1"]);

        proofs.show(NAME, &[7; 32]).expect("made");
        let (first_proof, agreed) = proof().expect("the CA sees it");
        assert_eq!(agreed, "acme-tls/1");
        for stranger in ["school.example.org", "192.0.2.1"] {
            assert_eq!(
                answer(&config, stranger, &["acme-tls/1"]),
                None,
                "{stranger}"
            );
        }
        for alpn in browsers {
            assert_eq!(answer(&config, NAME, alpn), None, "{alpn:?}");
        }

        let real = certificate();
        show.send_replace(Some(Arc::clone(&real)));
        for alpn in browsers {
            let (certificate, agreed) = answer(&config, NAME, alpn).expect("there is one");
            assert_eq!(certificate, *real.cert[0], "{alpn:?}");
            assert_ne!(agreed, "acme-tls/1", "{alpn:?}");
        }
        assert_eq!(proof().expect("still").0, first_proof);

        proofs.clear();
        assert_eq!(proof(), None);
        assert_eq!(
            answer(&config, NAME, &["h2"]).expect("still").0,
            *real.cert[0]
        );
    }
}
