//! Health over HTTP, for every door that has it: /healthcheck and /ready say what the process'
//! lifecycle says.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;

use crate::shutdown::Lifecycle;

/// 200 `OK`, or 500 and nothing.
pub async fn healthcheck(State(lifecycle): State<Lifecycle>) -> Response {
    if lifecycle.serving() {
        "OK".into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// What the process waits for, by name; 200 if for nothing, else 503.
pub async fn ready(State(lifecycle): State<Lifecycle>) -> Response {
    let state = lifecycle.state();
    let status = if state.serving() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, state.report()).into_response()
}
