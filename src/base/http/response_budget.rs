//! Bounds the memory of responses of a listener, from the request until the client has read them.
//!
//! ```text
//!  GET --> place of RENDERED_MAX ----> bytes of RESPONSE_BYTES_MAX
//!          read files, render, ...     until the client has read them
//! ```
//! Without places as many pages as there are connections would be rendered at a time; without the
//! bound of bytes as many would be in memory, if clients do not read them. The bytes of a page that
//! requests share are counted once, where it is rendered.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Bytes, HttpBody as _, to_bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use http::{Method, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::telemetry::metric::{Counter, Metrics};

/// Bytes of responses of the admin port that are not sent yet, all of them together. A larger one
/// is sent alone.
// bound response_bytes_max: the request is answered with 503, or with the previous page;
// tollgate_admin_responses_full_total, tollgate_admin_pages_full_total
const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// Bytes of a response that is not counted: the connections of the listener bound them.
const UNCOUNTED_BYTES_MAX: usize = 64 << 10;
/// GET requests to the console and to `/api/v1` whose responses are rendered at a time, other than
/// of pages that requests share.
// bound responses_rendered_max: the next one waits; tollgate_admin_responses_full_total
const RENDERED_MAX: usize = 2;
/// Time that a GET request waits for others to be rendered, or prepared.
// bound response_wait_max: the request is answered with 503; tollgate_admin_responses_full_total
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Why a response is not sent.
pub(crate) const FULL: &str = "too many responses are rendered or being sent (responses_rendered_max, top_queries_max, response_bytes_max); repeat the request";
/// Seconds until the client may try again.
pub(crate) const RETRY_AFTER_SECS: u64 = 1;

/// The responses of a listener. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ResponseBudget {
    bytes: Arc<Semaphore>,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    full: Counter,
}

/// Marks a response whose bytes are counted already.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted;

/// Bytes, and their part of a budget.
#[derive(Debug)]
pub(crate) struct Held<T> {
    bytes: T,
    _part: OwnedSemaphorePermit,
}

impl<T> Held<T> {
    pub(crate) fn new(bytes: T, part: OwnedSemaphorePermit) -> Self {
        Self { bytes, _part: part }
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Held<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl ResponseBudget {
    /// Registers the metric.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(RESPONSE_BYTES_MAX)),
            places: Arc::new(Semaphore::new(RENDERED_MAX)),
            tasks: TaskTracker::new(),
            full: metrics.counter(
                "tollgate_admin_responses_full_total",
                "Responses of the admin listener that were rejected with 503, because 16 MiB of others are still being sent (response_bytes_max) or others were rendered for 5 s (responses_rendered_max, top_queries_max, response_wait_max).",
            ),
        }
    }

    /// Has GET requests to `routes` wait for a place and counts the bytes of all responses. `full`
    /// makes the response if there are too many.
    pub(crate) fn bounded<S: Clone + Send + Sync + 'static>(
        &self,
        routes: Router<S>,
        full: impl Fn() -> Response + Clone + Send + Sync + 'static,
    ) -> Router<S> {
        let budget = self.clone();
        let own = full.clone();
        let place =
            move |request: Request, next: Next| budget.clone().render(request, next, own.clone());
        self.counted(routes, full).route_layer(from_fn(place))
    }

    /// Counts the bytes of responses of `routes`, which bound by themselves how many are rendered.
    pub(crate) fn counted<S: Clone + Send + Sync + 'static>(
        &self,
        routes: Router<S>,
        full: impl Fn() -> Response + Clone + Send + Sync + 'static,
    ) -> Router<S> {
        let budget = self.clone();
        let count =
            move |request: Request, next: Next| budget.clone().count(request, next, full.clone());
        routes.route_layer(from_fn(count))
    }

    /// The part of the budget for this number of bytes, until it is dropped; `None` if too much of
    /// it is in use.
    pub(crate) fn part(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes.min(RESPONSE_BYTES_MAX)).expect("16 MiB fit");
        self.bytes.clone().try_acquire_many_owned(bytes).ok()
    }

    /// Counts a request that gets `response` instead of what it asked for.
    pub(crate) fn rejected<T>(&self, response: impl FnOnce() -> T) -> T {
        self.full.inc();
        response()
    }

    async fn count(
        self,
        request: Request,
        next: Next,
        full: impl FnOnce() -> Response,
    ) -> Response {
        let held = self.hold(next.run(request).await).await;
        held.unwrap_or_else(|| self.rejected(full))
    }

    async fn render(
        self,
        request: Request,
        next: Next,
        full: impl FnOnce() -> Response,
    ) -> Response {
        // Others wait for their bodies, and have bounds of their own.
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return next.run(request).await;
        }
        let Some(place) = place_of(&self.places).await else {
            return self.rejected(full);
        };
        // To its end, even if the client goes away: what was begun on other threads is not
        // cancelled either.
        let rendering = self.tasks.spawn(async move {
            let _place = place;
            next.run(request).await
        });
        let rendered = rendering.await;
        rendered.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }

    /// Counts the bytes of a response until they are sent.
    async fn hold(&self, response: Response) -> Option<Response> {
        let size = response.body().size_hint().exact().unwrap_or_default();
        let size = usize::try_from(size).ok()?;
        if size <= UNCOUNTED_BYTES_MAX || response.extensions().get::<Counted>().is_some() {
            return Some(response);
        }
        let part = self.part(size)?;
        let (head, body) = response.into_parts();
        // Its size is known, so it is in memory, and not copied.
        let bytes = to_bytes(body, size).await.ok()?;
        let bytes = Bytes::from_owner(Held::new(bytes, part));
        Some(Response::from_parts(head, bytes.into()))
    }
}

/// A place, if there is one within the time that a GET request waits.
pub(crate) async fn place_of(places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    let place = timeout(WAIT_MAX, places.clone().acquire_owned()).await;
    place.ok().and_then(Result::ok)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[tokio::test]
    async fn large_bodies_are_counted_until_they_are_dropped() {
        let budget = ResponseBudget::new(&Metrics::new());
        let hold =
            async |bytes: usize| budget.hold(Body::from(" ".repeat(bytes)).into_response()).await;
        let half = RESPONSE_BYTES_MAX / 2;
        let unread = [hold(half).await, hold(half).await];
        assert!(unread.iter().all(Option::is_some));
        assert!(hold(UNCOUNTED_BYTES_MAX + 1).await.is_none());
        assert!(hold(UNCOUNTED_BYTES_MAX).await.is_some());
        drop(unread);
        let all = hold(RESPONSE_BYTES_MAX + 1).await;
        assert!(all.is_some(), "a body above the bound is sent alone");
        assert!(hold(half).await.is_none());
    }
}
