//! Bounds the bytes of responses that were rendered for one request, until their clients have read
//! them.
//!
//! Pages that all requests share are bounded where they are rendered. Without this bound as many
//! large responses as there are connections would be in memory, if clients do not read them.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::telemetry::metric::{Counter, Metrics};

/// Bytes of responses of `/api/v1` and the console that are not sent yet: a sixteenth of what the
/// chart gives a pod.
// bound response_bytes_max: 503; tollgate_admin_responses_full_total
const RESPONSE_BYTES_MAX: usize = 32 << 20;
/// Bytes of a response that is not counted: the connections of the listener bound them.
// bound uncounted_bytes_max: counted in `response_bytes_max`; -
const UNCOUNTED_BYTES_MAX: usize = 64 << 10;
/// Why a response is not sent.
pub(crate) const FULL: &str =
    "too many bytes of responses are being sent (response_bytes_max); repeat the request";

/// The responses of a listener. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ResponseBudget {
    free: Arc<Semaphore>,
    full: Counter,
}

/// The bytes of a response, and its part of the budget.
struct Held {
    text: Box<str>,
    _part: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl ResponseBudget {
    /// Registers the metric.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            free: Arc::new(Semaphore::new(RESPONSE_BYTES_MAX)),
            full: metrics.counter(
                "tollgate_admin_responses_full_total",
                "Responses of /api/v1 and the console that were rejected with 503, because 32 MiB of others are still being sent (response_bytes_max).",
            ),
        }
    }

    /// The body of a response, which has its part of the budget until it is sent. `None` if too much
    /// of the budget is in use.
    pub(crate) fn body(&self, text: String) -> Option<Body> {
        if text.len() <= UNCOUNTED_BYTES_MAX {
            return Some(text.into());
        }
        let bytes = u32::try_from(text.len().min(RESPONSE_BYTES_MAX)).expect("32 MiB fit");
        let Ok(part) = self.free.clone().try_acquire_many_owned(bytes) else {
            self.full.inc();
            return None;
        };
        let text = text.into_boxed_str();
        Some(Bytes::from_owner(Held { text, _part: part }).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_are_counted_until_they_are_dropped() {
        let budget = ResponseBudget::new(&Metrics::new());
        let body = |bytes: usize| budget.body(" ".repeat(bytes));
        let half = RESPONSE_BYTES_MAX / 2;
        let held = [body(half), body(half)];
        assert!(held.iter().all(Option::is_some));
        assert!(body(UNCOUNTED_BYTES_MAX + 1).is_none());
        assert!(body(UNCOUNTED_BYTES_MAX).is_some());
        assert_eq!(budget.full.get(), 1);
        drop(held);
        let all = body(RESPONSE_BYTES_MAX + 1);
        assert!(all.is_some(), "a body above the bound is sent alone");
        assert!(body(half).is_none());
    }
}
