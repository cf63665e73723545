//! Headers that tell a client where it stands: the reference's three, the IETF's two, and
//! Retry-After. And those that tell an upstream to give the cheap answer.

use std::fmt::Write as _;

use crate::limiter::Policy;
use crate::limiter::response::{Header, Status};
use crate::rules::{OnLimit, Rule};
use crate::time::Span;

/// Names of the reference's three headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderNames {
    /// Of the limit.
    pub limit: Box<str>,
    /// Of what remains.
    pub remaining: Box<str>,
    /// Of the seconds until the reset.
    pub reset: Box<str>,
}

/// What the headers of an answer are made of.
#[derive(Debug, Clone, Copy)]
pub struct HeaderInput<'t> {
    /// One for each descriptor.
    pub statuses: &'t [Status],
    /// Whether the request is refused.
    pub over_limit: bool,
    /// By how much Retry-After is lengthened, so that not everybody who is refused now comes back
    /// at once.
    pub retry_later: Span,
}

/// The headers of an answer, in order. `hard_over` says which statuses refuse the request all by
/// themselves.
pub fn headers(
    told: HeaderInput<'_>,
    hard_over: impl Fn(usize) -> bool,
    policy: &Policy,
) -> Vec<Header> {
    let HeaderInput {
        statuses,
        over_limit,
        retry_later,
    } = told;
    let mut headers = reference(statuses, hard_over, policy.reference_headers.as_ref());
    if policy.ietf_headers {
        headers.extend(ietf(statuses));
    }
    if policy.retry_after_header && over_limit {
        // Whoever comes back before the last of them is refused again.
        let wait = statuses
            .iter()
            .filter(|status| status.over_limit)
            .map(|status| status.reset_secs)
            .max();
        let later = |secs: u64| secs.saturating_add(retry_later.ceil_secs());
        headers.extend(wait.map(|secs| Header {
            name: "Retry-After".into(),
            value: later(secs).to_string(),
        }));
    }
    headers
}

/// The reference's three headers, under these names if they are wanted.
pub fn reference(
    statuses: &[Status],
    hard_over: impl Fn(usize) -> bool,
    names: Option<&HeaderNames>,
) -> Vec<Header> {
    let Some(names) = names else {
        return Vec::new();
    };
    let Some(status) = nearest(statuses, hard_over) else {
        return Vec::new();
    };
    let Some(limit) = &status.limit else {
        return Vec::new();
    };
    vec![
        Header {
            name: names.limit.clone(),
            value: limit.requests.to_string(),
        },
        Header {
            name: names.remaining.clone(),
            value: status.remaining.to_string(),
        },
        Header {
            name: names.reset.clone(),
            value: status.reset_secs.to_string(),
        },
    ]
}

/// What rules that degrade want the upstream to hear, in order. Of two that have a header of the
/// same name the first wins.
pub fn request_headers(degraded: &[&Rule]) -> Vec<Header> {
    let mut headers: Vec<Header> = Vec::new();
    for rule in degraded {
        let OnLimit::Degrade { request_headers } = &rule.on_limit else {
            continue;
        };
        for (name, value) in request_headers {
            if !headers
                .iter()
                .any(|known| known.name.eq_ignore_ascii_case(name))
            {
                headers.push(Header {
                    name: name.clone(),
                    value: value.to_string(),
                });
            }
        }
    }
    headers
}

/// The status that the reference's headers speak of: the first with the least remaining, but rather
/// the last one that refuses. One with 2^32 - 1 remaining is never near.
fn nearest(statuses: &[Status], hard_over: impl Fn(usize) -> bool) -> Option<&Status> {
    let mut nearest = None;
    let mut least = u32::MAX;
    for (index, status) in statuses.iter().enumerate() {
        if status.limit.is_some() && status.remaining < least {
            (nearest, least) = (Some(status), status.remaining);
        }
        if hard_over(index) {
            (nearest, least) = (Some(status), 0);
        }
    }
    nearest
}

/// `RateLimit-Policy` and `RateLimit`, structured fields as of
/// draft-ietf-httpapi-ratelimit-headers-10: a member per limit, in order.
fn ietf(statuses: &[Status]) -> Vec<Header> {
    let (mut policies, mut state) = (String::new(), String::new());
    for (index, status) in statuses.iter().enumerate() {
        let Some(limit) = &status.limit else { continue };
        let name = policy_name(&limit.name, index);
        let comma = if policies.is_empty() { "" } else { ", " };
        let _ = write!(policies, "{comma}{name};q={}", limit.requests);
        if let Some(secs) = limit.period_secs {
            let _ = write!(policies, ";w={secs}");
        }
        let _ = write!(
            state,
            "{comma}{name};r={};t={}",
            status.remaining, status.reset_secs
        );
    }
    if policies.is_empty() {
        return Vec::new();
    }
    vec![
        Header {
            name: "RateLimit-Policy".into(),
            value: policies,
        },
        Header {
            name: "RateLimit".into(),
            value: state,
        },
    ]
}

/// The rule's name as a string of RFC 9651, or the descriptor's number where there is no name that
/// such a string can hold.
fn policy_name(name: &str, index: usize) -> String {
    if name.is_empty() || !name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return format!("\"descriptor-{index}\"");
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::response::StatusLimit;

    fn status(name: &str, remaining: u32) -> Status {
        let limit = StatusLimit {
            requests: 10,
            unit: None,
            period_secs: Some(300),
            name: name.into(),
        };
        Status {
            over_limit: remaining == 0,
            limit: Some(limit),
            remaining,
            reset_secs: 7,
        }
    }

    #[test]
    fn ietf_headers_are_structured_fields() {
        let policy = Policy {
            ietf_headers: true,
            retry_after_header: true,
            ..Policy::default()
        };
        let statuses = [
            status("per \"user\"", 3),
            Status::default(),
            status("ümlaut", 0),
        ];
        let found = headers(
            HeaderInput {
                statuses: &statuses,
                over_limit: true,
                retry_later: Span::ZERO,
            },
            |_| false,
            &policy,
        );
        let found: Vec<String> = found
            .into_iter()
            .map(|header| format!("{}: {}", header.name, header.value))
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
        let names = HeaderNames {
            limit: "L".into(),
            remaining: "R".into(),
            reset: "T".into(),
        };
        let policy = Policy {
            ietf_headers: true,
            reference_headers: Some(names),
            ..Policy::default()
        };
        let told = HeaderInput {
            statuses: &[Status::default()],
            over_limit: false,
            retry_later: Span::ZERO,
        };
        assert_eq!(headers(told, |_| false, &policy), []);
    }
}
