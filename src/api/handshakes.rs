//! Bounds the TLS handshakes of one worker.
//!
//! At the bound, the next connection waits for a slot, and one handshake is closed for it: the
//! oldest whose client is silent, else the oldest whose client sent no more than its ClientHello.
//! Connections behind it wait in the queue of the worker.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::api::tls::{EVICTED, HELLO_TIMEOUT, Tls};
use crate::telemetry::metric::Counter;

/// TLS handshakes in progress on one worker.
// bound handshakes_max: the oldest without a ClientHello for 0.1 s, else the oldest above 2 s, is
// closed; tollgate_tls_handshakes_full_total,
// tollgate_tls_handshakes_failed_total{reason="evicted"}
pub const HANDSHAKES_MAX: usize = 256;
/// A client does not count as silent before: the ClientHello of a distant one may be on its way,
/// and in a storm of handshakes those of others are computed first.
const SILENT_MIN: Duration = Duration::from_millis(100);

/// The handshakes of one worker.
#[derive(Debug)]
pub(crate) struct Handshakes {
    tls: Tls,
    slots: Arc<Semaphore>,
    /// Oldest first.
    in_progress: VecDeque<Handshake>,
    full: Counter,
}

/// The right to make a handshake, until it is dropped.
#[derive(Debug)]
pub(crate) struct HandshakeSlot {
    hello: Arc<AtomicBool>,
    _permit: OwnedSemaphorePermit,
}

/// A handshake, and the task that makes it.
#[derive(Debug)]
struct Handshake {
    /// Whether the ClientHello was received; gone when the handshake has ended.
    hello: Weak<AtomicBool>,
    task: AbortHandle,
    began: Instant,
}

impl Handshakes {
    /// `full` counts the connections that wait for a slot.
    pub(crate) fn new(tls: Tls, full: Counter) -> Self {
        Self {
            tls,
            slots: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            in_progress: VecDeque::new(),
            full,
        }
    }

    /// Waits for a slot.
    pub(crate) async fn slot(&mut self) -> HandshakeSlot {
        let permit = match self.slots.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.full.inc();
                self.wait().await
            }
        };
        HandshakeSlot { hello: Arc::default(), _permit: permit }
    }

    /// Records the task that uses a slot.
    pub(crate) fn add(&mut self, hello: Weak<AtomicBool>, task: AbortHandle) {
        self.in_progress.retain(|other| other.hello.strong_count() > 0);
        self.in_progress.push_back(Handshake { hello, task, began: Instant::now() });
    }

    async fn wait(&mut self) -> OwnedSemaphorePermit {
        let slots = self.slots.clone();
        let mut released = std::pin::pin!(slots.acquire_owned());
        while !self.evict() {
            let due = self
                .in_progress
                .iter()
                .filter_map(|handshake| Some(handshake.evictable()?.1))
                .min();
            tokio::select! {
                permit = &mut released => return permit.expect("the semaphore is never closed"),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
        released.await.expect("the semaphore is never closed")
    }

    /// Closes one handshake, if one may be closed now.
    fn evict(&mut self) -> bool {
        let now = Instant::now();
        let candidates = self.in_progress.iter().enumerate();
        let evictable = candidates.filter_map(|(index, handshake)| {
            let (hello, due) = handshake.evictable()?;
            (due <= now).then_some((hello, index))
        });
        let Some(closed) = evictable.min().and_then(|(_, index)| self.in_progress.remove(index))
        else {
            return false;
        };
        closed.task.abort();
        self.tls.count(EVICTED);
        true
    }
}

impl HandshakeSlot {
    /// Records that the ClientHello was received.
    pub(crate) fn on_hello(&self) {
        self.hello.store(true, Relaxed);
    }

    /// For [`Handshakes::add`].
    pub(crate) fn hello(&self) -> Weak<AtomicBool> {
        Arc::downgrade(&self.hello)
    }
}

impl Handshake {
    /// Whether its ClientHello was received, and when it may be closed for another; `None` if it
    /// has ended.
    fn evictable(&self) -> Option<(bool, Instant)> {
        let hello = self.hello.upgrade()?.load(Relaxed);
        let wait = if hello { HELLO_TIMEOUT } else { SILENT_MIN };
        Some((hello, self.began + wait))
    }
}
