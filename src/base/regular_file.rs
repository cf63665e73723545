//! Opens files that settings name: regular ones only, links to them included.
//!
//! Opening a FIFO waits for its other end, and reading a device may never end. Either would stop
//! the start, or the thread that reloads.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Bytes of a certificate, a credential or a value in a file.
const SETTING_BYTES_MAX: usize = 1 << 20;

/// Opens a file to read it.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // It has no effect on regular files.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(nonblocking).open(path)?;
    // Of what was opened: the path may name another file by now.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Reads a whole file that a setting names.
///
/// # Errors
/// The errors of [`read_within`].
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_within(path, SETTING_BYTES_MAX)
}

/// Reads a whole file.
///
/// # Errors
/// The file cannot be opened or read, is not a regular file, or has more than `bytes_max` bytes.
pub(crate) fn read_within(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    // Before it is read: only a file that grows meanwhile is read for nothing.
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if size > bytes_max {
        return Err(too_large(bytes_max));
    }
    let mut bytes = Vec::with_capacity(size);
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(too_large(bytes_max));
    }
    Ok(bytes)
}

pub(crate) fn too_large(bytes_max: usize) -> io::Error {
    let error = format!("it has more than {bytes_max} bytes");
    io::Error::new(ErrorKind::FileTooLarge, error)
}
