//! The overlay: the file of TOLLGATE_OVERLAY.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::config::Source;
use crate::file_watch::FileStat;
use crate::rule_source::files;

/// A file of `tollgate` blocks for rules of any source.
#[derive(Debug, Clone)]
pub(crate) struct OverlayFile {
    path: PathBuf,
}

impl OverlayFile {
    pub(crate) fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or is too large.
    pub(crate) fn read(&self) -> anyhow::Result<Source> {
        let text = files::read_text(&self.path).context("TOLLGATE_OVERLAY")?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Source {
            name: name.into(),
            path: self.path.to_string_lossy().into(),
            text: text.into(),
        })
    }

    /// The directory to watch: a mounted ConfigMap changes a link beside the file.
    pub(crate) fn watched(&self) -> &Path {
        self.path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
    }

    /// The metadata of the file.
    pub(crate) fn stat(&self) -> Option<FileStat> {
        FileStat::of(&self.path)
    }
}
