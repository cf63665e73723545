//! The rules files that an operator can name, and their changes: those directly in the folder of
//! the rules in force.
//!
//! They are read from the disk on each call, never from what was loaded: an operator changes the
//! file, and a file may be newer than the rules in force. All functions block, except for
//! [`RuleFiles::reading`] and those of [`change`].

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::base::regular_file;
use crate::base::time::Time;
use crate::config::yaml::FILE_BYTES_MAX;
use crate::rule_source::edit::compile::Compiler;
use crate::rule_source::edit::etag::ETag;
use crate::rule_source::edit::hash::hash;
use crate::rule_source::edit::history::{History, Version};
use crate::rule_source::edit::name::{FileName, NameError};
use crate::rule_source::files::{Directory, FILES_MAX};
use crate::telemetry::metric::{Counter, Metrics};

pub(crate) mod change;
pub(crate) mod compile;
mod diff;
pub(crate) mod etag;
mod hash;
pub(crate) mod history;
pub(crate) mod name;
mod write;

/// Why there are no [`RuleFiles`].
pub(crate) const NO_FILES: &str = "the rules come from a control plane (CONFIG_TYPE=GRPC_XDS_SOTW), not from files; /rlconfig has those in force";

/// Requests that read rules files or their versions at a time. A text has megabytes, and so has its
/// page.
// bound rules_reads_max: the next one waits; tollgate_admin_rules_texts_full_total
const READS_MAX: usize = 2;
/// Time that a request waits for others to read rules files.
// bound rules_read_wait_max: the request is answered with 503;
// tollgate_admin_rules_texts_full_total
const READ_WAIT_MAX: Duration = Duration::from_secs(5);

/// The folder of the rules in force.
#[derive(Debug)]
pub(crate) struct RuleFiles {
    pub(crate) compiler: Compiler,
    reads: Arc<Semaphore>,
    full: Counter,
}

/// A request that reads rules files, among [`READS_MAX`]. Held until what was read is no more in
/// memory, or is counted elsewhere.
#[derive(Debug)]
pub(crate) struct Reading {
    _permit: OwnedSemaphorePermit,
}

/// A rules file in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: FileName,
    pub(crate) etag: ETag,
    pub(crate) bytes: usize,
}

/// A rules file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleFile {
    /// The unchecked content: rules that are not UTF-8 are invalid, but can be read and replaced.
    pub(crate) bytes: Vec<u8>,
    pub(crate) etag: ETag,
    pub(crate) modified: Time,
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("no rules file {0}; GET /api/v1/rules lists them")]
    Missing(FileName),
    /// The file, its bytes and the most that the caller reads.
    #[error("{0} has {1} bytes, more than the {2} that are read")]
    TooLarge(FileName, usize, usize),
    #[error("too many rules files are being read (rules_reads_max); repeat the request")]
    Busy,
    /// An error of the system, or more bytes than rules files may have.
    #[error("read {0}: {1}")]
    Io(FileName, io::Error),
}

impl RuleFiles {
    /// Registers the metric.
    pub(crate) fn new(compiler: Compiler, metrics: &Metrics) -> Self {
        Self {
            compiler,
            reads: Arc::new(Semaphore::new(READS_MAX)),
            full: metrics.counter(
                "tollgate_admin_rules_texts_full_total",
                "Requests that read rules files or their versions and were rejected with 503, because 2 others did for 5 s (rules_reads_max, rules_read_wait_max).",
            ),
        }
    }

    /// Waits until few others read rules files. Every request does so before it reads any.
    ///
    /// # Errors
    /// They did not end in time.
    pub(crate) async fn reading(&self) -> Result<Reading, ReadError> {
        let permit = timeout(READ_WAIT_MAX, self.reads.clone().acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok);
        let reading = permit.map(|permit| Reading { _permit: permit });
        reading.ok_or_else(|| {
            self.full.inc();
            ReadError::Busy
        })
    }

    /// All files, sorted by name.
    ///
    /// # Errors
    /// The folder cannot be read, or has too many files.
    pub(crate) fn list(&self) -> Result<Vec<Listed>, String> {
        let path = &self.directory().path;
        let failed = |error: io::Error| format!("read rules from {}: {error}", path.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().and_then(|name| FileName::new(name).ok()));
            if names.len() > FILES_MAX {
                return Err(format!(
                    "{} has more than {FILES_MAX} files",
                    path.display()
                ));
            }
        }
        names.sort();
        let mut listed = Vec::with_capacity(names.len());
        for name in names {
            match self.hashed(&name) {
                Ok((etag, bytes, _)) => listed.push(Listed { name, etag, bytes }),
                // A folder, or removed since.
                Err(ReadError::Missing(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(listed)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub(crate) fn read(&self, name: &FileName) -> Result<RuleFile, ReadError> {
        self.read_up_to(name, FILE_BYTES_MAX)
    }

    /// Reads a file of at most this number of bytes.
    ///
    /// # Errors
    /// As [`Self::read`], or it is larger.
    pub(crate) fn read_up_to(
        &self,
        name: &FileName,
        bytes_max: usize,
    ) -> Result<RuleFile, ReadError> {
        let (path, metadata) = self.stat(name)?;
        let size = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        if size > bytes_max {
            return Err(ReadError::TooLarge(name.clone(), size, bytes_max));
        }
        let bytes = regular_file::read_within(&path, bytes_max).map_err(failed(name))?;
        Ok(RuleFile {
            etag: ETag::of(&bytes),
            bytes,
            modified: Time::of(metadata.modified().map_err(failed(name))?),
        })
    }

    /// ETag, size and time of a file, without its bytes in memory.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn hashed(&self, name: &FileName) -> Result<(ETag, usize, Time), ReadError> {
        let (path, metadata) = self.stat(name)?;
        let (etag, bytes) = hash(&path).map_err(failed(name))?;
        let modified = metadata.modified().map_err(failed(name))?;
        Ok((etag, bytes, Time::of(modified)))
    }

    fn stat(&self, name: &FileName) -> Result<(PathBuf, Metadata), ReadError> {
        let missing = || ReadError::Missing(name.clone());
        if self.directory().ignores(Path::new(name.as_str())) {
            return Err(missing());
        }
        let path = self.path(name);
        // Before it is opened: opening a pipe would wait for its writer.
        let metadata = fs::metadata(&path).map_err(failed(name))?;
        if !metadata.is_file() {
            return Err(missing());
        }
        Ok((path, metadata))
    }

    /// The versions of a file, newest first. The first one is the file as it is, which need not be
    /// kept yet.
    ///
    /// # Errors
    /// There is no such file, or it or its history cannot be read.
    pub(crate) fn versions(&self, name: &FileName) -> Result<Vec<Version>, ReadError> {
        let (etag, _, modified) = self.hashed(name)?;
        let history = History::of(&self.directory().path, name);
        let kept = history.kept();
        let kept = kept.map_err(|error| ReadError::Io(name.clone(), error))?;
        Ok(history::with_current(kept, &etag, modified))
    }

    fn path(&self, name: &FileName) -> PathBuf {
        self.directory().path.join(name.as_str())
    }

    fn directory(&self) -> &Directory {
        &self.compiler.directory
    }
}

/// An error of the system about a file.
fn failed(name: &FileName) -> impl Fn(io::Error) -> ReadError {
    move |error| match error.kind() {
        io::ErrorKind::NotFound => ReadError::Missing(name.clone()),
        _ => ReadError::Io(name.clone(), error),
    }
}
