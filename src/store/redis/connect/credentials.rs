//! Credentials and certificates for Redis that come from files, and come anew when these change.
//!
//! They are used when a connection begins, and never again: what is exchanged is for new
//! connections, and those that are there stay. Each file stands for itself, but for those of TLS,
//! which make sense only together: a certificate whose key has not come yet keeps nobody from using
//! a new password. What cannot be used never takes the place of what serves.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::file_watch::{FileSet, FileStat, RecursiveMode, Watched};
use crate::settings::parse::Secret;
use crate::store::redis::connect::tls::{Tls, TlsClient, TlsError};
use crate::telemetry::metric::{Counter, Gauge, Metrics};
use crate::tls::{PemError, PemFile};

/// Something as it serves at the moment. Clones are the same, and change together.
#[derive(Debug)]
pub struct Reloadable<T>(Arc<ArcSwap<T>>);

/// A file with a password, or a user and a password, as REDIS_AUTH has them: one line, whose end is
/// not a part of it.
#[derive(Debug, Clone)]
pub struct AuthFile(PemFile);

/// Why a file has no credentials.
#[derive(Debug, thiserror::Error)]
pub enum AuthFileError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] PemError),
    /// It has something else.
    #[error("{setting}: {} {what}; write password, or user:password, in one line", path.display())]
    Content {
        /// Which names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// All that comes from files, for every Redis of the process.
#[derive(Debug, Clone, Default)]
pub struct CredentialFiles {
    kept: Vec<WatchedFiles>,
}

/// What one set of files is for.
#[derive(Clone)]
struct WatchedFiles {
    files: FileSet,
    /// Puts what is in the files now in the place of what serves.
    renew: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// Reads the files, again and again.
#[derive(Debug)]
pub struct CredentialReloader {
    kept: Vec<(WatchedFiles, LoadState)>,
    loaded: Counter,
    failed: Counter,
    refused: Gauge,
}

/// What became of the newest files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoadState {
    Loaded,
    Rejected,
}

impl<T> Reloadable<T> {
    /// What serves until something else is stored.
    pub fn new(first: T) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(first)))
    }

    /// What serves now.
    pub fn load(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Puts something else in its place.
    pub fn store(&self, next: T) {
        self.0.store(Arc::new(next));
    }
}

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl AuthFile {
    /// The file that a setting names.
    pub fn new(setting: &'static str, path: &str) -> Self {
        Self(PemFile::new(setting, path))
    }

    /// What is in it.
    ///
    /// # Errors
    /// It cannot be read, is empty, no text, or has more than one line. Its content is never
    /// quoted.
    pub fn read(&self) -> Result<Secret, AuthFileError> {
        let bytes = self.0.bytes()?;
        let refused = |what| AuthFileError::Content {
            setting: self.0.setting,
            path: self.0.path.clone(),
            what,
        };
        let text = String::from_utf8(bytes).map_err(|_| refused("is no text in UTF-8"))?;
        let line = text
            .strip_suffix('\n')
            .map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
        if line.is_empty() {
            return Err(refused("is empty"));
        }
        if line.contains(['\n', '\r']) {
            return Err(refused("has more than one line"));
        }
        Ok(Secret::new(line))
    }
}

impl CredentialFiles {
    /// Credentials from a file, now and after each change.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn auth(&mut self, file: AuthFile) -> Result<Reloadable<Secret>, AuthFileError> {
        self.keep(vec![file.0.path.clone()], move || file.read())
    }

    /// What connections by TLS are told, now and after each change of the files.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn tls(&mut self, tls: Tls) -> Result<Reloadable<TlsClient>, TlsError> {
        self.keep(tls.paths(), move || tls.load())
    }

    fn keep<T, E>(
        &mut self,
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Reloadable<T>, E>
    where
        T: Send + Sync + 'static,
        E: fmt::Display,
    {
        // Before they are read: what changes in between is news later.
        let files = FileSet::new(paths);
        let live = Reloadable::new(read()?);
        let serving = live.clone();
        let renew = move || {
            read()
                .map(|next| serving.store(next))
                .map_err(|error| error.to_string())
        };
        if !files.is_empty() {
            self.kept.push(WatchedFiles {
                files,
                renew: Arc::new(renew),
            });
        }
        Ok(live)
    }
}

impl fmt::Debug for WatchedFiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.files)
    }
}

impl CredentialReloader {
    /// For files that were read, and serve; `None` if there are none.
    pub fn new(secrets: CredentialFiles, metrics: &Metrics) -> Option<Self> {
        if secrets.kept.is_empty() {
            return None;
        }
        let loads = |result| {
            let help = "Loads of files with credentials or certificates for Redis that had changed, by result.";
            metrics.counter_with(
                "tollgate_redis_secrets_loads_total",
                help,
                &[("result", result)],
            )
        };
        Some(Self {
            kept: secrets.kept.into_iter().map(|kept| (kept, LoadState::Loaded)).collect(),
            loaded: loads("success"),
            failed: loads("error"),
            refused: metrics.gauge(
                "tollgate_redis_secrets_rejected",
                "Files with credentials for Redis, and sets of files of TLS, of which the newest are refused and older ones serve.",
            ),
        })
    }
}

impl Watched for CredentialReloader {
    type Signature = Vec<Option<FileStat>>;

    const NAME: &'static str = "secrets";

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        // Files of several settings may be in one.
        let mut directories: Vec<_> = self
            .kept
            .iter()
            .flat_map(|(kept, _)| kept.files.directories())
            .collect();
        directories.sort_by(|(one, _), (other, _)| one.cmp(other));
        directories.dedup();
        directories
    }

    fn signature(&self) -> Self::Signature {
        self.kept
            .iter()
            .flat_map(|(kept, _)| kept.files.signature())
            .collect()
    }

    fn needs_retry(&self) -> bool {
        self.kept.iter().any(|(kept, _)| kept.files.needs_retry())
    }

    fn load(&mut self) {
        let (mut loaded, mut failed) = (0, 0);
        for (WatchedFiles { files, renew }, standing) in &mut self.kept {
            match files.load(|| renew()) {
                None => {}
                Some(Ok(())) => {
                    let event = if *standing == LoadState::Rejected {
                        "valid again"
                    } else {
                        "reloaded"
                    };
                    tracing::info!(?files, "credentials for Redis {event}");
                    (*standing, loaded) = (LoadState::Loaded, loaded + 1);
                }
                Some(Err(error)) => {
                    tracing::error!(
                        "reload of credentials for Redis rejected; the previous ones stay in use: {error}"
                    );
                    (*standing, failed) = (LoadState::Rejected, failed + 1);
                }
            }
        }
        let refused = self
            .kept
            .iter()
            .filter(|(_, standing)| *standing == LoadState::Rejected)
            .count();
        self.refused.set(i64::try_from(refused).unwrap_or(i64::MAX));
        // Last, so that whoever sees it here finds it so everywhere.
        self.loaded.inc_by(loaded);
        self.failed.inc_by(failed);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// What is in a file, and what is read from it.
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
        (b"s3cret\xff", Err("is no text in UTF-8")),
    ];

    /// A directory with one file in it.
    fn file(content: &[u8]) -> (TempDir, PathBuf) {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let path = directory.path().join("password");
        fs::write(&path, content).expect("a file can be written");
        (directory, path)
    }

    fn named(path: &std::path::Path) -> AuthFile {
        AuthFile::new(
            "REDIS_AUTH_FILE",
            path.to_str()
                .expect("temporary directories have plain names"),
        )
    }

    #[test]
    fn a_file_is_one_line_whose_end_is_not_a_part_of_it() {
        for (content, expected) in READ {
            let (_directory, path) = file(content);
            match (named(&path).read(), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read.reveal(), *expected),
                (Err(error), Err(expected)) => {
                    let expected = format!(
                        "REDIS_AUTH_FILE: {} {expected}; write password, or user:password, in one line",
                        path.display()
                    );
                    assert_eq!(error.to_string(), expected);
                }
                (read, _) => panic!("{content:?}: {read:?}"),
            }
        }
    }

    #[test]
    fn what_cannot_be_used_never_takes_the_place_of_what_serves() {
        let (_directory, path) = file(b"first\n");
        let (_other, beside) = file(b"beside\n");
        let (metrics, mut secrets) = (Metrics::new(), CredentialFiles::default());
        let [password, other] =
            [&path, &beside].map(|path| secrets.auth(named(path)).expect("it is good"));
        assert!(!format!("{secrets:?}").contains("first"));
        let mut source = CredentialReloader::new(secrets, &metrics).expect("there are files");
        let page = |words: &str| metrics.page().contains(words);
        let loads = "tollgate_redis_secrets_loads_total{result=\"success\"}";

        source.load();
        assert!(
            page(&format!("{loads} 0")) && page("tollgate_redis_secrets_rejected 0"),
            "nothing is new"
        );
        fs::write(&path, "").expect("a file can be written");
        source.load();
        source.load();
        assert_eq!(password.load().reveal(), "first");
        assert!(
            page("tollgate_redis_secrets_loads_total{result=\"error\"} 1")
                && page("tollgate_redis_secrets_rejected 1")
        );

        // What is wrong with one file keeps nobody from using another.
        fs::write(&beside, "newer").expect("a file can be written");
        source.load();
        assert_eq!(other.load().reveal(), "newer");
        assert!(page(&format!("{loads} 1")) && page("tollgate_redis_secrets_rejected 1"));

        fs::remove_file(&path).expect("it is there");
        source.load();
        assert!(source.needs_retry() && password.load().reveal() == "first");
        fs::write(&path, "second").expect("a file can be written");
        source.load();
        assert_eq!(password.load().reveal(), "second");
        assert!(
            !source.needs_retry()
                && page(&format!("{loads} 2"))
                && page("tollgate_redis_secrets_rejected 0")
        );
    }

    #[test]
    fn what_changes_before_anybody_watches_is_news_to_who_does() {
        let (_directory, path) = file(b"first");
        let mut secrets = CredentialFiles::default();
        let password = secrets.auth(named(&path)).expect("it is good");
        fs::write(&path, "second").expect("a file can be written");
        CredentialReloader::new(secrets, &Metrics::new())
            .expect("there are files")
            .load();
        assert_eq!(password.load().reveal(), "second");
    }

    #[test]
    fn without_files_there_is_nothing_to_watch() {
        let mut secrets = CredentialFiles::default();
        secrets
            .tls(Tls::default())
            .expect("the system's authorities need no file");
        assert!(CredentialReloader::new(secrets, &Metrics::new()).is_none());
    }
}
