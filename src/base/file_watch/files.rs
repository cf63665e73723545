//! Files with their last content, and when they have to be read again.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use notify::RecursiveMode;

use crate::base::regular_file;

/// EMFILE and ENFILE.
const OUT_OF_DESCRIPTORS: [i32; 2] = [24, 23];

/// Metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStat {
    path: PathBuf,
    bytes: u64,
    modified: (i64, i64),
    inode: u64,
}

/// Files that are loaded together, and their last content.
#[derive(Clone)]
pub(crate) struct FileSet {
    paths: Vec<PathBuf>,
    /// `None` if one of them could not be read.
    last: Option<Vec<Vec<u8>>>,
    /// Their metadata before the last load.
    seen: Vec<Option<FileStat>>,
    last_error: Option<String>,
    shortage: DescriptorShortage,
}

/// Whether the process has no file descriptor to read files with. The previous content stays, and
/// reading is retried.
#[derive(Debug, Clone, Default)]
pub(crate) struct DescriptorShortage(bool);

impl FileStat {
    /// The metadata of a file, following links; `None` if there is none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Some(Self { path: path.to_owned(), bytes: metadata.len(), modified, inode: metadata.ino() })
    }
}

impl DescriptorShortage {
    /// Whether the shortage is the cause of an error. Logged when it begins.
    pub(crate) fn is_cause_of(&mut self, error: &io::Error, subject: &str) -> bool {
        let is_cause = error.raw_os_error().is_some_and(|code| OUT_OF_DESCRIPTORS.contains(&code));
        if is_cause && !std::mem::replace(&mut self.0, true) {
            tracing::warn!(%error, "cannot read {subject}; keeping the previous content");
        }
        is_cause
    }

    pub(crate) fn end(&mut self) {
        self.0 = false;
    }

    pub(crate) fn lasts(&self) -> bool {
        self.0
    }
}

impl fmt::Debug for FileSet {
    /// Without the content, which may be secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(&self.paths).finish()
    }
}

impl FileSet {
    /// Files whose current content needs no load.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let mut files = Self {
            paths,
            last: None,
            seen: Vec::new(),
            last_error: None,
            shortage: DescriptorShortage::default(),
        };
        files.seen = files.stat();
        files.last = files.contents().ok();
        files
    }

    /// Makes the next [`Self::load`] read the current content, even if it has not changed.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    pub(crate) fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        let mut directories: Vec<_> = self
            .paths
            .iter()
            .map(|path| (directory_of(path).to_owned(), RecursiveMode::NonRecursive))
            .collect();
        directories.dedup();
        directories
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.last.is_none() || self.shortage.lasts() || self.stat() != self.seen
    }

    fn stat(&self) -> Vec<Option<FileStat>> {
        self.paths.iter().map(|path| FileStat::of(path)).collect()
    }

    /// Calls `load` if the content has changed. `None` if it has not, and for an error that was
    /// returned already.
    ///
    /// # Errors
    /// Those of `load`.
    pub(crate) fn load<T>(
        &mut self,
        load: impl FnOnce() -> Result<T, String>,
    ) -> Option<Result<T, String>> {
        self.seen = self.stat();
        let contents = match self.contents() {
            Err(error) if self.last.is_some() && self.shortage.is_cause_of(&error, "files") => {
                return None;
            }
            contents => contents.ok(),
        };
        self.shortage.end();
        if contents.is_some() && contents == self.last {
            return None;
        }
        // Before `load` reads the files itself: a change in between is found by the next call.
        self.last = contents;
        let loaded = load();
        // What was loaded may have been there for a moment only, and the metadata as before again.
        if self.stat() != self.seen {
            self.last = None;
        }
        let error = loaded.as_ref().err().cloned();
        let is_repeated = error.is_some() && error == self.last_error;
        self.last_error = error;
        (!is_repeated).then_some(loaded)
    }

    fn contents(&self) -> io::Result<Vec<Vec<u8>>> {
        self.paths.iter().map(|path| regular_file::read(path)).collect()
    }
}

/// The directory to watch for a file: a mounted ConfigMap changes a link beside it.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_was_there_during_a_load_only_is_forgotten() {
        let directory = tempfile::tempdir().expect("it is created");
        let [path, aside] = ["used", "aside"].map(|name| directory.path().join(name));
        let read = |path: &Path| fs::read_to_string(path).map_err(|error| error.to_string());
        fs::write(&path, "old").expect("it is written");
        let mut files = FileSet::new(vec![path.clone()]);
        files.forget();
        let loaded = files.load(|| {
            fs::rename(&path, &aside).expect("it exists");
            fs::write(&path, "new").expect("it is written");
            read(&path)
        });
        assert_eq!(loaded, Some(Ok("new".to_owned())));
        fs::rename(&aside, &path).expect("it exists");
        assert!(files.has_changed());
        let loaded = files.load(|| read(&path));
        assert_eq!(loaded, Some(Ok("old".to_owned())));
        assert!(!files.has_changed());
    }
}
