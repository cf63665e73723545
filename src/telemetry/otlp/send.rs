//! Sends one batch: as protobuf in the body of an HTTP request, or as a gRPC call.

use anyhow::Context as _;
use axum::body::{Body, Bytes, to_bytes};
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::client::conn::http1::{self, SendRequest};
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::either::Either;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Extensions};
use tonic_prost::ProstCodec;
use tower::service_fn;
use tower::util::BoxService;

use crate::base::net::remote::Connection;
use crate::base::net::tls::{self, ClientTls};
use crate::base::proto::opentelemetry::proto::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use crate::telemetry::otlp::options::{Options, Protocol};

/// ALPN names.
const HTTP_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");
/// The method of gRPC.
const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const USER_AGENT: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
/// Bytes of a response of a collector, which is a few numbers.
// bound otlp_response_bytes_max: the attempt fails; tollgate_spans_lost_total{cause="failed"}
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// A connection to the collector.
pub(super) enum Sender {
    Http(Box<Http>),
    Grpc(Box<Grpc<Channel>>, HeaderMap),
}

/// Why a batch was not accepted.
#[derive(Debug)]
pub(super) struct SendError {
    pub(super) text: String,
    /// Whether a retry may succeed.
    pub(super) may_retry: bool,
}

/// OTLP over HTTP.
pub(super) struct Http {
    endpoint: Uri,
    tls: ClientTls,
    headers: HeaderMap,
    /// The connection of the last batch.
    open: Option<SendRequest<Body>>,
    /// The drivers of connections.
    connections: JoinSet<()>,
}

impl Sender {
    /// Called on the runtime that sends; connects with the first batch.
    pub(super) fn new(options: &Options) -> Self {
        let Options { endpoint, tls, headers, .. } = options.clone();
        match options.protocol {
            Protocol::Http => Self::Http(Box::new(Http {
                endpoint,
                tls,
                headers,
                open: None,
                connections: JoinSet::new(),
            })),
            Protocol::Grpc => {
                let client = Grpc::new(channel(endpoint, tls));
                Self::Grpc(Box::new(client), headers)
            }
        }
    }

    /// Sends a batch, and returns the number of rejected spans.
    ///
    /// # Errors
    /// The collector did not accept the request.
    pub(super) async fn send(
        &mut self,
        request: &ExportTraceServiceRequest,
    ) -> Result<u64, SendError> {
        let response = match self {
            Self::Http(http) => http.send(request).await?,
            Self::Grpc(client, headers) => {
                let metadata = MetadataMap::from_headers(headers.clone());
                let request =
                    tonic::Request::from_parts(metadata, Extensions::default(), request.clone());
                let response = call(client, request).await;
                response.map_err(|status| grpc_failure(&status))?
            }
        };
        let partial = response.partial_success.unwrap_or_default();
        let rejected = partial.rejected_spans;
        if !partial.error_message.is_empty() {
            let message = partial.error_message;
            tracing::debug!(rejected, message, "the collector returned a message");
        }
        Ok(rejected.try_into().unwrap_or(0))
    }
}

impl Http {
    async fn send(
        &mut self,
        request: &ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, SendError> {
        let posted = self.post(request.encode_to_vec()).await;
        let (status, body) =
            posted.map_err(|error| SendError { text: format!("{error:#}"), may_retry: true })?;
        if status.is_success() {
            // Accepted, even if the body is not a valid message.
            return Ok(ExportTraceServiceResponse::decode(body).unwrap_or_default());
        }
        Err(SendError {
            text: format!("HTTP status {status}"),
            may_retry: matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            ),
        })
    }

    async fn post(&mut self, body: Vec<u8>) -> anyhow::Result<(StatusCode, Bytes)> {
        let path = self.endpoint.path_and_query();
        let mut request =
            http::Request::post(path.map_or("/", |path| path.as_str())).body(Body::from(body))?;
        let host = self.endpoint.authority().map_or("", |host| host.as_str());
        let headers = request.headers_mut();
        *headers = self.headers.clone();
        headers.insert(header::HOST, host.parse().context("the collector's host")?);
        headers.insert(header::CONTENT_TYPE, PROTOBUF);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        // Put back after a response: after any failure the next batch has a new connection.
        let reused = match self.open.take() {
            Some(mut open) => open.ready().await.is_ok().then_some(open),
            None => None,
        };
        let mut connection = match reused {
            Some(open) => open,
            None => self.connect().await?,
        };
        let response = connection.send_request(request).await.context("send")?;
        let status = response.status();
        let body = to_bytes(Body::new(response.into_body()), RESPONSE_BYTES_MAX)
            .await
            .context("read the response")?;
        self.open = Some(connection);
        Ok((status, body))
    }

    async fn connect(&mut self) -> anyhow::Result<SendRequest<Body>> {
        let connection = connect(&self.endpoint, &self.tls, HTTP_1).await?;
        let (open, driving) = http1::handshake(connection).await.context("HTTP")?;
        self.connections.abort_all();
        self.connections.spawn(async {
            // The sender gets its errors too.
            let _ = driving.await;
        });
        Ok(open)
    }
}

async fn call(
    client: &mut Grpc<Channel>,
    request: tonic::Request<ExportTraceServiceRequest>,
) -> Result<ExportTraceServiceResponse, tonic::Status> {
    let ready = client.ready().await;
    ready.map_err(|error| tonic::Status::from_error(error.into()))?;
    let codec = ProstCodec::<ExportTraceServiceRequest, ExportTraceServiceResponse>::default();
    let path = PathAndQuery::from_static(METHOD);
    Ok(client.unary(request, path, codec).await?.into_inner())
}

fn grpc_failure(status: &tonic::Status) -> SendError {
    let causes = anyhow::Error::from(status.clone());
    SendError {
        text: format!("gRPC status {:?}: {:#}", status.code(), causes.root_cause()),
        // By the OTLP specification.
        may_retry: matches!(
            status.code(),
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss
                | Code::ResourceExhausted
        ),
    }
}

/// A channel that connects when it is used, and reconnects.
fn channel(endpoint: Uri, tls: ClientTls) -> Channel {
    // Only sent along: the connector has the address, and does TLS itself.
    let options = Endpoint::from_static("http://collector")
        .origin(endpoint.clone())
        .user_agent(USER_AGENT)
        .expect("a valid header value");
    let connector = service_fn(move |_| {
        let endpoint = endpoint.clone();
        let tls = tls.clone();
        async move { connect(&endpoint, &tls, HTTP_2).await }
    });
    // Boxed as that of xDS, so that tonic's client is compiled once for both.
    options.connect_with_connector_lazy(BoxService::new(connector))
}

/// Connects to a collector; `protocol` is its ALPN name.
async fn connect(endpoint: &Uri, tls: &ClientTls, protocol: &[u8]) -> anyhow::Result<Connection> {
    let host = endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_encrypted = endpoint.scheme() == Some(&Scheme::HTTPS);
    let default_port = if is_encrypted { 443 } else { 80 };
    let address = (host, endpoint.port_u16().unwrap_or(default_port));
    let plain = async {
        let stream = TcpStream::connect(address).await.context("connect")?;
        stream.set_nodelay(true)?;
        anyhow::Ok(Either::Left(stream))
    };
    tls::connect(is_encrypted.then_some(tls), host, protocol, plain).await
}
