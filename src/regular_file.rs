//! Opens files that settings name: regular ones only, links to them included.
//!
//! Opening a FIFO waits for its other end, and reading a device may never end. Either would stop the
//! start, or the thread that reloads.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file to read it.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

/// # Errors
/// As [`open`].
pub(crate) fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // It has no effect on regular files.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.custom_flags(nonblocking).open(path)?;
    // Of what was opened: the path may name another file by now.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Reads a whole file.
///
/// # Errors
/// It cannot be opened or read, or is not a regular file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
