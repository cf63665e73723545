//! Bounds the bytes of replies of the upstream that the process holds, until they are sent on and
//! compared.
//!
//! An upstream that sends long replies, and does not end them, costs calls and no memory.

use std::sync::Arc;

use http::HeaderMap;
use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::telemetry::metric::{Counter, Metrics};

/// A reply: gRPC's default limit.
// bound reply_bytes_max: the call fails with RESOURCE_EXHAUSTED, or is decided here;
// tollgate_trial_requests_total{outcome="unavailable"}
const REPLY_BYTES_MAX: usize = 4 << 20;
/// Bytes of all replies that are held, beyond the first 4 KiB of each (`BYTES_FREE`). The
/// allocator keeps up to twice as much where replies grow and are dropped.
// bound reply_bytes_held_max: the call fails with RESOURCE_EXHAUSTED, or is decided here;
// tollgate_trial_replies_full_total
const REPLY_BYTES_HELD_MAX: usize = 16 << 20;
/// Bytes of a reply that are not counted: calls in flight are bounded.
const BYTES_FREE: usize = 4 << 10;
/// Memory of a header besides its bytes.
const HEADER_BYTES: usize = 128;

/// The budget of the process.
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    free: Arc<Semaphore>,
    full: Counter,
}

/// A reply that is being received, and its part of the budget.
pub(crate) struct Receiving<'b> {
    budget: &'b ReplyBudget,
    bytes: usize,
    part: Option<OwnedSemaphorePermit>,
    body: Vec<u8>,
}

/// A body, and its part of the budget.
struct Held {
    body: Vec<u8>,
    _part: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl ReplyBudget {
    /// Registers the metric.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            free: Arc::new(Semaphore::new(REPLY_BYTES_HELD_MAX)),
            full: metrics.counter(
                "tollgate_trial_replies_full_total",
                "Replies of the upstream of a trial that were not received, because 16 MiB of others are held (reply_bytes_held_max).",
            ),
        }
    }

    /// The budget of a new reply.
    pub(crate) fn receive(&self) -> Receiving<'_> {
        Receiving { budget: self, bytes: 0, part: None, body: Vec::new() }
    }
}

impl Receiving<'_> {
    /// Counts headers or trailers.
    ///
    /// # Errors
    /// Too much of the budget is in use.
    pub(crate) fn add_headers(&mut self, headers: &HeaderMap) -> Result<(), Status> {
        let bytes =
            headers.iter().map(|(name, value)| HEADER_BYTES + name.as_str().len() + value.len());
        self.hold(bytes.sum())
    }

    /// Adds a part of the body.
    ///
    /// # Errors
    /// The reply is too large, or too much of the budget is in use.
    pub(crate) fn add(&mut self, data: &[u8]) -> Result<(), Status> {
        let length = self.body.len() + data.len();
        if length > REPLY_BYTES_MAX {
            return Err(Status::resource_exhausted(format!(
                "the reply of the trial's upstream has more than {REPLY_BYTES_MAX} bytes (reply_bytes_max)"
            )));
        }
        let before = self.body.capacity();
        if length > before {
            let after = length.max(2 * before);
            self.hold(after - before)?;
            self.body.reserve_exact(after - self.body.len());
        }
        self.body.extend_from_slice(data);
        Ok(())
    }

    /// The whole body, which has its part of the budget until it is dropped.
    pub(crate) fn finish(self) -> Bytes {
        let Self { body, part, .. } = self;
        match part {
            None => body.into(),
            part => Bytes::from_owner(Held { body, _part: part }),
        }
    }

    fn hold(&mut self, bytes: usize) -> Result<(), Status> {
        let before = self.bytes.saturating_sub(BYTES_FREE);
        self.bytes += bytes;
        let charge = self.bytes.saturating_sub(BYTES_FREE) - before;
        if charge == 0 {
            return Ok(());
        }
        let charge = u32::try_from(charge).unwrap_or(u32::MAX);
        let Ok(part) = self.budget.free.clone().try_acquire_many_owned(charge) else {
            self.budget.full.inc();
            return Err(Status::resource_exhausted(
                "too many bytes of replies of the trial's upstream are held (reply_bytes_held_max)",
            ));
        };
        match &mut self.part {
            Some(all) => all.merge(part),
            none => *none = Some(part),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_count_until_they_are_dropped() {
        let budget = ReplyBudget::new(&Metrics::new());
        let body = |bytes: usize| {
            let mut receiving = budget.receive();
            receiving.add(&vec![0; bytes])?;
            Ok::<_, Status>(receiving.finish())
        };
        let held: Vec<_> = (0..4).map(|_| body(REPLY_BYTES_MAX)).collect();
        assert!(held.iter().all(Result::is_ok));
        assert!(body(1 << 20).is_err());
        assert!(body(BYTES_FREE).is_ok(), "it is not counted");
        assert_eq!(budget.full.get(), 1);
        drop(held);
        assert_eq!(budget.free.available_permits(), REPLY_BYTES_HELD_MAX);
        assert!(body(REPLY_BYTES_MAX + 1).is_err());
    }
}
