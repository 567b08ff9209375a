//! Whom to believe: the certificates of this machine, or those whose hashes the server gave.

use std::io;
use std::sync::{Arc, LazyLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));

/// This machine's, as they were when they were first needed.
static ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    // A certificate of this machine that cannot be read is one that nobody is trusted for.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Arc::new(roots)
});

/// SHA-256 of a certificate in DER.
pub(crate) type CertificateHash = [u8; 32];

/// A stream of bytes, whatever carries it.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Wire for T {}

/// TLS with a host whom this machine's roots vouch for.
///
/// # Errors
/// Of the network, or the certificate is not to be trusted.
pub(crate) async fn connect(tcp: TcpStream, host: &str) -> io::Result<Box<dyn Wire>> {
    // Reading the roots, the first time, takes as long as some packets of sound.
    let config = tokio::task::spawn_blocking(|| client_config(&[]));
    let config = config.await?.map_err(io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config));
    Ok(Box::new(connector.connect(name, tcp).await?))
}

/// Trusts certificates by their hashes; by this machine's roots if there are none.
///
/// # Errors
/// rustls's own, which a provider with TLS 1.3 does not give.
pub(crate) fn client_config(hashes: &[CertificateHash]) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(PROVIDER.clone())
        .with_safe_default_protocol_versions()?;
    if hashes.is_empty() {
        return Ok(builder
            .with_root_certificates(ROOTS.clone())
            .with_no_client_auth());
    }
    let pinned = Arc::new(Pinned(hashes.to_vec()));
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(pinned)
        .with_no_client_auth())
}

/// As browsers do with `serverCertificateHashes`: the hash came over a connection that is trusted, and stands for the whole chain.
#[derive(Debug)]
struct Pinned(Vec<CertificateHash>);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let hash = ring::digest::digest(&ring::digest::SHA256, certificate);
        if self.0.iter().any(|pinned| pinned == hash.as_ref()) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &PROVIDER.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &PROVIDER.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        PROVIDER
            .signature_verification_algorithms
            .supported_schemes()
    }
}
