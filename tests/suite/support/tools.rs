//! Programs that `tests/tools.py` installs into `.tools`. None is looked for anywhere else, so that
//! a test never runs another version.

use std::path::{Path, PathBuf};

/// The path of a program of `.tools/bin`; panics with how to get it where it is missing.
pub(crate) fn tool(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(".tools/bin")
        .join(name);
    assert!(
        path.exists(),
        "{} is missing; install it with `make tools`",
        path.display()
    );
    path
}
