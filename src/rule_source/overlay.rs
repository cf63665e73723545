//! The file that TOLLGATE_OVERLAY names.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::config::Source;
use crate::file_watch::FileStat;
use crate::rule_source::files;

/// A file of blocks for rules of any source.
#[derive(Debug, Clone)]
pub struct OverlayFile {
    path: PathBuf,
}

impl OverlayFile {
    /// A file.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
        }
    }

    /// What it says.
    ///
    /// # Errors
    /// It cannot be read, or is too long.
    pub fn read(&self) -> anyhow::Result<Source> {
        let text = files::read_text(&self.path).context("TOLLGATE_OVERLAY")?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Source {
            name: name.into(),
            path: self.path.to_string_lossy().into(),
            text: text.into(),
        })
    }

    /// Where something happens when it changes: a mounted ConfigMap turns a link beside it.
    pub fn watched(&self) -> &Path {
        self.path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
    }

    /// What it looks like now. It is not opened.
    pub fn facts(&self) -> Option<FileStat> {
        FileStat::of(&self.path)
    }
}
