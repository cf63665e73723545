//! Changes a rules file: compiles all files with the new text, writes it in one step, and waits
//! until the rules are in force.
//!
//! A process that is killed leaves the old file or the new one. If-Match is compared before the
//! text is compiled, and again directly before the file is replaced: what an editor writes between
//! this comparison and the replacement is lost.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::MutexGuard;
use tokio::time::timeout;

use crate::base::runtime::run_on_thread;
use crate::report::Finding;
use crate::rules::RuleSet;
use crate::rules::config::source::CHECKED_CALENDARS_MAX;
use crate::rules::config::yaml::FILE_BYTES_MAX;
use crate::rules::config::{self, CompileOptions, Loaded, error};
use crate::rules::source::edit::etag::ETag;
use crate::rules::source::edit::name::FileName;
use crate::rules::source::edit::write::{check_folder, failed, linked, replace, write_new};
use crate::rules::source::edit::{EditError, RuleFiles};
use crate::rules::source::files::{OWN_FOLDER, read_overlay, read_text_from};
use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
use crate::telemetry::metric::Metrics;

/// Time for a changed rules file to be loaded. Rules are read and compiled in less; network file
/// systems may be slow.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for other changes of rules files to end.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// A file that was written.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) before: ETag,
    pub(crate) after: ETag,
    /// All rules.
    pub(crate) rules: RuleSet,
    pub(crate) warnings: Vec<Finding>,
    text: Arc<str>,
}

impl RuleFiles {
    /// Waits until no other request changes files. One does so before it reads a text, so that one
    /// is in memory at a time.
    ///
    /// # Errors
    /// The others did not end in time.
    pub(crate) async fn turn(&self) -> Result<MutexGuard<'_, ()>, EditError> {
        let turn = timeout(TURN_TIMEOUT, self.access.turn.lock()).await;
        turn.map_err(|_| EditError::Busy)
    }

    /// Replaces a file if its ETag is in If-Match, and waits until it is in force. Must not be
    /// cancelled; the caller has the turn.
    ///
    /// # Errors
    /// Nothing is written, or it is not in force.
    pub(crate) async fn change(
        self: &Arc<Self>,
        name: FileName,
        if_match: String,
        bytes: Bytes,
    ) -> Result<Changed, EditError> {
        let files = self.clone();
        let path = self.path(&name);
        let write = move || files.write(&name, &if_match, &bytes);
        let written = run_on_thread("rule-change", self.reading().await?, write).await;
        let changed = written.ok_or(EditError::Unexpected)??;
        self.reload.request();
        let path = path.to_string_lossy();
        let loaded = self.reload.loaded(&path, &changed.text);
        let problems = timeout(RELOAD_TIMEOUT, loaded).await;
        let problems = problems.map_err(|_| EditError::Late)?;
        if problems.is_empty() {
            Ok(changed)
        } else {
            Err(EditError::Rejected(problems.join("\n")))
        }
    }

    /// # Errors
    /// No file can be changed, as far as known before.
    pub(crate) fn check_writable(&self) -> Result<(), EditError> {
        if !self.is_writable {
            return Err(EditError::Disabled);
        }
        check_folder(&self.directory)
    }

    fn write(&self, name: &FileName, if_match: &str, bytes: &[u8]) -> Result<Changed, EditError> {
        let path = self.path(name);
        self.check_writable()?;
        let current = self.read(name, FILE_BYTES_MAX)?;
        if path.is_symlink() {
            return Err(linked(&path));
        }
        let before = ETag::of(&current);
        if !before.is_in(if_match) {
            return Err(EditError::Changed(before));
        }
        let text = read_text_from(bytes, name.as_str());
        let text = text.map_err(|error| EditError::Io(path.clone(), io::Error::other(error)))?;
        let text: Arc<str> = text.into();
        let compiled = self.compile(&path, text.clone());
        let Loaded { rules, warnings } = compiled.map_err(EditError::Invalid)?;
        if bytes != current {
            self.replace(name, &before, bytes)?;
        }
        Ok(Changed {
            before,
            after: ETag::of(bytes),
            rules,
            warnings: self.reported(warnings),
            text,
        })
    }

    /// Compiles all files, with `text` in place of that of one, as a reload would. Registers no
    /// metric.
    fn compile(&self, path: &Path, text: Arc<str>) -> Result<Loaded, Vec<Finding>> {
        let read = self.directory.read_with(path, text).and_then(|sources| {
            let overlay = self.overlay.as_deref().map(read_overlay);
            Ok((sources, overlay.transpose()?))
        });
        // A reload would be rejected for the same reason.
        let (sources, overlay) =
            read.map_err(|error| vec![Finding::unread(format!("{error:#}"))])?;
        let options = CompileOptions {
            overlay,
            calendars_max: CHECKED_CALENDARS_MAX,
            stats: StatsTable::new(METRIC_SERIES_MAX, &Metrics::new()),
            ..self.options.clone()
        };
        config::load(&sources, &options).map_err(|found| self.reported(found))
    }

    /// Files are named by their paths below the folder; the overlay by its whole path.
    fn reported(&self, findings: Vec<error::Finding>) -> Vec<Finding> {
        let mut findings = error::reported(findings);
        for path in findings.iter_mut().filter_map(|found| found.file.as_mut()) {
            if let Ok(below) = Path::new(path).strip_prefix(&self.directory.path) {
                *path = below.to_string_lossy().into_owned();
            }
        }
        findings
    }

    /// Writes the text to another file first, whose name no other replica with this folder has.
    fn replace(&self, name: &FileName, before: &ETag, bytes: &[u8]) -> Result<(), EditError> {
        let (path, own) = (self.path(name), self.directory.path.join(OWN_FOLDER));
        let new = own.join(format!("{:016x}", fastrand::u64(..)));
        let written = fs::metadata(&path).and_then(|like| {
            fs::create_dir_all(&own)?;
            write_new(&new, bytes, &like)
        });
        let replaced = written.map_err(failed(&own)).and_then(|()| {
            let now = ETag::of(&self.read(name, FILE_BYTES_MAX)?);
            if now != *before {
                return Err(EditError::Changed(now));
            }
            replace(&new, &path).map_err(failed(&path))
        });
        if replaced.is_err() {
            // It may not exist.
            let _ = fs::remove_file(&new);
        }
        replaced
    }
}

#[cfg(test)]
mod tests;
