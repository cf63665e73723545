//! Certificates made for one test, with keys in each form that operators have.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pem::Pem;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PublicKeyData as _, SanType, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;

/// For [`KeyForm::Pkcs1`], in PKCS#8: ring makes no RSA keys. It protects nothing.
const RSA_KEY: &str = include_str!("rsa-key-for-tests-only.pem");
/// The algorithm and lengths before the RSAPrivateKey (PKCS#1) of a 2048-bit key in PKCS#8.
const RSA_HEADER_LEN: usize = 26;
/// Where ring's PKCS#8 of a P-256 key has the 32 bytes of the private key.
const EC_SECRET_START: usize = 36;
const EC_SECRET_LEN: usize = 32;
/// The object identifier of P-256, in DER.
const P256: [u8; 10] = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];

/// When every certificate expires, in seconds since 1970: the first of January 2100.
pub(crate) const EXPIRES_AT_S: f64 = 4_102_444_800.0;

/// A certificate authority.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

/// A certificate, its key, and the authority's certificate. Files of the [`Authority`], gone with
/// it.
pub(crate) struct Identity {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ca: PathBuf,
}

/// How a key is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeyForm {
    /// `BEGIN PRIVATE KEY`, as Rust and newer OpenSSL write it.
    Pkcs8,
    /// `BEGIN RSA PRIVATE KEY`, as Envoy Gateway and other Go programs write it.
    Pkcs1,
    /// `BEGIN EC PRIVATE KEY` after `BEGIN EC PARAMETERS`, as `openssl ecparam -genkey` writes it.
    Sec1,
}

impl Authority {
    /// An authority with a key of its own.
    pub(crate) fn new() -> Self {
        Self::with_key(KeyForm::Pkcs8)
    }

    /// An authority whose key has this form.
    pub(crate) fn with_key(form: KeyForm) -> Self {
        let mut params = params("tollgate test authority", "");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self::of(params, form)
    }

    fn of(params: CertificateParams, form: KeyForm) -> Self {
        let issuer =
            CertifiedIssuer::self_signed(params, form.key()).expect("the parameters are right");
        let authority =
            Self { issuer, directory: TempDir::new().expect("a temporary directory can be made") };
        authority.write("ca.pem", &authority.issuer.pem());
        authority
    }

    /// A certificate for these names that signs itself, as `openssl req -x509` makes it: it is that
    /// of an authority. The authority that has its files, and it.
    pub(crate) fn self_signed(names: &str) -> (Self, Identity) {
        let mut params = params("tollgate self-signed", names);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = Self::of(params, KeyForm::Pkcs8);
        authority.write("ca.key", &authority.issuer.key().serialize_pem());
        let identity = Identity {
            cert: authority.cacert(),
            key: authority.path("ca.key"),
            ca: authority.cacert(),
        };
        (authority, identity)
    }

    /// Its own certificate.
    pub(crate) fn cacert(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// A certificate for these names, such as `DNS:localhost,IP:127.0.0.1`.
    pub(crate) fn sign(&self, file: &str, names: &str, form: KeyForm) -> Identity {
        let cert = format!("{file}.pem");
        let key = format!("{file}.key");
        let pair = form.key();
        let signed = params("tollgate test", names)
            .signed_by(&pair, &self.issuer)
            .expect("the parameters are right");
        self.write(&cert, &signed.pem());
        self.write(&key, &form.pem(&pair));
        Identity { cert: self.path(&cert), key: self.path(&key), ca: self.cacert() }
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).expect("a file can be written");
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(Path::new(file))
    }
}

impl KeyForm {
    fn key(self) -> KeyPair {
        match self {
            Self::Pkcs1 => KeyPair::from_pem(RSA_KEY).expect("it is a key in PKCS#8"),
            Self::Pkcs8 | Self::Sec1 => KeyPair::generate().expect("a P-256 key can be made"),
        }
    }

    fn pem(self, key: &KeyPair) -> String {
        let pkcs8 = key.serialized_der();
        match self {
            Self::Pkcs8 => key.serialize_pem(),
            Self::Pkcs1 => pem::encode(&Pem::new("RSA PRIVATE KEY", &pkcs8[RSA_HEADER_LEN..])),
            Self::Sec1 => {
                let secret = &pkcs8[EC_SECRET_START..][..EC_SECRET_LEN];
                // ECPrivateKey of RFC 5915: version 1, the private key, the curve, the public key.
                let head: &[u8] = &[0x30, 0x77, 0x02, 0x01, 0x01, 0x04, 0x20];
                let der = [
                    head,
                    secret,
                    &[0xa0, 0x0a],
                    &P256,
                    &[0xa1, 0x44, 0x03, 0x42, 0x00],
                    key.der_bytes(),
                ]
                .concat();
                pem::encode(&Pem::new("EC PARAMETERS", P256))
                    + &pem::encode(&Pem::new("EC PRIVATE KEY", der))
            }
        }
    }
}

/// The parameters of a certificate of that subject, for these names. The subject of an authority is
/// another than those that it signs: with the same RSA key, they would look self-signed.
fn params(subject: &str, names: &str) -> CertificateParams {
    /// Certificates of one authority may share a key, and differ all the same.
    static SERIAL: AtomicU64 = AtomicU64::new(1);
    let name = |name: &str| match name.split_once(':') {
        Some(("DNS", host)) => SanType::DnsName(host.try_into().expect("it is ASCII")),
        Some(("IP", addr)) => SanType::IpAddress(addr.parse().expect("it is an address")),
        _ => panic!("`DNS:host` or `IP:address`, not {name}"),
    };
    let mut params = CertificateParams::default();
    params.subject_alt_names = names.split(',').filter(|name| !name.is_empty()).map(name).collect();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.is_ca = IsCa::ExplicitNoCa;
    params.not_after = date_time_ymd(2100, 1, 1);
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(SerialNumber::from(SERIAL.fetch_add(1, Relaxed)));
    params
}
