//! What a Redis Cluster says of itself: which slot a key lives in, and which node serves it.
//!
//! As the cluster specification has it: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use crc16::{State, XMODEM};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value};

use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::lookup::{ANSWER_TIMEOUT, LookupConnection};

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

/// Where a node listens. The host is empty if it is the one that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A name or an address, without brackets.
    pub host: String,
    /// A port.
    pub port: u16,
}

/// Slots one after the other that the same master serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub first: u16,
    /// The last, which is one of them.
    pub last: u16,
    /// Where their master is.
    pub master: Endpoint,
}

/// A cluster as one of its nodes sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct View {
    /// Who serves what.
    pub ranges: Vec<Range>,
    /// Whether that node is with the majority, and all slots are served.
    pub is_ok: bool,
}

impl Endpoint {
    /// Reads `host:port`, as redirections have it; there is more than one colon in an address of
    /// IPv6.
    pub fn read(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.parse().ok()?,
        })
    }

    /// The same with a host, where the one who told of it left that out.
    #[must_use]
    pub fn resolve_relative_to(&self, source: &Address) -> Self {
        let host = if self.host.is_empty() {
            source.host().unwrap_or_default()
        } else {
            &self.host
        };
        Self {
            host: host.to_owned(),
            port: self.port,
        }
    }
}

impl View {
    /// What to ask a node.
    pub fn question() -> Pipeline {
        let mut commands = Pipeline::with_capacity(2);
        commands
            .cmd("CLUSTER")
            .arg("SLOTS")
            .cmd("CLUSTER")
            .arg("INFO");
        commands
    }

    /// Reads what it answers.
    ///
    /// # Errors
    /// In words: it is no node of a cluster, or one without slots.
    pub fn read(values: Vec<Value>) -> Result<Self, String> {
        let mut values = values
            .into_iter()
            .map(|value| value.extract_error().map_err(|error| error.to_string()));
        let (slots, info) = (
            values.next().unwrap_or(Ok(Value::Nil))?,
            values.next().unwrap_or(Ok(Value::Nil))?,
        );
        let Value::Array(entries) = slots else {
            return Err("CLUSTER SLOTS has another shape".to_owned());
        };
        let ranges: Vec<Range> = entries.iter().filter_map(range).collect();
        if ranges.is_empty() {
            return Err(
                "it knows of no slots: it is not, or no longer, a node of a cluster".to_owned(),
            );
        }
        Ok(Self {
            ranges,
            is_ok: text(&info).is_some_and(|info| info.contains("cluster_state:ok")),
        })
    }
}

/// Asks one node after the other, and goes by the first that is with the majority. One that takes
/// long is not waited for alone.
///
/// # Errors
/// No node knows; what the last one said.
pub async fn ask<'n>(
    nodes: &[&'n LookupConnection],
) -> Result<(&'n LookupConnection, View), String> {
    let mut rest = nodes.iter().peekable();
    let (mut asked, mut failure, mut doubtful) = (FuturesUnordered::new(), String::new(), None);
    loop {
        if let Some(node) = rest.next() {
            asked.push(view(node));
        }
        tokio::select! {
            biased;
            Some((source, view)) = asked.next() => match view {
                Ok(view) if view.is_ok => return Ok((source, view)),
                // It may be cut off from the others.
                Ok(view) => doubtful = doubtful.or(Some((source, view))),
                Err(error) => failure = error,
            },
            () = tokio::time::sleep(ANSWER_TIMEOUT), if rest.peek().is_some() => {}
            else => break,
        }
    }
    doubtful.ok_or(failure)
}

/// What a node says of its cluster.
async fn view(node: &LookupConnection) -> (&LookupConnection, Result<View, String>) {
    let address = node.address();
    let view = match node.call(&View::question()).await {
        Ok(values) => View::read(values).map_err(|cause| format!("{address}: {cause}")),
        Err(error) => Err(address.explain(&error)),
    };
    (node, view)
}

/// The slot of a key: what stands between its first `{` and the next `}`, if that is anything, or
/// else the whole of it.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let behind = &key[open + 1..];
        let length = behind.iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &behind[..length])
    });
    State::<XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

/// `[first, last, [host, port, id, …], replicas…]`
fn range(entry: &Value) -> Option<Range> {
    let Value::Array(parts) = entry else {
        return None;
    };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else {
        return None;
    };
    let [host, port, ..] = master.as_slice() else {
        return None;
    };
    let host = match host {
        // It does not know its own name, or is not to tell.
        Value::Nil => String::new(),
        host => text(host)
            .filter(|host| *host != "?")
            .unwrap_or_default()
            .to_owned(),
    };
    let (first, last) = (number(first)?, number(last)?);
    let is_range = first <= last && last < SLOTS;
    is_range.then_some(Range {
        first,
        last,
        master: Endpoint {
            host,
            port: number(port)?,
        },
    })
}

fn number(value: &Value) -> Option<u16> {
    let Value::Int(number) = value else {
        return None;
    };
    u16::try_from(*number).ok()
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_live_where_redis_says() {
        // By `CLUSTER KEYSLOT`.
        for (key, expected) in [
            ("", 0),
            ("foo", 12_182),
            ("123456789", 12_739),
            ("{foo}bar", 12_182),
            ("a{foo}{bar}", 12_182),
            ("{}foo", 9_500),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        assert_ne!(slot(b"a{foo"), slot(b"foo"), "it is not closed");
    }

    #[test]
    fn places_are_read_from_redirections() {
        let read = |text: &str| Endpoint::read(text).map(|endpoint| (endpoint.host, endpoint.port));
        assert_eq!(read("10.0.0.5:6379"), Some(("10.0.0.5".to_owned(), 6379)));
        assert_eq!(read("::1:6379"), Some(("::1".to_owned(), 6379)));
        assert_eq!(read("[::1]:6379"), Some(("::1".to_owned(), 6379)));
        assert_eq!(read(":6379"), Some((String::new(), 6379)));
        assert_eq!(read("6379"), None);
        assert_eq!(read("a:b"), None);
    }

    #[test]
    fn what_is_no_cluster_says_so() {
        assert!(
            View::read(vec![Value::Array(Vec::new()), Value::Nil])
                .is_err_and(|error| error.contains("no slots"))
        );
        let node = |host: Value| {
            Value::Array(vec![
                host,
                Value::Int(7000),
                Value::BulkString(b"id".to_vec()),
            ])
        };
        let slots = Value::Array(vec![
            Value::Array(vec![
                Value::Int(0),
                Value::Int(5),
                node(Value::BulkString(b"10.0.0.5".to_vec())),
            ]),
            Value::Array(vec![Value::Int(6), Value::Int(16_383), node(Value::Nil)]),
            Value::Array(vec![Value::Int(6), Value::Int(16_384), node(Value::Nil)]),
        ]);
        let view = View::read(vec![
            slots,
            Value::BulkString(b"cluster_state:ok\r\n".to_vec()),
        ])
        .expect("it is a view");
        assert!(view.is_ok);
        let seen: Vec<_> = view
            .ranges
            .iter()
            .map(|range| (range.first, range.last, &*range.master.host))
            .collect();
        assert_eq!(seen, [(0, 5, "10.0.0.5"), (6, 16_383, "")]);
    }
}
