//! Bounds the gRPC connections of the process. At the bound, the connection that has been silent
//! for the longest time is closed for a new one: clients that send nothing do not lock out an
//! Envoy.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::telemetry::metric::Counter;

/// A client does not count as silent before: its preface may be on its way. An evicted connection
/// is closed within this time, unless its preface arrived meanwhile.
const SILENT_MIN: Duration = Duration::from_millis(100);

/// The right to have a connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Until the preface was received: notified when the connection is to be closed.
    eviction: Option<Arc<Notify>>,
    _permit: OwnedSemaphorePermit,
}

/// The slots of the process.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Arc<Semaphore>,
    connections_max: usize,
    /// Oldest first, with some that are not silent any more.
    silent: VecDeque<Silent>,
    evicted: Counter,
}

#[derive(Debug)]
struct Silent {
    since: Instant,
    eviction: Weak<Notify>,
}

impl Slot {
    /// The notification to close the connection, which counts as silent until this is dropped.
    pub(crate) fn take_eviction(&mut self) -> Option<Arc<Notify>> {
        self.eviction.take()
    }
}

impl Slots {
    /// `evicted` counts the connections that are closed for new ones.
    pub(crate) fn new(connections_max: usize, evicted: Counter) -> Self {
        Self {
            // bounded by grpc_connections_max
            free: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            silent: VecDeque::new(),
            evicted,
        }
    }

    /// A slot for a new connection; `None` if all are taken and no client is silent.
    pub(crate) async fn slot(&mut self) -> Option<Slot> {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.evict().await?,
        };
        let eviction = Arc::new(Notify::new());
        self.oldest();
        if self.silent.len() >= 2 * self.connections_max {
            self.silent.retain(|silent| silent.eviction.strong_count() > 0);
        }
        self.silent
            .push_back(Silent { since: Instant::now(), eviction: Arc::downgrade(&eviction) });
        Some(Slot { eviction: Some(eviction), _permit: permit })
    }

    async fn evict(&mut self) -> Option<OwnedSemaphorePermit> {
        let mut released = pin!(self.free.clone().acquire_owned());
        let permit = loop {
            let (eviction, due) = self.oldest()?;
            tokio::select! {
                permit = &mut released => break permit,
                () = sleep_until(due) => {}
            }
            self.silent.pop_front();
            eviction.notify_one();
            // Else it would count as silent.
            drop(eviction);
            self.evicted.inc();
            if let Ok(permit) = timeout(SILENT_MIN, &mut released).await {
                break permit;
            }
        };
        Some(permit.expect("the semaphore is never closed"))
    }

    /// The connection that has been silent for the longest time, and when it may be closed.
    fn oldest(&mut self) -> Option<(Arc<Notify>, Instant)> {
        while let Some(first) = self.silent.front() {
            if let Some(eviction) = first.eviction.upgrade() {
                return Some((eviction, first.since + SILENT_MIN));
            }
            self.silent.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metric::Metrics;

    #[tokio::test(start_paused = true)]
    async fn longest_silent_connection_is_closed_for_a_new_one() {
        let evicted = Metrics::new().counter("evicted", "Evicted connections.");
        let mut slots = Slots::new(2, evicted.clone());
        let mut spoken = slots.slot().await.expect("one is free");
        drop(spoken.take_eviction());
        let mut silent = slots.slot().await.expect("one is free");
        let eviction = silent.take_eviction().expect("it is silent");
        let began = Instant::now();
        let closed = async {
            eviction.notified().await;
            drop((silent, eviction));
        };
        let (slot, ()) = tokio::join!(slots.slot(), closed);
        assert_eq!(began.elapsed(), SILENT_MIN);
        assert_eq!(evicted.get(), 1);
        let mut slot = slot.expect("one was closed");
        drop(slot.take_eviction());
        assert!(slots.slot().await.is_none(), "no client is silent");
        drop(spoken);
        assert!(slots.slot().await.is_some());
    }
}
