//! The servers that tests run on: the redis-server that the machine has, and those that `tests/install-redis.sh` keeps beside it.

use std::path::{Path, PathBuf};

/// A server, by the name and version that tests tell of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) name: &'static str,
    /// Whether it speaks TLS.
    pub(crate) has_tls: bool,
    program: Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    OnPath,
    /// The directory of `.tools/redis` that it is in.
    Installed(&'static str),
}

/// What a test runs on that does not care.
pub(crate) const ON_PATH: Version = Version { name: "the redis-server on the PATH", has_tls: true, program: Program::OnPath };
/// The oldest that counts. Its allocator is the C library's: libfaketime needs that.
pub(crate) const REDIS_6_2: Version = Version { name: "Redis 6.2", has_tls: true, program: Program::Installed("redis-6.2") };
pub(crate) const REDIS_8_0: Version = Version { name: "Redis 8.0", has_tls: true, program: Program::Installed("redis-8.0") };
/// As it comes from PyPI.
pub(crate) const VALKEY_9_1: Version = Version { name: "Valkey 9.1", has_tls: false, program: Program::Installed("valkey-9.1") };

impl Version {
    /// What to start.
    pub(crate) fn program(&self) -> PathBuf {
        match self.program {
            Program::OnPath => PathBuf::from("redis-server"),
            Program::Installed(directory) => Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/redis").join(directory).join("server"),
        }
    }

    /// How to get it.
    pub(crate) fn how_to_get_it(&self) -> &'static str {
        match self.program {
            Program::OnPath => "get it by `apt-get install redis-server`",
            Program::Installed(_) => "get it by `make redis`, which runs tests/install-redis.sh",
        }
    }
}
