//! Exports spans in batches, in a thread of the SDK: no request waits for the collector.
//!
//! The SDK counts neither the spans that its queue has no room for, nor those of batches that the
//! collector did not accept, and logs every failure. So its processor and its exporter are wrapped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter,
    SpanProcessor,
};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::collector::{self, LastError};
use crate::telemetry::traces::options::Options;

/// Spans that wait for the exporter, as in OpenTelemetry's SDKs; each has a few KiB at most.
/// Further spans are dropped and counted.
// bound spans_queue_max: the span is lost; tollgate_spans_lost_total{cause="full"}
const SPANS_QUEUE_MAX: usize = 2_048;
/// Spans of a batch, as in OpenTelemetry's SDKs.
const BATCH_SPANS_MAX: usize = 512;
/// How long a batch waits for more spans.
const LINGER: Duration = Duration::from_secs(1);
/// Time for the last spans at shutdown.
// bound last_spans_timeout: lost; tollgate_spans_lost_total{cause="failed"}
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// The name of a span that is not exported: the SDK exports every span that it has begun.
pub(super) const DISCARDED: &str = "";

/// Counts the spans that it has no room for.
#[derive(Debug)]
pub(super) struct Batches {
    processor: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
    full: Counter,
}

/// Counts what the collector accepts, and logs the first of several failures.
#[derive(Debug)]
struct Exporter {
    otlp: Arc<opentelemetry_otlp::SpanExporter>,
    endpoint: String,
    timeout: Duration,
    /// Connections need it, and the thread of the SDK has none.
    runtime: Handle,
    waiting: Arc<AtomicUsize>,
    last_error: LastError,
    is_failing: AtomicBool,
    sent: Counter,
    /// Batches that failed, and their spans.
    failures: Counter,
    failed: Counter,
}

/// The spans that have not been sent when the process ends.
#[derive(Debug)]
pub(crate) struct LastSpans(pub(super) SdkTracerProvider);

/// Queues ended spans for their export.
///
/// # Errors
/// A variable of OpenTelemetry is invalid.
pub(super) fn batches(options: &Options, metrics: &Metrics) -> anyhow::Result<Batches> {
    let lost = |cause| {
        let help =
            "Spans that were lost: the queue was full (full), or the export failed (failed).";
        metrics.counter_with("tollgate_spans_lost_total", help, &[("cause", cause)])
    };
    let waiting = Arc::<AtomicUsize>::default();
    let last_error = LastError::default();
    let exporter = Exporter {
        otlp: Arc::new(collector::exporter(options, last_error.clone())?),
        last_error,
        endpoint: options.endpoint.to_string(),
        timeout: options.timeout,
        runtime: Handle::current(),
        waiting: waiting.clone(),
        is_failing: AtomicBool::default(),
        sent: metrics.counter("tollgate_spans_sent_total", "Spans that the collector accepted."),
        failures: metrics.counter(
            "tollgate_span_exports_failed_total",
            "Batches of spans that the collector did not accept, retries included.",
        ),
        failed: lost("failed"),
    };
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(SPANS_QUEUE_MAX)
        .with_max_export_batch_size(BATCH_SPANS_MAX)
        .with_scheduled_delay(LINGER)
        .build();
    let processor = BatchSpanProcessor::new(exporter, config);
    Ok(Batches { processor, waiting, full: lost("full") })
}

impl SpanProcessor for Batches {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.name == DISCARDED {
            return;
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) < SPANS_QUEUE_MAX {
            self.processor.on_end(span);
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.full.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        let count = spans.len();
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        let otlp = self.otlp.clone();
        let time = self.timeout;
        let sending = async move {
            let sent = timeout(time, otlp.export(spans)).await;
            sent.unwrap_or(Err(OTelSdkError::Timeout(time)))
        };
        let sent = self.runtime.spawn(sending).await;
        let sent =
            sent.unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())));
        self.observe(count as u64, &sent);
        sent
    }
}

impl Exporter {
    fn observe(&self, spans: u64, sent: &OTelSdkResult) {
        let endpoint = &self.endpoint;
        let cause = self.last_error.lock().take();
        let was_failing = self.is_failing.swap(sent.is_err(), Ordering::Relaxed);
        let Err(error) = sent else {
            self.sent.inc_by(spans);
            if was_failing {
                tracing::info!(endpoint, "trace export recovered");
            }
            return;
        };
        self.failures.inc();
        self.failed.inc_by(spans);
        if was_failing {
            tracing::debug!(endpoint, %error, cause, "trace export failed again");
        } else {
            tracing::warn!(endpoint, %error, cause, "trace export failed; requests are unaffected");
        }
    }
}

impl LastSpans {
    /// Sends them.
    pub(crate) async fn send(self) {
        let sending = move || self.0.shutdown_with_timeout(FLUSH_TIMEOUT);
        // The SDK blocks, and the runtime sends meanwhile.
        if let Ok(Err(_)) = tokio::task::spawn_blocking(sending).await {
            tracing::warn!("the collector did not accept the last spans; they are lost");
        }
    }
}
