//! Requests of clients, with what only Envoy's are sent: headers, and any bytes in one.

use std::io;

use crate::support::http::{Connection, Reply};

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
