//! What an xDS client is configured with.

use http::HeaderMap;

use crate::backoff::BackoffPolicy;
use crate::proto::envoy::config::core::v3::Node;
use crate::rule_source::xds::connect::Server;

/// The configuration of an xDS client.
#[derive(Debug, Clone)]
pub struct XdsOptions {
    pub(crate) server: Server,
    /// How this process identifies itself.
    pub(crate) node: Node,
    /// Sent with each stream. Their values are sensitive.
    pub(crate) headers: HeaderMap,
    /// Pauses between streams.
    pub(crate) backoff: BackoffPolicy,
    /// Bytes of a response.
    pub(crate) message_bytes_max: usize,
}
