//! Changes a rules file: checks it, writes it in one step, keeps the previous version, and waits
//! until the rules are in force.
//!
//! ```text
//!  in the process:   [ lock | compare ETags | compile | versions | exchange, compare ][ reload ]
//!  with the volume:  [-------------------------- lock --------------------------]
//! ```
//! A process that is killed leaves the old file or the new one. The version in force is kept before
//! it is replaced, and the new one at once: texts of editors in between are versions too.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::base::runtime::run_on_thread;
use crate::base::time::Clock;
use crate::report::Finding;
use crate::rule_source::edit::compile::Sender;
use crate::rule_source::edit::diff::unified;
use crate::rule_source::edit::etag::{ETag, Expected};
use crate::rule_source::edit::history::{History, Version, with_current};
use crate::rule_source::edit::name::FileName;
use crate::rule_source::edit::write::{
    refusal, replace_expected, unwritable, unwritable_file, write_new,
};
use crate::rule_source::edit::{ReadError, RuleFile, RuleFiles};
use crate::rule_source::files::{OWN_FOLDER, read_text_from};
use crate::rule_source::reload::Reload;
use crate::rules::LiveRules;
use crate::telemetry::metric::{Counter, Metrics};

/// Time for a changed rules file to be loaded. Rules are read and compiled in less; network file
/// systems may be slow.
// bound rules_reload_timeout: 504; tollgate_admin_actions_total{outcome="failed"}
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for other changes of rules files to end.
// bound rules_turn_timeout: 503, nothing is written; tollgate_admin_actions_total{outcome="failed"}
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// How often, in that time, the lock of other processes is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// In the folder of versions.
const LOCK: &str = "lock";
const NEW: &str = "new";

/// RULES_WRITABLE
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writing {
    Enabled,
    Disabled,
}

/// Changes rules files, one at a time.
#[derive(Debug)]
pub(crate) struct RulesWriter {
    files: Arc<RuleFiles>,
    reload: Reload,
    live: Arc<LiveRules>,
    clock: Clock,
    writing: Writing,
    turn: Mutex<()>,
    dropped: Counter,
}

/// The new content of a file.
#[derive(Debug)]
pub(crate) enum Replacement {
    Text(Bytes),
    /// The text of this version.
    Version(u64),
}

/// A change that was asked for.
#[derive(Debug)]
pub(crate) struct RuleFileChange {
    pub(crate) name: FileName,
    pub(crate) expected: Expected,
    pub(crate) replacement: Replacement,
}

/// A file that was written.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) version_before: u64,
    /// The same if the file had this text already.
    pub(crate) version: u64,
    pub(crate) etag: ETag,
    pub(crate) diff: String,
    /// Warnings of the compiler.
    pub(crate) warnings: Vec<Finding>,
    /// Domains and limits of the rules.
    pub(crate) counts: [usize; 2],
    pub(crate) result: Result<(), NotInForce>,
}

/// Why a file that was written is not in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotInForce {
    #[error("the file is written, but was not loaded within {secs} s{0}", secs = RELOAD_TIMEOUT.as_secs())]
    Late(String),
    /// Another file, or the overlay, was changed at the same time.
    #[error(
        "the file is written, but the rules were rejected together with a change of others; the previous rules stay in force: {0}"
    )]
    Rejected(String),
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("{0}")]
    Unwritable(String),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the file has changed: its ETag is {0}; read it again")]
    Changed(ETag),
    #[error("the rules are invalid with this change; nothing is written")]
    Invalid(Vec<Finding>),
    #[error("no version {0}; GET /api/v1/rules/{1}/history lists them")]
    UnknownVersion(u64, FileName),
    #[error("other changes of rules did not end within {} s; nothing is written", TURN_TIMEOUT.as_secs())]
    Busy,
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// A defect.
    #[error("the change ended unexpectedly")]
    Unexpected,
}

/// A file that was written, and what the loader reads of it.
struct Written {
    version_before: u64,
    version: u64,
    etag: ETag,
    diff: String,
    warnings: Vec<Finding>,
    counts: [usize; 2],
    path: String,
    text: Arc<str>,
}

/// The version of a file as it is.
struct Current {
    version: Version,
    is_kept: bool,
}

impl Current {
    fn of(file: &RuleFile, history: &History) -> io::Result<Self> {
        let kept = history.kept()?;
        let newest = kept.first();
        Ok(Self {
            is_kept: newest.is_some_and(|newest| newest.etag == file.etag),
            version: with_current(kept, &file.etag, file.modified).swap_remove(0),
        })
    }
}

impl RulesWriter {
    /// Registers the metric.
    pub(crate) fn new(
        files: Arc<RuleFiles>,
        reload: Reload,
        live: Arc<LiveRules>,
        clock: Clock,
        writing: Writing,
        metrics: &Metrics,
    ) -> Self {
        Self {
            files,
            reload,
            live,
            clock,
            writing,
            turn: Mutex::default(),
            dropped: metrics.counter(
                "tollgate_rules_versions_dropped_total",
                "Versions of rules files that were removed because there were newer ones (rules_history_max).",
            ),
        }
    }

    /// Why no file can be changed; `None` if files can. Blocks.
    pub(crate) fn unwritable(&self) -> Option<String> {
        if self.writing == Writing::Disabled {
            let reason = "rules files are read-only; set RULES_WRITABLE=true to let requests with the admin token change them";
            return Some(reason.to_owned());
        }
        unwritable(self.files.directory())
    }

    /// Makes a change, and waits until it is in force. Must not be cancelled.
    ///
    /// # Errors
    /// Nothing is written.
    pub(crate) async fn make(
        self: Arc<Self>,
        change: RuleFileChange,
    ) -> Result<Changed, ChangeError> {
        let turn = timeout(TURN_TIMEOUT, self.turn.lock()).await;
        let _turn = turn.map_err(|_| ChangeError::Busy)?;
        let reading = self.files.reading().await;
        let reading = reading.map_err(|_| ChangeError::Busy)?;
        let writer = self.clone();
        let written = run_on_thread("rule-change", reading, move || writer.write(change)).await;
        let written = written.ok_or(ChangeError::Unexpected)??;
        self.reload.request();
        let loaded = self.reload.loaded(&written.path, &written.text);
        let result = match timeout(RELOAD_TIMEOUT, loaded).await {
            Ok(problems) if problems.is_empty() => Ok(()),
            Ok(problems) => Err(NotInForce::Rejected(problems.join("\n"))),
            Err(_) => {
                let error = self.live.last_error();
                let error = error.map_or_else(String::new, |error| format!(": {error}"));
                Err(NotInForce::Late(error))
            }
        };
        Ok(Changed {
            version_before: written.version_before,
            version: written.version,
            etag: written.etag,
            diff: written.diff,
            warnings: written.warnings,
            counts: written.counts,
            result,
        })
    }

    fn write(&self, change: RuleFileChange) -> Result<Written, ChangeError> {
        let name = &change.name;
        let path = self.files.path(name);
        if let Some(reason) = self.unwritable() {
            return Err(ChangeError::Unwritable(reason));
        }
        // Before anything is created for it.
        self.files.read(name)?;
        if let Some(reason) = unwritable_file(&path) {
            return Err(ChangeError::Unwritable(reason));
        }
        let own = self.own_folder();
        let _lock = lock(&own)?;
        let file = self.read_expected(name, &change.expected)?;
        let history = History::of(&self.files.directory().path, name);
        let current = Current::of(&file, &history).map_err(failed(&own))?;
        let bytes = match change.replacement {
            Replacement::Text(bytes) => bytes,
            Replacement::Version(number) if number == current.version.number => {
                file.bytes.clone().into()
            }
            Replacement::Version(number) => {
                let content = history.content(number).map_err(failed(&own))?;
                let unknown = || ChangeError::UnknownVersion(number, name.clone());
                content.ok_or_else(unknown)?.into()
            }
        };
        let text = read_text_from(&bytes[..], name.as_str())
            .map_err(|error| ChangeError::Io(path.clone(), io::Error::other(error)))?;
        let text: Arc<str> = text.into();
        let files = &self.files;
        let compiled = files.compiler.compile(name, text.clone(), Sender::Operator);
        let compiled = compiled.map_err(ChangeError::Invalid)?;
        let is_new = bytes != file.bytes;
        if is_new {
            self.replace(name, &file, &history, &current, &bytes)?;
        }
        Ok(Written {
            version_before: current.version.number,
            version: current.version.number + u64::from(is_new),
            etag: ETag::of(&bytes),
            diff: unified(&file.bytes, &bytes),
            counts: [compiled.rules.domain_count(), compiled.rules.rule_count()],
            warnings: compiled.warnings,
            path: path.to_string_lossy().into_owned(),
            text,
        })
    }

    /// Replaces a file by its next version.
    fn replace(
        &self,
        name: &FileName,
        file: &RuleFile,
        history: &History,
        current: &Current,
        bytes: &[u8],
    ) -> Result<(), ChangeError> {
        let (path, own) = (self.files.path(name), self.own_folder());
        let like = fs::metadata(&path).map_err(failed(&path))?;
        let Version { number, time, .. } = current.version;
        if !current.is_kept {
            history.prepare(&file.bytes, &like).map_err(failed(&own))?;
            let dropped = history.keep(number, time).map_err(failed(&own))?;
            self.dropped.inc_by(dropped as u64);
        }
        history.prepare(bytes, &like).map_err(failed(&own))?;
        let new = own.join(NEW);
        write_new(&new, bytes, &like).map_err(failed(&own))?;
        // An editor may have been faster than the compiler.
        let replaced = replace_expected(&new, &path, &file.etag).map_err(failed(&path))?;
        replaced.map_err(ChangeError::Changed)?;
        match history.keep(number + 1, self.clock.now()) {
            Ok(dropped) => self.dropped.inc_by(dropped as u64),
            // The next change keeps it.
            Err(error) => {
                tracing::warn!(%error, file = %name, "cannot keep a version of a rules file");
            }
        }
        Ok(())
    }

    fn own_folder(&self) -> PathBuf {
        self.files.directory().path.join(OWN_FOLDER)
    }

    /// Reads the file, if it is the one that the change is for.
    fn read_expected(&self, name: &FileName, expected: &Expected) -> Result<RuleFile, ChangeError> {
        let file = self.files.read(name)?;
        if expected.matches(&file.etag) {
            Ok(file)
        } else {
            Err(ChangeError::Changed(file.etag))
        }
    }
}

/// Locks the rules files for other processes that share the volume, until the file is closed.
fn lock(own: &Path) -> Result<File, ChangeError> {
    fs::create_dir_all(own).map_err(failed(own))?;
    let path = own.join(LOCK);
    let file = File::create(&path).map_err(failed(&path))?;
    let mut attempts = TURN_TIMEOUT.as_millis() / LOCK_INTERVAL.as_millis();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if attempts > 0 => thread::sleep(LOCK_INTERVAL),
            Err(TryLockError::WouldBlock) => return Err(ChangeError::Busy),
            Err(TryLockError::Error(error)) => return Err(failed(&path)(error)),
        }
        attempts -= 1;
    }
}

/// An error of the system about a path.
fn failed(path: &Path) -> impl Fn(io::Error) -> ChangeError {
    move |error| match refusal(path, &error) {
        Some(reason) => ChangeError::Unwritable(reason),
        None => ChangeError::Io(path.to_owned(), error),
    }
}

#[cfg(test)]
mod tests;
