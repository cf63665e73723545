//! The servers that tests run on: which there are, and where each is.

use std::path::PathBuf;

use super::tools::tool;

/// A server, by the name that failing tests show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) name: &'static str,
    program: Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    /// In `.tools/bin`, by this name.
    Installed(&'static str),
    OnPath,
}

/// The oldest supported version.
pub(crate) const REDIS_6_2: Version =
    Version { name: "Redis 6.2", program: Program::Installed("redis-server-6.2") };
/// Its allocator is the C library's, which libfaketime needs.
pub(crate) const VALKEY_9_1: Version =
    Version { name: "Valkey 9.1", program: Program::Installed("valkey-server-9.1") };
/// What a test runs on that names no version. PyPI has Redis for x86_64 only, so on other machines
/// this is Valkey.
pub(crate) const DEFAULT: Version =
    if cfg!(target_arch = "x86_64") { REDIS_6_2 } else { VALKEY_9_1 };
/// From Maven, for `system::versions`.
pub(crate) const REDIS_7_0: Version =
    Version { name: "Redis 7.0", program: Program::Installed("redis-7.0") };
/// The distribution's server, for `system::` only: it is the one with TLS, and its version is the
/// machine's choice.
pub(crate) const ON_PATH: Version =
    Version { name: "the redis-server on the PATH", program: Program::OnPath };

impl Version {
    /// The program to start.
    pub(crate) fn program(&self) -> PathBuf {
        match self.program {
            Program::Installed(name) => tool(name),
            Program::OnPath => PathBuf::from("redis-server"),
        }
    }
}
