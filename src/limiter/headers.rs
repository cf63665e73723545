//! Headers that Envoy adds: three of envoyproxy/ratelimit, two of the IETF draft, `Retry-After`,
//! warnings, and those of rules that degrade.

use std::fmt::Write as _;

use crate::base::time::Span;
use crate::limiter::decision::Decision;
use crate::limiter::response::{Header, Status};
use crate::limiter::settings::Settings;
use crate::limits::Windows;
use crate::rules::{OnLimit, Rule};

/// The greatest integer of RFC 9651.
const GREATEST_INTEGER: u64 = 999_999_999_999_999;

/// Headers for the client, in order. `hard_over` says which statuses alone make the request over
/// limit. `retry_later` lengthens `Retry-After`; it is `None` if the request is not over limit.
pub(crate) fn of_response(
    decision: &Decision<'_, '_, '_>,
    statuses: &[Status],
    hard_over: impl Fn(usize) -> bool,
    retry_later: Option<Span>,
    settings: &Settings,
) -> Vec<Header> {
    let mut headers = Vec::new();
    if settings.limit_response_headers_enabled {
        let names = [
            &*settings.limit_limit_header,
            &*settings.limit_remaining_header,
            &*settings.limit_reset_header,
        ];
        headers.extend(reference(statuses, hard_over, names).into_iter().flatten());
    }
    if settings.ietf_ratelimit_headers_enabled {
        headers.extend(ietf(decision));
    }
    if let Some(later) = retry_later.filter(|_| settings.retry_after_header_enabled) {
        // A retry before the last of them is over limit again.
        let over = statuses.iter().filter(|status| status.over_limit);
        let wait = over.map(|status| status.reset_secs).max();
        headers.extend(wait.map(|secs| {
            let secs = secs.saturating_add(later.ceil_secs());
            header("Retry-After", secs.to_string())
        }));
    }
    if retry_later.is_none() {
        headers.extend(warning(decision, &settings.warning_header));
    }
    headers
}

/// Headers for the upstream, in order: those of envoyproxy/ratelimit, then those of rules that
/// degrade. The first of two headers of the same name wins.
pub(crate) fn of_request(
    statuses: &[Status],
    hard_over: impl Fn(usize) -> bool,
    degraded: &[&Rule],
    settings: &Settings,
) -> Vec<Header> {
    let mut headers = Vec::new();
    if settings.limit_request_headers_enabled {
        let names = [
            &*settings.limit_request_limit_header,
            &*settings.limit_request_remaining_header,
            &*settings.limit_request_reset_header,
        ];
        headers.extend(reference(statuses, hard_over, names).into_iter().flatten());
    }
    let first = headers.len();
    for rule in degraded {
        let OnLimit::Degrade { request_headers } = &rule.on_limit else {
            continue;
        };
        for (name, value) in request_headers.iter() {
            let is_known = |(known, _): &Header| known.eq_ignore_ascii_case(name);
            if !headers[first..].iter().any(is_known) {
                headers.push(header(name, value.to_string()));
            }
        }
    }
    headers
}

fn header(name: &str, value: String) -> Header {
    (name.into(), value)
}

/// The headers of envoyproxy/ratelimit: limit, remaining hits and seconds until the reset.
fn reference(
    statuses: &[Status],
    hard_over: impl Fn(usize) -> bool,
    [limit_name, remaining, reset]: [&str; 3],
) -> Option<[Header; 3]> {
    let status = &statuses[nearest(statuses, hard_over)?];
    let (limit, _) = status.limit.as_ref()?;
    Some([
        header(limit_name, limit.requests.to_string()),
        header(remaining, status.remaining.to_string()),
        header(reset, status.reset_secs.to_string()),
    ])
}

/// Index of the status that the headers of envoyproxy/ratelimit describe: the last hard one that is
/// over limit, else the first with the least remaining. 2^32 - 1 remaining is never near.
pub(crate) fn nearest(statuses: &[Status], hard_over: impl Fn(usize) -> bool) -> Option<usize> {
    let mut nearest = None;
    let mut least = u64::MAX;
    for (index, status) in statuses.iter().enumerate() {
        let is_near = status.remaining != u64::from(u32::MAX) && status.remaining < least;
        if status.limit.is_some() && is_near {
            (nearest, least) = (Some(index), status.remaining);
        }
        if hard_over(index) {
            (nearest, least) = (Some(index), 0);
        }
    }
    nearest
}

/// `RateLimit-Policy` and `RateLimit` as structured fields of
/// draft-ietf-httpapi-ratelimit-headers-10: a member for each limit, in order.
fn ietf(decision: &Decision<'_, '_, '_>) -> Vec<Header> {
    let mut policies = String::new();
    let mut state = String::new();
    for (place, counted) in decision.limits() {
        let limit = counted.check.limit;
        let name = policy_name(counted.link.name(), place);
        let comma = if policies.is_empty() { "" } else { ", " };
        let _ = write!(policies, "{comma}{name};q={}", limit.requests.min(GREATEST_INTEGER));
        // A concurrency limit has no period, and calendar periods have different lengths.
        if !limit.algorithm.counts_holders() && limit.windows == Windows::Aligned {
            let _ = write!(policies, ";w={}", limit.period.ceil_secs());
        }
        let remaining = counted.verdict.remaining.min(GREATEST_INTEGER);
        let reset = counted.reset_secs();
        let _ = write!(state, "{comma}{name};r={remaining};t={reset}");
    }
    if policies.is_empty() {
        return Vec::new();
    }
    vec![header("RateLimit-Policy", policies), header("RateLimit", state)]
}

/// The limits that are used from a threshold on, as a list of RFC 9651: what is used in percent,
/// and seconds until it is unused.
fn warning(decision: &Decision<'_, '_, '_>, header_name: &str) -> Option<Header> {
    let mut list = String::new();
    for warning in decision.warnings() {
        let comma = if list.is_empty() { "" } else { ", " };
        let name = policy_name(warning.counted.link.name(), warning.place);
        let used = warning.used_percent.min(GREATEST_INTEGER);
        let reset = warning.counted.verdict.reset_after.ceil_secs().max(1);
        let _ = write!(list, "{comma}{name};used={used};t={reset}");
    }
    (!list.is_empty()).then(|| header(header_name, list))
}

/// The name of a limit as a string of RFC 9651, or the index of its descriptor, and its own index
/// there unless it is the first, if such a string cannot hold the name.
fn policy_name(name: &str, [index, nth]: [usize; 2]) -> String {
    if name.is_empty() || !name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return match nth {
            0 => format!("\"descriptor-{index}\""),
            _ => format!("\"descriptor-{index}-{nth}\""),
        };
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;
    use crate::base::time::Time;
    use crate::limiter::decision::StoreErrors;
    use crate::limits::check::{Blocked, Verdict};
    use crate::rules::plan::{Modes, plan};
    use crate::rules::query::Query;
    use crate::rules::tree::tests::rules_of;

    const RULES: &str = r#"
domain: d
descriptors:
- {key: a, rate_limit: {name: 'per "user"', unit: minute, requests_per_unit: 10}, metadata: {tollgate: {unit_multiplier: 5}}}
- {key: b, rate_limit: {name: ümlaut, unit: minute, requests_per_unit: 10}, metadata: {tollgate: {unit_multiplier: 5}}}
- {key: c, rate_limit: {unit: minute, requests_per_unit: 10}, metadata: {tollgate: {warn_at: 50%}}}
"#;

    /// The headers of the response to a request whose limits have `remaining` hits, and those of the
    /// request.
    fn headers_of(
        entries: &[&str],
        remaining: &[u64],
        later: Option<Span>,
        settings: &Settings,
    ) -> [Vec<String>; 2] {
        let rules = Arc::new(rules_of(RULES));
        let mut query = Query::default();
        for entry in entries {
            let one = Query::of_entries("d", [*entry]).expect("an entry");
            query.domain = one.domain;
            query.descriptors.extend(one.descriptors);
        }
        let now = Time::from_micros(0);
        let plan = plan(&rules, &query, Modes::default(), now).expect("it is valid");
        let verdicts = remaining.iter().map(|&remaining| Verdict {
            over: remaining == 0,
            used: 10 - remaining,
            remaining,
            retry_after: (remaining == 0).then_some(Span::from_secs(7)),
            reset_after: Span::from_secs(7),
            ..Verdict::default()
        });
        let decision = Decision {
            query: &query,
            rules: &rules,
            plan: &plan,
            verdicts: &verdicts.collect(),
            store_errors: &StoreErrors::new(),
            blocked: &Blocked::default(),
            now,
        };
        let statuses: Vec<Status> = plan.steps.iter().map(|step| decision.status(step)).collect();
        let headers = [
            of_response(&decision, &statuses, |_| false, later, settings),
            of_request(&statuses, |_| false, &[], settings),
        ];
        headers.map(|headers| {
            headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
        })
    }

    fn all_headers() -> Settings {
        Settings {
            ietf_ratelimit_headers_enabled: true,
            retry_after_header_enabled: true,
            ..Settings::default()
        }
    }

    #[test]
    fn ietf_headers_are_structured_fields() {
        assert_eq!(
            headers_of(&["a=x", "none=x", "b=x"], &[3, 0], Some(Span::ZERO), &all_headers())[0],
            [
                r#"RateLimit-Policy: "per \"user\"";q=10;w=300, "descriptor-2";q=10;w=300"#,
                r#"RateLimit: "per \"user\"";r=3;t=7, "descriptor-2";r=0;t=7"#,
                "Retry-After: 7",
            ]
        );
    }

    #[test]
    fn without_a_limit_there_are_no_headers() {
        let settings = Settings { limit_response_headers_enabled: true, ..all_headers() };
        assert_eq!(headers_of(&["none=x"], &[], None, &settings)[0], [""; 0]);
    }

    #[test]
    fn headers_have_configured_names() {
        let names = [
            ("LIMIT_LIMIT_HEADER", "X-Most"),
            ("LIMIT_REMAINING_HEADER", "X-Left"),
            ("LIMIT_RESET_HEADER", "X-Seconds"),
            ("LIMIT_REQUEST_LIMIT_HEADER", "Y-Most"),
            ("LIMIT_REQUEST_REMAINING_HEADER", "Y-Left"),
            ("LIMIT_REQUEST_RESET_HEADER", "Y-Seconds"),
            ("WARNING_HEADER", "X-Near"),
        ];
        let flags = names
            .map(|(name, value)| format!("--{}={value}", name.to_lowercase().replace('_', "-")));
        let enabled = ["--limit-response-headers-enabled", "--limit-request-headers-enabled"];
        let arguments = ["test"].into_iter().chain(enabled).map(str::to_owned).chain(flags);
        let matches = Settings::augment_args(Command::new("test")).get_matches_from(arguments);
        let settings = Settings::from_arg_matches(&matches).expect("valid flags");
        assert_eq!(
            headers_of(&["c=x"], &[4], None, &settings),
            [
                vec![
                    "X-Most: 10",
                    "X-Left: 4",
                    "X-Seconds: 7",
                    r#"X-Near: "descriptor-0";used=60;t=7"#
                ],
                vec!["Y-Most: 10", "Y-Left: 4", "Y-Seconds: 7"],
            ]
        );
    }
}
