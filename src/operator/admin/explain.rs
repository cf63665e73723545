//! `/explain`: the limits of a request by the rules in force, and why they apply.

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;

use crate::api::body::{bad_request, read_body};
use crate::api::decode;
use crate::api::messages::{self, EXAMPLE};
use crate::limiter::{self, Modes};
use crate::operator::admin::query_string::Pairs;
use crate::rules::explain::explain;
use crate::rules::{LiveRules, Query};

const GET_USAGE: &str = "write /explain?domain=DOMAIN&descriptor=KEY%3DVALUE with a `descriptor` for each entry, key and value percent-encoded";
/// Bytes of a body of `/explain` and of `POST /api/v1/counters`. A recorded request has a few
/// hundred, and every connection of the admin listener may hold a body.
pub(crate) const BODY_BYTES_MAX: usize = 256 << 10;
/// The response of a page that needs rules, before the first are loaded.
pub(crate) const NO_RULES: &str = "no rules are loaded\n";

/// Explains by the rules in force.
fn explained(rules: &LiveRules, modes: Modes, query: &Query<'_>) -> Response {
    if let Err(invalid) = limiter::validate(query) {
        return bad_request(&invalid.to_string(), Some(EXAMPLE));
    }
    match rules.load().as_ref() {
        Some(rules) => explain(rules, query, modes).text.into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, NO_RULES).into_response(),
    }
}

/// GET: one descriptor, with an entry for each `descriptor` in the query string. Keys and values
/// may be any bytes.
pub(crate) fn by_query(rules: &LiveRules, modes: Modes, pairs: &Pairs) -> Response {
    let domain = pairs.first("domain");
    if domain.is_empty() || pairs.all("descriptor").next().is_none() {
        return bad_request(
            &format!("a domain and at least one descriptor are needed; {GET_USAGE}"),
            None,
        );
    }
    match Query::of_entries(domain, pairs.all("descriptor")) {
        Ok(query) => explained(rules, modes, &query),
        Err(invalid) => bad_request(&format!("{invalid}; {GET_USAGE}"), None),
    }
}

/// POST: a request in the form of `/json`.
pub(crate) async fn by_body(rules: &LiveRules, modes: Modes, body: Body) -> Response {
    let body = match read_body(body, BODY_BYTES_MAX, |_| true).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    match messages::read(&body) {
        Ok(request) => match decode::query(&request) {
            Ok((query, _)) => explained(rules, modes, &query),
            Err(error) => bad_request(&error.to_string(), None),
        },
        Err(error) => bad_request(&format!("invalid request: {error:#}"), Some(EXAMPLE)),
    }
}
