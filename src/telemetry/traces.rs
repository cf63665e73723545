//! Traces: which calls are recorded, the spans of those that are, and the queue from which they are
//! sent.
//!
//! A call that is not recorded has no span at all, so whatever would be told of it is never made.
//! Off, that costs a branch a call; on, its parent is read and one decision made. A span that is
//! dropped ends, also when its caller has gone away in the middle of it.

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status, span::SpanKind};
use tokio::sync::mpsc;

use crate::sampling::SampleRate;
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::traces::export::Exporter;
use crate::telemetry::traces::parent::Parent;
use crate::telemetry::traces::settings::Options;
use crate::time::{Clock, Time};

pub mod connect;
pub mod export;
pub mod parent;
pub mod send;
pub mod settings;

/// How many spans wait to be sent, as in OpenTelemetry's libraries; a span has a few KiB at most.
/// Beyond it they are dropped.
pub const SPANS_QUEUE_MAX: usize = 2_048;
/// `flags` of a span: recorded, and who its parent is is known.
const SAMPLED: u32 = 0x01;
const PARENT_IS_KNOWN: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// Records calls, or does not. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Traces(Option<Arc<Recorder>>);

/// A span that has not ended. Dropped, it ends, and waits to be sent.
#[derive(Debug)]
pub struct LiveSpan {
    /// `None` if it is not to be sent after all.
    span: Option<Box<Span>>,
    recorder: Arc<Recorder>,
}

/// Whose work a span is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call's that came from outside.
    Server,
    /// A part of it.
    Internal,
}

#[derive(Debug)]
struct Recorder {
    rate: SampleRate,
    clock: Clock,
    queue: mpsc::Sender<Span>,
    full: Counter,
}

impl Traces {
    /// Records calls, and gives who sends what is recorded.
    pub fn new(options: Options, clock: Clock, metrics: &Metrics) -> (Self, Exporter) {
        let (queue, waiting) = mpsc::channel(SPANS_QUEUE_MAX);
        let full = export::lost("full", metrics);
        let recorder = Recorder {
            rate: options.rate,
            clock,
            queue,
            full,
        };
        (
            Self(Some(Arc::new(recorder))),
            Exporter::new(options, waiting, metrics),
        )
    }

    /// The first span of a call that came with these headers; `None` if it is not recorded. That is
    /// as its caller has decided, and by chance where nobody has.
    pub fn begin(&self, name: &'static str, kind: Kind, headers: &HeaderMap) -> Option<LiveSpan> {
        let recorder = self.0.as_ref()?;
        let parent = parent::parent(headers);
        let trace = parent
            .as_ref()
            .map_or_else(any_trace, |parent| parent.trace);
        let by_chance = || recorder.rate.includes(lower_half(trace));
        let sampled = parent
            .as_ref()
            .and_then(|parent| parent.sampled)
            .unwrap_or_else(by_chance);
        sampled.then(|| {
            LiveSpan::begin(
                recorder,
                name,
                kind,
                trace,
                parent.map(|parent| (parent, parent::tracestate(headers))),
            )
        })
    }
}

impl LiveSpan {
    fn begin(
        recorder: &Arc<Recorder>,
        name: &'static str,
        kind: Kind,
        trace: u128,
        parent: Option<(Parent, String)>,
    ) -> Self {
        let flags = SAMPLED
            | PARENT_IS_KNOWN
            | if parent.is_some() {
                PARENT_IS_REMOTE
            } else {
                0
            };
        let (parent, trace_state) = parent.unzip();
        let span = Span {
            trace_id: trace.to_be_bytes().to_vec(),
            parent_span_id: parent
                .map_or_else(Vec::new, |parent| parent.span.to_be_bytes().to_vec()),
            trace_state: trace_state.unwrap_or_default(),
            flags,
            ..recorder.new_span(name, kind)
        };
        Self {
            span: Some(Box::new(span)),
            recorder: recorder.clone(),
        }
    }

    /// A span within this one.
    #[must_use]
    pub fn child(&self, name: &'static str) -> Self {
        let span = self.span.as_ref().map(|span| {
            Box::new(Span {
                trace_id: span.trace_id.clone(),
                parent_span_id: span.span_id.clone(),
                trace_state: span.trace_state.clone(),
                flags: SAMPLED | PARENT_IS_KNOWN,
                ..self.recorder.new_span(name, Kind::Internal)
            })
        });
        Self {
            span,
            recorder: self.recorder.clone(),
        }
    }

    /// Tells a text. Said twice, it is what was said last.
    pub fn set_attribute(&mut self, key: &'static str, text: impl Into<String>) {
        self.put(key, Value::StringValue(text.into()));
    }

    /// Tells a number.
    pub fn set_number(&mut self, key: &'static str, number: impl Into<i64>) {
        self.put(key, Value::IntValue(number.into()));
    }

    /// It ends as a failure.
    pub fn fail(&mut self, message: impl Into<String>) {
        if let Some(span) = &mut self.span {
            span.status = Some(Status {
                message: message.into(),
                code: StatusCode::Error.into(),
            });
        }
    }

    /// It turned out not to be worth telling.
    pub fn discard(mut self) {
        self.span = None;
    }

    fn put(&mut self, key: &'static str, value: Value) {
        let Some(span) = &mut self.span else { return };
        let value = Some(AnyValue { value: Some(value) });
        match span
            .attributes
            .iter_mut()
            .find(|attribute| attribute.key == key)
        {
            Some(attribute) => attribute.value = value,
            None => span.attributes.push(KeyValue {
                key: key.to_owned(),
                value,
                ..KeyValue::default()
            }),
        }
    }
}

impl Drop for LiveSpan {
    fn drop(&mut self) {
        let Some(mut span) = self.span.take() else {
            return;
        };
        span.end_time_unix_nano = nanos(self.recorder.clock.now());
        // Nobody waits for room: a call is worth more than its trace.
        if self.recorder.queue.try_send(*span).is_err() {
            self.recorder.full.inc();
        }
    }
}

impl Recorder {
    fn new_span(&self, name: &str, kind: Kind) -> Span {
        let kind = match kind {
            Kind::Server => SpanKind::Server,
            Kind::Internal => SpanKind::Internal,
        };
        Span {
            span_id: any_id().to_be_bytes().to_vec(),
            name: name.to_owned(),
            kind: kind.into(),
            start_time_unix_nano: nanos(self.clock.now()),
            ..Span::default()
        }
    }
}

/// Zero stands for none.
fn any_id() -> u64 {
    fastrand::u64(..).max(1)
}

fn any_trace() -> u128 {
    u128::from(any_id()) << 64 | u128::from(any_id())
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
const fn lower_half(trace: u128) -> u64 {
    trace as u64
}

const fn nanos(time: Time) -> u64 {
    time.as_micros().saturating_mul(1_000)
}
