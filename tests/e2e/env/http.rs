//! HTTP/1.1 over a plain socket: as much of it as Envoy and Tollgate answer with.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Nothing takes so long but what never comes.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection, used for one request after the other.
#[derive(Debug)]
pub(crate) struct Connection(BufReader<TcpStream>);

/// A request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'r> {
    pub(crate) method: &'r str,
    pub(crate) path: &'r str,
    pub(crate) headers: &'r [(&'r str, &'r str)],
    /// One more header, whose value may be any bytes.
    pub(crate) raw_header: Option<(&'r str, &'r [u8])>,
    pub(crate) body: &'r str,
}

/// A response. Names of headers are in lower case.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl<'r> Request<'r> {
    /// GET without a header of its own.
    pub(crate) fn get(path: &'r str) -> Self {
        Self {
            method: "GET",
            path,
            headers: &[],
            raw_header: None,
            body: "",
        }
    }

    /// The same with these headers.
    pub(crate) fn with(self, headers: &'r [(&'r str, &'r str)]) -> Self {
        Self { headers, ..self }
    }

    /// The same with one more header, whose value may be any bytes.
    pub(crate) fn with_raw(self, name: &'r str, value: &'r [u8]) -> Self {
        Self {
            raw_header: Some((name, value)),
            ..self
        }
    }

    /// The same by POST, with this body.
    pub(crate) fn post(self, body: &'r str) -> Self {
        Self {
            method: "POST",
            body,
            ..self
        }
    }
}

impl Connection {
    /// Connects.
    pub(crate) fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request and reads the reply.
    pub(crate) fn send(&mut self, request: Request<'_>) -> io::Result<Reply> {
        self.begin(request)?;
        self.finish()
    }

    /// Sends a request.
    pub(crate) fn begin(&mut self, request: Request<'_>) -> io::Result<()> {
        let mut text = format!(
            "{} {} HTTP/1.1\r\nhost: e2e\r\n",
            request.method, request.path
        );
        for (name, value) in request.headers {
            text += &format!("{name}: {value}\r\n");
        }
        if request.method == "POST" {
            text += &format!("content-length: {}\r\n", request.body.len());
        }
        let raw_header = request
            .raw_header
            .map(|(name, value)| [name.as_bytes(), b": ", value, b"\r\n"].concat());
        let bytes = [
            text.as_bytes(),
            &raw_header.unwrap_or_default(),
            b"\r\n",
            request.body.as_bytes(),
        ]
        .concat();
        self.0.get_mut().write_all(&bytes)
    }

    /// What has come of the reply so far, if that is not much.
    pub(crate) fn peek(&self) -> String {
        let stream = self.0.get_ref();
        let mut bytes = [0; 4_096];
        stream.set_nonblocking(true).expect("the option is valid");
        let length = stream.peek(&mut bytes).unwrap_or(0);
        stream.set_nonblocking(false).expect("the option is valid");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Reads the reply.
    pub(crate) fn finish(&mut self) -> io::Result<Reply> {
        let status_line = self.line()?;
        let status = status_line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| invalid(format!("no status line: {status_line:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| invalid(format!("no header: {line:?}")))?;
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let mut body = Vec::new();
        match headers.iter().find(|(name, _)| name == "content-length") {
            Some((_, length)) => {
                body.resize(
                    length
                        .parse()
                        .map_err(|_| invalid(format!("no length: {length:?}")))?,
                    0,
                );
                self.0.read_exact(&mut body)?;
            }
            // Envoy's own pages come in chunks; each is preceded by its length.
            None => loop {
                let length = usize::from_str_radix(&self.line()?, 16)
                    .map_err(|_| invalid("neither a length nor chunks".to_owned()))?;
                let begin = body.len();
                body.resize(begin + length, 0);
                self.0.read_exact(&mut body[begin..])?;
                self.line()?;
                if length == 0 {
                    break;
                }
            },
        }
        Ok(Reply {
            status,
            headers,
            body: String::from_utf8(body)
                .map_err(|_| invalid("a body that is no text".to_owned()))?,
        })
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
    /// The value of a header, which must not be repeated.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self
            .headers
            .iter()
            .filter(|(there, _)| there == name)
            .map(|(_, value)| &**value);
        let first = values.next();
        assert_eq!(values.next(), None, "{name} is repeated: {self:?}");
        first
    }

    /// The value of a header that must be there, as a number.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self
            .header(name)
            .unwrap_or_else(|| panic!("no {name}: {self:?}"));
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {self:?}"))
    }
}

/// GET on a connection of its own.
pub(crate) fn get(addr: SocketAddr, path: &str) -> io::Result<Reply> {
    Connection::open(addr)?.send(Request::get(path))
}

/// POST on a connection of its own.
pub(crate) fn post(addr: SocketAddr, path: &str, body: &str) -> io::Result<Reply> {
    Connection::open(addr)?.send(Request::get(path).post(body))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
