//! TLS to Redis: trusted authorities and the client certificate.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::net::tls::{ClientTls, Identity, PemFile, provider};

/// The values of REDIS_TLS_*.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Tls {
    /// The only trusted authorities; `None` for those of the system.
    pub(crate) ca: Option<PemFile>,
    pub(crate) client: Option<Identity>,
    /// Whether a server's certificate may have any name, not only the host of the address.
    pub(crate) accepts_any_name: bool,
}

/// TLS configuration of a client, from its files.
#[derive(Clone)]
pub struct TlsClient(pub(crate) Arc<ClientConfig>);

/// Verifies all of a server's certificate but its name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl Tls {
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let client = self.client.iter();
        let client = client.flat_map(|identity| [&identity.cert, &identity.key]);
        let files = self.ca.iter().chain(client);
        files.map(|file| file.path.clone()).collect()
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn load(&self) -> Result<TlsClient, String> {
        let client = ClientTls {
            authority: self.ca.clone(),
            identity: self.client.clone(),
            name: None,
        };
        let mut config = client.config().map_err(|error| error.to_string())?;
        if self.accepts_any_name {
            let authorities = client.authorities().map_err(|error| error.to_string())?;
            let verifier =
                WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider())
                    .build()
                    .map_err(|error| format!("REDIS_TLS: {error}"))?;
            let verifier = Arc::new(AnyName(verifier));
            config.dangerous().set_certificate_verifier(verifier);
        }
        Ok(TlsClient(Arc::new(config)))
    }
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The name is verified last.
        match self
            .0
            .verify_server_cert(certificate, intermediates, name, ocsp, now)
        {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

impl fmt::Debug for TlsClient {
    /// Without the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TlsClient")
    }
}
