//! Hashes a rules file without having it in memory.

use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

use crate::base::regular_file::{self, too_large};
use crate::config::yaml::FILE_BYTES_MAX;
use crate::rule_source::edit::etag::{ETag, Hasher};

/// Bytes of a file that are hashed at a time.
const HASHED_BYTES: usize = 64 << 10;

/// The ETag of a file, and its size.
///
/// # Errors
/// The file cannot be read, or is larger than rules files are.
pub(crate) fn hash(path: &Path) -> io::Result<(ETag, usize)> {
    let mut file = regular_file::open(path)?;
    let (mut hasher, mut size) = (Hasher::default(), 0);
    let mut buffer = vec![0; HASHED_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((hasher.finish(), size)),
            Ok(read) => {
                hasher.add(&buffer[..read]);
                size += read;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if size > FILE_BYTES_MAX {
            return Err(too_large(FILE_BYTES_MAX));
        }
    }
}
