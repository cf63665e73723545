//! envoyproxy/ratelimit: the binary that the environment variable REFERENCE names, or this service
//! in its place, with the settings that both have.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The rules below the home of a service.
pub(crate) const RULES: &str = "ratelimit/config";

/// A service with rules in [`RULES`] of `home`, and with a Redis of this address. Its own are those
/// of gRPC, HTTP and the debug port, all of 127.0.0.1.
pub(crate) fn command(home: &Path, redis: &str, addresses: [SocketAddr; 3]) -> Command {
    let reference = std::env::var_os("REFERENCE").filter(|path| !path.is_empty());
    let program = reference.map_or_else(|| env!("CARGO_BIN_EXE_tollgate").into(), PathBuf::from);
    let [grpc, http, debug] = addresses.map(|address| address.port().to_string());
    let mut command = Command::new(program);
    command.env_clear().envs([
        ("RUNTIME_ROOT", &*home.display().to_string()),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("USE_STATSD", "false"),
        ("BACKEND_TYPE", "redis"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", redis),
        ("HOST", "127.0.0.1"),
        ("GRPC_HOST", "127.0.0.1"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("GRPC_PORT", &grpc),
        ("PORT", &http),
        ("DEBUG_PORT", &debug),
    ]);
    command
}
