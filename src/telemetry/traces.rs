//! Traces: the spans of sampled requests, by the SDK of OpenTelemetry.
//!
//! A request that is not sampled has no span at all, so its attributes are never built. With traces
//! off that costs one branch per request; spans of the `tracing` crate would need a layer in the
//! log's subscriber, and a filter that keeps them out of the log. A span ends when it is dropped,
//! also if its caller is cancelled.

use std::mem;

use http::HeaderMap;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _,
    TracerProvider as _,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};

use crate::base::sampling::SampleRate;
use crate::telemetry::metric::Metrics;
use crate::telemetry::traces::export::{DISCARDED, LastSpans};
use crate::telemetry::traces::options::Options;

mod collector;
pub(crate) mod export;
pub(crate) mod options;
mod parent;
pub mod settings;

/// Records spans, unless traces are off. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Traces(Option<(SdkTracer, SampleRate)>);

/// A span that has not ended. It ends when it is dropped, and is queued for the exporter.
#[derive(Debug)]
pub struct LiveSpan(Box<Live>);

#[derive(Debug)]
struct Live {
    span: Span,
    /// Until the end: the SDK does not replace attributes.
    attributes: Vec<KeyValue>,
    tracer: SdkTracer,
}

impl Traces {
    /// Turns traces on. Called on the runtime that sends them.
    ///
    /// # Errors
    /// A variable of OpenTelemetry is invalid.
    pub(crate) fn new(options: &Options, metrics: &Metrics) -> anyhow::Result<(Self, LastSpans)> {
        let sampler = Sampler::TraceIdRatioBased(options.rate.ratio());
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(sampler)))
            .with_span_processor(export::batches(options, metrics)?)
            .build();
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"));
        let tracer = provider.tracer_with_scope(scope.build());
        Ok((Self(Some((tracer, options.rate))), LastSpans(provider)))
    }

    /// The root span of a request with these headers; `None` if it is not sampled. The caller's
    /// sampling decision applies; without one the sampling rate decides.
    pub fn begin(&self, name: &'static str, headers: &HeaderMap) -> Option<LiveSpan> {
        let (tracer, rate) = self.0.as_ref()?;
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        let span = tracer.build_with_context(builder, &parent::context(headers, *rate));
        span.is_recording().then(|| LiveSpan::of(span, tracer))
    }
}

impl LiveSpan {
    fn of(span: Span, tracer: &SdkTracer) -> Self {
        Self(Box::new(Live { span, attributes: Vec::new(), tracer: tracer.clone() }))
    }

    /// A child span.
    #[must_use]
    pub fn child(&self, name: &'static str) -> Self {
        let Live { span, tracer, .. } = &*self.0;
        let parent = Context::new().with_remote_span_context(span.span_context().clone());
        Self::of(tracer.build_with_context(SpanBuilder::from_name(name), &parent), tracer)
    }

    /// Sets a text attribute, replacing its previous value.
    pub fn set_attribute(&mut self, key: &'static str, text: impl Into<String>) {
        self.put(key, text.into().into());
    }

    /// Sets a number attribute, replacing its previous value.
    pub fn set_number(&mut self, key: &'static str, number: impl Into<i64>) {
        self.put(key, number.into().into());
    }

    /// Sets the status to an error.
    pub fn fail(&mut self, message: impl Into<String>) {
        self.0.span.set_status(Status::error(message.into()));
    }

    /// Ends the span without exporting it.
    pub fn discard(mut self) {
        self.0.span.update_name(DISCARDED);
    }

    fn put(&mut self, key: &'static str, value: Value) {
        self.0.attributes.retain(|known| known.key.as_str() != key);
        self.0.attributes.push(KeyValue::new(key, value));
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.span.set_attributes(mem::take(&mut self.attributes));
    }
}
