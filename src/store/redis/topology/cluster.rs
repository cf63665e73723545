//! Redis Cluster: the slot of a key, and which node serves it, as in the cluster specification:
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

use bb8_redis::redis::{Pipeline, Value, from_redis_value_ref};
use crc16::{State, XMODEM};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::lookup::{LOOKUP_TIMEOUT, LookupConnection};

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A name or an IP address, without brackets; empty for the host of the node that named it.
    pub host: String,
    /// A TCP port.
    pub port: u16,
}

/// Consecutive slots of one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u16,
    /// Inclusive.
    pub(crate) last: u16,
    pub(crate) master: Endpoint,
}

/// A cluster as one of its nodes sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) ranges: Vec<Range>,
    /// `cluster_state:ok`: the node is with the majority, and all slots are served.
    is_ok: bool,
}

impl Endpoint {
    /// Parses the `host:port` of a redirection. IPv6 addresses have more colons.
    pub fn read(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self { host: host.trim_matches(['[', ']']).to_owned(), port: port.parse().ok()? })
    }

    /// Takes the host of `source`, which named this endpoint, where it was left out.
    #[must_use]
    pub(crate) fn resolve_relative_to(&self, source: &Address) -> Self {
        let host = match source.endpoint() {
            Some((host, _)) if self.host.is_empty() => host,
            _ => &self.host,
        };
        Self { host: host.to_owned(), port: self.port }
    }
}

impl View {
    fn read(replies: Vec<Value>) -> Result<Self, String> {
        let mut replies = replies
            .into_iter()
            .map(|reply| reply.extract_error().map_err(|error| error.to_string()));
        let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
        let slots = next()?;
        let info = next()?;
        let Value::Array(entries) = slots else {
            return Err("unexpected reply to CLUSTER SLOTS".to_owned());
        };
        let ranges: Vec<Range> = entries.iter().filter_map(range).collect();
        if ranges.is_empty() {
            return Err("knows no slots: not a node of a cluster".to_owned());
        }
        Ok(Self {
            ranges,
            is_ok: from_redis_value_ref::<String>(&info)
                .is_ok_and(|info| info.contains("cluster_state:ok")),
        })
    }
}

/// Asks one node after the other and returns the first view of a node that is with the majority, or
/// else the first view. A slow node does not delay the others.
///
/// # Errors
/// No node has a view; the error of the last one.
pub(crate) async fn ask<'n>(
    nodes: &[&'n LookupConnection],
) -> Result<(&'n LookupConnection, View), String> {
    let mut rest = nodes.iter().peekable();
    let mut asked = FuturesUnordered::new();
    let mut failure = String::new();
    let mut minority = None;
    loop {
        if let Some(node) = rest.next() {
            asked.push(ask_node(node));
        }
        tokio::select! {
            biased;
            Some((node, view)) = asked.next() => match view {
                Ok(view) if view.is_ok => return Ok((node, view)),
                Ok(view) => minority = minority.or(Some((node, view))),
                Err(error) => failure = error,
            },
            () = tokio::time::sleep(LOOKUP_TIMEOUT), if rest.peek().is_some() => {}
            else => break,
        }
    }
    minority.ok_or(failure)
}

async fn ask_node(node: &LookupConnection) -> (&LookupConnection, Result<View, String>) {
    let address = node.address();
    let mut commands = Pipeline::with_capacity(2);
    for topic in ["SLOTS", "INFO"] {
        commands.cmd("CLUSTER").arg(topic);
    }
    let view = match node.call(&commands).await {
        Ok(replies) => View::read(replies).map_err(|cause| format!("{address}: {cause}")),
        Err(error) => Err(address.explain(&error)),
    };
    (node, view)
}

/// The slot of a key: of its hash tag, the bytes between the first `{` and the next `}`, if there
/// are any, or else of the whole key.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let length = rest.iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &rest[..length])
    });
    State::<XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

/// Reads `[first, last, [host, port, id, …], replicas…]`.
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
    // Nil or "?": the node does not know its name, or is configured not to publish it.
    let host = from_redis_value_ref::<String>(host).ok().filter(|host| host != "?");
    let [first, last, port] = [first, last, port].map(from_redis_value_ref);
    let (first, last) = (first.ok()?, last.ok()?);
    let is_valid = first <= last && last < SLOTS;
    let master = Endpoint { host: host.unwrap_or_default(), port: port.ok()? };
    is_valid.then_some(Range { first, last, master })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_cluster_keyslot() {
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
        assert_ne!(slot(b"a{foo"), slot(b"foo"), "an open brace is no tag");
    }

    #[test]
    fn endpoints_are_read_from_redirections() {
        for (text, expected) in [
            ("10.0.0.5:6379", Some(("10.0.0.5", 6379))),
            ("::1:6379", Some(("::1", 6379))),
            ("[::1]:6379", Some(("::1", 6379))),
            (":6379", Some(("", 6379))),
            ("6379", None),
            ("a:b", None),
        ] {
            let endpoint = Endpoint::read(text);
            let read = endpoint.as_ref().map(|it| (it.host.as_str(), it.port));
            assert_eq!(read, expected, "{text}");
        }
    }

    #[test]
    fn views_have_the_valid_ranges() {
        let empty = vec![Value::Array(Vec::new()), Value::Nil];
        assert!(View::read(empty).is_err_and(|error| error.contains("no slots")));
        let entry = |last: i64, host: Value| {
            let id = Value::BulkString(b"id".to_vec());
            let master = Value::Array(vec![host, Value::Int(7_000), id]);
            Value::Array(vec![Value::Int(6), Value::Int(last), master])
        };
        let slots = Value::Array(vec![
            entry(8, Value::BulkString(b"10.0.0.5".to_vec())),
            entry(16_383, Value::Nil),
            entry(16_384, Value::Nil),
        ]);
        let info = Value::BulkString(b"cluster_state:ok\r\n".to_vec());
        let view = View::read(vec![slots, info]).expect("a view");
        assert!(view.is_ok);
        let ranges = view.ranges.iter();
        let ranges: Vec<_> =
            ranges.map(|range| (range.first, range.last, &*range.master.host)).collect();
        assert_eq!(ranges, [(6, 8, "10.0.0.5"), (6, 16_383, "")]);
    }
}
