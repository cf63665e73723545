//! Which process holds a port that cannot be bound.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use crate::base::shutdown::Phase;

/// Time to connect to the process, and time for its answer.
// bound port_holder_timeout: the error does not say whose the port is; -
const TIMEOUT: Duration = Duration::from_millis(500);
/// More than `/ready` has.
const BYTES_MAX: usize = 4 << 10;

/// What to do about a port that is in use. `admin` is the address that this process would have: a
/// Tollgate with the same settings listens there.
pub(super) fn advice(admin: (&str, u16)) -> &'static str {
    let ready = ready(admin).unwrap_or_default();
    let is_in = |phase: Phase| ready.contains(phase.line());
    if is_in(Phase::Draining) || is_in(Phase::Stopping) {
        "the process that holds it is a Tollgate that drains: it ends within DRAIN_PERIOD and SHUTDOWN_TIMEOUT, start again then"
    } else if is_in(Phase::Running) {
        "a Tollgate is running with this DEBUG_PORT: stop it, or set other ports"
    } else {
        "another process holds it: stop that, or set another port"
    }
}

/// The response of `/ready`.
fn ready((host, port): (&str, u16)) -> io::Result<String> {
    let unknown = || io::Error::from(io::ErrorKind::NotFound);
    let mut addresses = (host.trim_matches(['[', ']']), port).to_socket_addrs()?;
    let mut address = addresses.next().ok_or_else(unknown)?;
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut response = [0; BYTES_MAX];
    let length = stream.read(&mut response)?;
    Ok(String::from_utf8_lossy(&response[..length]).into_owned())
}
