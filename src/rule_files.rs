//! The rules files that an operator can name, and their changes: those directly in the folder of the
//! rules in force.
//!
//! They are read from the disk on each call, never from what was loaded: an operator changes the
//! file, and a file may be newer than the rules in force. All functions block, except for those of
//! [`change`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::rule_files::compile::Compiler;
use crate::rule_files::etag::ETag;
use crate::rule_files::history::{History, Version};
use crate::rule_files::name::{FileName, NameError};
use crate::rule_files::read::read_bytes;
use crate::rule_source::files::{Directory, FILES_MAX};
use crate::time::Time;

pub(crate) mod change;
pub(crate) mod compile;
mod diff;
pub(crate) mod etag;
pub(crate) mod history;
pub(crate) mod name;
mod read;
mod write;

/// Why there are no [`RuleFiles`].
pub(crate) const NO_FILES: &str = "the rules come from a control plane (CONFIG_TYPE=GRPC_XDS_SOTW), not from files; /rlconfig has those in force";

/// The folder of the rules in force.
#[derive(Debug)]
pub(crate) struct RuleFiles {
    pub(crate) compiler: Compiler,
}

/// A rules file in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: FileName,
    pub(crate) etag: ETag,
    pub(crate) bytes: usize,
}

/// A rules file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleFile {
    /// As it is: rules that are not UTF-8 are invalid, and can be read and replaced all the same.
    pub(crate) bytes: Vec<u8>,
    pub(crate) etag: ETag,
    pub(crate) modified: Time,
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Name(#[from] NameError),
    /// There is none of this name.
    #[error("no rules file {0}; GET /api/v1/rules lists them")]
    Missing(FileName),
    /// An error of the system, or more bytes than rules files may have.
    #[error("read {0}: {1}")]
    Io(FileName, io::Error),
}

impl RuleFiles {
    pub(crate) fn new(compiler: Compiler) -> Self {
        Self { compiler }
    }

    /// All files, sorted by name.
    ///
    /// # Errors
    /// The folder cannot be read, or has too many files.
    pub(crate) fn list(&self) -> Result<Vec<Listed>, String> {
        let path = &self.directory().path;
        let failed = |error: io::Error| format!("read rules from {}: {error}", path.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().and_then(|name| FileName::new(name).ok()));
            if names.len() > FILES_MAX {
                return Err(format!(
                    "{} has more than {FILES_MAX} files",
                    path.display()
                ));
            }
        }
        names.sort();
        let mut listed = Vec::with_capacity(names.len());
        for name in names {
            match self.read(&name) {
                Ok(file) => listed.push(Listed {
                    name,
                    bytes: file.bytes.len(),
                    etag: file.etag,
                }),
                // A folder, or removed since.
                Err(ReadError::Missing(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(listed)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub(crate) fn read(&self, name: &FileName) -> Result<RuleFile, ReadError> {
        let missing = || ReadError::Missing(name.clone());
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => missing(),
            _ => ReadError::Io(name.clone(), error),
        };
        if self.directory().ignores(Path::new(name.as_str())) {
            return Err(missing());
        }
        let path = self.path(name);
        let metadata = fs::metadata(&path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(missing());
        }
        let bytes = read_bytes(&path).map_err(failed)?;
        Ok(RuleFile {
            etag: ETag::of(&bytes),
            bytes,
            modified: Time::of(metadata.modified().map_err(failed)?),
        })
    }

    /// The versions of a file, newest first. The first one is the file as it is, which need not be
    /// kept yet.
    ///
    /// # Errors
    /// There is no such file, or it or its history cannot be read.
    pub(crate) fn versions(&self, name: &FileName) -> Result<Vec<Version>, ReadError> {
        let file = self.read(name)?;
        let history = History::of(&self.directory().path, name);
        let kept = history.kept();
        let kept = kept.map_err(|error| ReadError::Io(name.clone(), error))?;
        Ok(history::with_current(kept, &file.etag, file.modified))
    }

    fn path(&self, name: &FileName) -> PathBuf {
        self.directory().path.join(name.as_str())
    }

    fn directory(&self) -> &Directory {
        &self.compiler.directory
    }
}
