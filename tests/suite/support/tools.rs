//! Programs that `tests/tools.py` installs into `.tools`. None is looked for anywhere else, so that
//! a test never runs another version.

use std::path::{Path, PathBuf};

/// The path of a program of `.tools/bin`; panics with how to get it where it is missing.
pub(crate) fn tool(name: &str) -> PathBuf {
    installed(&format!("bin/{name}"), "make tools")
}

/// The script of axe, which finds what a page lacks for people with disabilities.
pub(crate) fn axe() -> PathBuf {
    installed("axe-core/axe.min.js", "tests/tools.py console")
}

fn installed(path: &str, command: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools");
    let path = tools.join(path);
    assert!(path.exists(), "{} is missing; install it with `{command}`", path.display());
    path
}
