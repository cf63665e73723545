//! `/healthcheck`, `/ready` and `/live`, for every HTTP listener that has them.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;

use crate::base::shutdown::Lifecycle;

/// 200 with `OK`, or 500 without a body.
pub(crate) async fn healthcheck(State(lifecycle): State<Lifecycle>) -> Response {
    if lifecycle.serving() {
        "OK".into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// 200 with `OK`. It depends on nothing that a restart would not repair.
pub(crate) async fn live() -> &'static str {
    "OK"
}

/// The status of each part; 200 if the process should receive requests, else 503.
pub(crate) async fn ready(State(lifecycle): State<Lifecycle>) -> Response {
    let state = lifecycle.state();
    let status = if state.serving() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, state.report()).into_response()
}
