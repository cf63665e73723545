//! Forwards calls to the upstream, on one HTTP/2 connection per worker.
//!
//! ```text
//!  connect --> open ---- ended, or got a GOAWAY --> connect
//!     ^   \        \
//!     |    \        ended at once
//!     |     v           v
//!     +------- failed -------    calls fail at once until an attempt succeeds
//! ```
//! A call is sent again only if the upstream has not seen it: the connection was closed before, or
//! the upstream says so (GOAWAY, REFUSED_STREAM), as gRPC clients do.
//!
//! This is `h2` rather than hyper's client, which writes the head and the body of a request one
//! after the other: two system calls here, and often two at the upstream.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Reason, RecvStream};
use http::header::{HOST, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use crate::base::backoff::Backoff;
use crate::base::net::remote::{CONNECT_TIMEOUT, Server};
use crate::base::time::{Clock, Span, Time};
use crate::trial::reply_budget::ReplyBudget;

/// Marks forwarded calls. A trial that receives one is its own upstream, or that of another trial.
pub(crate) const HOP: HeaderName = HeaderName::from_static("tollgate-trial");
/// Time for a reply of TRIAL_UPSTREAM to a caller without a grpc-timeout, or with a long one.
// bound upstream_timeout_max: DEADLINE_EXCEEDED; tollgate_trial_requests_total{outcome="late"}
pub(crate) const UPSTREAM_TIMEOUT_MAX: Span = Span::from_secs(60);
/// Attempts to send a call that the upstream has not seen.
// bound upstream_attempts_max: UNAVAILABLE; tollgate_trial_requests_total{outcome="unavailable"}
const ATTEMPTS_MAX: usize = 3;
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Pause between attempts to connect to TRIAL_UPSTREAM.
// bound upstream_pause_max: tried again; tollgate_trial_requests_total{outcome="unavailable"}
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A connection of this length was healthy.
const HEALTHY_MIN: Duration = Duration::from_millis(100);
/// Streams that callers canceled, for which a late reply may still arrive.
const RESETS_MAX: usize = 1_024;
/// Bytes that the upstream may send of one reply, and of all, before they are read.
const REPLY_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Bytes of the headers or trailers of a reply of TRIAL_UPSTREAM.
// bound upstream_head_bytes_max: UNAVAILABLE; tollgate_trial_requests_total{outcome="unavailable"}
const HEAD_BYTES_MAX: u32 = 64 << 10;
const HOP_VALUE: HeaderValue = HeaderValue::from_static("1");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The largest number in a grpc-timeout has eight digits.
const TIMEOUT_NUMBER_END: u64 = 100_000_000;

/// The connection of a worker to the upstream.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// The URI of the method at the upstream.
    uri: Uri,
    link: watch::Receiver<Link>,
    replies: Arc<ReplyBudget>,
    clock: Clock,
    /// Connects; ends with this.
    _connecting: JoinSet<()>,
}

/// A call to forward.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) headers: HeaderMap,
    /// The body as received, with the prefix of the message.
    pub(crate) body: Bytes,
    /// When the caller stops waiting.
    pub(crate) deadline: Option<Time>,
    /// When the reply is of no use any more.
    pub(crate) reply_by: Option<Time>,
}

/// A response of the upstream.
#[derive(Debug)]
pub(crate) struct RawReply {
    pub(crate) response: Response<Bytes>,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Why there is no response, as the caller gets it.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// No connection, or the response was reset or too large.
    Unavailable(Status),
    /// The deadline.
    Late(Status),
}

#[derive(Debug, Clone)]
enum Link {
    Connecting,
    Open(Open),
    Failed(Arc<str>),
}

/// An open connection.
#[derive(Debug, Clone)]
struct Open {
    requests: SendRequest<Bytes>,
    /// Notified when it accepts no more calls.
    closed: Arc<Notify>,
}

/// Why an attempt has no response.
enum Unsent {
    /// The upstream has not seen the call.
    Retry(Status),
    /// Nor will it, on this connection.
    Reconnect(Status),
    Failed(Status),
}

impl Upstream {
    /// For the worker that this is called on, which connects at once.
    pub(crate) fn open(server: Server, uri: Uri, replies: Arc<ReplyBudget>, clock: Clock) -> Self {
        let (sender, link) = watch::channel(Link::Connecting);
        let mut connecting = JoinSet::new();
        connecting.spawn(connect_forever(server, sender));
        Self { uri, link, replies, clock, _connecting: connecting }
    }

    /// Sends a call and receives its response.
    ///
    /// # Errors
    /// There is no complete response in time.
    pub(crate) async fn forward(&self, call: &Call) -> Result<RawReply, ForwardError> {
        let now = self.clock.now();
        let left = call.reply_by.map_or(UPSTREAM_TIMEOUT_MAX, |by| by.since(now));
        match timeout(left.min(UPSTREAM_TIMEOUT_MAX).into(), self.exchange(call)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(status)) => Err(ForwardError::Unavailable(status)),
            Err(_) => Err(ForwardError::Late(Status::deadline_exceeded(
                "the trial's upstream did not reply in time",
            ))),
        }
    }

    async fn exchange(&self, call: &Call) -> Result<RawReply, Status> {
        let mut link = self.link.clone();
        let mut last = Status::unavailable("the trial's upstream closed the connection");
        for _ in 0..ATTEMPTS_MAX {
            let open = open(&mut link).await?;
            match send(open, self.request(call), call.body.clone()).await {
                Ok(response) => return receive(response, &self.replies).await,
                Err(Unsent::Retry(status)) => last = status,
                Err(Unsent::Reconnect(status)) => {
                    last = status;
                    changed(&mut link).await?;
                }
                Err(Unsent::Failed(status)) => return Err(status),
            }
        }
        Err(last)
    }

    fn request(&self, call: &Call) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.clone_from(&call.headers);
        // The authority is the upstream's.
        headers.remove(HOST);
        headers.insert(HOP, HOP_VALUE);
        if let Some(deadline) = call.deadline {
            let left = deadline.since(self.clock.now());
            let value = HeaderValue::from_str(&grpc_timeout(left));
            headers.insert(GRPC_TIMEOUT, value.expect("digits and a letter"));
        }
        request
    }
}

/// The open connection.
///
/// # Errors
/// The last attempt to connect failed.
async fn open(link: &mut watch::Receiver<Link>) -> Result<Open, Status> {
    loop {
        match &*link.borrow_and_update() {
            Link::Open(open) => return Ok(open.clone()),
            Link::Failed(error) => return Err(Status::unavailable(&**error)),
            Link::Connecting => {}
        }
        changed(link).await?;
    }
}

async fn changed(link: &mut watch::Receiver<Link>) -> Result<(), Status> {
    let changed = link.changed().await;
    changed.map_err(|_| Status::unavailable("the service is stopping"))
}

async fn send(
    open: Open,
    request: Request<()>,
    body: Bytes,
) -> Result<Response<RecvStream>, Unsent> {
    let Open { requests, closed } = open;
    let unusable = |error: h2::Error| {
        closed.notify_one();
        Unsent::Reconnect(status_of(&error))
    };
    let mut requests = requests.ready().await.map_err(unusable)?;
    let sent = requests.send_request(request, false);
    let (response, mut stream) = sent.map_err(|error| Unsent::Failed(status_of(&error)))?;
    // If it fails, the response says why.
    let _ = stream.send_data(body, true);
    let error = match response.await {
        Ok(response) => return Ok(response),
        Err(error) => error,
    };
    Err(match error.reason() {
        Some(Reason::REFUSED_STREAM) if error.is_reset() => Unsent::Retry(status_of(&error)),
        Some(Reason::NO_ERROR) if error.is_go_away() && error.is_remote() => unusable(error),
        _ => Unsent::Failed(status_of(&error)),
    })
}

async fn receive(
    response: Response<RecvStream>,
    replies: &ReplyBudget,
) -> Result<RawReply, Status> {
    let (head, mut stream) = response.into_parts();
    let mut receiving = replies.receive();
    receiving.add_headers(&head.headers)?;
    while let Some(data) = stream.data().await {
        let data = data.map_err(|error| status_of(&error))?;
        receiving.add(&data)?;
        // It fails if the stream has ended, and then there is nothing to release.
        let _ = stream.flow_control().release_capacity(data.len());
    }
    let trailers = stream.trailers().await.map_err(|error| status_of(&error))?;
    if let Some(trailers) = &trailers {
        receiving.add_headers(trailers)?;
    }
    Ok(RawReply { response: Response::from_parts(head, receiving.finish()), trailers })
}

/// As gRPC clients report it: the code of a reset, and UNAVAILABLE for a connection that ended.
fn status_of(error: &h2::Error) -> Status {
    let code = match error.reason().filter(|_| error.is_reset()) {
        None | Some(Reason::REFUSED_STREAM) => Code::Unavailable,
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        Some(_) => Code::Internal,
    };
    Status::new(code, format!("the trial's upstream: {error}"))
}

/// A timeout of at most eight digits, in the finest unit.
fn grpc_timeout(left: Span) -> String {
    let micros = left.as_micros();
    let units = [(1, "u"), (1_000, "m"), (1_000_000, "S"), (60_000_000, "M")];
    let fitting = units.iter().find(|(unit, _)| micros / unit < TIMEOUT_NUMBER_END);
    let (unit, name) = fitting.unwrap_or(&(3_600_000_000, "H"));
    format!("{}{name}", micros / unit)
}

async fn connect_forever(server: Server, link: watch::Sender<Link>) {
    let mut backoff = Backoff::doubling(PAUSE_MIN, PAUSE_MAX);
    let mut logged = None;
    // Connections that got a GOAWAY, with calls in flight.
    let mut draining = JoinSet::new();
    loop {
        let ended = match connect(&server).await {
            Ok((requests, mut connection)) => {
                let closed = Arc::new(Notify::new());
                let began = Instant::now();
                link.send_replace(Link::Open(Open { requests, closed: closed.clone() }));
                let ended = tokio::select! {
                    ended = &mut connection => {
                        ended.map_or_else(|error| error.to_string(), |()| "it was closed".to_owned())
                    }
                    () = closed.notified() => {
                        draining.spawn(timeout(UPSTREAM_TIMEOUT_MAX.into(), connection));
                        "it accepts no calls".to_owned()
                    }
                };
                link.send_replace(Link::Connecting);
                while draining.try_join_next().is_some() {}
                if began.elapsed() >= HEALTHY_MIN {
                    backoff.reset();
                    logged = None;
                    continue;
                }
                ended
            }
            Err(error) => format!("{error:#}"),
        };
        let text = format!("the trial's upstream {}: {ended}", server.address);
        if logged.as_ref() != Some(&text) {
            tracing::warn!(upstream = %server.address, error = ended, "connection to the trial's upstream failed; retrying");
        }
        link.send_replace(Link::Failed(text.as_str().into()));
        logged = Some(text);
        sleep(backoff.pause()).await;
    }
}

/// A connection, as the handle that sends requests and the future that drives it to its end.
async fn connect(
    server: &Server,
) -> anyhow::Result<(
    SendRequest<Bytes>,
    Connection<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, Bytes>,
)> {
    let opening = async {
        let stream = server.connect().await?.into_inner();
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(REPLY_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEAD_BYTES_MAX)
            .max_concurrent_reset_streams(RESETS_MAX)
            .max_local_error_reset_streams(None);
        builder.handshake(stream).await.context("HTTP/2")
    };
    let opened = timeout(CONNECT_TIMEOUT, opening).await;
    opened.with_context(|| format!("no connection within {CONNECT_TIMEOUT:?}"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_at_most_eight_digits() {
        let of_micros = |micros| grpc_timeout(Span::from_micros(micros));
        for (micros, expected) in [
            (0, "0u"),
            (20_000, "20000u"),
            (99_999_999, "99999999u"),
            (100_000_000, "100000m"),
            (99_999_999_999, "99999999m"),
            (3_600_000_000_000, "3600000S"),
            (99_999_999 * 3_600_000_000, "99999999H"),
        ] {
            let written = of_micros(micros);
            assert_eq!(written, expected);
        }
    }
}
