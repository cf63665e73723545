//! Group commit: checks that arrive while a batch is in flight are sent with the next one.
//!
//! There is no timer: a single request is sent at once. The batch belongs to a task of the store, so
//! cancelling one caller does not cancel the batch it is part of.
//!
//! A caller that gives up learns from its [`SendState`] whether its request was sent:
//!
//! ```text
//!   queued ------------> sent -----> reply: counted, or rejected by Redis
//!     |                   |
//!     +-> withdrawn       +-> no reply: unknown
//!         never sent
//! ```

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU8, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};

use redis::RedisError;
use smallvec::SmallVec;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::check::{CheckError, Effect, StoreError};
use crate::store::redis::client::decode::{CheckReply, ReplyError};
use crate::store::redis::client::encode::{EncodedCheck, Mode, WindowCommand};
use crate::store::redis::client::lifetimes::Repair;
use crate::store::redis::client::pipeline::{BatchReply, BatchRequest};
use crate::store::redis::connect::connection::{Connection, WorkerConnection};
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::health::FaultKind;
use crate::store::redis::topology::node::Node;
use crate::time::Time;

/// Checks of one batch: about half a millisecond of Redis. An all-or-nothing request is never split, so
/// it may have more.
pub const BATCH_SIZE_MAX: usize = 64;
/// Requests of one worker that wait for one server. More would wait longer than any timeout.
pub const WAITERS_MAX: usize = 8_192;
/// Bytes of the requests of one worker that wait for one server or for its reply. Keys may have any
/// length in the key format of envoyproxy/ratelimit, so a number of requests alone bounds nothing.
pub const WAITERS_BYTES_MAX: usize = 16 << 20;

/// Sends one worker's batches to one server, one at a time, until it is dropped.
#[derive(Debug)]
pub(crate) struct Batcher {
    queue: mpsc::Sender<PendingRequest>,
    pending_bytes: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

/// Whether a request was sent, shared by its caller and its batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendState(Arc<AtomicU8>);

/// One server's replies to one request.
#[derive(Debug)]
pub(crate) struct NodeReply {
    pub(crate) checks: Vec<EncodedCheck>,
    /// The server's time.
    pub(crate) now: Time,
    /// One for each check, in order.
    pub(crate) replies: SmallVec<[Result<CheckReply, ReplyError>; 2]>,
}

/// A request that waits to be sent.
#[derive(Debug)]
struct PendingRequest {
    checks: Vec<EncodedCheck>,
    mode: Mode,
    state: SendState,
    reply: oneshot::Sender<Result<NodeReply, CheckError>>,
    _bytes: PendingBytes,
}

/// Bytes of a pending request, released when it is dropped.
#[derive(Debug)]
struct PendingBytes {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

struct Task {
    shared: Arc<Redis>,
    node: Arc<Node>,
    connection: WorkerConnection,
    queue: mpsc::Receiver<PendingRequest>,
    /// Received, but not sent because the batch was full.
    next: Option<PendingRequest>,
}

impl SendState {
    const QUEUED: u8 = 0;
    const SENT: u8 = 1;
    const WITHDRAWN: u8 = 2;

    /// Withdraws the request if it was not sent.
    pub(crate) fn withdraw(&self) -> Effect {
        if self.advance(Self::WITHDRAWN) {
            Effect::None
        } else {
            Effect::Unknown
        }
    }

    /// Marks the request as sent. `false` if it was withdrawn.
    fn mark_sent(&self) -> bool {
        self.advance(Self::SENT)
    }

    fn advance(&self, to: u8) -> bool {
        self.0
            .compare_exchange(Self::QUEUED, to, AcqRel, Acquire)
            .is_ok()
    }
}

impl PendingBytes {
    /// `None` if there is no room. A request that waits alone always has room: its size is bounded
    /// where it is received.
    fn reserve(all: &Arc<AtomicUsize>, checks: &[EncodedCheck]) -> Option<Self> {
        let heap_bytes = checks.iter().map(EncodedCheck::heap_bytes);
        let bytes = heap_bytes.sum::<usize>() + size_of_val(checks);
        let before = all.fetch_add(bytes, Relaxed);
        let reserved = Self {
            all: all.clone(),
            bytes,
        };
        (before == 0 || before + bytes <= WAITERS_BYTES_MAX).then_some(reserved)
    }
}

impl Drop for PendingBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Relaxed);
    }
}

impl PendingRequest {
    /// Whether to send it. From then on it counts as sent.
    fn mark_sent(&self) -> bool {
        !self.reply.is_closed() && self.state.mark_sent()
    }
}

impl Batcher {
    /// Starts on the runtime of the caller.
    pub(crate) fn start(shared: Arc<Redis>, node: Arc<Node>) -> Self {
        let (queue, receiver) = mpsc::channel(WAITERS_MAX);
        let timeout = shared.store_timeout.into();
        let task = Task {
            connection: WorkerConnection::open(node.connector.clone(), timeout),
            shared,
            node,
            queue: receiver,
            next: None,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        Self {
            queue,
            pending_bytes: Arc::default(),
            _task: tasks,
        }
    }

    /// Whether its task has panicked.
    pub(crate) fn has_ended(&self) -> bool {
        self.queue.is_closed()
    }

    /// Sends checks and waits for the replies. Checks are not charged if the future is dropped before
    /// they are sent; `state` says whether they were.
    ///
    /// # Errors
    /// There is no reply, or no room to wait for one ([`WAITERS_MAX`], [`WAITERS_BYTES_MAX`]).
    pub(crate) async fn send(
        &self,
        checks: Vec<EncodedCheck>,
        mode: Mode,
        state: SendState,
    ) -> Result<NodeReply, CheckError> {
        let full = StoreError::QueueFull.not_counted();
        let bytes = PendingBytes::reserve(&self.pending_bytes, &checks).ok_or(full)?;
        let (reply, received) = oneshot::channel();
        let pending = PendingRequest {
            checks,
            mode,
            state: state.clone(),
            reply,
            _bytes: bytes,
        };
        self.queue.try_send(pending).map_err(|error| match error {
            TrySendError::Full(_) => full,
            TrySendError::Closed(_) => StoreError::Unreachable.not_counted(),
        })?;
        received.await.unwrap_or_else(|_| {
            Err(CheckError {
                error: StoreError::Unreachable,
                effect: state.withdraw(),
            })
        })
    }
}

impl Task {
    async fn run(mut self) {
        while let Some(batch) = self.take().await {
            if !batch.is_empty() {
                self.send(batch).await;
            }
        }
    }

    /// The next batch: waits for a request, and takes those that are queued behind it. `None` if the
    /// batcher was dropped.
    async fn take(&mut self) -> Option<Vec<PendingRequest>> {
        let first = match self.next.take() {
            Some(next) => next,
            None => self.queue.recv().await?,
        };
        let (mut batch, mut checks, mut next) = (Vec::new(), 0, Some(first));
        while let Some(pending) = next.or_else(|| self.queue.try_recv().ok()) {
            let count = pending.checks.len();
            next = None;
            if pending.reply.is_closed() {
                self.shared.metrics.abandoned.inc();
            } else if checks > 0 && checks + count > BATCH_SIZE_MAX {
                self.shared.metrics.full.inc();
                self.next = Some(pending);
                break;
            } else {
                checks += count;
                batch.push(pending);
            }
        }
        Some(batch)
    }

    async fn send(&self, batch: Vec<PendingRequest>) {
        let (shared, health) = (&*self.shared, &self.node.health);
        let metrics = &shared.metrics;
        if health.breaker.is_open() {
            return fail(batch, StoreError::Unreachable.not_counted());
        }
        let mut connection = match self.connection.get().await {
            Ok(connection) => connection,
            Err(cause) => {
                health.record_failure(&cause);
                return fail(batch, StoreError::Unreachable.not_counted());
            }
        };
        let (mut batch, withdrawn): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(PendingRequest::mark_sent);
        metrics.abandoned.inc_by(withdrawn.len() as u64);
        if batch.is_empty() {
            return;
        }
        keep_order(&mut batch);
        let groups = batch
            .iter()
            .map(|pending| (pending.mode, pending.checks.as_slice()));
        let request = BatchRequest::new(groups, self.node.has_slots, shared.clock_for_redis());
        let checks = u32::try_from(request.len()).unwrap_or(u32::MAX);
        metrics.checks.observe(checks.into());
        metrics.in_flight.inc();
        let result = self.call(&mut connection, &request).await;
        metrics.in_flight.dec();
        match result {
            Ok(reply) => {
                health.record_success();
                self.dispatch(batch, reply);
            }
            Err(error) => {
                health.record_failure(&error.to_string());
                metrics.ambiguous.inc_by(batch.len() as u64);
                // INCRBY may have created a key without a lifetime.
                let checks = batch.iter().flat_map(|pending| &pending.checks);
                let lifetimes = checks.filter_map(EncodedCheck::lifetime);
                shared.lifetimes.add(self.node.id, lifetimes);
                let error = if error.is_timeout() {
                    StoreError::TimedOut
                } else {
                    StoreError::Unreachable
                };
                fail(batch, error.maybe_counted());
            }
        }
    }

    async fn call(
        &self,
        connection: &mut Connection,
        request: &BatchRequest<'_>,
    ) -> Result<BatchReply, RedisError> {
        let (shared, node) = (&*self.shared, &self.node);
        let sent = shared.clock.now();
        let on_noscript = || shared.metrics.unknown_script.inc();
        let values = request.send(connection, on_noscript).await?;
        let received = shared.clock.now();
        let seconds = received.since(sent).as_secs_f64();
        shared.metrics.seconds.observe(seconds);
        let read = request.read(values);
        let mut reply = read.inspect_err(|_| connection.mark_broken())?;
        if let Some(now) = reply.now {
            node.clock.observe(now, sent, received);
        }
        self.repair(connection, std::mem::take(&mut reply.repairs))
            .await;
        if reply.is_unwritable() {
            // Its name may resolve to another server by now, which only a new connection finds.
            let now = shared.clock.now();
            if node.relocation.should_reconnect(connection.id, now) {
                connection.mark_broken();
            }
        } else if node.relocation.is_suspected() && request.has_written(&reply) {
            node.relocation.record_write(connection.id);
        }
        Ok(reply)
    }

    /// Repairs keys. Callers get their replies whether that succeeds or not.
    async fn repair(&self, connection: &mut Connection, repairs: Vec<Repair>) {
        if repairs.is_empty() {
            return;
        }
        if connection.call(&Repair::commands(&repairs)).await.is_err() {
            let cause = "the lifetime of a key could not be set";
            self.node.health.record_fault(FaultKind::Unreachable, cause);
            self.shared.lifetimes.add(self.node.id, repairs);
        }
    }

    /// Gives each caller its replies.
    fn dispatch(&self, batch: Vec<PendingRequest>, reply: BatchReply) {
        let now = self.shared.clock.now();
        let redis_now = reply.now.unwrap_or(self.node.clock.at(now));
        let mut replies = reply.replies.into_iter();
        for pending in batch {
            let replies = replies.by_ref().take(pending.checks.len()).collect();
            let reply = NodeReply {
                checks: pending.checks,
                now: redis_now,
                replies,
            };
            self.observe(pending.mode, &reply, now);
            if pending.reply.send(Ok(reply)).is_err() {
                self.shared.metrics.ambiguous.inc();
            }
        }
    }

    /// Remembers the usage of counters, and records error replies.
    fn observe(&self, mode: Mode, reply: &NodeReply, now: Time) {
        for (check, reply) in reply.checks.iter().zip(&reply.replies) {
            match reply {
                Ok(reply) if mode != Mode::DryRun => {
                    self.shared.usage.record(check.hash, reply.used(check), now);
                }
                Err(ReplyError::Rejected(text)) => self.node.health.record_error_reply(text),
                _ => {}
            }
        }
    }
}

/// Commands are executed before the script. A check of a counter that an earlier check needs the script
/// for is moved into the script.
fn keep_order(batch: &mut [PendingRequest]) {
    let mut scripted: SmallVec<[u64; BATCH_SIZE_MAX]> = SmallVec::new();
    for check in batch.iter_mut().flat_map(|pending| &mut pending.checks) {
        if check.is_direct() && scripted.contains(&check.hash) {
            check.set_command(WindowCommand::Script);
        }
        if !check.is_direct() {
            scripted.push(check.hash);
        }
    }
}

fn fail(batch: Vec<PendingRequest>, error: CheckError) {
    for pending in batch {
        let _ = pending.reply.send(Err(error));
    }
}
