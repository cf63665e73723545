//! A directory of rules files: all files in it and below, of any name, as in the reference.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::config::Source;
use crate::config::yaml::{FILE_BYTES_MAX, NOT_UTF8};
use crate::file_watch::FileStat;

/// Files of a directory. One with more is the wrong directory.
pub(crate) const FILES_MAX: usize = 10_000;
/// Directories below a directory: a few links to each other make millions of paths, even without a
/// cycle.
const DIRECTORIES_MAX: usize = 10_000;
/// Depth of directories.
const DEPTH_MAX: usize = 16;

/// A directory of rules, and how its files are named.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
    root: Option<PathBuf>,
    name_prefix: String,
    ignore_dot_files: bool,
}

/// The metadata of a directory's files. If two are equal, no file has changed in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signature(Option<Vec<FileStat>>);

/// The state of a walk through directories.
#[derive(Debug, Default)]
struct Walk {
    /// Device and inode of the current directory and of its parents.
    above: Vec<(u64, u64)>,
    directories: usize,
}

impl Directory {
    pub(crate) fn new(path: PathBuf, ignore_dot_files: bool) -> Self {
        Self {
            path,
            root: None,
            name_prefix: String::new(),
            ignore_dot_files,
        }
    }

    /// The directory is below a root, which may be a link that changes.
    #[must_use]
    pub(crate) fn reached_through(mut self, root: PathBuf) -> Self {
        self.root = Some(root);
        self
    }

    /// Messages name its files as if they were below `name`.
    #[must_use]
    pub(crate) fn named_below(mut self, name: &str) -> Self {
        self.name_prefix = format!("{}.", name.replace('/', "."));
        self
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file's name in messages, without the prefix of the directory.
    pub(crate) fn name_within<'s>(&self, source: &'s Source) -> &'s str {
        source
            .name
            .strip_prefix(&*self.name_prefix)
            .unwrap_or(&source.name)
    }

    /// Directories to watch: itself, and those in which a link to it can change.
    pub(crate) fn watched(&self) -> Vec<&Path> {
        let mut watched = vec![&*self.path];
        let top = self.root.as_deref().unwrap_or(&self.path);
        let above = self
            .path
            .ancestors()
            .skip(1)
            .take_while(|ancestor| ancestor.starts_with(top));
        watched.extend(
            above
                .chain(top.parent())
                .filter(|path| !path.as_os_str().is_empty()),
        );
        watched
    }

    /// Reads every file, sorted by name.
    ///
    /// # Errors
    /// A missing directory, an unreadable file, more or larger files than the bounds allow.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<Source>> {
        let mut sources = Vec::new();
        for path in self.files()? {
            let text = read_text(&path)?;
            let below = path
                .strip_prefix(&self.path)
                .unwrap_or(&path)
                .to_string_lossy()
                .replace('/', ".");
            sources.push(Source {
                name: format!("{}{below}", self.name_prefix).into(),
                path: path.to_string_lossy().into(),
                text: text.into(),
            });
        }
        Ok(sources)
    }

    /// The metadata of all files. Opens none of them.
    pub(crate) fn signature(&self) -> Signature {
        Signature(
            self.files()
                .ok()
                .map(|files| files.iter().filter_map(|path| FileStat::of(path)).collect()),
        )
    }

    fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let mut walk = Walk::default();
        self.collect(&self.path, &mut walk, &mut files)
            .with_context(|| format!("read rules from {}", self.path.display()))?;
        if files.len() > FILES_MAX || walk.directories > DIRECTORIES_MAX {
            bail!(
                "{} has more than {FILES_MAX} files or {DIRECTORIES_MAX} directories; is it the right one?",
                self.path.display()
            );
        }
        files.sort();
        Ok(files)
    }

    fn collect(
        &self,
        directory: &Path,
        walk: &mut Walk,
        files: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        let metadata = fs::metadata(directory)?;
        let identity = (metadata.dev(), metadata.ino());
        // A link to a parent: its files are being read already.
        if walk.above.contains(&identity) {
            return Ok(());
        }
        walk.directories += 1;
        walk.above.push(identity);
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if self.ignore_dot_files && entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            // Follows links: the files of a mounted ConfigMap are links.
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                // Removed since the listing: a change is in progress, and will cause another event.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if metadata.is_file() {
                files.push(path);
            } else if metadata.is_dir() && walk.above.len() <= DEPTH_MAX {
                self.collect(&path, walk, files)?;
            }
            if files.len() > FILES_MAX || walk.directories > DIRECTORIES_MAX {
                break;
            }
        }
        walk.above.pop();
        Ok(())
    }
}

/// Reads a file. Bytes that are not UTF-8 become [`NOT_UTF8`], for which the parser reports the line.
///
/// # Errors
/// It cannot be read, or is too large.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let text = read_bounded(path).with_context(|| format!("read {}", path.display()))?;
    if text.len() > FILE_BYTES_MAX {
        bail!("{} has more than {FILE_BYTES_MAX} bytes", path.display());
    }
    Ok(String::from_utf8(text).unwrap_or_else(|error| marked(error.as_bytes())))
}

/// Replaces bytes that are not UTF-8.
fn marked(bytes: &[u8]) -> String {
    let chunks = bytes.utf8_chunks();
    let parts = chunks.flat_map(|chunk| {
        chunk
            .valid()
            .chars()
            .chain((!chunk.invalid().is_empty()).then_some(NOT_UTF8))
    });
    parts.collect()
}

/// Reads a file up to the first byte beyond the bound.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?
        .take(FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)?;
    Ok(text)
}
