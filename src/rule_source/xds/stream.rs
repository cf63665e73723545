//! A stream of xDS requests and responses on a connection of its own.

use std::error::Error;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tower::service_fn;

use crate::proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use crate::rule_source::xds::address::Address;
use crate::rule_source::xds::connect::Server;
use crate::rule_source::xds::options::XdsOptions;

/// Time to resolve the host, connect, and make the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// An unresponsive server is detected by a PING. gRPC servers in Go close connections that send more
/// than one in five minutes.
const PING_INTERVAL: Duration = Duration::from_secs(360);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that wait to be sent: one per response, before the next response is read.
const REQUESTS_MAX: usize = 1;

/// An open stream. Dropping it closes its connection.
pub(crate) struct Stream {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

/// Connects to the server.
///
/// # Errors
/// The server cannot be reached within [`CONNECT_TIMEOUT`], or TLS fails.
pub(crate) async fn connect(server: &Server) -> anyhow::Result<Channel> {
    // The URL is only sent in requests: the connector has the address.
    let endpoint = Endpoint::from_shared(format!("http://{}", authority(server)))?
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    // A channel reconnects at once; the client backs off instead.
    let mut once = Some(server.clone());
    let connecting = endpoint.connect_with_connector(service_fn(move |_| {
        let server = once.take();
        async { server.context("the connection was lost")?.connect().await }
    }));
    timeout(CONNECT_TIMEOUT, connecting)
        .await
        .with_context(|| format!("no connection within {CONNECT_TIMEOUT:?}"))?
        .map_err(|error| causes(&error))
}

impl Stream {
    /// Opens a stream with its first request.
    ///
    /// # Errors
    /// The server rejects it.
    pub(crate) async fn open(
        channel: Channel,
        options: &XdsOptions,
        first: DiscoveryRequest,
    ) -> anyhow::Result<Self> {
        let (requests, outgoing) = mpsc::channel(REQUESTS_MAX);
        // It cannot fail: the receiver is here.
        let _ = requests.send(first).await;
        let request = Request::from_parts(
            MetadataMap::from_headers(options.headers.clone()),
            tonic::Extensions::default(),
            ReceiverStream::new(outgoing),
        );
        let responses = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(options.message_bytes_max)
            .stream_aggregated_resources(request)
            .await
            .map_err(|status| described(&status))?
            .into_inner();
        Ok(Self {
            requests,
            responses,
        })
    }

    /// The next response; `None` at the end of the stream.
    ///
    /// # Errors
    /// The status with which the stream failed.
    pub(crate) async fn next(&mut self) -> Result<Option<DiscoveryResponse>, Status> {
        self.responses.message().await
    }

    /// Sends a request. Where that fails, [`Self::next`] returns why.
    pub(crate) async fn send(&self, request: DiscoveryRequest) {
        let _ = self.requests.send(request).await;
    }
}

/// The authority of requests. A Unix socket has none.
fn authority(server: &Server) -> String {
    match &server.address {
        address @ Address::Tcp { .. } => address.to_string(),
        Address::Unix(_) => "localhost".to_owned(),
    }
}

/// A status with its causes.
pub(crate) fn described(status: &Status) -> anyhow::Error {
    let text = anyhow::anyhow!("{:?}: {}", status.code(), status.message());
    if status.source().is_some() {
        text.context(causes(status))
    } else {
        text
    }
}

/// The causes of an error of tonic, whose own text is generic.
fn causes(error: &dyn Error) -> anyhow::Error {
    let mut texts = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some errors repeat the text of their cause.
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        cause = error.source();
    }
    if texts.is_empty() {
        anyhow::Error::msg(error.to_string())
    } else {
        anyhow::Error::msg(texts.join(": "))
    }
}
