//! `/api/v1/over-limit`: responses of OVER_LIMIT and warnings as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use http::header;
use tokio::time::timeout;

use crate::base::shutdown::Lifecycle;
use crate::operator::observe::feed::OverLimitFeed;
use crate::operator::observe::redact::Values;

/// Many proxies close a connection that is silent for a minute.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// A comment.
const KEEP_ALIVE: &str = ":\n\n";

/// Events from now on, until the client leaves or the process stops.
pub(crate) fn events(feed: &OverLimitFeed, values: Values, lifecycle: &Lifecycle) -> Response {
    let stopping = lifecycle.stopping().clone();
    let state = (feed.read(values), stopping);
    let events = stream::unfold(state, |(mut reader, stopping)| async move {
        let next = timeout(KEEP_ALIVE_INTERVAL, reader.next());
        let text = match stopping.run_until_cancelled(next).await? {
            Ok(event) => format!("data: {}\n\n", event?),
            Err(_) => KEEP_ALIVE.to_owned(),
        };
        Some((Ok::<_, Infallible>(text), (reader, stopping)))
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(events)).into_response()
}
