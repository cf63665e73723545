//! The trace of a request by its headers: W3C's traceparent, or B3 in one header or in several.
//!
//! B3 takes precedence, as in envoyproxy/ratelimit, which reads it last. Malformed headers are
//! ignored. The SDK reads W3C's; no crate reads B3.

use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{SpanContext, TraceContextExt as _, TraceFlags, TraceState};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;

use crate::base::sampling::SampleRate;

/// B3 in one header, and in several.
const B3: &str = "b3";
const B3_TRACE: &str = "x-b3-traceid";
const B3_SPAN: &str = "x-b3-spanid";
const B3_PARENT: &str = "x-b3-parentspanid";
const B3_SAMPLED: &str = "x-b3-sampled";
const B3_FLAGS: &str = "x-b3-flags";

/// The caller's span.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parent {
    /// The trace; not 0.
    trace: u128,
    /// The span; not 0.
    span: u64,
    /// The sampling decision, if there is one.
    sampled: Option<bool>,
}

/// A context with the parent span of a request with these headers, if it has one. `rate` decides
/// where B3 leaves the sampling open, which the SDK does not know.
pub(super) fn context(headers: &HeaderMap, rate: SampleRate) -> Context {
    let Some(parent) = b3(headers) else {
        let headers = HeaderExtractor(headers);
        return TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
    };
    let lower_half = u64::try_from(parent.trace & u128::from(u64::MAX)).unwrap_or(0);
    let sampled = parent.sampled.unwrap_or_else(|| rate.includes(lower_half));
    let flags = TraceFlags::default().with_sampled(sampled);
    let trace = parent.trace.into();
    let parent = SpanContext::new(trace, parent.span.into(), flags, true, TraceState::NONE);
    Context::new().with_remote_span_context(parent)
}

fn b3(headers: &HeaderMap) -> Option<Parent> {
    text(headers, B3).and_then(b3_single).or_else(|| b3_multiple(headers))
}

/// `trace-span`, `trace-span-state` or `trace-span-state-parent`.
fn b3_single(header: &str) -> Option<Parent> {
    let mut parts = header.split('-');
    let trace = b3_trace(parts.next()?)?;
    let span = b3_span(parts.next()?)?;
    let sampled = match parts.next() {
        None => None,
        Some("1" | "d") => Some(true),
        Some("0") => Some(false),
        Some(_) => return None,
    };
    let rest_is_fine =
        parts.next().is_none_or(|parent| b3_span(parent).is_some()) && parts.next().is_none();
    parent_of(trace, span, sampled).filter(|_| rest_is_fine)
}

fn b3_multiple(headers: &HeaderMap) -> Option<Parent> {
    let trace = b3_trace(text(headers, B3_TRACE)?)?;
    let span = b3_span(text(headers, B3_SPAN)?)?;
    if let Some(parent) = text(headers, B3_PARENT) {
        b3_span(parent)?;
    }
    let is_debug = text(headers, B3_FLAGS) == Some("1");
    let sampled = match text(headers, B3_SAMPLED) {
        _ if is_debug => Some(true),
        None => None,
        // Old tracers send words.
        Some(state) if state == "1" || state.eq_ignore_ascii_case("true") => Some(true),
        Some(state) if state == "0" || state.eq_ignore_ascii_case("false") => Some(false),
        Some(_) => return None,
    };
    parent_of(trace, span, sampled)
}

/// 128 bits, or the lower 64 of them.
fn b3_trace(text: &str) -> Option<u128> {
    hex(text, 16).or_else(|| hex(text, 32))
}

fn b3_span(text: &str) -> Option<u128> {
    hex(text, 16)
}

fn parent_of(trace: u128, span: u128, sampled: Option<bool>) -> Option<Parent> {
    let span = u64::try_from(span).ok()?;
    (trace != 0 && span != 0).then_some(Parent { trace, span, sampled })
}

/// A number of `len` digits: lower case only, by all of the specifications; no sign.
fn hex(text: &str, len: usize) -> Option<u128> {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_hex = text.len() == len && text.bytes().all(is_digit);
    u128::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

/// The first header of this name.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const TRACE: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;
    const SPAN: u64 = 0xb7ad_6b71_6920_3331;

    fn read(headers: &[(&'static str, &'static str)]) -> Option<Parent> {
        b3(&of(headers))
    }

    fn of(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        headers.collect()
    }

    #[expect(clippy::unnecessary_wraps, reason = "others return None")]
    fn found(sampled: Option<bool>) -> Option<Parent> {
        Some(Parent { trace: TRACE, span: SPAN, sampled })
    }

    #[test]
    fn b3_in_one_header_is_read() {
        let short = Some(Parent { trace: 0x8448_eb21_1c80_319c, span: SPAN, sampled: Some(true) });
        let cases = [
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1", found(Some(true))),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-d", found(Some(true))),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", found(Some(false))),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", found(None)),
            (
                "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1-05e3ac9a4f6e3b90",
                found(Some(true)),
            ),
            ("8448eb211c80319c-b7ad6b7169203331-1", short),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-", None),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-2", None),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1-short", None),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1-05e3ac9a4f6e3b90-", None),
            ("0af7651916cd43dd8448eb211c80319c-1", None),
            ("8448eb211c80319-b7ad6b7169203331-1", None),
            ("0", None),
            ("d", None),
        ];
        for (header, expected) in cases {
            assert_eq!(read(&[("b3", header)]), expected, "{header}");
        }
    }

    #[test]
    fn b3_in_several_headers_is_read() {
        const IDS: [(&str, &str); 2] =
            [(B3_TRACE, "0af7651916cd43dd8448eb211c80319c"), (B3_SPAN, "b7ad6b7169203331")];
        let with = |more: &[(&'static str, &'static str)]| read(&[&IDS, more].concat());
        assert_eq!(with(&[]), found(None));
        assert_eq!(with(&[(B3_SAMPLED, "1")]), found(Some(true)));
        assert_eq!(with(&[(B3_SAMPLED, "True")]), found(Some(true)));
        assert_eq!(with(&[(B3_SAMPLED, "0")]), found(Some(false)));
        assert_eq!(with(&[(B3_SAMPLED, "maybe")]), None);
        assert_eq!(
            with(&[(B3_SAMPLED, "0"), (B3_FLAGS, "1")]),
            found(Some(true)),
            "debug means sampled"
        );
        assert_eq!(with(&[(B3_PARENT, "05e3ac9a4f6e3b90")]), found(None));
        assert_eq!(with(&[(B3_PARENT, "none")]), None);
        assert_eq!(read(&IDS[..1]), None);
        assert_eq!(read(&IDS[1..]), None);
    }

    #[test]
    fn b3_wins_over_w3c_unless_it_is_malformed() {
        let span = |b3: &'static str| {
            let w3c = ("traceparent", "00-11111111111111111111111111111111-2222222222222222-01");
            let headers = of(&[w3c, ("tracestate", "vendor=x"), ("b3", b3)]);
            let context = context(&headers, SampleRate::of(0.5).unwrap());
            context.span().span_context().clone()
        };
        let w3c = span("0");
        assert_eq!(w3c.span_id(), 0x2222_2222_2222_2222.into());
        assert_eq!(w3c.trace_state().header(), "vendor=x");
        assert!(w3c.is_sampled() && w3c.is_remote());
        // The half of 0.5 is decided by the trace.
        for (b3, sampled) in [
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", false),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1", true),
            ("0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false),
            ("0af7651916cd43dd0448eb211c80319c-b7ad6b7169203331", true),
        ] {
            let b3_span = span(b3);
            assert_eq!((b3_span.span_id(), b3_span.is_sampled()), (SPAN.into(), sampled), "{b3}");
        }
    }
}
