//! A temporary folder with files of a test.

use std::path::Path;

use tempfile::TempDir;

use super::write;

/// A folder that is removed with its files.
pub(crate) struct Folder(TempDir);

impl Folder {
    /// With these files, by their paths in the folder.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self(TempDir::new().expect("a temporary directory can be made"));
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    pub(crate) fn path(&self, name: &str) -> String {
        let path = self.0.path().join(name);
        path.to_str().expect("a plain name").to_owned()
    }

    /// Writes a file, and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        write(Path::new(&self.path(name)), text);
        self.path(name)
    }
}
