//! The span of a decision, and the log lines of a response of OVER_LIMIT and of a crossed
//! threshold.
//!
//! Texts come from clients: their length is bounded, control characters are escaped, and bytes that
//! are not UTF-8 are percent-encoded ([`Text`]).

use std::fmt::{self, Write as _};

use crate::base::text::Text;
use crate::base::time::Span;
use crate::limiter::decision::{Counted, Decision};
use crate::limiter::fallback::Fallback;
use crate::limiter::response::Response;
use crate::limits::check::Source;
use crate::operator::observe::feed::Crossing;
use crate::rules::query::{Descriptor, Query};
use crate::rules::{Link, OWN_LIMIT, Step};
use crate::telemetry::traces::LiveSpan;

/// Bytes of a request in a span.
const REQUEST_BYTES_MAX: usize = 1_024;
/// Bytes of a descriptor, a domain or a rule's path in a span or a log line.
const DESCRIPTOR_BYTES_MAX: usize = 256;

/// The span of a request, named as in envoyproxy/ratelimit.
pub(crate) fn start_span(call: &LiveSpan, query: &Query<'_>) -> LiveSpan {
    let mut span = call.child("ShouldRateLimit Execution");
    span.set_attribute("domain", shown(query.domain));
    let request = bounded(REQUEST_BYTES_MAX, |text| write_request(text, query));
    span.set_attribute("request string", request);
    span
}

/// Adds the decision to the span of its request.
pub(crate) fn end_span(
    span: &mut LiveSpan,
    decision: &Decision<'_, '_, '_>,
    response: &Response,
    fallback: &Fallback,
) {
    let code = if response.over_limit { "OVER_LIMIT" } else { "OK" };
    span.set_attribute("tollgate.code", code);
    if response.shadowed {
        span.set_attribute("tollgate.shadowed", "by SHADOW_MODE");
    }
    if response.degraded {
        span.set_attribute("tollgate.degraded", "over limit, but on_limit is degrade");
    }
    let is_of = |source: &Source| decision.verdicts.iter().any(|one| one.source == *source);
    let sources = Source::ALL.into_iter().filter(is_of).map(Source::name);
    let sources = sources.collect::<Vec<_>>().join(",");
    if !sources.is_empty() {
        span.set_attribute("tollgate.source", sources);
    }
    let mut links = decision.plan.steps.iter().flat_map(Step::links);
    if let Some(policy) = links.find_map(|link| store_policy(link, decision, fallback)) {
        span.set_attribute("tollgate.store_policy", policy);
    }
    if let Some(step) = response.rejected_by.map(|index| &decision.plan.steps[index])
        && let Some(Counted { link, check, .. }) = decision.counted(step)
    {
        span.set_attribute("tollgate.refused_by", path(link));
        span.set_attribute("tollgate.refused_limit", check.limit.to_string());
    }
}

/// Logs a response of OVER_LIMIT by the descriptor of this index. `dropped` lines were not logged
/// since the last one.
pub(crate) fn log_over_limit(
    decision: &Decision<'_, '_, '_>,
    index: usize,
    fallback: &Fallback,
    dropped: u64,
) {
    let query = decision.query;
    let step = &decision.plan.steps[index];
    let Some(counted) = decision.counted(step) else {
        return;
    };
    let link = counted.link;
    let verdict = counted.verdict;
    let descriptor = shown_descriptor(&query.descriptors[index]);
    tracing::warn!(
        domain = shown(query.domain),
        descriptor,
        rule = path(link),
        limit_name = link.further.map(|further| &*further.name),
        limit = %counted.check.limit,
        retry_after_secs = verdict.retry_after.map(Span::ceil_secs),
        source = verdict.source.name(),
        store_policy = store_policy(link, decision, fallback),
        dropped,
        "over limit"
    );
}

/// Logs that a request, which has one descriptor, crossed a threshold. `dropped` lines were not
/// logged since the last one.
pub(crate) fn log_crossing(
    query: &Query<'_>,
    counted: &Counted<'_, '_>,
    crossing: Crossing,
    dropped: u64,
) {
    let link = counted.link;
    let verdict = counted.verdict;
    let descriptor = shown_descriptor(&query.descriptors[0]);
    tracing::warn!(
        domain = shown(query.domain),
        descriptor,
        rule = path(link),
        limit_name = link.further.map(|further| &*further.name),
        limit = %counted.check.limit,
        threshold_percent = crossing.threshold_percent,
        used_percent = crossing.used_percent,
        reset_secs = verdict.reset_after.ceil_secs(),
        dropped,
        "limit is used up to a threshold"
    );
}

/// The policy that gave the verdict on a limit, and why; `None` if the store did.
fn store_policy<'r>(
    link: &Link<'r>,
    decision: &Decision<'_, '_, 'r>,
    fallback: &Fallback,
) -> Option<String> {
    let cause = decision.store_error(link)?.name();
    Some(format!("{} ({cause})", fallback.policy(link).name()))
}

/// The path of a limit's rule, which may contain values of any length.
fn path(link: &Link<'_>) -> String {
    let path = link.own_rule().map_or(OWN_LIMIT, |rule| &*rule.path);
    bounded(DESCRIPTOR_BYTES_MAX, |text| text.write_str(path))
}

fn shown(bytes: &[u8]) -> String {
    bounded(DESCRIPTOR_BYTES_MAX, |text| write!(text, "{}", Text(bytes)))
}

/// Escapes control characters, and fails before the text exceeds `bytes_max`.
struct Bounded {
    text: String,
    bytes_max: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for letter in part.chars() {
            let len = self.text.len();
            if letter.is_control() {
                self.text.extend(letter.escape_unicode());
            } else {
                self.text.push(letter);
            }
            if self.text.len() > self.bytes_max {
                self.text.truncate(len);
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

/// The text that `write` writes, up to `bytes_max`; `...` replaces the rest.
fn bounded(bytes_max: usize, write: impl FnOnce(&mut Bounded) -> fmt::Result) -> String {
    let mut bounded = Bounded { text: String::new(), bytes_max };
    match write(&mut bounded) {
        Ok(()) => bounded.text,
        Err(fmt::Error) => bounded.text + "...",
    }
}

/// Protobuf's text form, as envoyproxy/ratelimit has it.
fn write_request(text: &mut Bounded, query: &Query<'_>) -> fmt::Result {
    write!(text, "domain:{:?}", Text(query.domain))?;
    for descriptor in &query.descriptors {
        text.write_str(" descriptors:{")?;
        for (index, entry) in descriptor.entries.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            write!(
                text,
                "{space}entries:{{key:{:?} value:{:?}}}",
                Text(entry.key),
                Text(entry.value)
            )?;
        }
        text.write_str("}")?;
    }
    if query.hits_addend > 0 {
        write!(text, " hits_addend:{}", query.hits_addend)?;
    }
    Ok(())
}

fn shown_descriptor(descriptor: &Descriptor<'_>) -> String {
    bounded(DESCRIPTOR_BYTES_MAX, |text| {
        let mut entries = descriptor.entries.iter().enumerate();
        entries.try_for_each(|(index, entry)| {
            let comma = if index > 0 { "," } else { "" };
            write!(text, "{comma}{entry}")
        })
    })
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::limits::check::Hits;
    use crate::rules::query::Entry;

    fn query(value: &str) -> Query<'_> {
        let entries = smallvec![Entry::new("user", value), Entry::new("path", "/")];
        let descriptor = Descriptor { entries, limit: None, hits: Hits::Add(1), hits_addend: None };
        Query { domain: b"d", descriptors: smallvec![descriptor], ..Query::default() }
    }

    #[test]
    fn requests_are_shown_in_protobuf_text_form_up_to_a_length() {
        let shown =
            |value: &str| bounded(REQUEST_BYTES_MAX, |text| write_request(text, &query(value)));
        assert_eq!(
            shown("a\"b"),
            r#"domain:"d" descriptors:{entries:{key:"user" value:"a\"b"} entries:{key:"path" value:"/"}}"#
        );
        let long = "ü".repeat(5_000);
        let cut = shown(&long);
        assert!(cut.ends_with("ü...") && cut.len() <= REQUEST_BYTES_MAX + 3, "{} bytes", cut.len());
    }

    #[test]
    fn control_characters_are_escaped() {
        let query = query("a\u{1b}[31m\n\u{9b}b");
        let shown = shown_descriptor(&query.descriptors[0]);
        assert_eq!(shown, r"user=a\u{1b}[31m\u{a}\u{9b}b,path=/");
    }
}
