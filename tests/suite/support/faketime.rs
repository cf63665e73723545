//! A clock for one server that a test sets while it runs: `libfaketime`, preloaded, reads a file
//! each time that the server asks for the time.
//!
//! The server has to use the C library's allocator: jemalloc asks for the time before it can give
//! memory, which libfaketime needs to tell it.

use std::fs;
use std::path::{Path, PathBuf};

/// Where Debian and Fedora put it.
const PLACES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

/// A server's clock.
#[derive(Debug)]
pub(crate) struct FakeTime {
    file: PathBuf,
}

impl FakeTime {
    /// A clock that is right until it is set, which keeps its file in that directory.
    pub(crate) fn new(directory: &Path) -> Self {
        let clock = Self { file: directory.join("faketime") };
        clock.set(0);
        clock
    }

    /// So many seconds later than it is, or earlier, from now on.
    pub(crate) fn set(&self, offset_seconds: i64) {
        let offset = format!("{offset_seconds:+}\n");
        // In one step: the server may be reading.
        let new = self.file.with_extension("new");
        fs::write(&new, offset).expect("a file can be written");
        fs::rename(new, &self.file).expect("both are in one directory");
    }

    /// What the server has to have in its environment. How time passes (CLOCK_MONOTONIC) is left
    /// alone, as on a host whose clock is set.
    pub(crate) fn environment(&self) -> [(&'static str, String); 4] {
        let library = PLACES.iter().find(|place| Path::new(place).exists());
        let library = library.unwrap_or_else(|| {
            panic!("libfaketime is missing; get it by `apt-get install libfaketime`")
        });
        [
            ("LD_PRELOAD", (*library).to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}
