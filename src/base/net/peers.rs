//! Verifies certificates of TLS peers: an authority signed them, or they are trusted themselves.
//!
//! `openssl req -x509` makes certificates that sign themselves and are marked as those of an
//! authority. Go and OpenSSL accept one from the peer that has it if it is itself among the trusted
//! ones; webpki, which follows the purpose of each certificate, does not. The handshake proves that
//! the peer has its key.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

use crate::base::time::Span;

/// Certificates of authorities, or of peers themselves.
#[derive(Debug, Clone)]
pub(crate) struct Trusted {
    certificates: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
}

/// Which names the certificate of a server may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// That of the server.
    Own,
    /// Every one.
    Any,
}

/// Verifies servers.
#[derive(Debug)]
struct Servers {
    trusted: Trusted,
    names: Names,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Verifies clients.
#[derive(Debug)]
struct Clients {
    trusted: Trusted,
    by_authority: Arc<dyn ClientCertVerifier>,
    name: Option<ServerName<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Verifies a certificate that no authority has signed.
pub(crate) fn verify_without_authority(
    certificate: &ParsedCertificate<'_>,
    now: UnixTime,
) -> Result<(), Error> {
    verify_server_cert_signed_by_trust_anchor(certificate, &RootCertStore::empty(), &[], now, &[])
}

/// The cryptography of all TLS connections.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Trusted {
    /// Certificates that cannot be read are of no authority.
    pub(crate) fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        Self { certificates, roots: Arc::new(roots) }
    }

    /// Whether each certificate can be read.
    pub(crate) fn are_valid(&self) -> bool {
        self.roots.len() == self.certificates.len()
    }

    /// Verifies servers.
    pub(crate) fn servers(self, names: Names) -> Arc<dyn ServerCertVerifier> {
        Arc::new(Servers {
            trusted: self,
            names,
            algorithms: provider().signature_verification_algorithms,
        })
    }

    /// Verifies clients, which must have this name, if there is one.
    pub(crate) fn clients(self, name: Option<ServerName<'static>>) -> Arc<dyn ClientCertVerifier> {
        let roots = self.roots.clone();
        let built = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
        Arc::new(Clients {
            trusted: self,
            by_authority: built
                .expect("there are authorities, and no lists of revoked certificates"),
            name,
            algorithms: provider().signature_verification_algorithms,
        })
    }

    /// Verifies a certificate `by_authority`. Of one that is itself trusted only the times count.
    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
        by_authority: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.certificates.contains(certificate) {
            return by_authority();
        }
        let parsed = readable(certificate);
        let parsed = ParsedCertificate::try_from(&*parsed)?;
        // The times are verified first, so any other error is about who signed it, and for what.
        match verify_without_authority(&parsed, now) {
            Err(
                error @ Error::InvalidCertificate(
                    CertificateError::Expired
                    | CertificateError::ExpiredContext { .. }
                    | CertificateError::NotValidYetContext { .. },
                ),
            ) => Err(error),
            _ => Ok(()),
        }
    }
}

/// What both traits have: the peer must prove that it has the key of its certificate.
macro_rules! verifies_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, &readable(certificate), signed, &self.algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, &readable(certificate), signed, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.trusted.verify(certificate, now, || {
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(certificate)?,
                &self.trusted.roots,
                intermediates,
                now,
                self.algorithms.all,
            )
        })?;
        if self.names == Names::Own {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    verifies_signatures!();
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.by_authority.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.trusted.verify(certificate, now, || {
            let by_authority = &self.by_authority;
            let verified = by_authority.verify_client_cert(certificate, intermediates, now);
            verified.map(|_| ())
        })?;
        if let Some(name) = &self.name {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        }
        Ok(ClientCertVerified::assertion())
    }

    verifies_signatures!();
}

/// The field of version 3, which is the first of a certificate. Version 1 has none.
const VERSION_3: [u8; 5] = [0xa0, 0x03, 0x02, 0x01, 0x02];
/// A sequence, in DER.
const SEQUENCE: u8 = 0x30;

/// A certificate of version 1 as one of version 3 with the same fields, which webpki reads; others
/// as they are. The signature of the authority is that on version 1.
pub(crate) fn readable<'c>(certificate: &'c CertificateDer<'_>) -> Cow<'c, CertificateDer<'c>> {
    let of_version_3 = || {
        let (body, _) = sequence(certificate)?;
        let (fields, signature) = sequence(body)?;
        let fields = (fields.first() != VERSION_3.first())
            .then(|| DistinguishedName::in_sequence(&[&VERSION_3, fields].concat()))?;
        let body = [fields.as_ref(), signature].concat();
        let written = DistinguishedName::in_sequence(&body).as_ref().to_vec();
        Some(CertificateDer::from(written))
    };
    of_version_3().map_or(Cow::Borrowed(certificate), Cow::Owned)
}

/// The content of the sequence that DER begins with, and what follows it.
fn sequence(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[tag, len], rest) = der.split_first_chunk()?;
    // From 128 on it is the number of bytes of the length.
    let (len, rest) = match len.checked_sub(0x80) {
        None => (usize::from(len), rest),
        Some(bytes) => {
            let (len, rest) = rest.split_at_checked(usize::from(bytes))?;
            let len = len
                .iter()
                .try_fold(0_usize, |len, byte| Some(len.checked_mul(256)? + usize::from(*byte)));
            (len?, rest)
        }
    };
    rest.split_at_checked(len).filter(|_| tag == SEQUENCE)
}

/// An error of a handshake. Of a certificate it says what is wrong, and the cure.
pub(crate) fn explain(error: io::Error) -> io::Error {
    let source = error.get_ref().and_then(|error| error.downcast_ref());
    let Some(Error::InvalidCertificate(certificate)) = source else {
        return error;
    };
    let explained = format!("invalid peer certificate: {}", reason(certificate));
    io::Error::new(error.kind(), explained)
}

/// What is wrong with a certificate, and the cure.
pub(crate) fn reason(error: &CertificateError) -> String {
    use CertificateError as Wrong;
    let between = |earlier: &UnixTime, later: &UnixTime| {
        let seconds = later.as_secs().saturating_sub(earlier.as_secs());
        Span::from(Duration::from_secs(seconds))
    };
    let reason = match error {
        Wrong::ExpiredContext { time, not_after } => {
            return format!("it expired {} ago; renew it", between(not_after, time));
        }
        Wrong::NotValidYetContext { time, not_before } => {
            let early = between(time, not_before);
            return format!("it is valid in {early}; compare the clocks");
        }
        Wrong::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            return format!("{error}; make it with {MAKE_NAMED}");
        }
        Wrong::NotValidForNameContext { .. } => "it has no subjectAltName; make it with NAMED",
        Wrong::UnknownIssuer => "its authority is not trusted; trust its certificate",
        Wrong::BadSignature | Wrong::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            "the trusted authority of that name did not sign it; trust its current certificate"
        }
        Wrong::InvalidPurposeContext { .. } => {
            "its extendedKeyUsage forbids this use; servers need serverAuth, clients clientAuth"
        }
        Wrong::UnsupportedSignatureAlgorithmContext { .. } => {
            "its signature is of an unsupported kind; make it with SHA-256"
        }
        Wrong::Other(other) => match other.0.downcast_ref() {
            // rustls has no names for these.
            Some(webpki::Error::CaUsedAsEndEntity) => {
                "it is an authority's (CA:TRUE), and not itself trusted; trust it, or make it with CA:FALSE"
            }
            Some(webpki::Error::UnsupportedCertVersion) => {
                "it is of X.509 version 1, which has no names; make it with NAMED"
            }
            _ => INVALID,
        },
        _ => INVALID,
    };
    reason.replace("NAMED", MAKE_NAMED)
}

const INVALID: &str =
    "it is no valid X.509, or its chain is not; find out with openssl verify -CAfile";
/// How openssl makes a certificate with a name.
const MAKE_NAMED: &str = "-addext subjectAltName=DNS:HOST";

#[cfg(test)]
mod tests;
