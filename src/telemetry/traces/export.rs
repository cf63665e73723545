//! Exports spans in batches, in a thread of its own: no request waits for the collector.
//!
//! A failed batch is retried for OTEL_EXPORTER_OTLP_TIMEOUT and then dropped; meanwhile spans wait
//! in the queue, or are dropped when it is full. Every dropped span is counted. opentelemetry_sdk's
//! batch processor does not count what it drops, which is why this is not replaced by it.

use std::mem;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::base::proto::opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
use crate::base::proto::opentelemetry::proto::trace::v1::{ResourceSpans, ScopeSpans, Span};
use crate::base::runtime::StoppableThread;
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::otlp::delivery::{Counters, Delivery};
use crate::telemetry::otlp::options::scope;
use crate::telemetry::traces::options::Options;

/// Spans of a batch, as in OpenTelemetry's SDKs.
const BATCH_SPANS_MAX: usize = 512;
/// How long a batch waits for more spans.
const LINGER: Duration = Duration::from_secs(1);
/// Time for the last spans at shutdown.
// bound last_spans_timeout: lost; tollgate_spans_lost_total{cause="failed"}
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Exports spans once it is started.
#[derive(Debug)]
pub struct Exporter {
    options: Options,
    recorded: mpsc::Receiver<Span>,
    stop: CancellationToken,
    counters: Counters,
    /// Spans of batches that failed.
    failed_spans: Counter,
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
            counters: Counters {
                sent: metrics
                    .counter("tollgate_spans_sent_total", "Spans that the collector accepted."),
                rejected: lost("rejected", metrics),
                failures: metrics.counter(
                    "tollgate_span_exports_failed_total",
                    "Failed attempts to export a batch of spans.",
                ),
            },
            failed_spans: lost("failed", metrics),
        }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub(crate) fn start(self) -> anyhow::Result<StoppableThread> {
        StoppableThread::spawn("traces", self.stop.clone(), self.run())
    }

    async fn run(mut self) {
        let options = &self.options.otlp;
        let counters = self.counters.clone();
        let mut delivery = Delivery::new(options, counters, self.stop.clone());
        let mut batch = Vec::new();
        let stop = self.stop.clone();
        while let Some(true) = stop.run_until_cancelled(self.fill(&mut batch)).await {
            self.export(&mut delivery, mem::take(&mut batch)).await;
        }
        while let Ok(span) = self.recorded.try_recv() {
            batch.push(span);
            if batch.len() >= BATCH_SPANS_MAX {
                self.export(&mut delivery, mem::take(&mut batch)).await;
            }
        }
        self.export(&mut delivery, batch).await;
    }

    /// Waits for a batch. Returns whether there may be another.
    async fn fill(&mut self, batch: &mut Vec<Span>) -> bool {
        let recorded = &mut self.recorded;
        if recorded.recv_many(batch, BATCH_SPANS_MAX).await == 0 {
            return false;
        }
        let more = async {
            while batch.len() < BATCH_SPANS_MAX
                && recorded.recv_many(batch, BATCH_SPANS_MAX - batch.len()).await > 0
            {}
        };
        // The batch is what arrived until then.
        let _ = tokio::time::timeout(LINGER, more).await;
        true
    }

    /// Exports a batch unless it is empty.
    async fn export(&mut self, delivery: &mut Delivery, spans: Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let count = spans.len() as u64;
        if !delivery.deliver(&self.request(spans), count).await {
            self.failed_spans.inc_by(count);
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans }];
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.options.otlp.resource()),
                scope_spans,
            }],
        }
    }
}
