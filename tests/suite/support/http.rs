//! HTTP/1 as curl sends it and as Envoy and Tollgate answer, over a plain socket: small enough that
//! a test can also send half of it.

use std::fmt::Display;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use super::process::PATIENCE;

/// A connection that stays open from request to request.
#[derive(Debug)]
pub(crate) struct Connection(pub(crate) BufReader<TcpStream>);

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// `name: value`, names in lower case.
    pub(crate) headers: Vec<String>,
    pub(crate) body: String,
}

/// GET on a connection of its own.
pub(crate) fn get(addr: SocketAddr, path: &str) -> Reply {
    Connection::open(addr).send("GET", path, "").expect("there is a response")
}

/// The header that shows a token.
pub(crate) fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}")
}

/// GET where maybe nothing listens.
pub(crate) fn try_get(addr: SocketAddr, path: &str) -> io::Result<Reply> {
    Connection::try_open(addr)?.send("GET", path, "")
}

/// POST on a connection of its own, as `curl -d` does it.
pub(crate) fn post(addr: SocketAddr, path: &str, body: &str) -> Reply {
    Connection::open(addr).send("POST", path, body).expect("there is a response")
}

/// POST on a connection of its own with more headers, such as `name: value`.
pub(crate) fn post_with(
    headers: &[impl Display],
    addr: SocketAddr,
    path: &str,
    body: &str,
) -> Reply {
    Connection::open(addr).send_with(headers, "POST", path, body).expect("there is a response")
}

impl Connection {
    /// Connects.
    pub(crate) fn open(addr: SocketAddr) -> Self {
        Self::try_open(addr).expect("the port is open")
    }

    /// Connects, if the port is open.
    pub(crate) fn try_open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request, and reads the response.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> io::Result<Reply> {
        self.send_with(&[""; 0], method, path, body)
    }

    /// The same with more headers, such as `name: value`.
    pub(crate) fn send_with(
        &mut self,
        headers: &[impl Display],
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<Reply> {
        let headers: Vec<String> = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let headers = headers.concat();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/x-www-form-urlencoded\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        // A server that answers before it has read everything may close; its answer can be read all
        // the same.
        let _ = self.write(format!("{head}{body}").as_bytes());
        self.read(method)
    }

    /// Sends any bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Says that no more is going to be sent.
    pub(crate) fn finish_writing(&mut self) {
        // It fails only if the server was faster, and closed.
        let _ = self.0.get_ref().shutdown(Shutdown::Write);
    }

    /// Reads the response to a request of that method.
    pub(crate) fn read(&mut self, method: &str) -> io::Result<Reply> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP: {status_line:?}"))
        })?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            headers.push(format!("{}: {}", name.to_lowercase(), value.trim()));
        }
        let length = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
        let length = length.filter(|_| method != "HEAD");
        let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
        self.0.read_exact(&mut body)?;
        if method != "HEAD" && headers.iter().any(|header| header == "transfer-encoding: chunked") {
            while self.read_chunk(&mut body)? > 0 {}
        }
        Ok(Reply { status, headers, body: String::from_utf8(body).expect("bodies are text") })
    }

    /// Adds a chunk, which is preceded by its length. Returns that; the last one has none.
    fn read_chunk(&mut self, body: &mut Vec<u8>) -> io::Result<usize> {
        let length = usize::from_str_radix(&self.line()?, 16).expect("a length");
        let begin = body.len();
        body.resize(begin + length, 0);
        self.0.read_exact(&mut body[begin..])?;
        self.line()?;
        Ok(length)
    }

    /// Reads whatever comes until the server closes, as bytes.
    pub(crate) fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// What has come of the response so far, if that is not much.
    pub(crate) fn peek(&self) -> String {
        let stream = self.0.get_ref();
        let mut bytes = [0; 4_096];
        stream.set_nonblocking(true).expect("the option is valid");
        let length = stream.peek(&mut bytes).unwrap_or(0);
        stream.set_nonblocking(false).expect("the option is valid");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Reply {
    /// Its body, which is JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Whether it has this header, written `name: value`.
    pub(crate) fn has_header(&self, header: &str) -> bool {
        self.headers.iter().any(|there| there == header)
    }

    /// The value of a header, which must not be repeated.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values =
            self.headers.iter().filter_map(|header| header.strip_prefix(name)?.strip_prefix(": "));
        let first = values.next();
        assert_eq!(values.next(), None, "{name} is repeated: {self:?}");
        first
    }

    /// The value of a header that must be there, as a number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.header(name).and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("{name} is no number: {self:?}"))
    }
}
