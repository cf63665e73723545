//! Traces: the sampling decision, the spans of sampled requests, and the queue of the exporter.
//!
//! A request that is not sampled has no span at all, so its attributes are never built. With traces
//! off that costs one branch per request. A span ends when it is dropped, also if its caller is
//! cancelled.

use std::sync::Arc;

use http::HeaderMap;
use tokio::sync::mpsc;

use crate::base::proto::opentelemetry::proto::common::v1::any_value::Value;
use crate::base::proto::opentelemetry::proto::trace::v1::status::StatusCode;
use crate::base::proto::opentelemetry::proto::trace::v1::{Span, Status, span::SpanKind};
use crate::base::sampling::SampleRate;
use crate::base::time::Clock;
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::otlp::options::attribute;
use crate::telemetry::traces::export::Exporter;
use crate::telemetry::traces::options::Options;

pub(crate) mod export;
pub(crate) mod options;
mod parent;
pub mod settings;

/// Spans that wait for the exporter, as in OpenTelemetry's SDKs; each has a few KiB at most.
/// Further spans are dropped and counted.
// bound spans_queue_max: the span is lost; tollgate_spans_lost_total{cause="full"}
const SPANS_QUEUE_MAX: usize = 2_048;
/// `flags` of a span: sampled, and it is known whether its parent is in another process.
const SAMPLED: u32 = 0x01;
const PARENT_IS_KNOWN: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// Records spans, unless traces are off. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Traces(Option<Arc<Recorder>>);

/// A span that has not ended. It ends when it is dropped, and is queued for the exporter.
#[derive(Debug)]
pub struct LiveSpan {
    /// `None` once it is discarded.
    span: Option<Box<Span>>,
    recorder: Arc<Recorder>,
}

#[derive(Debug)]
struct Recorder {
    rate: SampleRate,
    clock: Clock,
    queue: mpsc::Sender<Span>,
    full: Counter,
}

impl Traces {
    /// Turns traces on, and returns the exporter of their spans.
    pub(crate) fn new(options: Options, clock: Clock, metrics: &Metrics) -> (Self, Exporter) {
        let (queue, waiting) = mpsc::channel(SPANS_QUEUE_MAX);
        let full = export::lost("full", metrics);
        let recorder = Recorder { rate: options.rate, clock, queue, full };
        (Self(Some(Arc::new(recorder))), Exporter::new(options, waiting, metrics))
    }

    /// The root span of a request with these headers; `None` if it is not sampled. The caller's
    /// sampling decision applies; without one the sampling rate decides.
    pub fn begin(&self, name: &'static str, headers: &HeaderMap) -> Option<LiveSpan> {
        let recorder = self.0.as_ref()?;
        let parent = parent::parent(headers);
        let trace = parent.as_ref().map_or_else(any_trace, |parent| parent.trace);
        let by_caller = parent.as_ref().and_then(|parent| parent.sampled);
        if !by_caller.unwrap_or_else(|| recorder.rate.includes(lower_half(trace))) {
            return None;
        }
        let mut span = Span {
            trace_id: trace.to_be_bytes().to_vec(),
            flags: SAMPLED | PARENT_IS_KNOWN,
            ..recorder.new_span(name, SpanKind::Server)
        };
        if let Some(parent) = parent {
            span.parent_span_id = parent.span.to_be_bytes().to_vec();
            span.trace_state = parent::tracestate(headers);
            span.flags |= PARENT_IS_REMOTE;
        }
        Some(LiveSpan { span: Some(Box::new(span)), recorder: recorder.clone() })
    }
}

impl LiveSpan {
    /// A child span.
    #[must_use]
    pub fn child(&self, name: &'static str) -> Self {
        let span = self.span.as_ref().map(|span| {
            Box::new(Span {
                trace_id: span.trace_id.clone(),
                parent_span_id: span.span_id.clone(),
                trace_state: span.trace_state.clone(),
                flags: SAMPLED | PARENT_IS_KNOWN,
                ..self.recorder.new_span(name, SpanKind::Internal)
            })
        });
        Self { span, recorder: self.recorder.clone() }
    }

    /// Sets a text attribute, replacing its previous value.
    pub fn set_attribute(&mut self, key: &'static str, text: impl Into<String>) {
        self.put(key, Value::StringValue(text.into()));
    }

    /// Sets a number attribute, replacing its previous value.
    pub fn set_number(&mut self, key: &'static str, number: impl Into<i64>) {
        self.put(key, Value::IntValue(number.into()));
    }

    /// Sets the status to an error.
    pub fn fail(&mut self, message: impl Into<String>) {
        if let Some(span) = &mut self.span {
            span.status = Some(Status { message: message.into(), code: StatusCode::Error.into() });
        }
    }

    /// Ends the span without exporting it.
    pub fn discard(mut self) {
        self.span = None;
    }

    fn put(&mut self, key: &'static str, value: Value) {
        let Some(span) = &mut self.span else { return };
        let attribute = attribute(key, value);
        let mut attributes = span.attributes.iter_mut();
        match attributes.find(|known| known.key == key) {
            Some(known) => *known = attribute,
            None => span.attributes.push(attribute),
        }
    }
}

impl Drop for LiveSpan {
    fn drop(&mut self) {
        let Some(mut span) = self.span.take() else {
            return;
        };
        span.end_time_unix_nano = self.recorder.clock.now().as_nanos();
        // A request never waits for the queue.
        if self.recorder.queue.try_send(*span).is_err() {
            self.recorder.full.inc();
        }
    }
}

impl Recorder {
    fn new_span(&self, name: &str, kind: SpanKind) -> Span {
        Span {
            span_id: any_id().to_be_bytes().to_vec(),
            name: name.to_owned(),
            kind: kind.into(),
            start_time_unix_nano: self.clock.now().as_nanos(),
            ..Span::default()
        }
    }
}

/// Zero means no id.
fn any_id() -> u64 {
    fastrand::u64(..).max(1)
}

fn any_trace() -> u128 {
    u128::from(any_id()) << 64 | u128::from(any_id())
}

fn lower_half(trace: u128) -> u64 {
    u64::try_from(trace & u128::from(u64::MAX)).unwrap_or(0)
}
