//! A directory of rules files: every file in it and below, whatever its name ends with, as the
//! reference reads it.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::config::Source;
use crate::config::yaml::{FILE_BYTES_MAX, NOT_UTF8};
use crate::file_watch::FileStat;

/// How many files are read. More are no rules but a wrong directory.
pub const FILES_MAX: usize = 10_000;
/// How many directories are looked into: a few links that lead to each other make millions of ways,
/// even without a circle.
const DIRECTORIES_MAX: usize = 10_000;
/// How deep directories may lie in each other.
const DEPTH_MAX: usize = 16;

/// Where rules are.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
    root: Option<PathBuf>,
    name_prefix: String,
    ignore_dot_files: bool,
}

/// What a directory looks like from outside. If two of these are equal, nobody has written to it in
/// between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature(Option<Vec<FileStat>>);

/// Where a walk through directories is.
#[derive(Debug, Default)]
struct Walk {
    /// Device and inode of the directory it is in, and of all above.
    above: Vec<(u64, u64)>,
    directories: usize,
}

impl Directory {
    /// A directory.
    pub fn new(path: PathBuf, ignore_dot_files: bool) -> Self {
        Self {
            path,
            root: None,
            name_prefix: String::new(),
            ignore_dot_files,
        }
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

    /// A file's name in messages, without what stands for where the directory lies.
    pub fn name_within<'s>(&self, source: &'s Source) -> &'s str {
        source
            .name
            .strip_prefix(&*self.name_prefix)
            .unwrap_or(&source.name)
    }

    /// Directories in which something happens when rules change: itself, and where a link on the
    /// way to it can be turned.
    pub fn watched(&self) -> Vec<&Path> {
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
    /// No such directory, a file that cannot be read, more or larger files than the bounds allow.
    pub fn read(&self) -> anyhow::Result<Vec<Source>> {
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

    /// What it looks like now. It opens no file.
    pub fn signature(&self) -> Signature {
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
        // A link to a directory that it lies in: everything there is being read already.
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
            // Follows links: files of a mounted ConfigMap are links.
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                // Gone between the listing and the look: somebody is just changing it, and will be
                // heard again.
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

/// Reads a file. Bytes that are not UTF-8 become [`NOT_UTF8`], which is an error with a line where
/// the text is parsed.
///
/// # Errors
/// It cannot be read, or is too long.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    let text = read_bounded(path).with_context(|| format!("read {}", path.display()))?;
    if text.len() > FILE_BYTES_MAX {
        bail!(
            "{} has more than {FILE_BYTES_MAX} bytes, the most for one file",
            path.display()
        );
    }
    Ok(String::from_utf8(text).unwrap_or_else(|error| marked(error.as_bytes())))
}

/// The text of bytes that are not all UTF-8.
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

/// A file, or as much of it as shows that it is too long.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?
        .take(FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)?;
    Ok(text)
}
