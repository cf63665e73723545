//! RESP2: commands as clients send them, and replies as Redis writes them.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// A reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Status(&'static str),
    Error(String),
    Int(i64),
    Text(String),
    List(Vec<Reply>),
    Nil,
}

impl Reply {
    /// What CLUSTER SLOTS says where each of these ranges of slots has a master at `host:port`.
    pub(crate) fn cluster_slots(ranges: &[(u16, u16, &str)]) -> Self {
        let node = |address: &str| {
            let (host, port) = address.rsplit_once(':').expect("host:port");
            let host = if host.is_empty() { Self::Nil } else { Self::text(host) };
            Self::List(vec![host, Self::Int(port.parse().expect("a port")), Self::text("id")])
        };
        let range = |(first, last, master): &(u16, u16, &str)| {
            Self::List(vec![Self::from(*first), Self::from(*last), node(master)])
        };
        Self::List(ranges.iter().map(range).collect())
    }

    /// What a sentinel says of a master at `host:port`.
    pub(crate) fn master(address: &str) -> Self {
        let (host, port) = address.rsplit_once(':').expect("host:port");
        Self::List(vec![Self::text(host), Self::text(port)])
    }

    /// What ROLE says.
    pub(crate) fn role(role: &str) -> Self {
        Self::List(vec![Self::text(role), Self::Int(0), Self::List(Vec::new())])
    }

    pub(crate) fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    pub(crate) fn error(text: &str) -> Self {
        Self::Error(text.to_owned())
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Status(text) => bytes.extend(format!("+{text}\r\n").into_bytes()),
            Self::Error(text) => bytes.extend(format!("-{text}\r\n").into_bytes()),
            Self::Int(number) => bytes.extend(format!(":{number}\r\n").into_bytes()),
            Self::Text(text) => bytes.extend(format!("${}\r\n{text}\r\n", text.len()).into_bytes()),
            Self::List(items) => {
                bytes.extend(format!("*{}\r\n", items.len()).into_bytes());
                for item in items {
                    item.write(bytes);
                }
            }
            Self::Nil => bytes.extend(b"$-1\r\n"),
        }
    }
}

impl From<u16> for Reply {
    fn from(number: u16) -> Self {
        Self::Int(number.into())
    }
}

/// The words of the next command.
pub(crate) async fn read_command(
    from: &mut (impl AsyncBufRead + Unpin),
) -> io::Result<Vec<Vec<u8>>> {
    let words = read_number(from, b'*').await?;
    let mut command = Vec::with_capacity(words);
    for _ in 0..words {
        let mut word = vec![0; read_number(from, b'$').await? + 2];
        from.read_exact(&mut word).await?;
        word.truncate(word.len() - 2);
        command.push(word);
    }
    Ok(command)
}

async fn read_number(from: &mut (impl AsyncBufRead + Unpin), mark: u8) -> io::Result<usize> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).await?;
    let number = line
        .strip_prefix(&[mark])
        .and_then(|number| str::from_utf8(number).ok()?.trim_end().parse().ok());
    number.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
