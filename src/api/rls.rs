//! RateLimitService: decode, ask, convert. No decisions.
//!
//! [`RlsServer`] stands in for the server that tonic would generate, since it decodes otherwise: a
//! request is counted before it is built.

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
use crate::api::request_size::RequestSize;
use crate::api::{MESSAGE_BYTES_MAX, convert};
use crate::limiter::{Limiter, LimiterError};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::rules::query::Query;
use crate::telemetry::metric::{Counter, Metrics, Timer};
use crate::telemetry::traces::{Kind, LiveSpan, Traces};
use crate::time::{Clock, Time};

/// The one method.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Buffers of a call, at first: most requests and answers fit. tonic's 8 KiB each would be most of
/// what a call in flight takes.
const BUFFER_BYTES: usize = 1 << 10;
/// From here on tonic sends what it has encoded; its own default.
const SEND_BYTES: usize = 32 << 10;
/// How long the caller waits.
const GRPC_TIMEOUT: &str = "grpc-timeout";
/// The name of a call's span, and of its parts, as OpenTelemetry's library for gRPC has them.
const SPAN: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const SPAN_ATTRIBUTES: [(&str, &str); 3] = [
    ("rpc.system", "grpc"),
    ("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
    ("rpc.method", "ShouldRateLimit"),
];
const SPAN_STATUS: &str = "rpc.grpc.status_code";

/// The service.
#[derive(Debug, Clone)]
pub struct Rls {
    limiter: Limiter,
    calls: Calls,
    traces: Traces,
}

/// Serves [`Rls`] by gRPC.
#[derive(Debug, Clone)]
pub struct RlsServer(Arc<Rls>);

/// A request as it was decoded, or why it was not.
type Received = Result<RateLimitRequest, LimiterError>;

/// Decodes requests that are within the bounds, with the call that holds what they take.
struct RequestCodec(Option<Arc<Call>>);

/// See [`RequestCodec`].
struct RequestDecoder(Option<Arc<Call>>);

/// The method for [`Grpc`].
struct ShouldRateLimit(Arc<Rls>);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls of one gRPC method, as the reference counts them.
#[derive(Debug, Clone)]
pub struct Calls {
    total: Counter,
    time: Timer,
}

impl Rls {
    /// A door to the limiter.
    pub fn new(limiter: Limiter, calls: Calls, traces: Traces) -> Self {
        Self {
            limiter,
            calls,
            traces,
        }
    }

    /// The error of a call that is not decided.
    fn refuse(&self, refusal: &LimiterError) -> Status {
        let began = self.limiter.clock().now();
        self.limiter.count(refusal);
        self.calls.count(began, self.limiter.clock());
        convert::status(refusal)
    }
}

impl Calls {
    /// The metrics of a method.
    pub fn of(method: &str, metrics: &Metrics) -> Self {
        let labels = [("grpc_method", method)];
        let statsd = |what: &str| format!("ratelimit_server.{method}.{what}");
        let (total, time) = (
            "gRPC calls, by method.",
            "How long a gRPC call took in here.",
        );
        Self {
            total: metrics.reference_counter(
                &statsd("total_requests"),
                "ratelimit_service_total_requests",
                total,
                &labels,
            ),
            time: metrics.reference_timer(
                &statsd("response_time"),
                "ratelimit_service_response_time_seconds",
                time,
                &labels,
            ),
        }
    }

    /// Counts a call that began then, and ends now.
    pub fn count(&self, began: Time, clock: &Clock) {
        self.total.inc();
        self.time.observe(clock.now().since(began));
    }
}

impl Rls {
    /// Answers one call.
    ///
    /// # Errors
    /// As [`convert::status`] has it.
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
            .begin(SPAN, Kind::Server, request.metadata().as_ref())
            .map(begun);
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
        self.calls.count(began, clock);
        let answer = answer
            .map(|answer| Response::new(convert::response(answer)))
            .map_err(|refusal| convert::status(&refusal));
        if let Some(span) = &mut span {
            ended(span, answer.as_ref().err());
        }
        answer
    }
}

impl RlsServer {
    /// Serves this by gRPC.
    pub fn new(rls: Rls) -> Self {
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
        let method = ShouldRateLimit(self.0.clone());
        let codec = RequestCodec(request.extensions_mut().remove::<Arc<Call>>());
        let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Box::pin(async move { Ok(grpc.unary(method, request).await) })
    }
}

impl UnaryService<Received> for ShouldRateLimit {
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
                Err(refusal) => Err(rls.refuse(&refusal)),
            }
        })
    }
}

impl Codec for RequestCodec {
    type Encode = RateLimitResponse;
    type Decode = Received;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = RequestDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(buffers())
    }

    fn decoder(&mut self) -> RequestDecoder {
        RequestDecoder(self.0.take())
    }
}

impl Decoder for RequestDecoder {
    type Item = Received;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Received>, Status> {
        // All of it is one piece: the library collects a message before it has it decoded.
        let size = match RequestSize::of_protobuf(source.chunk()) {
            Ok(size) => size,
            Err(refusal) => {
                source.advance(source.remaining());
                return Ok(Some(Err(refusal)));
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

/// Until there is an answer, whoever looks at its span sees a call that its caller gave up.
fn begun(mut span: LiveSpan) -> LiveSpan {
    for (key, value) in SPAN_ATTRIBUTES {
        span.set_attribute(key, value);
    }
    span.set_number(SPAN_STATUS, Code::Cancelled as i32);
    span
}

fn ended(span: &mut LiveSpan, status: Option<&Status>) {
    let code = status.map_or(Code::Ok, Status::code);
    span.set_number(SPAN_STATUS, code as i32);
    // As OpenTelemetry has it: an error that is the caller's own is none of the server's.
    if let Some(status) = status.filter(|_| matches!(code, Code::Unknown | Code::Unavailable)) {
        span.fail(status.message());
    }
}
