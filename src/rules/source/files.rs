//! A directory of rules files: all files in it and below, of any name, as in the reference, except
//! for test cases. With RUNTIME_WATCH_ROOT also what has the same prefix beside it, as in the
//! reference, where a file is known by its path below RUNTIME_SUBDIRECTORY with `.` for `/`:
//! `config/a.yaml`, `config.d/a.yaml` and `config.yaml` begin with `config.`.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use walkdir::{DirEntry, WalkDir};

use crate::base::file_watch::FileStat;
use crate::base::regular_file;
use crate::rules::config::Source;
use crate::rules::config::yaml::{FILE_BYTES_MAX, NOT_UTF8};

/// Rules files of a directory. One with more is the wrong directory.
pub(crate) const FILES_MAX: usize = 10_000;
/// Directories below the directory of rules: a few links to each other make millions of paths, even
/// without a cycle.
const DIRECTORIES_MAX: usize = 10_000;
/// Depth of the directories of rules.
const DEPTH_MAX: usize = 16;
/// The folder of previous versions of rules files and of files that are being written, which are no
/// rules in force. Skipped wherever it is and whatever RUNTIME_IGNOREDOTFILES says.
pub(crate) const OWN_FOLDER: &str = ".tollgate";
/// Test cases, which are no rules wherever they are.
const CASES_SUFFIXES: [&str; 2] = [".test.yaml", ".test.yml"];

/// A directory of rules, and how its files are named.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    pub(crate) path: PathBuf,
    /// A directory above, which may be a link that changes.
    pub(crate) root: Option<PathBuf>,
    /// The prefix of the names of its files in messages.
    pub(crate) name_prefix: String,
    /// A directory above: all files below it whose names have the prefix are rules.
    pub(crate) base: Option<PathBuf>,
    pub(crate) ignore_dot_files: bool,
}

impl Directory {
    /// A file's name in messages, without the prefix of the directory.
    pub(crate) fn name_within<'s>(&self, source: &'s Source) -> &'s str {
        source.name.strip_prefix(&*self.name_prefix).unwrap_or(&source.name)
    }

    /// Directories to watch: itself, and those in which a link to it can change.
    pub(crate) fn watched(&self) -> Vec<&Path> {
        let mut watched = vec![&*self.path];
        let top = self.root.as_deref().unwrap_or(&self.path);
        let above = self.path.ancestors().skip(1).take_while(|ancestor| ancestor.starts_with(top));
        watched.extend(above.chain(top.parent()).filter(|path| !path.as_os_str().is_empty()));
        watched
    }

    /// Reads every file, sorted by name.
    ///
    /// # Errors
    /// A missing directory, an unreadable file, more or larger files than the bounds allow.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<Source>> {
        self.read_all(&self.files()?, 0)
    }

    /// Reads every file, with `text` in place of that of one file, which need not exist.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_with(&self, changed: &Path, text: Arc<str>) -> anyhow::Result<Vec<Source>> {
        let mut files = self.files()?;
        files.retain(|path| path != changed);
        let at = files.partition_point(|path| &**path < changed);
        let mut sources = self.read_all(&files, text.len())?;
        sources.insert(at, self.source(changed, text));
        Ok(sources)
    }

    /// Reads files that together with `bytes` of others are not too large.
    fn read_all(&self, files: &[PathBuf], mut bytes: usize) -> anyhow::Result<Vec<Source>> {
        let mut sources = Vec::with_capacity(files.len());
        for path in files {
            let text = read_text(path)?;
            bytes += text.len();
            if bytes > FILE_BYTES_MAX {
                let folder = self.path.display();
                bail!(
                    "the files of {folder} have more than {FILE_BYTES_MAX} bytes together (rules_files_bytes_max)"
                );
            }
            sources.push(self.source(path, text.into()));
        }
        Ok(sources)
    }

    fn source(&self, path: &Path, text: Arc<str>) -> Source {
        Source { name: self.name(path).into(), path: path.to_string_lossy().into(), text }
    }

    /// A file's name in messages.
    fn name(&self, path: &Path) -> String {
        match (path.strip_prefix(&self.path), &self.base) {
            (Err(_), Some(base)) => dotted(path.strip_prefix(base).unwrap_or(path)),
            (below, _) => format!("{}{}", self.name_prefix, dotted(below.unwrap_or(path))),
        }
    }

    /// The metadata of all files. Opens none of them.
    pub(crate) fn stat(&self) -> Option<Vec<FileStat>> {
        let files = self.files().ok()?;
        Some(files.iter().filter_map(|path| FileStat::of(path)).collect())
    }

    fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut files = walk(self.start(), "rules", |entry| self.is_ignored(entry))?;
        files.retain(|path| !has_cases(path));
        if self.base.is_none() {
            return Ok(files);
        }
        if files.is_empty() {
            // An error if it is missing.
            walk(&self.path, "rules", |entry| self.is_ignored(entry))?;
        }
        let mut names = HashMap::new();
        for path in &files {
            let name = self.name(path);
            if let Some(other) = names.insert(name, path) {
                let (other, path, name) = (other.display(), path.display(), self.name(path));
                bail!(
                    "{other} and {path} are both {name}, so one would replace the other in envoyproxy/ratelimit; rename one"
                );
            }
        }
        Ok(files)
    }

    /// Where files are searched.
    fn start(&self) -> &Path {
        let base = self.base.as_deref().filter(|base| base.is_dir());
        base.unwrap_or(&self.path)
    }

    fn is_ignored(&self, entry: &DirEntry) -> bool {
        let path = entry.path();
        if let Ok(below) = path.strip_prefix(&self.path) {
            return self.ignores(below);
        }
        let base = self.base.as_deref();
        base.and_then(|base| path.strip_prefix(base).ok()).is_some_and(|below| {
            let name = dotted(below);
            let is_folder = entry.file_type().is_dir();
            let folder = format!("{name}.");
            let selected = name.starts_with(&self.name_prefix)
                || is_folder && folder.starts_with(&self.name_prefix);
            let leads = is_folder && (name.is_empty() || self.name_prefix.starts_with(&folder));
            self.ignores(below) || !(selected || leads)
        })
    }

    /// Whether a path below the directory is left out.
    pub(crate) fn ignores(&self, below: &Path) -> bool {
        let is_dot = |part: Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
        let is_own = |part: Component<'_>| part.as_os_str() == OWN_FOLDER;
        below.components().any(is_own) || self.ignore_dot_files && below.components().any(is_dot)
    }
}

/// Reads the test cases of a directory and below, or of one file of any name, sorted by name.
///
/// # Errors
/// As [`Directory::read`].
pub(crate) fn read_cases(path: &Path) -> anyhow::Result<Vec<Source>> {
    let mut files = walk(path, "test cases", |entry| is_dot(entry) && entry.depth() > 0)?;
    files.retain(|file| file == path || has_cases(file));
    files.iter().map(|file| read_source(file)).collect()
}

/// A path with `.` for `/`.
fn dotted(path: &Path) -> String {
    path.to_string_lossy().replace('/', ".")
}

/// The files of a directory and below, sorted.
fn walk(
    path: &Path,
    content: &str,
    is_ignored: impl Fn(&DirEntry) -> bool,
) -> anyhow::Result<Vec<PathBuf>> {
    // Follows links: the files of a mounted ConfigMap are links.
    let walk = WalkDir::new(path)
        .follow_links(true)
        .max_depth(DEPTH_MAX + 1)
        .into_iter()
        .filter_entry(|entry| !is_ignored(entry));
    let mut files = Vec::new();
    let mut directories = 0;
    for entry in walk {
        match entry {
            Ok(entry) if entry.file_type().is_file() => files.push(entry.into_path()),
            Ok(entry) => directories += usize::from(entry.file_type().is_dir()),
            // A link to a parent: its files are being read already.
            Err(error) if error.loop_ancestor().is_some() => {}
            // Removed since the listing: a change is in progress, and will cause another event.
            Err(error) if error.depth() > 0 && is_not_found(&error) => {}
            Err(error) => {
                let path = error.path().unwrap_or(path).display().to_string();
                // Only the error of the system shows a shortage of file descriptors.
                let error = error.into_io_error().unwrap_or_else(|| io::ErrorKind::Other.into());
                return Err(error).with_context(|| format!("read {content} from {path}"));
            }
        }
        if files.len() > FILES_MAX || directories > DIRECTORIES_MAX {
            bail!(
                "{} has more than {FILES_MAX} files or {DIRECTORIES_MAX} directories; is it the right one?",
                path.display()
            );
        }
    }
    files.sort();
    Ok(files)
}

fn is_dot(entry: &DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".")
}

/// Whether a file has test cases, by its name.
pub(crate) fn has_cases(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    CASES_SUFFIXES.iter().any(|suffix| name.ends_with(suffix.as_bytes()))
}

fn is_not_found(error: &walkdir::Error) -> bool {
    let error = error.io_error();
    error.is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Reads the overlay: the file of TOLLGATE_OVERLAY.
///
/// # Errors
/// The file cannot be read, or is too large.
pub(crate) fn read_overlay(path: &Path) -> anyhow::Result<Source> {
    read_source(path).context("TOLLGATE_OVERLAY")
}

/// Reads a file that is called by its name without folders.
fn read_source(path: &Path) -> anyhow::Result<Source> {
    let text = read_text(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Source { name: name.into(), path: path.to_string_lossy().into(), text: text.into() })
}

/// Reads a file. Bytes that are not UTF-8 become [`NOT_UTF8`], for which the parser reports the
/// line.
///
/// # Errors
/// The file cannot be read, or is too large.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let file = regular_file::open(path).with_context(|| format!("read {name}"))?;
    read_text_from(file, &name.to_string())
}

/// [`read_text`] of anything that is open.
///
/// # Errors
/// The errors of [`read_text`].
pub(crate) fn read_text_from(input: impl io::Read, name: &str) -> anyhow::Result<String> {
    let mut text = Vec::new();
    // Up to the first byte beyond the bound.
    let read = input.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut text);
    read.with_context(|| format!("read {name}"))?;
    if text.len() > FILE_BYTES_MAX {
        bail!("{name} has more than {FILE_BYTES_MAX} bytes");
    }
    Ok(String::from_utf8(text).unwrap_or_else(|error| marked(error.as_bytes())))
}

/// Replaces bytes that are not UTF-8.
fn marked(bytes: &[u8]) -> String {
    let chunks = bytes.utf8_chunks();
    let parts = chunks.flat_map(|chunk| {
        let invalid = (!chunk.invalid().is_empty()).then_some(NOT_UTF8);
        chunk.valid().chars().chain(invalid)
    });
    parts.collect()
}
