//! Sends one batch: as protobuf in the body of an HTTP request, or as a gRPC call.

use anyhow::Context as _;
use axum::body::{Body, to_bytes};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use hyper::client::conn::http1::{self, SendRequest};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint as ChannelOptions};
use tonic::{Code, Extensions};
use tower::service_fn;

use crate::telemetry::traces::connect::{Endpoint, Tls};
use crate::telemetry::traces::options::Options;
use crate::telemetry::traces::settings::Protocol;

/// ALPN names.
const HTTP_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");
const USER_AGENT: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
/// A response of a collector is a few numbers.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// A connection to the collector.
pub enum Sender {
    /// OTLP over HTTP.
    Http(Box<Http>),
    /// OTLP over gRPC.
    Grpc(Box<Grpc>),
}

/// Why a batch was not accepted.
#[derive(Debug)]
pub enum Failure {
    /// A retry may succeed.
    Retryable(String),
    /// A retry is useless.
    Permanent(String),
}

/// See [`Sender::Http`].
pub struct Http {
    endpoint: Endpoint,
    tls: Tls,
    headers: HeaderMap,
    /// The connection of the last batch.
    open: Option<SendRequest<Body>>,
    /// Its driver.
    connections: JoinSet<()>,
}

/// See [`Sender::Grpc`].
pub struct Grpc {
    client: TraceServiceClient<Channel>,
    headers: HeaderMap,
}

impl Failure {
    /// The cause.
    pub fn text(&self) -> &str {
        match self {
            Self::Retryable(text) | Self::Permanent(text) => text,
        }
    }
}

impl Sender {
    /// Called on the runtime that sends; connects with the first batch.
    pub fn new(options: &Options) -> Self {
        let Options {
            endpoint,
            tls,
            headers,
            ..
        } = options.clone();
        match options.protocol {
            Protocol::Http => {
                let connections = JoinSet::new();
                Self::Http(Box::new(Http {
                    endpoint,
                    tls,
                    headers,
                    open: None,
                    connections,
                }))
            }
            Protocol::Grpc => Self::Grpc(Box::new(Grpc {
                client: TraceServiceClient::new(channel(endpoint, tls)),
                headers,
            })),
        }
    }

    /// Sends a batch, and returns the number of rejected spans.
    ///
    /// # Errors
    /// It was not accepted.
    pub async fn send(&mut self, request: &ExportTraceServiceRequest) -> Result<u64, Failure> {
        let response = match self {
            Self::Http(http) => http.send(request).await?,
            Self::Grpc(grpc) => grpc.send(request.clone()).await?,
        };
        let Some(partial) = response.partial_success else {
            return Ok(0);
        };
        if !partial.error_message.is_empty() {
            tracing::debug!(
                rejected = partial.rejected_spans,
                message = partial.error_message,
                "the collector returned a message about spans"
            );
        }
        Ok(partial.rejected_spans.try_into().unwrap_or(0))
    }
}

impl Http {
    async fn send(
        &mut self,
        request: &ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, Failure> {
        let retryable = |error: anyhow::Error| Failure::Retryable(format!("{error:#}"));
        let (status, body) = self
            .post(request.encode_to_vec())
            .await
            .map_err(retryable)?;
        match status {
            // Accepted, even if the body is not a valid message.
            _ if status.is_success() => {
                Ok(ExportTraceServiceResponse::decode(body).unwrap_or_default())
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                Err(Failure::Retryable(format!("HTTP status {status}")))
            }
            _ => Err(Failure::Permanent(format!("HTTP status {status}"))),
        }
    }

    async fn post(&mut self, body: Vec<u8>) -> anyhow::Result<(StatusCode, axum::body::Bytes)> {
        let uri = self.endpoint.uri();
        let mut request = Request::post(uri.path_and_query().map_or("/", |path| path.as_str()))
            .body(Body::from(body))?;
        *request.headers_mut() = self.headers.clone();
        let host = uri.authority().map_or("", |authority| authority.as_str());
        request
            .headers_mut()
            .insert(header::HOST, host.parse().context("the collector's host")?);
        request.headers_mut().insert(header::CONTENT_TYPE, PROTOBUF);
        request
            .headers_mut()
            .insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
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
        let connection = self
            .endpoint
            .clone()
            .connect(self.tls.clone(), HTTP_1)
            .await?;
        let (open, driving) = http1::handshake(connection).await.context("HTTP")?;
        self.connections.abort_all();
        self.connections.spawn(async {
            // The sender gets its errors too.
            let _ = driving.await;
        });
        Ok(open)
    }
}

impl Grpc {
    async fn send(
        &mut self,
        request: ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, Failure> {
        let metadata = MetadataMap::from_headers(self.headers.clone());
        let request = tonic::Request::from_parts(metadata, Extensions::default(), request);
        let response = self.client.export(request).await.map_err(|status| {
            let causes = anyhow::Error::from(status.clone());
            let text = format!("gRPC status {:?}: {:#}", status.code(), causes.root_cause());
            // Retryable codes by the OTLP specification.
            match status.code() {
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss
                | Code::ResourceExhausted => Failure::Retryable(text),
                _ => Failure::Permanent(text),
            }
        })?;
        Ok(response.into_inner())
    }
}

/// A channel that connects when it is used, and reconnects.
fn channel(endpoint: Endpoint, tls: Tls) -> Channel {
    let origin = endpoint.uri().clone();
    // Only sent along: the connector has the address, and does TLS itself.
    let options = ChannelOptions::from_static("http://collector")
        .origin(origin)
        .user_agent(USER_AGENT)
        .expect("a valid header value");
    options.connect_with_connector_lazy(service_fn(move |_| {
        let (endpoint, tls) = (endpoint.clone(), tls.clone());
        async move {
            endpoint
                .connect(tls, HTTP_2)
                .await
                .map_err(Box::<dyn std::error::Error + Send + Sync>::from)
        }
    }))
}
