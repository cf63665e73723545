//! Subscribes to a control plane, and reconnects with backoff.

use std::convert::Infallible;
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Code;

use crate::base::file_watch::{FileStat, FileWatch, RecursiveMode, Watched, directory_of};
use crate::base::proto::envoy::service::discovery::v3::DiscoveryRequest;
use crate::base::proto::google::rpc;
use crate::base::runtime::Thread;
use crate::base::time::{Clock, Span};
use crate::rules::source::publisher::RulePublisher;
use crate::rules::source::xds::convert::TYPE_URL;
use crate::rules::source::xds::stream::{self, Stream, XdsOptions, described};
use crate::rules::source::xds::updates::Updates;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// A stream of this length was healthy: its end is logged even if the error is that of the one
/// before it.
const HEALTHY_MIN: Span = Span::from_secs(60);

/// Receives rules from a control plane.
#[derive(Debug)]
pub(crate) struct Client {
    options: XdsOptions,
    updates: Updates,
    clock: Clock,
    connected: Gauge,
    streams: Counter,
    refresh: Arc<Notify>,
    overlay_changed: Arc<Notify>,
    /// The error that was logged last.
    logged: Option<String>,
    /// No stream was opened since the last logged error, or yet.
    is_failing: bool,
}

/// A client on its thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    refresh: Arc<Notify>,
    _thread: Thread,
    _overlay: Option<FileWatch>,
}

/// Notifies a client when its overlay changes.
struct OverlayWatch {
    path: PathBuf,
    seen: Option<FileStat>,
    changed: Arc<Notify>,
}

impl Subscription {
    /// Starts the client.
    ///
    /// # Errors
    /// A thread or its runtime cannot be started.
    pub(crate) fn start(client: Client) -> anyhow::Result<Self> {
        let overlay = client.updates.publisher.overlay();
        let overlay = overlay.map(|path| OverlayWatch {
            path: path.to_owned(),
            seen: None,
            changed: client.overlay_changed.clone(),
        });
        Ok(Self {
            refresh: client.refresh.clone(),
            _overlay: overlay.map(FileWatch::start).transpose()?,
            _thread: Thread::spawn("rules", Box::pin(client.run()))?,
        })
    }

    /// Requests everything on a new connection.
    pub(crate) fn refresh(&self) {
        self.refresh.notify_one();
    }
}

impl Client {
    /// Registers the metrics.
    pub(crate) fn new(
        options: XdsOptions,
        publisher: RulePublisher,
        clock: Clock,
        metrics: &Metrics,
    ) -> Self {
        Self {
            options,
            updates: Updates::new(publisher, metrics),
            clock,
            connected: metrics.gauge(
                "tollgate_xds_connected",
                "1 while there is a connection to the xDS server.",
            ),
            streams: metrics
                .counter("tollgate_xds_streams_total", "Streams opened to the xDS server."),
            refresh: Arc::default(),
            overlay_changed: Arc::default(),
            logged: None,
            is_failing: true,
        }
    }

    async fn run(mut self) {
        let mut backoff = self.options.backoff.clone();
        let refresh = self.refresh.clone();
        loop {
            let began = self.clock.now();
            let mut has_delivered = false;
            let ended = tokio::select! {
                () = refresh.notified() => None,
                ended = self.run_stream(&mut has_delivered) => Some(ended),
            };
            self.connected.set(0);
            if let Some(Err(error)) = ended {
                let lasted = self.clock.now().since(began);
                if has_delivered || lasted >= backoff.max.into() {
                    backoff.reset();
                }
                let pause = backoff.pause();
                self.log_end(format!("{error:#}"), lasted, pause);
                tokio::select! {
                    () = refresh.notified() => {}
                    () = self.overlay_changed.notified() => {
                        self.updates.recompile();
                        continue;
                    }
                    () = sleep(pause) => continue,
                }
            }
            self.updates.forget();
            backoff.reset();
        }
    }

    /// Runs one stream to its end. `has_delivered` is set when new rules were published from it.
    async fn run_stream(&mut self, has_delivered: &mut bool) -> anyhow::Result<Infallible> {
        let channel = stream::channel(&self.options.server).await?;
        self.connected.set(1);
        self.streams.inc();
        if mem::take(&mut self.is_failing) {
            tracing::info!(server = %self.options.server.address, "connected to the xDS server");
        }
        // A nonce is valid on its own stream only.
        let first = self.request(Vec::new(), None);
        let mut stream = Stream::open(channel, &self.options, first).await?;
        // A request, and when to send it.
        let mut delayed: Option<(DiscoveryRequest, Instant)> = None;
        loop {
            let due = delayed.as_ref().map(|(_, due)| *due);
            let response = tokio::select! {
                response = stream.responses.message() => response,
                () = self.overlay_changed.notified() => {
                    self.updates.recompile();
                    continue;
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if let Some((request, _)) = delayed.take() {
                        stream.send(request).await;
                    }
                    continue;
                }
            };
            let response = response.map_err(|status| {
                if status.code() == Code::OutOfRange {
                    self.updates.reject_oversized(self.options.message_bytes_max);
                }
                described(&status)
            })?;
            let Some(response) = response else {
                bail!("the server ended the stream");
            };
            let nonce = response.nonce.clone();
            let reply = self.updates.handle_response(response);
            *has_delivered |= reply.is_news;
            let request = self.request(nonce, reply.error);
            // It replaces a delayed reply to an older response.
            delayed = reply.delay.map(|delay| (request.clone(), Instant::now() + delay));
            if delayed.is_none() {
                stream.send(request).await;
            }
        }
    }

    fn request(&self, nonce: Vec<u8>, error: Option<String>) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.updates.accepted_version.clone(),
            node: Some(self.options.node.clone()),
            // All resources.
            resource_names: Vec::new(),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce,
            error_detail: error.map(|message| rpc::Status { message, ..rpc::Status::default() }),
        }
    }

    /// Logs an error once, however often it is repeated.
    fn log_end(&mut self, error: String, lasted: Span, pause: Duration) {
        let server = &self.options.server.address;
        if lasted < HEALTHY_MIN && self.logged.as_ref() == Some(&error) {
            tracing::debug!(%server, error, ?pause, "xDS stream failed again");
            return;
        }
        tracing::warn!(%server, error, ?pause, "xDS stream failed; retrying with the last good configuration");
        self.logged = Some(error);
        self.is_failing = true;
    }
}

impl Watched for OverlayWatch {
    fn name(&self) -> &'static str {
        "overlay"
    }

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        let directory = directory_of(&self.path).to_owned();
        vec![(directory, RecursiveMode::NonRecursive)]
    }

    fn has_changed(&mut self) -> bool {
        FileStat::of(&self.path) != self.seen
    }

    fn load(&mut self) {
        self.seen = FileStat::of(&self.path);
        self.changed.notify_one();
    }
}
