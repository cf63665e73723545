//! The requests of one worker that wait for one server, and the one timer of all of them.
//!
//! The timer is set to the earliest deadline and stays set until it fires, whatever is answered
//! meanwhile: setting it wakes the runtime by a write to its eventfd, and a timer of each request
//! would cost more than all of Tollgate's own work on it.
//!
//! ```text
//!   waiting -----------> in flight -----> reply: counted, or rejected by Redis
//!     |                     |
//!     +-> deadline:         +-> deadline, or no reply: unknown
//!         never sent
//! ```

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep};

use crate::base::time::Time;
use crate::limits::check::{CheckError, StoreError};
use crate::store::redis::client::decode::{CheckReply, ReplyError};
use crate::store::redis::client::encode::{EncodedCheck, Mode};
use crate::store::redis::client::size::BATCH_SIZE_MAX;
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::fault::FaultKind;
use crate::store::redis::topology::node::Node;

/// Requests of one worker that wait for one server or for its reply. More would wait longer than
/// any timeout.
// bound waiters_max: fallback, cause `crowded`; tollgate_store_fallbacks_total
pub const WAITERS_MAX: usize = 8_192;
/// Bytes of the requests of one worker that wait for one server or for its reply. Keys may have any
/// length in the key format of envoyproxy/ratelimit, so a number of requests alone bounds nothing.
// bound waiters_bytes_max: fallback, cause `crowded`; tollgate_store_fallbacks_total
pub const WAITERS_BYTES_MAX: usize = 16 << 20;

/// Requests that wait, in the order in which they came.
pub(crate) struct Waiting {
    shared: Arc<Redis>,
    node: Arc<Node>,
    queue: mpsc::UnboundedReceiver<PendingRequest>,
    /// Received from the queue.
    requests: VecDeque<PendingRequest>,
    timer: Timer,
}

/// Replies of a server to a request.
#[derive(Debug)]
pub(crate) struct NodeReply {
    pub(crate) checks: Vec<EncodedCheck>,
    /// The server's time.
    pub(crate) now: Time,
    /// A reply for each check, in order.
    pub(crate) replies: SmallVec<[Result<CheckReply, ReplyError>; 2]>,
}

/// A request that waits to be sent.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) checks: Vec<EncodedCheck>,
    pub(crate) mode: Mode,
    pub(crate) caller: Caller,
}

/// The caller of a request that waits for its reply.
#[derive(Debug)]
pub(crate) struct Caller {
    /// When it stops waiting.
    pub(crate) until: Instant,
    /// `None` once it was answered.
    pub(crate) reply: Option<oneshot::Sender<Result<NodeReply, CheckError>>>,
    pub(crate) _reservation: Reservation,
}

/// Requests that share a round trip: the checks of each, and its caller.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) groups: Vec<(Mode, Vec<EncodedCheck>)>,
    pub(crate) callers: Vec<Caller>,
}

/// Memory and checks of all pending requests of a worker to a server.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

/// Memory and checks of a pending request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    all: Arc<Reserved>,
    bytes: usize,
}

struct Timer {
    sleep: Pin<Box<Sleep>>,
    is_set: bool,
}

/// The end of a time that begins now.
pub(crate) fn until(left: Duration) -> Instant {
    Instant::now() + left
}

impl Reservation {
    /// `None` if a bound is reached. A request that waits alone always fits: its size is bounded
    /// where it is received.
    pub(crate) fn reserve(all: &Arc<Reserved>, checks: &[EncodedCheck]) -> Option<Self> {
        let heap_bytes = checks.iter().map(EncodedCheck::heap_bytes);
        let bytes = heap_bytes.sum::<usize>() + size_of_val(checks);
        let requests = all.requests.fetch_add(1, Relaxed);
        let before = all.bytes.fetch_add(bytes, Relaxed);
        let reserved = Self { all: all.clone(), bytes };
        let fits = requests < WAITERS_MAX && before + bytes <= WAITERS_BYTES_MAX;
        (requests == 0 || fits).then_some(reserved)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.all.requests.fetch_sub(1, Relaxed);
        self.all.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Caller {
    /// Answers once. `false` if the caller was answered before or does not wait any more.
    pub(crate) fn answer(&mut self, answer: Result<NodeReply, CheckError>) -> bool {
        let reply = self.reply.take();
        reply.is_some_and(|reply| reply.send(answer).is_ok())
    }

    fn is_gone(&self) -> bool {
        self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

impl Batch {
    /// The checks of all requests, in order.
    pub(crate) fn checks(&self) -> impl Iterator<Item = &EncodedCheck> {
        self.groups.iter().flat_map(|(_, checks)| checks)
    }

    /// Gives all callers the same error.
    pub(crate) fn fail(mut self, error: CheckError) {
        for caller in &mut self.callers {
            caller.answer(Err(error));
        }
    }
}

impl Timer {
    /// Lets it fire at this time or earlier.
    fn set(&mut self, until: Instant) {
        if !self.is_set || until < self.sleep.deadline() {
            self.sleep.as_mut().reset(until);
            self.is_set = true;
        }
    }

    /// Waits until it fires. It is not set from then on.
    async fn fired(&mut self) {
        if !self.is_set {
            std::future::pending::<()>().await;
        }
        self.sleep.as_mut().await;
        self.is_set = false;
    }
}

impl Waiting {
    /// The waiting requests of a queue. Must be called on a runtime.
    pub(crate) fn new(
        shared: Arc<Redis>,
        node: Arc<Node>,
        queue: mpsc::UnboundedReceiver<PendingRequest>,
    ) -> Self {
        Self {
            shared,
            node,
            queue,
            requests: VecDeque::new(),
            timer: Timer {
                sleep: Box::pin(tokio::time::sleep_until(Instant::now())),
                is_set: false,
            },
        }
    }

    /// Whether the next batch has requests.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty() || !self.queue.is_empty()
    }

    /// Waits for a request. `false` once the batcher was dropped.
    pub(crate) async fn wait(&mut self) -> bool {
        if self.requests.is_empty() {
            match self.queue.recv().await {
                Some(request) => self.add(request),
                None => return false,
            }
        }
        true
    }

    /// Does some work until `until`. Requests that come meanwhile wait. Those whose time ends get
    /// their answer, and so do `callers`, whose requests are in flight. `None` if the work is not
    /// done in time.
    pub(crate) async fn during<T>(
        &mut self,
        callers: &mut [Caller],
        until: Option<Instant>,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        if let Some(until) = until {
            self.timer.set(until);
        }
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                () = self.timer.fired() => {
                    let now = Instant::now();
                    self.expire(callers, until, now);
                    if until.is_some_and(|until| until <= now) {
                        return None;
                    }
                }
                Some(request) = self.queue.recv() => self.add(request),
            }
        }
    }

    /// The next batch, of requests whose callers wait and have time left. May be empty.
    pub(crate) fn take_batch(&mut self) -> Batch {
        let now = Instant::now();
        let count = (self.requests.len() + self.queue.len()).min(BATCH_SIZE_MAX);
        let mut batch_size = 0;
        let (groups, callers) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut batch = Batch { groups, callers };
        loop {
            let received = || self.queue.try_recv().ok();
            let Some(mut request) = self.requests.pop_front().or_else(received) else {
                return batch;
            };
            if request.caller.is_gone() || request.caller.until <= now {
                self.withdraw(&mut request.caller);
                continue;
            }
            self.timer.set(request.caller.until);
            let size = request.checks.iter().map(EncodedCheck::size).sum::<usize>();
            if batch_size > 0 && batch_size + size > BATCH_SIZE_MAX {
                self.shared.metrics.full.inc();
                self.requests.push_front(request);
                return batch;
            }
            batch_size += size;
            batch.groups.push((request.mode, request.checks));
            batch.callers.push(request.caller);
        }
    }

    fn add(&mut self, request: PendingRequest) {
        self.timer.set(request.caller.until);
        self.requests.push_back(request);
    }

    /// Answers those whose time is over, and sets the timer for the others.
    fn expire(&mut self, in_flight: &mut [Caller], until: Option<Instant>, now: Instant) {
        let mut requests = std::mem::take(&mut self.requests);
        requests.retain_mut(|request| {
            let has_time = request.caller.until > now;
            if !has_time {
                self.withdraw(&mut request.caller);
            }
            has_time
        });
        self.requests = requests;
        for caller in in_flight.iter_mut().filter(|caller| caller.until <= now) {
            self.give_up(caller, StoreError::TimedOut.maybe_counted());
        }
        let waiting = self.requests.iter().map(|request| &request.caller);
        let deadlines = waiting.chain(in_flight.iter()).map(|caller| caller.until);
        let next = deadlines.chain(until).filter(|until| *until > now).min();
        if let Some(next) = next {
            self.timer.set(next);
        }
    }

    /// The request is certainly not sent.
    fn withdraw(&self, caller: &mut Caller) {
        self.shared.metrics.abandoned.inc();
        self.give_up(caller, StoreError::TimedOut.not_counted());
    }

    fn give_up(&self, caller: &mut Caller, error: CheckError) {
        if caller.answer(Err(error)) {
            let cause = "no reply within the caller's time";
            self.node.health.record_fault(FaultKind::Slow, cause);
        }
    }
}
