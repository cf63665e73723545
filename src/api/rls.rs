//! RateLimitService: decodes a request, asks the limiter, converts the response.
//!
//! [`RlsServer`] replaces the server that tonic would generate: the size of a request is known, and
//! charged, before it is decoded.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use prost::bytes::Buf as _;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::{ProstDecoder, ProstEncoder};
use tower::Service;

use crate::api::admission::no_bytes_left;
use crate::api::budget::Call;
use crate::api::call_metrics::CallMetrics;
use crate::api::convert;
use crate::api::request_size::{MESSAGE_BYTES_MAX, RequestSize};
use crate::limiter::{Limiter, LimiterError};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::rules::query::Query;
use crate::telemetry::traces::{LiveSpan, Traces};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Initial size of a call's buffers: most requests and responses fit. tonic's 8 KiB each would be
/// most of the memory of a call in flight.
const BUFFER_BYTES: usize = 1 << 10;
/// tonic's own default.
const SEND_BYTES: usize = 32 << 10;
const GRPC_TIMEOUT: &str = "grpc-timeout";
/// Span name and attributes as in OpenTelemetry's instrumentation for gRPC.
const SPAN: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const SPAN_ATTRIBUTES: [(&str, &str); 3] = [
    ("rpc.system", "grpc"),
    ("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
    ("rpc.method", "ShouldRateLimit"),
];
const SPAN_STATUS: &str = "rpc.grpc.status_code";

/// The service, without its transport.
#[derive(Debug, Clone)]
pub struct Rls {
    limiter: Limiter,
    metrics: CallMetrics,
    traces: Traces,
}

/// The gRPC server of [`Rls`], and its only method as [`Grpc`] needs it.
#[derive(Debug, Clone)]
pub(crate) struct RlsServer(Arc<Rls>);

/// A decoded request, or the error of one that is too large to decode.
type Received = Result<RateLimitRequest, LimiterError>;

/// Decodes requests within the bounds, and charges their memory to the call.
struct RequestCodec(Option<Arc<Call>>);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Rls {
    /// Serves the decisions of a limiter.
    pub fn new(limiter: Limiter, metrics: CallMetrics, traces: Traces) -> Self {
        Self {
            limiter,
            metrics,
            traces,
        }
    }

    /// The status of a request that was not decoded.
    fn reject(&self, error: &LimiterError) -> Status {
        let began = self.limiter.clock().now();
        self.limiter.count(error);
        self.metrics.observe(began, self.limiter.clock());
        convert::status(error)
    }

    /// Serves one call.
    ///
    /// # Errors
    /// The status of [`convert::status`].
    pub async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let clock = self.limiter.clock();
        let began = clock.now();
        let deadline = request
            .metadata()
            .get(GRPC_TIMEOUT)
            .and_then(|timeout| convert::deadline(timeout.to_str().ok()?, began));
        let mut span = self
            .traces
            .begin(SPAN, request.metadata().as_ref())
            .map(start_attributes);
        let request = request.into_inner();
        let answer = self
            .limiter
            .decide(
                &Query {
                    deadline,
                    ..convert::query(&request)
                },
                span.as_ref(),
            )
            .await;
        self.metrics.observe(began, clock);
        let answer = answer
            .map(|answer| Response::new(convert::response(answer)))
            .map_err(|error| convert::status(&error));
        if let Some(span) = &mut span {
            end_attributes(span, answer.as_ref().err());
        }
        answer
    }
}

impl RlsServer {
    pub(crate) fn new(rls: Rls) -> Self {
        Self(Arc::new(rls))
    }
}

impl NamedService for RlsServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for RlsServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != PATH {
            return Box::pin(async { Ok(Status::unimplemented("").into_http()) });
        }
        let method = self.clone();
        let codec = RequestCodec(request.extensions_mut().remove::<Arc<Call>>());
        let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Box::pin(async move { Ok(grpc.unary(method, request).await) })
    }
}

impl UnaryService<Received> for RlsServer {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<Received>) -> Self::Future {
        let rls = self.0.clone();
        Box::pin(async move {
            let (metadata, extensions, received) = request.into_parts();
            match received {
                Ok(message) => {
                    rls.should_rate_limit(Request::from_parts(metadata, extensions, message))
                        .await
                }
                Err(error) => Err(rls.reject(&error)),
            }
        })
    }
}

impl Codec for RequestCodec {
    type Encode = RateLimitResponse;
    type Decode = Received;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(buffers())
    }

    fn decoder(&mut self) -> Self {
        Self(self.0.take())
    }
}

impl Decoder for RequestCodec {
    type Item = Received;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Received>, Status> {
        // It is the whole message: tonic collects one before it calls the decoder.
        let size = match RequestSize::of_protobuf(source.chunk()) {
            Ok(size) => size,
            Err(error) => {
                source.advance(source.remaining());
                return Ok(Some(Err(error)));
            }
        };
        if self.0.as_ref().is_some_and(|call| !call.hold(size.bytes())) {
            return Err(no_bytes_left());
        }
        Ok(ProstDecoder::new(buffers()).decode(source)?.map(Ok))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

fn buffers() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, SEND_BYTES)
}

/// The status is CANCELLED until there is a response: a caller that gives up leaves it so.
fn start_attributes(mut span: LiveSpan) -> LiveSpan {
    for (key, value) in SPAN_ATTRIBUTES {
        span.set_attribute(key, value);
    }
    span.set_number(SPAN_STATUS, Code::Cancelled as i32);
    span
}

fn end_attributes(span: &mut LiveSpan, status: Option<&Status>) {
    let code = status.map_or(Code::Ok, Status::code);
    span.set_number(SPAN_STATUS, code as i32);
    // As in OpenTelemetry's conventions: a client's error is not an error of the server.
    if let Some(status) = status.filter(|_| matches!(code, Code::Unknown | Code::Unavailable)) {
        span.fail(status.message());
    }
}
