//! The rules files that an operator can name: those directly in the folder of the rules in force.
//!
//! They are read from the disk on each call, never from what was loaded: an operator changes the
//! file, and a file may be newer than the rules in force. All functions block.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use crate::config::yaml::FILE_BYTES_MAX;
use crate::rule_files::etag::ETag;
use crate::rule_files::name::{FileName, NameError};
use crate::rule_source::files::{Directory, FILES_MAX};

pub(crate) mod etag;
pub(crate) mod name;

/// The folder of the rules in force.
#[derive(Debug)]
pub(crate) struct RuleFiles {
    directory: Directory,
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
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Name(#[from] NameError),
    /// There is none of this name.
    #[error("no rules file {0}; GET /api/v1/rules lists them")]
    Missing(FileName),
    /// It is larger than any rules file can be.
    #[error("{0} has more than {FILE_BYTES_MAX} bytes")]
    Oversized(FileName),
    /// An error of the system.
    #[error("read {0}: {1}")]
    Io(FileName, io::Error),
}

impl RuleFiles {
    pub(crate) fn new(directory: Directory) -> Self {
        Self { directory }
    }

    /// All files, sorted by name.
    ///
    /// # Errors
    /// The folder cannot be read, or has too many files.
    pub(crate) fn list(&self) -> Result<Vec<Listed>, String> {
        let path = &self.directory.path;
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
        if self.directory.ignores(Path::new(name.as_str())) {
            return Err(missing());
        }
        let path = self.directory.path.join(name.as_str());
        // Before it is opened: opening a pipe would wait for its writer.
        if !fs::metadata(&path).map_err(failed)?.is_file() {
            return Err(missing());
        }
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(failed)?;
        let mut file = file.take(FILE_BYTES_MAX as u64 + 1);
        file.read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > FILE_BYTES_MAX {
            return Err(ReadError::Oversized(name.clone()));
        }
        let etag = ETag::of(&bytes);
        Ok(RuleFile { bytes, etag })
    }
}
