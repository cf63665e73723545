//! Which process holds a port that cannot be bound.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use crate::base::shutdown::Phase;

/// Time to connect to the process, and time for its answer.
const TIMEOUT: Duration = Duration::from_millis(500);
/// More than `/ready` has.
const BYTES_MAX: usize = 4 << 10;

/// What to do about a port that is in use. A Tollgate with the same settings as this process has
/// the admin address `admin`.
pub(super) fn advice(admin: (&str, u16)) -> &'static str {
    let ready = ready(admin).unwrap_or_default();
    if ready.contains(Phase::Draining.line()) {
        "a Tollgate that drains holds it: start again after its DRAIN_PERIOD and SHUTDOWN_TIMEOUT"
    } else if ready.contains(Phase::Running.line()) {
        "a Tollgate is running with this DEBUG_PORT: stop it, or set other ports"
    } else {
        "another process holds it: stop that, or set another port"
    }
}

/// The response of `/ready`.
fn ready((host, port): (&str, u16)) -> io::Result<String> {
    let mut addresses = (host.trim_matches(['[', ']']), port).to_socket_addrs()?;
    let mut address = addresses.next().ok_or(io::ErrorKind::NotFound)?;
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
