//! The rules files that an operator can name and replace: those directly in the folder of the rules
//! in force.
//!
//! They are read from the disk on each call, never from what was loaded: an operator changes the
//! file, and a file may be newer than the rules in force. Functions that are not `async` block.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::base::regular_file;
use crate::report::Finding;
use crate::rules::config::CompileOptions;
use crate::rules::config::yaml::FILE_BYTES_MAX;
use crate::rules::source::edit::etag::ETag;
use crate::rules::source::edit::name::{FileName, NameError};
use crate::rules::source::files::{Directory, FILES_MAX};
use crate::rules::source::reload::Reload;
use crate::telemetry::metric::{Counter, Metrics};

pub(crate) mod change;
pub(crate) mod etag;
pub(crate) mod name;
mod write;

/// Why there are no [`RuleFiles`].
pub(crate) const NO_FILES: &str = "the rules come from a control plane (CONFIG_TYPE=GRPC_XDS_SOTW), not from files; /rlconfig has those in force";

/// Requests that read rules files at a time. A text has megabytes, and so has its page.
const READS_MAX: usize = 2;
/// Time that a request waits for others to read rules files.
const READ_WAIT_MAX: Duration = Duration::from_secs(5);

/// The folder of the rules in force, and how they are compiled.
#[derive(Debug)]
pub(crate) struct RuleFiles {
    pub(crate) directory: Directory,
    /// Without the overlay.
    pub(crate) options: CompileOptions,
    /// TOLLGATE_OVERLAY
    pub(crate) overlay: Option<PathBuf>,
    /// RULES_WRITABLE
    pub(crate) is_writable: bool,
    pub(crate) reload: Reload,
    pub(crate) access: Access,
}

/// Who reads and who changes files at this moment.
#[derive(Debug)]
pub(crate) struct Access {
    reads: Arc<Semaphore>,
    full: Counter,
    turn: Mutex<()>,
}

/// A request that reads rules files, among [`READS_MAX`]. Held until what was read is no more in
/// memory, or is counted elsewhere.
pub(crate) type Reading = OwnedSemaphorePermit;

/// A rules file in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: FileName,
    pub(crate) etag: ETag,
    pub(crate) bytes: usize,
}

/// Why a file was not read, or not replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EditError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("no rules file {0}; GET /api/v1/rules lists them")]
    Missing(FileName),
    /// The file, its bytes and the most that the caller reads.
    #[error("{0} has {1} bytes, more than the {2} that are read")]
    TooLarge(FileName, u64, usize),
    #[error(
        "others are reading or changing rules files (rules_reads_max, rules_turn_timeout); repeat the request"
    )]
    Busy,
    #[error(
        "rules files are read-only; set RULES_WRITABLE=true to let requests with the admin token change them"
    )]
    Disabled,
    #[error("{0}; change the rules where they come from")]
    Unwritable(String),
    #[error("the file has changed: its ETag is {0}; read it again")]
    Changed(ETag),
    #[error("the rules are invalid with this change; nothing is written")]
    Invalid(Vec<Finding>),
    /// Another file, or the overlay, was changed at the same time.
    #[error(
        "the file is written, but the rules were rejected together with a change of others; the previous rules stay in force: {0}"
    )]
    Rejected(String),
    #[error("the file is written, but was not loaded in time (rules_reload_timeout)")]
    Late,
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// A defect.
    #[error("the change ended unexpectedly")]
    Unexpected,
}

impl Access {
    /// Registers the metric.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            reads: Arc::new(Semaphore::new(READS_MAX)),
            full: metrics.counter(
                "tollgate_admin_rules_texts_full_total",
                "Requests that read rules files and were rejected with 503, because 2 others did for 5 s (rules_reads_max, rules_read_wait_max).",
            ),
            turn: Mutex::default(),
        }
    }
}

impl RuleFiles {
    /// Waits until few others read rules files. Every request does so before it reads any.
    ///
    /// # Errors
    /// They did not end in time.
    pub(crate) async fn reading(&self) -> Result<Reading, EditError> {
        let reads = self.access.reads.clone();
        let reading = timeout(READ_WAIT_MAX, reads.acquire_owned()).await;
        reading.ok().and_then(Result::ok).ok_or_else(|| {
            self.access.full.inc();
            EditError::Busy
        })
    }

    /// All files, sorted by name.
    ///
    /// # Errors
    /// The folder cannot be read, or has too many files.
    pub(crate) fn list(&self) -> Result<Vec<Listed>, String> {
        let path = &self.directory.path;
        let failed = |error: io::Error| format!("read rules from {}: {error}", path.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().and_then(|name| FileName::new(name).ok()));
            if names.len() > FILES_MAX {
                let path = path.display();
                return Err(format!("{path} has more than {FILES_MAX} files"));
            }
        }
        names.sort();
        let mut listed = Vec::with_capacity(names.len());
        for name in names {
            match self.read(&name, FILE_BYTES_MAX) {
                Ok(bytes) => {
                    listed.push(Listed { etag: ETag::of(&bytes), bytes: bytes.len(), name });
                }
                // A folder, or removed since.
                Err(EditError::Missing(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(listed)
    }

    /// Reads a file of at most this number of bytes. They are unchecked: rules that are not UTF-8
    /// are invalid, but can be read and replaced.
    ///
    /// # Errors
    /// There is no such file, it is larger, or it cannot be read.
    pub(crate) fn read(&self, name: &FileName, bytes_max: usize) -> Result<Vec<u8>, EditError> {
        let path = self.path(name);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => EditError::Missing(name.clone()),
            _ => EditError::Io(path.clone(), error),
        };
        // Before it is opened: opening a pipe would wait for its writer.
        let metadata = fs::metadata(&path).map_err(failed)?;
        if !metadata.is_file() || self.directory.ignores(Path::new(name.as_str())) {
            return Err(EditError::Missing(name.clone()));
        }
        if metadata.len() > bytes_max as u64 {
            return Err(EditError::TooLarge(name.clone(), metadata.len(), bytes_max));
        }
        regular_file::read_within(&path, bytes_max).map_err(failed)
    }

    fn path(&self, name: &FileName) -> PathBuf {
        self.directory.path.join(name.as_str())
    }
}
