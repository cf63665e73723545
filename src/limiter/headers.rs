//! Headers that Envoy adds: three of envoyproxy/ratelimit, two of the IETF draft, `Retry-After`,
//! and those of rules that degrade.

use std::fmt::Write as _;

use crate::base::time::Span;
use crate::limit::Windows;
use crate::limiter::response::{Header, Status};
use crate::limiter::settings::Settings;
use crate::rules::{OnLimit, Rule};

/// Headers for the client, in order. `hard_over` says which statuses alone make the request over
/// limit. `retry_later` lengthens `Retry-After`; it is `None` if the request is not over limit.
pub(crate) fn of_response(
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
        headers.extend(ietf(statuses));
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
fn ietf(statuses: &[Status]) -> Vec<Header> {
    let (mut policies, mut state) = (String::new(), String::new());
    for (index, status) in statuses.iter().enumerate() {
        let Some((limit, name)) = &status.limit else {
            continue;
        };
        let name = policy_name(name, index);
        let comma = if policies.is_empty() { "" } else { ", " };
        let _ = write!(policies, "{comma}{name};q={}", limit.requests);
        // A concurrency limit has no period, and calendar periods have different lengths.
        if !limit.algorithm.counts_holders() && limit.windows == Windows::Aligned {
            let _ = write!(policies, ";w={}", limit.period.ceil_secs());
        }
        let (remaining, reset) = (status.remaining, status.reset_secs);
        let _ = write!(state, "{comma}{name};r={remaining};t={reset}");
    }
    if policies.is_empty() {
        return Vec::new();
    }
    vec![
        header("RateLimit-Policy", policies),
        header("RateLimit", state),
    ]
}

/// The rule's name as a string of RFC 9651, or the index of the descriptor if such a string cannot
/// hold the name.
fn policy_name(name: &str, index: usize) -> String {
    if name.is_empty() || !name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return format!("\"descriptor-{index}\"");
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Limit, Terms, Unit};

    fn status(name: &str, remaining: u64) -> Status {
        let terms = Terms {
            unit_multiplier: 5,
            ..Terms::new(10, Unit::Minute, Algorithm::FixedWindow)
        };
        let limit = Limit::new(&terms).expect("a limit");
        Status {
            over_limit: remaining == 0,
            limit: Some((limit, name.into())),
            remaining,
            reset_secs: 7,
        }
    }

    #[test]
    fn ietf_headers_are_structured_fields() {
        let settings = Settings {
            ietf_ratelimit_headers_enabled: true,
            retry_after_header_enabled: true,
            ..Settings::default()
        };
        let statuses = [
            status("per \"user\"", 3),
            Status::default(),
            status("ümlaut", 0),
        ];
        let found: Vec<String> = of_response(&statuses, |_| false, Some(Span::ZERO), &settings)
            .into_iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        assert_eq!(
            found,
            [
                r#"RateLimit-Policy: "per \"user\"";q=10;w=300, "descriptor-2";q=10;w=300"#,
                r#"RateLimit: "per \"user\"";r=3;t=7, "descriptor-2";r=0;t=7"#,
                "Retry-After: 7",
            ]
        );
    }

    #[test]
    fn without_a_limit_there_are_no_headers() {
        let settings = Settings {
            ietf_ratelimit_headers_enabled: true,
            limit_response_headers_enabled: true,
            ..Settings::default()
        };
        let statuses = [Status::default()];
        assert_eq!(of_response(&statuses, |_| false, None, &settings), []);
    }
}
