//! A directory of rules files: every file in it and below, whatever its name ends with, as the reference reads it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::config::Source;
use crate::config::yaml::FILE_BYTES_MAX;

/// How many files are read. More are no rules but a wrong directory.
pub const FILES_MAX: usize = 10_000;
/// How deep directories may lie in each other; links that go in circles end here.
const DEPTH_MAX: usize = 16;

/// Where rules are.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
    root: Option<PathBuf>,
    name_prefix: String,
    ignore_dot_files: bool,
}

/// What a directory looks like from outside. If two of these are equal, nobody has written to it in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature(Option<Vec<(PathBuf, u64, i64, i64, u64)>>);

impl Directory {
    /// A directory.
    pub fn new(path: PathBuf, ignore_dot_files: bool) -> Self {
        Self { path, root: None, name_prefix: String::new(), ignore_dot_files }
    }

    /// It lies below a root, which may be a link that is turned.
    #[must_use]
    pub fn reached_through(mut self, root: PathBuf) -> Self {
        self.root = Some(root);
        self
    }

    /// Messages name its files as if they lay below `name`.
    #[must_use]
    pub fn named_below(mut self, name: &str) -> Self {
        self.name_prefix = format!("{}.", name.replace('/', "."));
        self
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directories in which something happens when rules change: itself, and where a link on the way to it can be turned.
    pub fn watched(&self) -> Vec<&Path> {
        let mut watched = vec![&*self.path];
        let top = self.root.as_deref().unwrap_or(&self.path);
        let above = self.path.ancestors().skip(1).take_while(|ancestor| ancestor.starts_with(top));
        watched.extend(above.chain(top.parent()).filter(|path| !path.as_os_str().is_empty()));
        watched
    }

    /// Reads every file, sorted by name.
    ///
    /// # Errors
    /// No such directory, a file that cannot be read or is no UTF-8, more or larger files than the bounds allow.
    pub fn read(&self) -> anyhow::Result<Vec<Source>> {
        let mut sources = Vec::new();
        for path in self.files()? {
            let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            if text.len() > FILE_BYTES_MAX {
                bail!("{} has {} bytes; the most for one file is {FILE_BYTES_MAX}", path.display(), text.len());
            }
            let Ok(text) = String::from_utf8(text) else { bail!("{} is not UTF-8 text; rules are YAML", path.display()) };
            let below = path.strip_prefix(&self.path).unwrap_or(&path).to_string_lossy().replace('/', ".");
            sources.push(Source {
                name: format!("{}{below}", self.name_prefix).into(),
                path: path.to_string_lossy().into(),
                text: text.into(),
            });
        }
        Ok(sources)
    }

    /// What it looks like now. It opens no file.
    pub fn signature(&self) -> Signature {
        let facts = |path: PathBuf| {
            let metadata = fs::metadata(&path).ok()?;
            Some((path, metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino()))
        };
        Signature(self.files().ok().map(|files| files.into_iter().filter_map(facts).collect()))
    }

    fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        self.collect(&self.path, DEPTH_MAX, &mut files).with_context(|| format!("read rules from {}", self.path.display()))?;
        if files.len() > FILES_MAX {
            bail!("{} has more than {FILES_MAX} files; is it the right directory?", self.path.display());
        }
        files.sort();
        Ok(files)
    }

    fn collect(&self, directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if self.ignore_dot_files && entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            // Follows links: files of a mounted ConfigMap are links.
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                // Gone between the listing and the look: somebody is just changing it, and will be heard again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if metadata.is_file() {
                files.push(path);
            } else if metadata.is_dir() && depth > 0 {
                self.collect(&path, depth - 1, files)?;
            }
            if files.len() > FILES_MAX {
                return Ok(());
            }
        }
        Ok(())
    }
}
