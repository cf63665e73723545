//! Requests of clients, with what only Envoy's are sent: headers, and any bytes in one.

use std::io;
use std::net::SocketAddr;

pub(crate) use crate::suite::http::{Connection, Reply, get, post};

/// A request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'r> {
    method: &'r str,
    path: &'r str,
    headers: &'r [(&'r str, &'r str)],
    /// One more header, whose value may be any bytes.
    raw_header: Option<(&'r str, &'r [u8])>,
}

impl<'r> Request<'r> {
    /// GET without a header of its own.
    pub(crate) fn get(path: &'r str) -> Self {
        Self { method: "GET", path, headers: &[], raw_header: None }
    }

    /// The same with these headers.
    pub(crate) fn with(self, headers: &'r [(&'r str, &'r str)]) -> Self {
        Self { headers, ..self }
    }

    /// The same with one more header, whose value may be any bytes.
    pub(crate) fn with_raw(self, name: &'r str, value: &'r [u8]) -> Self {
        let raw_header = Some((name, value));
        Self { raw_header, ..self }
    }

    /// A call of gRPC without a message.
    pub(crate) fn grpc(path: &'r str) -> Self {
        Self { method: "POST", ..Self::get(path) }.with(&[
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("content-length", "0"),
        ])
    }

    /// Sends it.
    pub(crate) fn begin(self, connection: &mut Connection) -> io::Result<()> {
        let mut bytes =
            format!("{} {} HTTP/1.1\r\nhost: e2e\r\n", self.method, self.path).into_bytes();
        let headers = self.headers.iter().map(|&(name, value)| (name, value.as_bytes()));
        for (name, value) in headers.chain(self.raw_header) {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        bytes.extend(b"\r\n");
        connection.write(&bytes)
    }

    /// Sends it and reads the reply.
    pub(crate) fn send(self, connection: &mut Connection) -> io::Result<Reply> {
        self.begin(connection)?;
        connection.read(self.method)
    }
}

/// GET where maybe nothing listens.
pub(crate) fn try_get(addr: SocketAddr, path: &str) -> io::Result<Reply> {
    Connection::try_open(addr)?.send("GET", path, "")
}

/// What has come of the reply so far, if that is not much.
pub(crate) fn peek(connection: &Connection) -> String {
    let stream = connection.0.get_ref();
    let mut bytes = [0; 4_096];
    stream.set_nonblocking(true).expect("the option is valid");
    let length = stream.peek(&mut bytes).unwrap_or(0);
    stream.set_nonblocking(false).expect("the option is valid");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// The headers of a reply, by name.
pub(crate) trait Headers {
    /// The value of a header, which must not be repeated.
    fn header(&self, name: &str) -> Option<&str>;

    /// The value of a header that must be there, as a number.
    fn number(&self, name: &str) -> u64;
}

impl Headers for Reply {
    fn header(&self, name: &str) -> Option<&str> {
        let mut values =
            self.headers.iter().filter_map(|header| header.strip_prefix(name)?.strip_prefix(": "));
        let first = values.next();
        assert_eq!(values.next(), None, "{name} is repeated: {self:?}");
        first
    }

    fn number(&self, name: &str) -> u64 {
        let value = self.header(name).and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("{name} is no number: {self:?}"))
    }
}
