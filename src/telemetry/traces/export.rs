//! Sends spans, on a thread of its own: whatever the collector does, or does not do, nobody else
//! waits for it.
//!
//! What comes within a second travels together. A batch that is not taken is sent again for as long
//! as OTEL_EXPORTER_OTLP_TIMEOUT says, and then lost; meanwhile spans wait in the queue, or are
//! lost when it is full. Each is counted.

use std::mem;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::{mpsc, oneshot, watch};

use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::send::{Failure, Sender};
use crate::telemetry::traces::settings::Options;

/// How many spans travel together, as in OpenTelemetry's libraries.
const BATCH_SPANS_MAX: usize = 512;
/// How long a span waits for others to travel with. Whoever looks for a trace has not looked twice
/// by then.
const LINGER: Duration = Duration::from_secs(1);
/// How long to wait before a batch is sent again; twice as long each time.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How long the end of the process waits for the last spans, at most.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Who sends spans, before it begins.
#[derive(Debug)]
pub struct Exporter {
    options: Options,
    recorded: mpsc::Receiver<Span>,
    sent: Counter,
    failures: Counter,
    /// Spans that were given up.
    given_up: Counter,
    /// Spans that the collector did not want.
    rejected: Counter,
}

/// The thread that sends. Dropped, it goes on to the end of the process.
#[derive(Debug)]
pub struct SpanExporterTask {
    stop: watch::Sender<bool>,
    /// Closed when the thread has ended.
    ended: oneshot::Receiver<()>,
}

/// The thread's work.
struct Work {
    exporter: Exporter,
    sender: Sender,
    stop: watch::Receiver<bool>,
    /// Taken from the queue, and not sent yet.
    batch: Vec<Span>,
    in_trouble: bool,
}

/// The metric of spans that nobody will see, by cause.
pub fn lost(cause: &str, metrics: &Metrics) -> Counter {
    metrics.counter_with(
        "tollgate_spans_lost_total",
        "Spans that were not sent: the queue had no room (full), the collector took none in time (failed), or did not want them (rejected).",
        &[("cause", cause)],
    )
}

impl Exporter {
    /// Sends what arrives in this queue.
    pub fn new(options: Options, recorded: mpsc::Receiver<Span>, metrics: &Metrics) -> Self {
        Self {
            options,
            recorded,
            sent: metrics.counter(
                "tollgate_spans_sent_total",
                "Spans that the collector took.",
            ),
            failures: metrics.counter(
                "tollgate_span_exports_failed_total",
                "Times that spans were sent to the collector in vain.",
            ),
            given_up: lost("failed", metrics),
            rejected: lost("rejected", metrics),
        }
    }

    /// Begins.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn start(self) -> anyhow::Result<SpanExporterTask> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start a runtime")?;
        let (stop, stopped) = watch::channel(false);
        let (ended_here, ended) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                let sender = Sender::new(&self.options);
                let work = Work {
                    sender,
                    stop: stopped,
                    batch: Vec::new(),
                    in_trouble: false,
                    exporter: self,
                };
                work.run().await;
            });
            // It fails if nobody waits for it.
            let _ = ended_here.send(());
        };
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(run)
            .context("start a thread")?;
        Ok(SpanExporterTask { stop, ended })
    }
}

impl SpanExporterTask {
    /// Sends what is left. Gives whether that was done before [`FLUSH_TIMEOUT`] was over.
    pub async fn flush(self) -> bool {
        // It fails only if the thread has ended.
        let _ = self.stop.send(true);
        tokio::time::timeout(FLUSH_TIMEOUT, self.ended)
            .await
            .is_ok()
    }
}

impl Work {
    async fn run(mut self) {
        let mut stop = self.stop.clone();
        loop {
            let is_open = tokio::select! {
                is_open = self.fill() => is_open,
                // It fails where nobody will ever say so.
                Ok(_) = stop.wait_for(|stop| *stop) => false,
            };
            if !is_open {
                break;
            }
            self.export().await;
        }
        while let Ok(span) = self.exporter.recorded.try_recv() {
            self.batch.push(span);
            if self.batch.len() >= BATCH_SPANS_MAX {
                self.export().await;
            }
        }
        self.export().await;
    }

    /// Waits for a batch. Gives whether there may be another one.
    async fn fill(&mut self) -> bool {
        let Self {
            exporter: Exporter { recorded, .. },
            batch,
            ..
        } = self;
        if batch.is_empty() && recorded.recv_many(batch, BATCH_SPANS_MAX).await == 0 {
            return false;
        }
        let more = async {
            while batch.len() < BATCH_SPANS_MAX
                && recorded
                    .recv_many(batch, BATCH_SPANS_MAX - batch.len())
                    .await
                    > 0
            {}
        };
        // What has come until then is enough.
        let _ = tokio::time::timeout(LINGER, more).await;
        true
    }

    /// Sends the batch, if there is anything in it.
    async fn export(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let spans = mem::take(&mut self.batch);
        let count = spans.len() as u64;
        let request = self.request(spans);
        let timeout = self.exporter.options.timeout.into();
        let sent = tokio::time::timeout(timeout, self.send(&request)).await;
        let sent =
            sent.unwrap_or_else(|_| Err(self.failed(&format!("not taken within {timeout:?}"))));
        let Exporter {
            sent: taken,
            rejected,
            given_up,
            ..
        } = &self.exporter;
        match sent {
            Ok(unwanted) => {
                let unwanted = unwanted.min(count);
                taken.inc_by(count - unwanted);
                rejected.inc_by(unwanted);
                if mem::take(&mut self.in_trouble) {
                    tracing::info!(endpoint = %self.exporter.options.endpoint, "the collector takes spans again");
                }
            }
            Err(GivenUp) => given_up.inc_by(count),
        }
    }

    /// Sends until it is taken, or there is no use in it. Gives how many spans were not wanted.
    async fn send(&mut self, request: &ExportTraceServiceRequest) -> Result<u64, GivenUp> {
        let mut pause = RETRY_FIRST;
        loop {
            let failure = match self.sender.send(request).await {
                Ok(unwanted) => return Ok(unwanted),
                Err(failure) => failure,
            };
            let given_up = self.failed(failure.text());
            let stop = self.stop.wait_for(|stop| *stop);
            let may_go_on = matches!(failure, Failure::Passing(_))
                && tokio::time::timeout(pause, stop).await.is_err();
            if !may_go_on {
                return Err(given_up);
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Counts a failure, and tells the first of several.
    fn failed(&mut self, why: &str) -> GivenUp {
        self.exporter.failures.inc();
        let endpoint = &self.exporter.options.endpoint;
        if mem::replace(&mut self.in_trouble, true) {
            tracing::debug!(%endpoint, why, "spans could not be sent");
        } else {
            tracing::warn!(%endpoint, why, "trace export failed; requests are unaffected");
        }
        GivenUp
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let resource = Resource {
            attributes: self.exporter.options.resource.clone(),
            ..Resource::default()
        };
        let scope_spans = vec![ScopeSpans {
            scope: Some(scope),
            spans,
            ..ScopeSpans::default()
        }];
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(resource),
                scope_spans,
                ..ResourceSpans::default()
            }],
        }
    }
}

/// A batch was not taken. It is counted and told already.
struct GivenUp;
