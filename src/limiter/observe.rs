//! What the operator is told of one request, in its spans and in the line of a refusal. Made only
//! where somebody is told.
//!
//! Texts come from clients: their lengths are bounded, control characters are escaped, and bytes
//! that are not UTF-8 are percent-encoded ([`Text`]).

use std::fmt::{self, Write as _};

use smallvec::SmallVec;

use crate::check::{Decisions, StoreError, Verdicts};
use crate::limit::Limit;
use crate::limiter::fallback::Fallback;
use crate::limiter::response::Response;
use crate::rules::query::{Descriptor, Query};
use crate::rules::{Plan, Step};
use crate::store::Trip;
use crate::telemetry::traces::LiveSpan;
use crate::text::Text;
use crate::time::Span;

/// How much of a request a span has, in bytes.
const REQUEST_BYTES_MAX: usize = 1_024;
/// How much of a descriptor a line of the log has, and of a domain.
const DESCRIPTOR_BYTES_MAX: usize = 256;
/// Names of the reference, with its spaces.
const EXECUTION: &str = "ShouldRateLimit Execution";
const REDIS: &str = "Redis Pipeline Execution";
/// What stands for the path of a rule where the request brings its own limit.
const OWN_LIMIT: &str = "(limit of the request)";

/// For each check why the store had no verdict; empty if it had all of them.
pub type StoreErrors = SmallVec<[Option<StoreError>; 2]>;

/// Who refused a request, and why.
#[derive(Debug)]
pub struct OverLimitEvent<'a, 'q> {
    rule: &'a str,
    limit: &'a Limit,
    descriptor: &'a Descriptor<'q>,
    retry_after: Option<Span>,
    policy: Option<String>,
}

/// What a request came to, for whoever is told.
#[derive(Debug)]
pub struct DecisionRecord<'a, 'q, 'r> {
    /// What was asked.
    pub query: &'a Query<'q>,
    /// What was to be done.
    pub plan: &'a Plan<'r>,
    /// What was said of each check.
    pub verdicts: &'a Verdicts,
    /// What the store did not say.
    pub store_errors: &'a StoreErrors,
    /// What was said instead.
    pub fallback: &'a Fallback,
    /// What it came to.
    pub answer: &'a Response,
}

/// The span of a request.
pub fn start_span(within: &LiveSpan, query: &Query<'_>) -> LiveSpan {
    let mut span = within.child(EXECUTION);
    span.set_attribute(
        "domain",
        bounded(DESCRIPTOR_BYTES_MAX, |text| {
            write!(text, "{}", Text(query.domain))
        }),
    );
    span.set_attribute(
        "request string",
        bounded(REQUEST_BYTES_MAX, |text| write_request(text, query)),
    );
    span
}

/// The span of a trip to Redis.
pub fn redis(within: &LiveSpan, trip: Trip) -> LiveSpan {
    let mut span = within.child(REDIS);
    span.set_number("pipeline length", length(trip.checks));
    span.set_number("perSecondPipeline length", length(trip.per_second_checks));
    span
}

/// The trip is over. What was known to be over its limit was not asked about.
pub fn redis_said(mut span: LiveSpan, decisions: &Decisions) {
    let asked = decisions
        .iter()
        .filter(|decision| !decision.as_ref().is_ok_and(|verdict| verdict.from_cache))
        .count();
    if asked == 0 {
        span.discard();
        return;
    }
    span.set_number("pipeline length", length(asked));
    if let Some(Err(failure)) = decisions.iter().find(|decision| decision.is_err()) {
        span.fail(failure.error.to_string());
    }
}

/// For each check why the store has no verdict.
pub fn store_errors(decisions: &Decisions) -> StoreErrors {
    if decisions.iter().all(Result::is_ok) {
        return StoreErrors::new();
    }
    decisions
        .iter()
        .map(|decision| decision.as_ref().err().map(|failure| failure.error))
        .collect()
}

impl<'a, 'q> DecisionRecord<'a, 'q, '_> {
    /// Tells the span of the request what it came to.
    pub fn tell(&self, span: &mut LiveSpan) {
        let answer = self.answer;
        span.set_attribute(
            "tollgate.code",
            if answer.over_limit {
                "OVER_LIMIT"
            } else {
                "OK"
            },
        );
        if answer.shadowed {
            span.set_attribute("tollgate.shadowed", "by SHADOW_MODE");
        }
        if answer.degraded {
            span.set_attribute("tollgate.degraded", "over, but on_limit lets it pass");
        }
        if let Some(policy) = self.plan.steps.iter().find_map(|step| self.policy(step)) {
            span.set_attribute("tollgate.store_policy", policy);
        }
        if let Some(refused) = self.refused() {
            span.set_attribute("tollgate.refused_by", refused.rule());
            span.set_attribute("tollgate.refused_limit", refused.limit.to_string());
        }
    }

    /// Who refused it; `None` if nobody did.
    pub fn refused(&self) -> Option<OverLimitEvent<'a, 'q>> {
        let index = self.answer.refused_by?;
        let step = &self.plan.steps[index];
        let check = step.check()?;
        let rule = if let Step::Counted { rule, .. } = step {
            &rule.path
        } else {
            OWN_LIMIT
        };
        Some(OverLimitEvent {
            rule,
            limit: &self.plan.request.checks[check].limit,
            descriptor: &self.query.descriptors[index],
            retry_after: self.verdicts[check].retry_after,
            policy: self.policy(step),
        })
    }

    /// Which policy spoke in place of the store, and why.
    fn policy(&self, step: &Step<'_>) -> Option<String> {
        let cause = (*self.store_errors.get(step.check()?)?)?;
        Some(format!(
            "{} ({})",
            self.fallback.policy(step).name(),
            cause.name()
        ))
    }
}

impl OverLimitEvent<'_, '_> {
    /// Writes the line. `left_out` is how many were not written since the last one.
    pub fn log(&self, domain: &[u8], left_out: u64) {
        tracing::warn!(
            domain = bounded(DESCRIPTOR_BYTES_MAX, |text| write!(text, "{}", Text(domain))),
            descriptor = bounded(DESCRIPTOR_BYTES_MAX, |text| write_descriptor(text, self.descriptor)),
            rule = self.rule(),
            limit = %self.limit,
            retry_after_secs = self.retry_after.map(Span::ceil_secs),
            store_policy = self.policy,
            left_out,
            "refused"
        );
    }

    /// Its path, which may have values of any length.
    fn rule(&self) -> String {
        bounded(DESCRIPTOR_BYTES_MAX, |text| text.write_str(self.rule))
    }
}

/// A text that takes no more than so many bytes.
struct Bounded {
    text: String,
    bytes_max: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        part.chars().try_for_each(|letter| {
            let letter = letter
                .is_control()
                .then(|| letter.escape_unicode())
                .map_or(Escaped::Plain(letter), Escaped::Control);
            let before = self.text.len();
            // A String takes anything.
            let _ = write!(self.text, "{letter}");
            if self.text.len() > self.bytes_max {
                self.text.truncate(before);
                return Err(fmt::Error);
            }
            Ok(())
        })
    }
}

/// A letter as it is shown.
enum Escaped {
    Plain(char),
    Control(std::char::EscapeUnicode),
}

impl fmt::Display for Escaped {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(letter) => formatter.write_char(*letter),
            Self::Control(escaped) => write!(formatter, "{escaped}"),
        }
    }
}

/// What is written, as far as there is room; three dots stand for the rest.
fn bounded(bytes_max: usize, write: impl FnOnce(&mut Bounded) -> fmt::Result) -> String {
    let mut bounded = Bounded {
        text: String::new(),
        bytes_max,
    };
    let is_whole = write(&mut bounded).is_ok();
    if is_whole {
        bounded.text
    } else {
        bounded.text + "..."
    }
}

/// In protobuf's text form, as the reference has it.
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

fn write_descriptor(text: &mut Bounded, descriptor: &Descriptor<'_>) -> fmt::Result {
    for (index, entry) in descriptor.entries.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(text, "{comma}{}={}", Text(entry.key), Text(entry.value))?;
    }
    Ok(())
}

fn length(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::check::Hits;
    use crate::rules::query::Entry;

    fn query(value: &str) -> Query<'_> {
        let entries = smallvec![Entry::new("user", value), Entry::new("path", "/")];
        let descriptor = Descriptor {
            entries,
            limit: None,
            hits: Hits::Add(1),
            hits_addend: None,
        };
        Query {
            domain: b"d",
            descriptors: smallvec![descriptor],
            ..Query::default()
        }
    }

    #[test]
    fn a_request_is_shown_as_protobuf_shows_it_and_cut_where_it_is_long() {
        let shown =
            |value: &str| bounded(REQUEST_BYTES_MAX, |text| write_request(text, &query(value)));
        assert_eq!(
            shown("a\"b"),
            r#"domain:"d" descriptors:{entries:{key:"user" value:"a\"b"} entries:{key:"path" value:"/"}}"#
        );
        let long = "ü".repeat(5_000);
        let cut = shown(&long);
        assert!(
            cut.ends_with("ü...") && cut.len() <= REQUEST_BYTES_MAX + 3,
            "{} bytes",
            cut.len()
        );
    }

    #[test]
    fn what_controls_a_terminal_is_shown_as_a_number() {
        let query = query("a\u{1b}[31m\n\u{9b}b");
        let shown = bounded(DESCRIPTOR_BYTES_MAX, |text| {
            write_descriptor(text, &query.descriptors[0])
        });
        assert_eq!(shown, r"user=a\u{1b}[31m\u{a}\u{9b}b,path=/");
    }
}
