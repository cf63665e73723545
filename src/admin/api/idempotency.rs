//! Keeps the outcomes of requests with an Idempotency-Key, for their repetitions.
//!
//! A key is kept before its request acts, so a repetition acts only if the first certainly did not.
//!
//! ```text
//!  the first                          is kept as    a repetition
//!  did nothing                        -             acts
//!  is confirmed                       its answer    gets the answer
//!  has no reply, or ends in a panic   unknown       gets 409
//! ```

use std::collections::VecDeque;

use http::StatusCode;
use tokio::sync::Mutex;

use crate::admin::api::answer::Rejected;
use crate::admin::api::change::Action;
use crate::check::Effect;
use crate::telemetry::metric::{Counter, Metrics};

/// Idempotency-Keys that are kept.
// bound idempotency_keys_max: the oldest is forgotten; tollgate_admin_idempotency_keys_full_total
const IDEMPOTENCY_KEYS_MAX: usize = 1_000;

/// The keys of this process.
#[derive(Debug)]
pub(crate) struct IdempotencyKeys<T> {
    kept: Mutex<VecDeque<Kept<T>>>,
    full: Counter,
}

#[derive(Debug)]
struct Kept<T> {
    action: Action,
    key: String,
    request: [u8; 32],
    /// `None` while the outcome is unknown.
    answer: Option<T>,
}

/// The answer of an action that was done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Done<T> {
    Now(T),
    /// By an earlier request with the same key.
    Before(T),
}

/// Why an action has no answer, and whether it may have been done.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) rejected: Rejected,
    pub(crate) effect: Effect,
}

/// A rejected request does nothing.
impl From<Rejected> for Failed {
    fn from(rejected: Rejected) -> Self {
        Self {
            rejected,
            effect: Effect::None,
        }
    }
}

impl<T: Clone> IdempotencyKeys<T> {
    /// Registers the metric.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            kept: Mutex::default(),
            full: metrics.counter(
                "tollgate_admin_idempotency_keys_full_total",
                "Idempotency-Keys forgotten because there were newer ones (idempotency_keys_max).",
            ),
        }
    }

    /// Acts unless the key is known. Requests with a key act one after the other, so a repetition
    /// waits for the first. `request` is equal for equal requests.
    ///
    /// # Errors
    /// 422 if the key belongs to another request, 409 if the outcome of the first is unknown, and
    /// the error of the action.
    pub(crate) async fn once(
        &self,
        action: Action,
        key: String,
        request: [u8; 32],
        act: impl Future<Output = Result<T, Failed>>,
    ) -> Result<Done<T>, Rejected> {
        let mut kept = self.kept.lock().await;
        let mut known = kept.iter();
        if let Some(known) = known.find(|known| known.action == action && known.key == key) {
            if known.request != request {
                let reason = "this Idempotency-Key was used for another request";
                return Err(Rejected::new(StatusCode::UNPROCESSABLE_ENTITY, reason));
            }
            return match &known.answer {
                Some(answer) => Ok(Done::Before(answer.clone())),
                None => Err(unknown()),
            };
        }
        if kept.len() == IDEMPOTENCY_KEYS_MAX {
            kept.pop_front();
            self.full.inc();
        }
        kept.push_back(Kept {
            action,
            key,
            request,
            answer: None,
        });
        let acted = act.await;
        match &acted {
            Ok(answer) => {
                if let Some(kept) = kept.back_mut() {
                    kept.answer = Some(answer.clone());
                }
            }
            Err(Failed { effect, .. }) if *effect == Effect::None => {
                kept.pop_back();
            }
            Err(_) => {}
        }
        acted.map(Done::Now).map_err(|failed| failed.rejected)
    }
}

fn unknown() -> Rejected {
    let reason = "the outcome of the first request with this Idempotency-Key is unknown, so it is not repeated: \
                  read the counter, and use another key to act again";
    Rejected::new(StatusCode::CONFLICT, reason)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use proptest::prelude::*;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    /// How an action ends.
    #[derive(Debug, Clone, Copy)]
    enum End {
        NotSent,
        Confirmed,
        RequestLost,
        ReplyLost,
        Panicked,
    }

    const ENDS: [End; 5] = [
        End::NotSent,
        End::Confirmed,
        End::RequestLost,
        End::ReplyLost,
        End::Panicked,
    ];

    async fn act(end: End, granted: Arc<AtomicU32>) -> Result<&'static str, Failed> {
        yield_now().await;
        if !matches!(end, End::NotSent | End::RequestLost) {
            granted.fetch_add(1, SeqCst);
        }
        yield_now().await;
        let failed = |effect| {
            let rejected = Rejected::new(StatusCode::SERVICE_UNAVAILABLE, "no reply");
            Err(Failed { rejected, effect })
        };
        match end {
            End::NotSent => failed(Effect::None),
            End::Confirmed => Ok("granted"),
            End::RequestLost | End::ReplyLost => failed(Effect::Unknown),
            End::Panicked => panic!("a defect"),
        }
    }

    /// The status of each request, one after the other or all at once, and how often was granted.
    async fn statuses(ends: &[End], at_once: bool) -> (Vec<u16>, u32) {
        let keys = Arc::new(IdempotencyKeys::new(&Metrics::new()));
        let granted = Arc::<AtomicU32>::default();
        let (mut tasks, mut statuses) = (JoinSet::new(), Vec::new());
        for &end in ends {
            let (keys, granted) = (keys.clone(), granted.clone());
            tasks.spawn(async move {
                let (action, key) = (Action::Grant, "key".to_owned());
                let done = keys.once(action, key, [0; 32], act(end, granted)).await;
                done.map_or_else(|rejected| rejected.status.as_u16(), |_| 200)
            });
            if !at_once {
                let status = tasks.join_next().await.expect("there is one");
                statuses.push(status.unwrap_or(500));
            }
        }
        while let Some(status) = tasks.join_next().await {
            statuses.push(status.unwrap_or(500));
        }
        (statuses, granted.load(SeqCst))
    }

    proptest! {
        #[test]
        fn one_key_is_granted_at_most_once(
            ends in proptest::collection::vec(proptest::sample::select(&ENDS[..]), 1..8),
            at_once: bool,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.expect("it can be built");
            let (statuses, granted) = runtime.block_on(statuses(&ends, at_once));
            // The first one that may have acted decides what all later ones get.
            let not_sent = ends.iter().take_while(|end| matches!(end, End::NotSent)).count();
            let mut expected = vec![503; not_sent];
            if let Some(first) = ends.get(not_sent) {
                let (status, later) = match first {
                    End::Confirmed => (200, 200),
                    End::Panicked => (500, 409),
                    _ => (503, 409),
                };
                expected.push(status);
                expected.resize(ends.len(), later);
            }
            prop_assert_eq!(statuses, expected);
            prop_assert!(granted <= 1);
        }
    }

    #[tokio::test]
    async fn another_request_with_the_key_is_rejected_and_old_keys_are_forgotten() {
        let keys = IdempotencyKeys::new(&Metrics::new());
        let once = async |key: &str, request: u8| {
            let done = async { Ok(request) };
            let (action, key) = (Action::Grant, key.to_owned());
            let done = keys.once(action, key, [request; 32], done).await;
            done.map_err(|rejected| rejected.status.as_u16())
        };
        assert_eq!(once("key", 1).await, Ok(Done::Now(1)));
        assert_eq!(once("key", 1).await, Ok(Done::Before(1)));
        assert_eq!(once("key", 2).await, Err(422));
        for number in 0..IDEMPOTENCY_KEYS_MAX {
            let done = once(&number.to_string(), 3).await;
            assert_eq!(done, Ok(Done::Now(3)));
        }
        assert_eq!(keys.full.get(), 1);
        assert_eq!(once("key", 2).await, Ok(Done::Now(2)));
    }
}
