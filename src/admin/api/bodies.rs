//! Texts of rules that are being sent, bounded in sum.
//!
//! Until it has arrived a text takes no place among those that are compiled. When all texts take
//! too much memory, the one that has been arriving for the longest time is given up: clients that
//! send half a text delay no others.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use http::StatusCode;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::admin::api::answer::Rejected;
use crate::api::body::{BodyError, read_body};
use crate::telemetry::metric::{Counter, Metrics};

const GIVEN_UP: &str =
    "other texts of rules need the memory at this moment, and arrive sooner; repeat it";
const RETRY_AFTER_SECS: u64 = 1;

/// The texts of one kind of requests.
#[derive(Debug)]
pub(crate) struct Texts {
    bytes_max: usize,
    held: Mutex<Vec<Held>>,
    given_up: Counter,
}

/// A text that has arrived. It counts until this is dropped.
#[derive(Debug)]
pub(crate) struct ArrivedText {
    pub(crate) bytes: Bytes,
    _share: Share,
}

/// A text's part of the memory.
#[derive(Debug)]
struct Share {
    texts: Arc<Texts>,
    given_up: Arc<CancellationToken>,
}

/// A text in memory, oldest first.
#[derive(Debug)]
struct Held {
    bytes: usize,
    /// Set for a text that is given up.
    given_up: Arc<CancellationToken>,
    has_arrived: bool,
}

impl Texts {
    /// `bytes_max` of all texts of this kind of requests. Registers the metric.
    pub(crate) fn new(bytes_max: usize, request: &str, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            held: Mutex::default(),
            given_up: metrics.counter_with(
                "tollgate_rule_texts_given_up_total",
                "Texts of rules that were answered with 503 before they had arrived, because all texts together were too large (check_texts_bytes_max, change_texts_bytes_max).",
                &[("request", request)],
            ),
        })
    }

    /// Reads a text of at most `text_bytes_max`.
    ///
    /// # Errors
    /// It is too long, late or broken, or it was given up for others.
    pub(crate) async fn read(
        self: &Arc<Self>,
        body: Body,
        text_bytes_max: usize,
    ) -> Result<ArrivedText, Rejected> {
        let given_up = Arc::new(CancellationToken::new());
        self.held.lock().push(Held {
            bytes: 0,
            given_up: given_up.clone(),
            has_arrived: false,
        });
        let share = Share {
            texts: self.clone(),
            given_up,
        };
        let read = tokio::select! {
            // bounded by rules_text_bytes_max
            read = read_body(body, text_bytes_max, |bytes| share.grow(bytes)) => read,
            () = share.given_up.cancelled() => Err(BodyError::OverBudget),
        };
        let bytes = read.map_err(|error| match error {
            BodyError::OverBudget => Rejected::new(StatusCode::SERVICE_UNAVAILABLE, GIVEN_UP)
                .retry_after(RETRY_AFTER_SECS),
            error => error.into(),
        })?;
        share.arrive();
        Ok(ArrivedText {
            bytes,
            _share: share,
        })
    }
}

impl Share {
    /// Adds bytes; `false` if this text is given up.
    fn grow(&self, bytes: usize) -> bool {
        let mut held = self.texts.held.lock();
        if let Some(own) = held.iter_mut().find(|held| self.owns(held)) {
            own.bytes += bytes;
        }
        while held.iter().map(|held| held.bytes).sum::<usize>() > self.texts.bytes_max {
            let Some(oldest) = held.iter().position(|held| !held.has_arrived) else {
                break;
            };
            held.remove(oldest).given_up.cancel();
            self.texts.given_up.inc();
        }
        !self.given_up.is_cancelled()
    }

    /// From now on the text is not given up.
    fn arrive(&self) {
        let mut held = self.texts.held.lock();
        if let Some(own) = held.iter_mut().find(|held| self.owns(held)) {
            own.has_arrived = true;
        }
    }

    fn owns(&self, held: &Held) -> bool {
        Arc::ptr_eq(&self.given_up, &held.given_up)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.texts.held.lock().retain(|held| !self.owns(held));
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt as _, StreamExt as _, stream};

    use super::*;

    /// A body whose end does not come.
    fn half(bytes: usize) -> Body {
        let begin = stream::iter([Ok::<_, Infallible>(vec![0; bytes])]);
        Body::from_stream(begin.chain(stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_text_that_has_not_arrived_is_given_up() {
        let texts = Texts::new(100, "check", &Metrics::new());
        let read = |body| Box::pin(texts.read(body, 80));
        let whole = read(Body::from(vec![0; 30])).await;
        let [mut first, mut second] = [half(30), half(40)].map(read);
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        let other = read(Body::from(vec![0; 20])).await;
        assert_eq!(other.map(|text| text.bytes.len()).ok(), Some(20));
        let status =
            |read: Result<ArrivedText, Rejected>| read.map(|_| ()).map_err(|error| error.status);
        let unavailable = Err(StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(first.await), unavailable);
        assert_eq!(texts.given_up.get(), 1);
        // What has arrived is kept: a text that does not fit beside it is given up itself.
        assert_eq!(status(read(Body::from(vec![0; 75])).await), unavailable);
        assert_eq!(status(second.await), unavailable);
        drop(whole);
        assert!(texts.held.lock().is_empty());
    }
}
