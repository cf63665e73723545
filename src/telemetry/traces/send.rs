//! One batch over the wire: as protobuf in the body of an HTTP request, or as a gRPC call.

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
use crate::telemetry::traces::settings::{Options, Protocol};

/// As ALPN calls them.
const HTTP_1: &[u8] = b"http/1.1";
const HTTP_2: &[u8] = b"h2";
const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");
const USER_AGENT: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));
/// What a collector says to a batch is a few numbers.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// A way to the collector.
pub enum Sender {
    /// OTLP over HTTP.
    Http(Box<Http>),
    /// OTLP over gRPC.
    Grpc(Box<Grpc>),
}

/// Why a batch was not taken.
#[derive(Debug)]
pub enum Failure {
    /// It may be, later.
    Passing(String),
    /// It never will.
    Lasting(String),
}

/// See [`Sender::Http`].
pub struct Http {
    endpoint: Endpoint,
    tls: Tls,
    headers: HeaderMap,
    /// The connection that served last.
    open: Option<SendRequest<Body>>,
    /// What keeps it going.
    connections: JoinSet<()>,
}

/// See [`Sender::Grpc`].
pub struct Grpc {
    client: TraceServiceClient<Channel>,
    headers: HeaderMap,
}

impl Failure {
    /// Why.
    pub fn text(&self) -> &str {
        match self {
            Self::Passing(text) | Self::Lasting(text) => text,
        }
    }
}

impl Sender {
    /// Nothing is connected yet. Called on the runtime that sends.
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

    /// Sends a batch. Gives how many of its spans were not wanted.
    ///
    /// # Errors
    /// It was not taken.
    pub async fn send(&mut self, request: &ExportTraceServiceRequest) -> Result<u64, Failure> {
        let response = match self {
            Self::Http(http) => http.send(request).await?,
            Self::Grpc(grpc) => grpc.send(request.clone()).await?,
        };
        let Some(told) = response.partial_success else {
            return Ok(0);
        };
        if !told.error_message.is_empty() {
            tracing::debug!(
                rejected = told.rejected_spans,
                message = told.error_message,
                "the collector returned a message about spans"
            );
        }
        Ok(told.rejected_spans.try_into().unwrap_or(0))
    }
}

impl Http {
    async fn send(
        &mut self,
        request: &ExportTraceServiceRequest,
    ) -> Result<ExportTraceServiceResponse, Failure> {
        let passing = |error: anyhow::Error| Failure::Passing(format!("{error:#}"));
        let (status, body) = self.post(request.encode_to_vec()).await.map_err(passing)?;
        match status {
            // What is no message says nothing, and the spans were taken.
            _ if status.is_success() => {
                Ok(ExportTraceServiceResponse::decode(body).unwrap_or_default())
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(Failure::Passing(format!("HTTP status {status}"))),
            _ => Err(Failure::Lasting(format!("HTTP status {status}"))),
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
        // It is put back when it has served: whatever else happens to it, the next batch has
        // another one.
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
        let told = to_bytes(Body::new(response.into_body()), RESPONSE_BYTES_MAX)
            .await
            .context("read the answer")?;
        self.open = Some(connection);
        Ok((status, told))
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
            // Whoever sends is told, too.
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
            // As OTLP has it.
            match status.code() {
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss
                | Code::ResourceExhausted => Failure::Passing(text),
                _ => Failure::Lasting(text),
            }
        })?;
        Ok(response.into_inner())
    }
}

/// A channel that connects when it is used, and again when it has to.
fn channel(endpoint: Endpoint, tls: Tls) -> Channel {
    let origin = endpoint.uri().clone();
    // What it says is only sent along: the connector knows where to go, and speaks TLS by itself.
    let options = ChannelOptions::from_static("http://collector")
        .origin(origin)
        .user_agent(USER_AGENT)
        .expect("letters, / and numbers");
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
