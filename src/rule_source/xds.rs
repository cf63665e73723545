//! Rules from a control plane: asked for by xDS (aggregated, state of the world), and followed for
//! as long as the service runs.
//!
//! ```text
//!   connect --> ask --> response --> compile --> accept, or refuse with all that is wrong
//!      ^                   ^                            |
//!      |                   +----------------------------+
//!      +-- wait <-- the stream or the connection is over, whyever
//! ```
//!
//! All of it is on a thread of its own with a runtime of its own, so that no rules that are
//! compiled stand in a call's way. While the control plane is away the rules in force go on
//! serving.

use std::error::Error;
use std::mem;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use http::HeaderMap;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tower::service_fn;

use crate::backoff::{Backoff, BackoffPolicy, Jitter};
use crate::file_watch::{FileStat, FileWatch, RecursiveMode, Watched};
use crate::proto::envoy::config::core::v3::Node;
use crate::proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use crate::proto::google::rpc;
use crate::rule_source::overlay::OverlayFile;
use crate::rule_source::publisher::{RulePublisher, RulesHash};
use crate::rule_source::xds::connect::Server;
use crate::rule_source::xds::convert::{Resource, TYPE_URL};
use crate::telemetry::metric::{Counter, Gauge, Metrics};
use crate::text::Text;
use crate::time::{Clock, Span};

pub mod address;
pub mod connect;
pub mod convert;
pub mod settings;

/// Making a connection: to find the host, to reach it, and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that hangs is found by a PING. gRPC's servers in Go close connections that PING more
/// often than every five minutes.
const PING_INTERVAL: Duration = Duration::from_secs(360);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that wait to be sent. There is one for each response, and no other response is read
/// before it is on its way.
const REQUESTS_MAX: usize = 1;
/// Orders that may wait. One is as good as many.
const ORDERS_MAX: usize = 1;
/// How much of what is wrong the control plane is told. All of it is in the log.
pub const ERROR_BYTES_MAX: usize = 16 << 10;
/// Servers made with go-control-plane send what was refused again as soon as they are told so, for
/// ever. They are told ever later.
const REFUSED_AGAIN: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(200),
    // Better rules are not sent before, either.
    max: Duration::from_secs(5),
    factor: 2.0,
    jitter: Jitter::Half,
};
/// A stream that stood so long was a good one. When it ends that is told, though the one before it
/// ended likewise.
const STEADY: Span = Span::from_secs(60);
/// The setting of the longest message.
const MESSAGE_SETTING: &str = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";

/// What a client needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whom to ask.
    pub server: Server,
    /// Who asks.
    pub node: Node,
    /// Sent with each stream. Their values are shown to nobody.
    pub headers: HeaderMap,
    /// How long to wait between tries.
    pub(crate) backoff: BackoffPolicy,
    /// The longest response.
    pub message_bytes_max: usize,
}

/// Asks a control plane for rules.
#[derive(Debug)]
pub struct Client {
    options: Options,
    publisher: RulePublisher,
    clock: Clock,
    metrics: ClientMetrics,
    /// The version that was accepted last.
    accepted: Vec<u8>,
    /// What came last, and what became of it.
    last: Option<(RulesHash, Verdict)>,
    /// The rules that came last, for when the overlay changes.
    resources: Option<(Vec<Resource>, RulesHash)>,
    /// Whether it has.
    overlay_news: mpsc::Receiver<()>,
    /// Kept so that nobody takes its end for a change.
    overlay_changes: mpsc::Sender<()>,
    /// How long to wait before the same is refused again.
    refused_again: Backoff,
    /// The trouble that was told last.
    told: Option<String>,
    /// It is not known to be over.
    in_trouble: bool,
}

/// A client at work. Dropping it ends it; nobody waits for that, since it may be compiling.
#[derive(Debug)]
pub struct Subscription {
    orders: mpsc::Sender<()>,
    _overlay: Option<FileWatch>,
}

/// What becomes of a response: nothing, or what is wrong with it.
type Verdict = Result<(), Vec<String>>;

#[derive(Debug)]
struct ClientMetrics {
    connected: Gauge,
    streams: Counter,
    accepted: Counter,
    refused: Counter,
    repeated: Counter,
}

/// What to say to a response, and when.
struct Reply {
    request: DiscoveryRequest,
    wait: Option<Duration>,
}

/// A stream that ended.
struct Ended {
    why: String,
    /// New rules came on it, and were accepted.
    has_delivered: bool,
}

/// Tells a client that its overlay has changed.
struct OverlayWatch {
    file: OverlayFile,
    changes: mpsc::Sender<()>,
}

/// Shows that there is a connection, for as long as there is one.
struct Connected(Gauge);

impl Subscription {
    /// Begins to ask.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn start(client: Client) -> anyhow::Result<Self> {
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let overlay = client
            .publisher
            .overlay()
            .cloned()
            .map(|file| OverlayWatch {
                file,
                changes: client.overlay_changes.clone(),
            });
        let overlay = overlay.map(FileWatch::start).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start a runtime for xDS")?;
        let work = move || {
            runtime.block_on(client.run(ordered));
            // A look-up of a name may hang, and nobody waits for it.
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name("rules".to_owned())
            .spawn(work)
            .context("start the rules thread")?;
        Ok(Self {
            orders,
            _overlay: overlay,
        })
    }

    /// Asks for everything on a new connection, at once.
    pub fn ask_again(&self) {
        // It fails if that was ordered already.
        let _ = self.orders.try_send(());
    }
}

impl Client {
    /// It has not asked yet.
    pub fn new(
        options: Options,
        publisher: RulePublisher,
        clock: Clock,
        metrics: &Metrics,
    ) -> Self {
        let updates = |verdict| {
            metrics.counter_with(
                "tollgate_xds_updates_total",
                "Responses of the xDS server.",
                &[("verdict", verdict)],
            )
        };
        let metrics = ClientMetrics {
            connected: metrics.gauge(
                "tollgate_xds_connected",
                "1 while there is a connection to the xDS server.",
            ),
            streams: metrics.counter(
                "tollgate_xds_streams_total",
                "Streams opened to the xDS server.",
            ),
            accepted: updates("accepted"),
            refused: updates("refused"),
            repeated: updates("repeated"),
        };
        let (overlay_changes, overlay_news) = mpsc::channel(ORDERS_MAX);
        Self {
            options,
            publisher,
            clock,
            metrics,
            accepted: Vec::new(),
            last: None,
            resources: None,
            overlay_news,
            overlay_changes,
            refused_again: Backoff::new(REFUSED_AGAIN),
            told: None,
            in_trouble: true,
        }
    }

    async fn run(mut self, mut orders: mpsc::Receiver<()>) {
        let mut backoff = Backoff::new(self.options.backoff.clone());
        loop {
            let began = self.clock.now();
            let ended = tokio::select! {
                order = orders.recv() => {
                    if order.is_none() {
                        return;
                    }
                    self.forget(&mut backoff);
                    continue;
                }
                ended = self.run_once() => ended,
            };
            let lasted = self.clock.now().since(began);
            if ended.has_delivered || lasted >= backoff.max().into() {
                backoff.reset();
            }
            let wait = backoff.pause();
            self.tell(ended.why, lasted, wait);
            tokio::select! {
                order = orders.recv() => {
                    if order.is_none() {
                        return;
                    }
                    self.forget(&mut backoff);
                }
                _ = self.overlay_news.recv() => self.recompile(),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// The overlay has changed: what came last means something else now.
    fn recompile(&mut self) {
        let Some((resources, hash)) = self.resources.take() else {
            return;
        };
        let verdict = self.publish_resources(&resources, hash);
        if let Some((_, last)) = &mut self.last {
            *last = verdict;
        }
        self.resources = Some((resources, hash));
    }

    /// An operator doubts what is known. A server that takes our version for its newest would send
    /// nothing.
    fn forget(&mut self, backoff: &mut Backoff) {
        self.accepted.clear();
        self.last = None;
        backoff.reset();
    }

    /// Takes what comes until nothing comes any more.
    async fn run_once(&mut self) -> Ended {
        let accepted_before = self.metrics.accepted.get();
        let why = match self.run_stream().await {
            Ok(()) => "the server ended the stream".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        Ended {
            why,
            has_delivered: self.metrics.accepted.get() > accepted_before,
        }
    }

    async fn run_stream(&mut self) -> anyhow::Result<()> {
        let channel = self.connect().await?;
        let _connected = Connected::new(&self.metrics.connected);
        self.metrics.streams.inc();
        if mem::take(&mut self.in_trouble) {
            tracing::info!(server = %self.options.server.address, "connected to the xDS server");
        }
        let (requests, outgoing) = mpsc::channel(REQUESTS_MAX);
        // A version, so that the server need not send what is here already; but a nonce is of the
        // stream that it came on.
        let _ = requests.send(self.request(Vec::new(), None)).await;
        let mut responses = self.open(channel, ReceiverStream::new(outgoing)).await?;
        let mut held = None;
        loop {
            let next = self.next(&mut responses);
            let response = match held.take() {
                None => next.await?,
                Some((request, wait)) => match tokio::time::timeout(wait, next).await {
                    // Whatever was to be said of the older one, this is the one to answer.
                    Ok(response) => response?,
                    Err(_) => {
                        let _ = requests.send(request).await;
                        continue;
                    }
                },
            };
            let Some(response) = response else {
                return Ok(());
            };
            let Reply { request, wait } = self.handle_response(response);
            match wait {
                Some(wait) => held = Some((request, wait)),
                // If it fails, the stream tells why.
                None => drop(requests.send(request).await),
            }
        }
    }

    async fn connect(&self) -> anyhow::Result<Channel> {
        let server = &self.options.server;
        // What it says is only sent along: the connector knows where to go.
        let endpoint = Endpoint::from_shared(format!("http://{}", authority(server)))?
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        // A channel that has lost its connection would make another one at once. When to do so is
        // said elsewhere.
        let mut once = Some(server.clone());
        let connecting = endpoint.connect_with_connector(service_fn(move |_| {
            let server = once.take();
            async { server.context("the connection was lost")?.connect().await }
        }));
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        let connected =
            connected.with_context(|| format!("no connection within {CONNECT_TIMEOUT:?}"))?;
        connected.map_err(|error| chained(&error))
    }

    async fn open(
        &self,
        channel: Channel,
        outgoing: ReceiverStream<DiscoveryRequest>,
    ) -> anyhow::Result<Streaming<DiscoveryResponse>> {
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(self.options.message_bytes_max);
        let request = Request::from_parts(
            MetadataMap::from_headers(self.options.headers.clone()),
            tonic::Extensions::default(),
            outgoing,
        );
        let opened = client
            .stream_aggregated_resources(request)
            .await
            .map_err(|status| told(&status))?;
        Ok(opened.into_inner())
    }

    async fn next(
        &mut self,
        responses: &mut Streaming<DiscoveryResponse>,
    ) -> anyhow::Result<Option<DiscoveryResponse>> {
        let message = loop {
            tokio::select! {
                message = responses.message() => break message,
                _ = self.overlay_news.recv() => self.recompile(),
            }
        };
        let status = match message {
            Ok(response) => return Ok(response),
            Err(status) => status,
        };
        if status.code() == Code::OutOfRange {
            let max = self.options.message_bytes_max;
            let problem = format!(
                "a response has more than {max} bytes, the most by {MESSAGE_SETTING}; set it to more"
            );
            // What comes next is the newest again, also if it serves already.
            self.last = None;
            // Told once, not with every stream on which it is sent.
            if self.publisher.last_error().as_ref() != Some(&problem) {
                self.publisher.reject(vec![problem]);
            }
        }
        Err(told(&status))
    }

    /// Takes the rules of a response, or refuses them. What came just before is neither compiled
    /// nor told again.
    fn handle_response(&mut self, response: DiscoveryResponse) -> Reply {
        let content = response.resources.iter().map(|resource| ("", &**resource));
        let hash = RulesHash::of(content.chain([("type_url", &*response.type_url)]));
        let repeated = self.last.take().filter(|(last, _)| *last == hash);
        let is_new = repeated.is_none();
        let verdict = repeated.map_or_else(|| self.take(&response), |(_, verdict)| verdict);
        let counter = match &verdict {
            _ if !is_new => &self.metrics.repeated,
            Ok(()) => &self.metrics.accepted,
            Err(_) => &self.metrics.refused,
        };
        counter.inc();
        if is_new {
            self.refused_again.reset();
        }
        if verdict.is_ok() {
            self.accepted = response.version_info;
        }
        let error = verdict.as_ref().err().map(|problems| problems.join("\n"));
        let wait = (!is_new && error.is_some()).then(|| self.refused_again.pause());
        self.last = Some((hash, verdict));
        Reply {
            request: self.request(response.nonce, error),
            wait,
        }
    }

    fn take(&mut self, response: &DiscoveryResponse) -> Verdict {
        if response.type_url != TYPE_URL.as_bytes() {
            return Err(self.publisher.reject(vec![format!(
                "a response is of type {}, and not {TYPE_URL}",
                Text(&response.type_url)
            )]));
        }
        let (resources, unread): (Vec<_>, Vec<_>) = response
            .resources
            .iter()
            .map(|resource| Resource::read(resource))
            .partition(Result::is_ok);
        let problems: Vec<String> = unread.into_iter().filter_map(Result::err).collect();
        if !problems.is_empty() {
            return Err(self.publisher.reject(problems));
        }
        let resources: Vec<Resource> = resources.into_iter().filter_map(Result::ok).collect();
        let texts: Vec<Vec<u8>> = resources.iter().map(Resource::bytes).collect();
        let hash = RulesHash::of(
            resources
                .iter()
                .map(Resource::name)
                .zip(texts.iter().map(|text| &**text)),
        );
        let verdict = self.publish_resources(&resources, hash);
        self.resources = Some((resources, hash));
        verdict
    }

    fn publish_resources(&self, resources: &[Resource], hash: RulesHash) -> Verdict {
        match self.publisher.read_overlay() {
            Ok(overlay) => self.publisher.publish(resources, overlay, hash),
            Err(error) => Err(self.publisher.reject(vec![format!("{error:#}")])),
        }
    }

    fn request(&self, nonce: Vec<u8>, error: Option<String>) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.accepted.clone(),
            node: Some(self.options.node.clone()),
            // All there are.
            resource_names: Vec::new(),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce,
            error_detail: error.map(|error| rpc::Status {
                message: bounded(error),
                ..rpc::Status::default()
            }),
        }
    }

    /// Tells a trouble once, however often it is met in a row.
    fn tell(&mut self, why: String, lasted: Span, wait: Duration) {
        let server = &self.options.server.address;
        if lasted < STEADY && self.told.as_ref() == Some(&why) {
            tracing::debug!(%server, error = why, ?wait, "still no stream of the xDS server");
            return;
        }
        tracing::warn!(%server, error = why, ?wait, "no stream of the xDS server: trying again; the rules in force go on serving");
        self.told = Some(why);
        self.in_trouble = true;
    }
}

impl Watched for OverlayWatch {
    type Signature = Option<FileStat>;

    const NAME: &'static str = "overlay";

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        vec![(self.file.watched().to_owned(), RecursiveMode::NonRecursive)]
    }

    fn signature(&self) -> Self::Signature {
        self.file.facts()
    }

    fn needs_retry(&self) -> bool {
        false
    }

    fn load(&mut self) {
        // It fails if that was told already.
        let _ = self.changes.try_send(());
    }
}

impl Connected {
    fn new(gauge: &Gauge) -> Self {
        gauge.set(1);
        Self(gauge.clone())
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// What a server is called in requests. A socket has no name.
fn authority(server: &Server) -> String {
    match &server.address {
        address @ address::Address::Tcp { .. } => address.to_string(),
        address::Address::Unix(_) => "localhost".to_owned(),
    }
}

/// An error and what is behind it. What the library says of its own says nothing.
fn chained(error: &dyn Error) -> anyhow::Error {
    let mut texts = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some say what the one behind them says.
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

fn told(status: &Status) -> anyhow::Error {
    let text = anyhow::anyhow!("{:?}: {}", status.code(), status.message());
    if status.source().is_some() {
        text.context(chained(status))
    } else {
        text
    }
}

/// A text of no more than [`ERROR_BYTES_MAX`], and how much is missing.
fn bounded(mut text: String) -> String {
    let left_out = text.len().saturating_sub(ERROR_BYTES_MAX);
    if left_out > 0 {
        let end = (0..=ERROR_BYTES_MAX)
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or_default();
        text.truncate(end);
        text += &format!("… (and {left_out} bytes more, which are in the log)");
    }
    text
}
