//! The file of a recording. It ends with a whole line, so that `tollgate replay` can read it after
//! a full disk or a crash.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::bail;
use memchr::memrchr;

use crate::base::regular_file;
use crate::observe::record::line;

/// How much of the file is read at once to find its last line.
const BLOCK_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    bytes: u64,
}

/// Why lines were not written.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: io::Error,
    /// How many bytes of them are in the file. They are whole lines.
    pub(super) written: usize,
}

impl RecordFile {
    /// Opens the file at its end. Half a record, left by a process that was killed, is removed.
    ///
    /// # Errors
    /// The file cannot be opened, is not a regular file, or ends with half a line that is no
    /// record.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        // Values may be personal data.
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let file = regular_file::open_with(&mut options, path)?;
        let end = end_of_lines(&file)?;
        let mut start = [0; line::START.len()];
        let read = file.read_at(&mut start, end)?;
        if !line::START.starts_with(&start[..read]) {
            bail!("its last line has no end and is no record; is it the right file?");
        }
        file.set_len(end)?;
        Ok(Self { file, bytes: end })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends whole lines. If it fails, the file is cut back to its last whole line.
    ///
    /// # Errors
    /// They were not all written.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), Failed> {
        let result = self.file.write_all(lines);
        let before = self.bytes;
        self.bytes += lines.len() as u64;
        result.map_err(|error| {
            let end = end_of_lines(&self.file).unwrap_or(before);
            // Fails like the write, and then the next start repairs the file.
            let _ = self.file.set_len(end);
            let written = usize::try_from(end.saturating_sub(before)).unwrap_or(usize::MAX);
            Failed {
                error,
                written: written.min(lines.len()),
            }
        })
    }
}

/// The end of the last whole line.
fn end_of_lines(file: &File) -> io::Result<u64> {
    let mut block = [0; BLOCK_BYTES];
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(BLOCK_BYTES as u64);
        let bytes = usize::try_from(end - start).unwrap_or(BLOCK_BYTES);
        file.read_exact_at(&mut block[..bytes], start)?;
        if let Some(at) = memrchr(b'\n', &block[..bytes]) {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn half_a_record_at_the_end_is_removed() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("requests");
        let start = str::from_utf8(line::START).unwrap();
        let long = format!("{start}{}", "x".repeat(3 * BLOCK_BYTES));
        for (before, after) in [
            (String::new(), ""),
            ("{}\n".to_owned(), "{}\n"),
            (format!("{{}}\n{long}"), "{}\n"),
            (format!("{{}}\n{}", &start[..3]), "{}\n"),
            (long.clone(), ""),
        ] {
            fs::write(&path, before).unwrap();
            let mut file = RecordFile::open(&path).unwrap();
            assert_eq!(file.bytes(), after.len() as u64);
            file.append(b"line\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{after}line\n"));
        }
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("important");
        for text in ["a secret", "domain: d\nkey: value"] {
            fs::write(&path, text).unwrap();
            let error = RecordFile::open(&path).unwrap_err().to_string();
            assert!(error.contains("is it the right file?"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
