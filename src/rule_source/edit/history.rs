//! Previous versions of rules files, in a folder of their own beside them:
//!
//! ```text
//! rules/shop.yaml
//! rules/.tollgate/history/shop.yaml/1-1795455526.yaml    version 1, in force since this second
//! rules/.tollgate/history/shop.yaml/2-1795455611.yaml
//! ```
//! In the folder of the rules, because that is the volume that is kept and that replicas share. The
//! loader skips it.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use crate::base::regular_file;
use crate::base::time::{MICROS_PER_SECOND, Time};
use crate::config::yaml::FILE_BYTES_MAX;
use crate::rule_source::edit::etag::ETag;
use crate::rule_source::edit::hash::hash;
use crate::rule_source::edit::name::FileName;
use crate::rule_source::edit::write::{replace, write_new};
use crate::rule_source::files::OWN_FOLDER;

/// Versions of each rules file, the one in force included.
// bound rules_history_max: the oldest is removed; tollgate_rules_versions_dropped_total
pub(crate) const RULES_HISTORY_MAX: usize = 20;
const SUFFIX: &str = ".yaml";
/// A version that is not written completely.
const NEW: &str = "new";

/// The versions of a file.
#[derive(Debug)]
pub(crate) struct History {
    folder: PathBuf,
}

/// A version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    /// Increasing from 1.
    pub(crate) number: u64,
    /// Since when it was in force, to a second.
    pub(crate) time: Time,
    pub(crate) etag: ETag,
}

impl History {
    /// The history of a file of the folder `rules`.
    pub(crate) fn of(rules: &Path, name: &FileName) -> Self {
        let own = rules.join(OWN_FOLDER);
        Self {
            folder: own.join("history").join(name.as_str()),
        }
    }

    /// The versions that are kept, newest first.
    ///
    /// # Errors
    /// The folder or a version cannot be read.
    pub(crate) fn kept(&self) -> io::Result<Vec<Version>> {
        let files = self.files()?.into_iter();
        let read = files.map(|(number, time, path)| {
            let (etag, _) = hash(&path)?;
            Ok(Version { number, time, etag })
        });
        read.collect()
    }

    /// The content of a version; `None` if there is no such version.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn content(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        let files = self.files()?.into_iter();
        let mut found = files.filter(|(known, ..)| *known == number);
        let read = |(.., path): (_, _, PathBuf)| regular_file::read_within(&path, FILE_BYTES_MAX);
        found.next().map(read).transpose()
    }

    /// Writes a version to the disk; it is kept when [`Self::keep`] is called.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn prepare(&self, content: &[u8], like: &Metadata) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        write_new(&self.folder.join(NEW), content, like)
    }

    /// Keeps the version that is prepared, and removes the oldest ones beyond
    /// [`RULES_HISTORY_MAX`]. Returns how many.
    ///
    /// # Errors
    /// It is not kept.
    pub(crate) fn keep(&self, number: u64, time: Time) -> io::Result<usize> {
        let secs = time.as_micros() / MICROS_PER_SECOND;
        let path = self.folder.join(format!("{number}-{secs}{SUFFIX}"));
        replace(&self.folder.join(NEW), &path)?;
        let files = self.files()?;
        let old = files.iter().skip(RULES_HISTORY_MAX);
        for (.., path) in old.clone() {
            fs::remove_file(path)?;
        }
        Ok(old.count())
    }

    /// Number, time and path of each, newest first.
    fn files(&self) -> io::Result<Vec<(u64, Time, PathBuf)>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some((number, time)) = name.and_then(version_of) {
                files.push((number, time, path));
            }
        }
        files.sort_by(|one, other| other.cmp(one));
        Ok(files)
    }
}

/// The versions that are kept, and that of the file, unless it is the newest of them. The next
/// version has its number plus one.
pub(crate) fn with_current(mut kept: Vec<Version>, etag: &ETag, modified: Time) -> Vec<Version> {
    let newest = kept.first();
    if newest.is_none_or(|newest| newest.etag != *etag) {
        let current = Version {
            number: newest.map_or(1, |newest| newest.number + 1),
            time: modified,
            etag: etag.clone(),
        };
        kept.insert(0, current);
        kept.truncate(RULES_HISTORY_MAX);
    }
    kept
}

/// Number and time by the name of a file.
fn version_of(name: &str) -> Option<(u64, Time)> {
    let (number, secs) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let micros = secs.parse::<u64>().ok()?.checked_mul(MICROS_PER_SECOND)?;
    Some((number.parse().ok()?, Time::from_micros(micros)))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_newest_versions_are_kept() {
        let rules = TempDir::new().unwrap();
        let history = History::of(rules.path(), &FileName::new("a.yaml").unwrap());
        assert_eq!(history.kept().unwrap(), []);
        assert_eq!(history.content(1).unwrap(), None);
        let like = fs::metadata(rules.path()).unwrap();
        let last = RULES_HISTORY_MAX as u64 + 2;
        let time = |number: u64| Time::from_micros(number * MICROS_PER_SECOND);
        for number in 1..=last {
            history
                .prepare(number.to_string().as_bytes(), &like)
                .unwrap();
            let removed = history.keep(number, time(number)).unwrap();
            assert_eq!(removed > 0, number > RULES_HISTORY_MAX as u64);
        }
        let version = |number: u64| Version {
            number,
            time: time(number),
            etag: ETag::of(number.to_string().as_bytes()),
        };
        let expected: Vec<_> = (3..=last).rev().map(version).collect();
        assert_eq!(history.kept().unwrap(), expected);
        assert_eq!(history.content(2).unwrap(), None);
        assert_eq!(history.content(10).unwrap(), Some(b"10".to_vec()));
    }

    #[test]
    fn other_files_are_no_versions() {
        assert_eq!(
            version_of("7-60.yaml"),
            Some((7, Time::from_micros(60_000_000)))
        );
        for name in [
            "new",
            "7-60",
            "7.yaml",
            "-1-60.yaml",
            "7-x.yaml",
            "7--1.yaml",
            "7-18446744073709551615.yaml",
        ] {
            assert_eq!(version_of(name), None, "{name}");
        }
    }
}
