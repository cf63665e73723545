//! A stream of xDS requests and responses on a connection of its own.

use std::error::Error;
use std::iter;
use std::time::Duration;

use anyhow::Context as _;
use http::HeaderMap;
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tower::service_fn;
use tower::util::BoxService;

use crate::base::backoff::Backoff;
use crate::base::net::remote::{CONNECT_TIMEOUT, Server};
use crate::base::proto::envoy::config::core::v3::Node;
use crate::base::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use crate::rules::source::xds::codec::ResponseCodec;

const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// An unresponsive server is detected by a PING. gRPC servers in Go close connections that send
/// more than one in five minutes.
const PING_INTERVAL: Duration = Duration::from_secs(360);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that wait to be sent: one per response, before the next response is read.
const REQUESTS_MAX: usize = 1;

/// The configuration of an xDS client.
#[derive(Debug, Clone)]
pub struct XdsOptions {
    pub(crate) server: Server,
    /// The identity of this process.
    pub(crate) node: Node,
    /// Sent with each stream. Their values are sensitive.
    pub(crate) headers: HeaderMap,
    /// Pauses between streams.
    pub(crate) backoff: Backoff,
    /// Bytes of a response.
    pub(crate) message_bytes_max: usize,
}

/// An open stream. Dropping it closes its connection.
pub(crate) struct Stream {
    pub(crate) responses: Streaming<DiscoveryResponse>,
    requests: mpsc::Sender<DiscoveryRequest>,
}

/// A channel for one stream.
///
/// # Errors
/// The server cannot be reached within [`CONNECT_TIMEOUT`], or TLS fails.
pub(crate) async fn channel(server: &Server) -> anyhow::Result<Channel> {
    // The URL is only sent in requests: the connector has the address.
    let endpoint = Endpoint::from_shared(format!("http://{}", server.authority()))?
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    // A channel reconnects at once; the client backs off instead.
    let mut once = Some(server.clone());
    let connector = service_fn(move |_| {
        let server = once.take();
        async {
            let server = server.context("the connection was lost")?;
            server.connect().await
        }
    });
    // Boxed as that of OTLP, so that tonic's client is compiled once for both.
    let connecting = endpoint.connect_with_connector(BoxService::new(connector));
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
        let mut client = Grpc::new(channel).max_decoding_message_size(options.message_bytes_max);
        client.ready().await?;
        let path = PathAndQuery::from_static(METHOD);
        let responses = client.streaming(request, path, ResponseCodec).await;
        let responses = responses.map_err(|status| described(&status))?.into_inner();
        Ok(Self { responses, requests })
    }

    /// Sends a request. Where that fails, `responses` say why.
    pub(crate) async fn send(&self, request: DiscoveryRequest) {
        let _ = self.requests.send(request).await;
    }
}

/// A status with its causes.
pub(crate) fn described(status: &Status) -> anyhow::Error {
    let text = anyhow::anyhow!("{:?}: {}", status.code(), status.message());
    if status.source().is_some() { text.context(causes(status)) } else { text }
}

/// The causes of an error of tonic, whose own text is generic.
fn causes(error: &dyn Error) -> anyhow::Error {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    // Some errors repeat the text of their cause.
    texts.dedup();
    if texts.is_empty() {
        texts.push(error.to_string());
    }
    anyhow::Error::msg(texts.join(": "))
}
