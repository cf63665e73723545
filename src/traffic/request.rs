//! A request that owns its texts.

use crate::api::{convert, decode};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::rules::query::{self, Query};

/// A request as it is sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) domain: Vec<u8>,
    pub(crate) descriptors: Vec<Descriptor>,
    /// 0 is not set.
    pub(crate) hits_addend: u32,
}

/// A descriptor as it is sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Descriptor {
    /// From the outermost to the innermost.
    pub(crate) entries: Vec<Entry>,
    /// A limit of its own.
    pub(crate) limit: Option<Limit>,
    pub(crate) hits_addend: Option<u64>,
    pub(crate) is_negative_hits: bool,
}

/// A key and a value, which may be empty.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// A limit in a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limit {
    pub(crate) requests_per_unit: u32,
    /// The number of the unit on the wire.
    pub(crate) unit: i32,
}

impl Request {
    /// The request as the limiter takes it.
    pub(crate) fn query(&self) -> Query<'_> {
        let descriptors = self.descriptors.iter();
        Query {
            domain: &self.domain,
            descriptors: descriptors
                .map(|descriptor| descriptor.query(self.hits_addend))
                .collect(),
            hits_addend: self.hits_addend,
            deadline: None,
        }
    }
}

impl Descriptor {
    fn query(&self, hits_of_request: u32) -> query::Descriptor<'_> {
        let entries = self.entries.iter();
        let limit = self.limit;
        query::Descriptor {
            entries: entries
                .map(|entry| query::Entry::new(&entry.key, &entry.value))
                .collect(),
            limit: limit.map(|limit| convert::override_limit(limit.requests_per_unit, limit.unit)),
            hits: decode::hits(self.hits_addend, hits_of_request, self.is_negative_hits),
            hits_addend: self.hits_addend,
        }
    }
}

/// The number of a unit on the wire, by its name or as a number.
pub(crate) fn wire_unit(text: &str) -> Result<i32, String> {
    let named = Unit::from_str_name(text).map(i32::from);
    named
        .or_else(|| text.parse().ok())
        .ok_or_else(|| format!("`{text}` is no unit"))
}
