//! Credentials and certificates for Redis from files that are reloaded when they change.
//!
//! New ones are used for new connections; open connections stay. Each file is reloaded on its own,
//! except those of TLS, which only make sense together. Files that cannot be used are rejected and
//! the last good ones stay in use.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ClientConfig;

use crate::base::file_watch::{FileSet, Loads, Reloaded};
use crate::base::parse::Secret;
use crate::store::redis::connect::tls::Tls;
use crate::telemetry::metric::Metrics;

/// A value that is replaced while it is used. Clones share it.
pub type Reloadable<T> = Arc<ArcSwap<T>>;

/// All files with credentials and certificates for Redis.
#[derive(Debug, Clone)]
pub struct CredentialFiles(Reloaded);

impl Default for CredentialFiles {
    fn default() -> Self {
        Self(Reloaded::new("secrets", "credentials for Redis"))
    }
}

impl CredentialFiles {
    /// Credentials from a file with `password` or `user:password` in one line.
    ///
    /// # Errors
    /// The file cannot be used; the error names its setting.
    pub(crate) fn auth(
        &mut self,
        setting: String,
        path: PathBuf,
    ) -> Result<Reloadable<Secret>, String> {
        self.watch(vec![path.clone()], move || {
            Secret::read_file(&path, "password or user:password")
                .map_err(|error| format!("{setting}: {}{error}", path.display()))
        })
    }

    /// A TLS client from its files.
    ///
    /// # Errors
    /// The files cannot be used.
    pub(crate) fn tls(&mut self, tls: Tls) -> Result<Reloadable<ClientConfig>, String> {
        self.watch(tls.paths(), move || tls.load())
    }

    fn watch<T: Send + Sync + 'static>(
        &mut self,
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Reloadable<T>, String> {
        let files = FileSet::new(paths);
        let value = Arc::new(ArcSwap::from_pointee(read()?));
        let current = value.clone();
        if !files.is_empty() {
            self.0.add(files, read, move |next| current.store(Arc::new(next)));
        }
        Ok(value)
    }

    /// Reloads the files when they change; `None` if there are none.
    pub fn reloader(self, metrics: &Metrics) -> Option<Reloaded> {
        if self.0.is_empty() {
            return None;
        }
        let loads = [
            "tollgate_redis_secrets_loads_total",
            "Reloads of changed files with credentials or certificates for Redis, by result.",
        ];
        let rejected = [
            "tollgate_redis_secrets_rejected",
            "Files with credentials for Redis, and sets of TLS files, whose last reload was rejected.",
        ];
        Some(self.0.counted(Loads::new(loads, rejected, metrics)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;

    use crate::base::file_watch::Watched as _;

    use super::*;

    /// The content of a file and the credentials or the error.
    const READ: &[(&[u8], Result<&str, &str>)] = &[
        (b"s3cret", Ok("s3cret")),
        (b"s3cret\n", Ok("s3cret")),
        (b"app:s3cret\r\n", Ok("app:s3cret")),
        (b" s3cret ", Ok(" s3cret ")),
        (b"s3cret\r", Err("has more than one line")),
        (b"s3cret\n\n", Err("has more than one line")),
        (b"app\ns3cret\n", Err("has more than one line")),
        (b"", Err("is empty")),
        (b"\n", Err("is empty")),
        (b"s3cret\xff", Err("is not UTF-8")),
    ];

    /// A directory with one file in it.
    fn file(content: &[u8]) -> (TempDir, PathBuf) {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let path = directory.path().join("password");
        fs::write(&path, content).expect("a file can be written");
        (directory, path)
    }

    fn auth(secrets: &mut CredentialFiles, path: &Path) -> Result<Reloadable<Secret>, String> {
        secrets.auth("REDIS_AUTH_FILE".to_owned(), path.to_owned())
    }

    #[test]
    fn files_have_one_line() {
        for (content, expected) in READ {
            let (_directory, path) = file(content);
            match (auth(&mut CredentialFiles::default(), &path), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read.load().reveal(), *expected),
                (Err(error), Err(expected)) => {
                    let expected = format!(
                        "REDIS_AUTH_FILE: {} {expected}; expected password or user:password in one line",
                        path.display()
                    );
                    assert_eq!(error, expected);
                }
                (read, _) => panic!("{content:?}: {read:?}"),
            }
        }
    }

    #[test]
    fn rejected_files_never_replace_the_last_good_ones() {
        let (_directory, path) = file(b"first\n");
        let (_other, other_path) = file(b"beside\n");
        let metrics = Metrics::new();
        let mut secrets = CredentialFiles::default();
        let [password, other] =
            [&path, &other_path].map(|path| auth(&mut secrets, path).expect("a valid file"));
        assert!(!format!("{secrets:?}").contains("first"));
        let mut reloader = secrets.reloader(&metrics).expect("there are files");
        let page = |words: &str| metrics.page().contains(words);
        let loads = "tollgate_redis_secrets_loads_total{result=\"success\"}";

        reloader.load();
        assert!(
            page(&format!("{loads} 0")) && page("tollgate_redis_secrets_rejected 0"),
            "nothing is new"
        );
        fs::write(&path, "").expect("a file can be written");
        reloader.load();
        reloader.load();
        assert_eq!(password.load().reveal(), "first");
        assert!(
            page("tollgate_redis_secrets_loads_total{result=\"error\"} 1")
                && page("tollgate_redis_secrets_rejected 1")
        );

        // A rejected file does not affect the others.
        fs::write(&other_path, "newer").expect("a file can be written");
        reloader.load();
        assert_eq!(other.load().reveal(), "newer");
        assert!(page(&format!("{loads} 1")) && page("tollgate_redis_secrets_rejected 1"));

        fs::remove_file(&path).expect("it is there");
        reloader.load();
        assert!(reloader.has_changed() && password.load().reveal() == "first");
        fs::write(&path, "second").expect("a file can be written");
        reloader.load();
        assert_eq!(password.load().reveal(), "second");
        assert!(
            !reloader.has_changed()
                && page(&format!("{loads} 2"))
                && page("tollgate_redis_secrets_rejected 0")
        );
    }

    #[test]
    fn changes_before_the_first_reload_are_noticed() {
        let (_directory, path) = file(b"first");
        let mut secrets = CredentialFiles::default();
        let password = auth(&mut secrets, &path).expect("a valid file");
        fs::write(&path, "second").expect("a file can be written");
        secrets.reloader(&Metrics::new()).expect("there are files").load();
        assert_eq!(password.load().reveal(), "second");
    }

    #[test]
    fn no_files_need_no_reloader() {
        let mut secrets = CredentialFiles::default();
        secrets.tls(Tls::default()).expect("no files are needed");
        assert!(secrets.reloader(&Metrics::new()).is_none());
    }
}
