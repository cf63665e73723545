//! Exports spans in batches, in a thread of its own: no request waits for the collector.
//!
//! A failed batch is retried for OTEL_EXPORTER_OTLP_TIMEOUT and then dropped; meanwhile spans wait in
//! the queue, or are dropped when it is full. Every dropped span is counted. opentelemetry_sdk's
//! batch processor does not count what it drops, which is why this is not replaced by it.

use std::mem;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::runtime::Thread;
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::options::Options;
use crate::telemetry::traces::send::Sender;

/// Spans of a batch, as in OpenTelemetry's SDKs.
const BATCH_SPANS_MAX: usize = 512;
/// How long a batch waits for more spans.
const LINGER: Duration = Duration::from_secs(1);
/// Waits between attempts, doubled each time.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// For the last spans at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Exports spans once it is started.
#[derive(Debug)]
pub struct Exporter {
    options: Options,
    recorded: mpsc::Receiver<Span>,
    stop: CancellationToken,
    is_failing: bool,
    sent: Counter,
    failures: Counter,
    /// Spans of batches that failed.
    failed_spans: Counter,
    /// Spans that the collector rejected.
    rejected: Counter,
}

/// The exporter thread.
#[derive(Debug)]
pub struct SpanExporterTask {
    stop: CancellationToken,
    thread: Thread,
}

/// Lost spans by cause.
pub(super) fn lost(cause: &str, metrics: &Metrics) -> Counter {
    metrics.counter_with(
        "tollgate_spans_lost_total",
        "Spans that were lost: the queue was full (full), the export failed (failed), or the collector rejected them (rejected).",
        &[("cause", cause)],
    )
}

impl Exporter {
    /// Exports the spans of this queue.
    pub(super) fn new(options: Options, recorded: mpsc::Receiver<Span>, metrics: &Metrics) -> Self {
        Self {
            options,
            recorded,
            stop: CancellationToken::new(),
            is_failing: false,
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
    pub(crate) fn start(self) -> anyhow::Result<SpanExporterTask> {
        Ok(SpanExporterTask {
            stop: self.stop.clone(),
            thread: Thread::spawn("traces", self.run())?,
        })
    }

    async fn run(mut self) {
        let mut sender = Sender::new(&self.options);
        let mut batch = Vec::new();
        let stop = self.stop.clone();
        while let Some(true) = stop.run_until_cancelled(self.fill(&mut batch)).await {
            self.export(&mut sender, mem::take(&mut batch)).await;
        }
        while let Ok(span) = self.recorded.try_recv() {
            batch.push(span);
            if batch.len() >= BATCH_SPANS_MAX {
                self.export(&mut sender, mem::take(&mut batch)).await;
            }
        }
        self.export(&mut sender, batch).await;
    }

    /// Waits for a batch. Returns whether there may be another.
    async fn fill(&mut self, batch: &mut Vec<Span>) -> bool {
        let recorded = &mut self.recorded;
        if recorded.recv_many(batch, BATCH_SPANS_MAX).await == 0 {
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

    /// Exports a batch unless it is empty.
    async fn export(&mut self, sender: &mut Sender, spans: Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let count = spans.len() as u64;
        let request = self.request(spans);
        let timeout = self.options.timeout.into();
        let sent = tokio::time::timeout(timeout, self.send(sender, &request)).await;
        let Some(rejected) = sent.unwrap_or_else(|_| {
            self.count_failure(&format!("not accepted within {timeout:?}"));
            None
        }) else {
            self.failed_spans.inc_by(count);
            return;
        };
        let rejected = rejected.min(count);
        self.sent.inc_by(count - rejected);
        self.rejected.inc_by(rejected);
        if mem::take(&mut self.is_failing) {
            tracing::info!(endpoint = %self.options.endpoint, "trace export recovered");
        }
    }

    /// Sends until the collector accepts, or a retry is useless. Returns the number of rejected
    /// spans, or `None` if the batch failed.
    async fn send(
        &mut self,
        sender: &mut Sender,
        request: &ExportTraceServiceRequest,
    ) -> Option<u64> {
        let mut pause = RETRY_FIRST;
        loop {
            let failure = match sender.send(request).await {
                Ok(rejected) => return Some(rejected),
                Err(failure) => failure,
            };
            self.count_failure(&failure.text);
            if !failure.may_retry {
                return None;
            }
            self.stop
                .run_until_cancelled(tokio::time::sleep(pause))
                .await?;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Counts a failure, and logs the first of several.
    fn count_failure(&mut self, why: &str) {
        self.failures.inc();
        let endpoint = &self.options.endpoint;
        if mem::replace(&mut self.is_failing, true) {
            tracing::debug!(%endpoint, why, "trace export failed again");
        } else {
            tracing::warn!(%endpoint, why, "trace export failed; requests are unaffected");
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let resource = Resource {
            attributes: self.options.resource.clone(),
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

impl SpanExporterTask {
    /// Exports the remaining spans. Returns whether that took less than [`FLUSH_TIMEOUT`].
    pub(crate) async fn flush(self) -> bool {
        self.stop.cancel();
        tokio::time::timeout(FLUSH_TIMEOUT, self.thread.ended())
            .await
            .is_ok()
    }
}
