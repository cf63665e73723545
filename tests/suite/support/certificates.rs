//! Certificates made for one test by `openssl`, which also writes keys in the old form that Go's tools make.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// What is asked for is said here, and not by the machine's openssl.cnf.
const CONFIG: &str = "\
[req]
distinguished_name = name
prompt = no
x509_extensions = authority
[name]
CN = tollgate test
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
";

/// Somebody who signs certificates.
pub(crate) struct Authority {
    directory: TempDir,
}

/// A certificate, its key, and who has signed it. Files of the [`Authority`], gone with it.
pub(crate) struct Identity {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ca: PathBuf,
}

/// How a key is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeyForm {
    /// `BEGIN PRIVATE KEY`.
    Pkcs8,
    /// `BEGIN RSA PRIVATE KEY`.
    Pkcs1,
    /// `BEGIN EC PRIVATE KEY`, behind the `BEGIN EC PARAMETERS` that openssl writes before it.
    Sec1,
}

impl Authority {
    /// A new one.
    pub(crate) fn new() -> Self {
        let authority = Self { directory: TempDir::new().expect("a temporary directory can be made") };
        fs::write(authority.path("openssl.cnf"), CONFIG).expect("a file can be written");
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        authority.openssl(&["req", "-x509", "-config", "openssl.cnf", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2"], &curve);
        authority
    }

    /// Its own certificate.
    pub(crate) fn cacert(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// A certificate for these names, such as `DNS:localhost,IP:127.0.0.1`.
    pub(crate) fn sign(&self, file: &str, names: &str, form: KeyForm) -> Identity {
        let [key, request, cert, extensions] = ["key", "csr", "pem", "ext"].map(|extension| format!("{file}.{extension}"));
        match form {
            KeyForm::Pkcs1 => self.openssl(&["genrsa", "-traditional", "-out", &key, "2048"], &[]),
            KeyForm::Sec1 => self.openssl(&["ecparam", "-genkey", "-name", "prime256v1", "-out", &key], &[]),
            KeyForm::Pkcs8 => self.openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", &key], &[]),
        }
        let text = format!("basicConstraints = CA:FALSE\nsubjectAltName = {names}\n");
        fs::write(self.path(&extensions), text).expect("a file can be written");
        self.openssl(&["req", "-new", "-config", "openssl.cnf", "-key", &key, "-out", &request], &[]);
        let signed_by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", &extensions];
        self.openssl(&["x509", "-req", "-in", &request, "-out", &cert], &signed_by);
        Identity { cert: self.path(&cert), key: self.path(&key), ca: self.cacert() }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(Path::new(file))
    }

    fn openssl(&self, arguments: &[&str], more: &[&str]) {
        let ran = Command::new("openssl").args(arguments).args(more).current_dir(self.directory.path()).output();
        let ran = ran.unwrap_or_else(|error| panic!("openssl: {error}; get it by `apt-get install openssl`"));
        assert!(ran.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}
