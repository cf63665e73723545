//! Binds ports and Unix sockets, and says by which setting where that fails.
//!
//! `::` means every address of both families, whatever the machine's default is: Kubernetes'
//! dual-stack services rely on it.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that the kernel keeps until they are accepted: a fleet that comes back all at once
/// waits rather than be turned away.
const BACKLOG: i32 = 1_024;

/// The file of a Unix socket. Dropped, it is removed, unless it is somebody else's by now.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

/// Binds a port; `settings` are the names of what chose it. Without a host it is bound on every
/// address, by IPv6 and IPv4 where the machine has both.
///
/// # Errors
/// It cannot be bound.
pub fn tcp((host, port): (&str, u16), settings: &str) -> anyhow::Result<TcpListener> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let every = if bare.is_empty() { "::" } else { bare };
    let bound = (every, port)
        .to_socket_addrs()
        .and_then(|addrs| first(addrs, listen));
    let bound = bound.or_else(|error| {
        let Some(addr) = without_ipv6(every, port, &error) else { return Err(error) };
        // Who named no address has not asked for IPv6.
        if !bare.is_empty() {
            tracing::warn!(%error, settings, "this machine has no IPv6; listening on 0.0.0.0 instead of {bare}");
        }
        listen(addr)
    });
    bound.with_context(|| format!("bind {every} port {port} ({settings})"))
}

/// Binds a path. The file of a process that is no more is removed; one that somebody listens at is
/// not.
///
/// # Errors
/// It cannot be bound, or somebody listens there.
pub fn unix(path: &Path, setting: &str) -> anyhow::Result<(UnixListener, SocketFile)> {
    let task = || format!("bind {} ({setting})", path.display());
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(task),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            bail!("{}: something else than a socket is there", task())
        }
        Ok(_) if is_listened_at(path).with_context(task)? => {
            bail!("{}: another process listens there", task())
        }
        Ok(_) => {
            fs::remove_file(path).with_context(task)?;
            tracing::info!(path = %path.display(), "a socket that nobody listened at was removed");
        }
    }
    let listener = UnixListener::bind(path).with_context(task)?;
    listener
        .set_nonblocking(true)
        .context("make a listener nonblocking")?;
    let identity = identity(path).with_context(task)?;
    Ok((
        listener,
        SocketFile {
            path: path.to_owned(),
            identity,
        },
    ))
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
    // A restart takes a port over of which connections of the process before are still being
    // buried.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The first that works, or why the last did not.
fn first<T, A>(
    candidates: impl IntoIterator<Item = A>,
    attempt: impl Fn(A) -> io::Result<T>,
) -> io::Result<T> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "no such host");
    for candidate in candidates {
        match attempt(candidate) {
            Ok(done) => return Ok(done),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Where to listen instead, if every address was asked for, and the kernel knows no IPv6.
fn without_ipv6(host: &str, port: u16, error: &io::Error) -> Option<SocketAddr> {
    /// "Address family not supported by protocol": the kernel was built, or started, without IPv6.
    const EAFNOSUPPORT: i32 = 97;
    /// "Cannot assign requested address": it has the family, and no address of it.
    const EADDRNOTAVAIL: i32 = 99;
    let every = host.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_unspecified());
    let is_missing = matches!(error.raw_os_error(), Some(EAFNOSUPPORT | EADDRNOTAVAIL));
    (every && is_missing).then(|| (IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into())
}

/// Whether a process listens at a socket. It asks by connecting, and never waits: a process that
/// hangs, listens.
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
    use socket2::SockRef;

    use super::*;

    #[test]
    fn every_address_of_both_families_is_listened_at_whatever_the_machine_does_by_default() {
        for host in ["", "::", "[::]"] {
            let listener = tcp((host, 0), "TEST").expect("any port will do");
            assert!(
                !SockRef::from(&listener).only_v6().expect("it is of IPv6"),
                "{host}"
            );
        }
        let listener = tcp(("::1", 0), "TEST").expect("any port will do");
        assert!(SockRef::from(&listener).only_v6().expect("it is of IPv6"));
    }

    #[test]
    fn without_ipv6_every_address_is_every_address_of_ipv4() {
        let missing = io::Error::from_raw_os_error(97);
        assert_eq!(
            without_ipv6("::", 8_081, &missing),
            Some(([0, 0, 0, 0], 8_081).into())
        );
        assert_eq!(
            without_ipv6("::1", 8_081, &missing),
            None,
            "that one was asked for"
        );
        let taken = io::Error::from_raw_os_error(98);
        assert_eq!(
            without_ipv6("::", 8_081, &taken),
            None,
            "a port that is taken is taken"
        );
    }
}
