//! Exports spans in batches, in a thread of its own: no request waits for the collector.
//!
//! A failed batch is retried for OTEL_EXPORTER_OTLP_TIMEOUT and then dropped; meanwhile spans wait in
//! the queue, or are dropped when it is full. Every dropped span is counted. opentelemetry_sdk's
//! batch processor does not count what it drops, which is why this is not replaced by it.

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
use crate::telemetry::traces::options::Options;
use crate::telemetry::traces::send::{Failure, Sender};

/// Spans of a batch, as in OpenTelemetry's SDKs.
const BATCH_SPANS_MAX: usize = 512;
/// How long a batch waits for more spans.
const LINGER: Duration = Duration::from_secs(1);
/// Waits between attempts, doubled each time.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// For the last spans at shutdown.
pub const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// The exporter before it is started.
#[derive(Debug)]
pub struct Exporter {
    options: Options,
    recorded: mpsc::Receiver<Span>,
    sent: Counter,
    failures: Counter,
    /// Spans of batches that failed.
    failed_spans: Counter,
    /// Spans that the collector rejected.
    rejected: Counter,
}

/// The exporter thread. If this is dropped it runs until the process ends.
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
    /// Taken from the queue and not sent yet.
    batch: Vec<Span>,
    is_failing: bool,
}

/// Lost spans by cause.
pub fn lost(cause: &str, metrics: &Metrics) -> Counter {
    metrics.counter_with(
        "tollgate_spans_lost_total",
        "Spans that were lost: the queue was full (full), the export failed (failed), or the collector rejected them (rejected).",
        &[("cause", cause)],
    )
}

impl Exporter {
    /// Exports the spans of this queue.
    pub fn new(options: Options, recorded: mpsc::Receiver<Span>, metrics: &Metrics) -> Self {
        Self {
            options,
            recorded,
            sent: metrics.counter(
                "tollgate_spans_sent_total",
                "Spans that the collector accepted.",
            ),
            failures: metrics.counter(
                "tollgate_span_exports_failed_total",
                "Failed attempts to export a batch of spans.",
            ),
            failed_spans: lost("failed", metrics),
            rejected: lost("rejected", metrics),
        }
    }

    /// Starts the thread.
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
                    is_failing: false,
                    exporter: self,
                };
                work.run().await;
            });
            // It fails if no flush waits for it.
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
    /// Exports the remaining spans. Returns whether that took less than [`FLUSH_TIMEOUT`].
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
                // It fails if the handle was dropped: then the thread runs on.
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

    /// Waits for a batch. Returns whether there may be another.
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
        // The batch is what arrived until then.
        let _ = tokio::time::timeout(LINGER, more).await;
        true
    }

    /// Exports the batch unless it is empty.
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
            sent.unwrap_or_else(|_| Err(self.failed(&format!("not accepted within {timeout:?}"))));
        let Exporter {
            sent: accepted,
            rejected,
            failed_spans,
            ..
        } = &self.exporter;
        match sent {
            Ok(rejected_now) => {
                let rejected_now = rejected_now.min(count);
                accepted.inc_by(count - rejected_now);
                rejected.inc_by(rejected_now);
                if mem::take(&mut self.is_failing) {
                    tracing::info!(endpoint = %self.exporter.options.endpoint, "trace export recovered");
                }
            }
            Err(ExportFailed) => failed_spans.inc_by(count),
        }
    }

    /// Sends until the collector accepts, or a retry is useless. Returns the number of rejected spans.
    async fn send(&mut self, request: &ExportTraceServiceRequest) -> Result<u64, ExportFailed> {
        let mut pause = RETRY_FIRST;
        loop {
            let failure = match self.sender.send(request).await {
                Ok(rejected) => return Ok(rejected),
                Err(failure) => failure,
            };
            let failed = self.failed(failure.text());
            let stop = self.stop.wait_for(|stop| *stop);
            let may_retry = matches!(failure, Failure::Retryable(_))
                && tokio::time::timeout(pause, stop).await.is_err();
            if !may_retry {
                return Err(failed);
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Counts a failure, and logs the first of several.
    fn failed(&mut self, why: &str) -> ExportFailed {
        self.exporter.failures.inc();
        let endpoint = &self.exporter.options.endpoint;
        if mem::replace(&mut self.is_failing, true) {
            tracing::debug!(%endpoint, why, "trace export failed again");
        } else {
            tracing::warn!(%endpoint, why, "trace export failed; requests are unaffected");
        }
        ExportFailed
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

/// A batch failed, which is counted and logged already.
struct ExportFailed;
