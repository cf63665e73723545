//! Reads a whole file within the bound of rules files.

use std::io::{self, Read as _};
use std::path::Path;

use crate::config::yaml::FILE_BYTES_MAX;
use crate::regular_file;

/// # Errors
/// It cannot be read, or is larger than rules files are.
pub(crate) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = regular_file::open(path)?.take(FILE_BYTES_MAX as u64 + 1);
    // bounded by rules_file_bytes_max
    file.read_to_end(&mut bytes)?;
    if bytes.len() > FILE_BYTES_MAX {
        let error = format!("it has more than {FILE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
    }
    Ok(bytes)
}
