//! Binds ports and Unix sockets; errors name the setting.
//!
//! `::` means all addresses of both families, whatever the default of the machine: Kubernetes'
//! dual-stack services need it.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that wait to be accepted: a fleet that reconnects at once waits.
const BACKLOG: i32 = 1_024;

/// The file of a Unix socket, removed on drop unless another process has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

/// Binds a port that the named settings chose. Without a host it is bound on all addresses, IPv6
/// and IPv4 where the machine has both.
///
/// # Errors
/// It cannot be bound.
pub(crate) fn tcp((host, port): (&str, u16), settings: &str) -> anyhow::Result<TcpListener> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let every = if bare.is_empty() { "::" } else { bare };
    let bound = (every, port).to_socket_addrs().and_then(|addrs| {
        // The first success, or the last error.
        let mut failed = io::Error::new(ErrorKind::NotFound, "no such host");
        for addr in addrs {
            match listen(addr) {
                Ok(listener) => return Ok(listener),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    });
    let bound = bound.or_else(|error| {
        let Some(addr) = without_ipv6(every, port, &error) else { return Err(error) };
        // No warning if no address was set.
        if !bare.is_empty() {
            tracing::warn!(%error, settings, "this machine has no IPv6; listening on 0.0.0.0 instead of {bare}");
        }
        listen(addr)
    });
    bound.with_context(|| format!("bind {every} port {port} ({settings})"))
}

/// Binds a path. A socket on which no process listens is removed.
///
/// # Errors
/// It cannot be bound, or another process listens on it.
pub(crate) fn unix(path: &Path, setting: &str) -> anyhow::Result<(UnixListener, SocketFile)> {
    let task = || format!("bind {} ({setting})", path.display());
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(task),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            bail!("{}: the file is not a socket", task())
        }
        Ok(_) if is_listened_at(path).with_context(task)? => {
            bail!("{}: another process listens on it", task())
        }
        Ok(_) => {
            fs::remove_file(path).with_context(task)?;
            tracing::info!(path = %path.display(), "removed a socket on which no process listened");
        }
    }
    let listener = UnixListener::bind(path).with_context(task)?;
    listener.set_nonblocking(true).context("make a listener nonblocking")?;
    let identity = identity(path).with_context(task)?;
    Ok((listener, SocketFile { path: path.to_owned(), identity }))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // If it fails, the next process removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    if addr.is_ipv6() {
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    // After a restart, connections of the previous process may be in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The IPv4 address to use instead, if all addresses were requested and there is no IPv6.
fn without_ipv6(host: &str, port: u16, error: &io::Error) -> Option<SocketAddr> {
    /// "Address family not supported by protocol": the kernel was built, or started, without IPv6.
    const EAFNOSUPPORT: i32 = 97;
    /// "Cannot assign requested address": it has the family, and no address of it.
    const EADDRNOTAVAIL: i32 = 99;
    let every = host.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_unspecified());
    let is_missing = matches!(error.raw_os_error(), Some(EAFNOSUPPORT | EADDRNOTAVAIL));
    (every && is_missing).then(|| (IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into())
}

/// Whether a process listens on a socket. It connects without waiting: a process that hangs,
/// listens.
fn is_listened_at(path: &Path) -> io::Result<bool> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use socket2::SockRef;

    use super::*;

    #[test]
    fn all_addresses_are_bound_for_both_families() {
        for host in ["", "::", "[::]"] {
            let listener = tcp((host, 0), "TEST").expect("any port will do");
            assert!(!SockRef::from(&listener).only_v6().expect("it is of IPv6"), "{host}");
        }
        let listener = tcp(("::1", 0), "TEST").expect("any port will do");
        assert!(SockRef::from(&listener).only_v6().expect("it is of IPv6"));
    }

    #[test]
    fn a_socket_of_a_process_that_is_no_more_is_taken_over() {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let path = home.path().join("tollgate.sock");
        drop(UnixListener::bind(&path).expect("no listener"));
        assert!(fs::metadata(&path).expect("it was left behind").file_type().is_socket());
        // GRPC_UDS
        let (listener, file) = unix(&path, "GRPC_UDS").expect("no process listens on it");
        UnixStream::connect(&path).expect("it is bound");

        let error = unix(&path, "GRPC_UDS").expect_err("it is in use").to_string();
        let expected = format!("bind {} (GRPC_UDS): another process listens on it", path.display());
        assert_eq!(error, expected);
        UnixStream::connect(&path).expect("it is left alone");
        drop((listener, file));
        assert!(!path.exists(), "it is removed");
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let path = home.path().join("notes");
        fs::write(&path, "precious").expect("a file can be written");
        let error = unix(&path, "GRPC_UDS").expect_err("it is a file").to_string();
        assert!(error.ends_with("(GRPC_UDS): the file is not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "precious");
    }

    #[test]
    fn without_ipv6_all_addresses_are_those_of_ipv4() {
        let missing = io::Error::from_raw_os_error(97);
        assert_eq!(without_ipv6("::", 8_081, &missing), Some(([0, 0, 0, 0], 8_081).into()));
        assert_eq!(without_ipv6("::1", 8_081, &missing), None, "that address was requested");
        let taken = io::Error::from_raw_os_error(98);
        assert_eq!(without_ipv6("::", 8_081, &taken), None, "another error");
    }
}
