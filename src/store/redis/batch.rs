//! Group commit: what arrives while a call is in flight goes out with the next one.
//!
//! No timer is involved: a call that comes alone goes out alone, at once. The batch belongs to a
//! task of the store, so that cancelling one caller does not cancel the batch its request is part
//! of.
//!
//! What became of a request is known here. A caller that gives up learns from its [`SendState`]
//! whether the request had left:
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
use crate::store::redis::Redis;
use crate::store::redis::connect::connection::{Connection, WorkerConnection};
use crate::store::redis::script::{CheckReply, EncodedCheck, Mode, Repair, WindowCommand};
use crate::store::redis::topology::health::FaultKind;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::redirect::Redirect;
use crate::store::redis::trip::{BatchReply, BatchRequest, ReplyError};
use crate::time::Time;

/// How many checks go out with one call: about half a millisecond of Redis. An ask whose checks are
/// decided together is never split, so it may have more.
pub const BATCH_SIZE_MAX: usize = 64;
/// Requests of one worker that wait to be sent to one server. More would wait longer than any
/// timeout.
pub const WAITERS_MAX: usize = 8_192;
/// Bytes of the requests of one worker that wait for one server, or for its reply. Keys have any
/// length in the reference's key format, so their number bounds nothing.
pub const WAITERS_BYTES_MAX: usize = 16 << 20;

/// One runtime's way to one server. One call is in flight at a time. When the last clone is
/// dropped, it ends.
#[derive(Debug, Clone)]
pub struct Batcher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queue: mpsc::Sender<PendingRequest>,
    waiting_bytes: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

/// Whether a request has left for Redis: shared by its caller and its batch.
#[derive(Debug, Clone, Default)]
pub struct SendState(Arc<AtomicU8>);

/// What a server told of one ask's checks, in order.
#[derive(Debug)]
pub struct PartReply {
    /// What it was asked.
    pub lines: Vec<EncodedCheck>,
    /// What time it was there.
    pub now: Time,
    /// What it says of each.
    pub said: SmallVec<[Outcome; 2]>,
}

/// What a server says of a check, or why it says nothing.
pub type Outcome = Result<CheckReply, Silence>;

/// Why a server says nothing of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Silence {
    /// It is not the one to ask.
    Elsewhere(Redirect),
    /// It has no verdict.
    None(CheckError),
}

/// An ask that waits for its turn.
#[derive(Debug)]
struct PendingRequest {
    lines: Vec<EncodedCheck>,
    mode: Mode,
    send_state: SendState,
    reply: oneshot::Sender<Result<PartReply, CheckError>>,
    _bytes: PendingBytes,
}

/// Bytes of a waiting request, until it is dropped.
#[derive(Debug)]
struct PendingBytes {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

/// The task.
struct Task {
    redis: Arc<Redis>,
    node: Arc<Node>,
    /// Whether it is one of a cluster's.
    by_slot: bool,
    worker_connection: WorkerConnection,
    queue: mpsc::Receiver<PendingRequest>,
    /// Taken from the queue, and left over because the batch before it was full.
    next: Option<PendingRequest>,
}

impl SendState {
    const QUEUED: u8 = 0;
    const SENT: u8 = 1;
    const WITHDRAWN: u8 = 2;

    /// Takes the request back, if it has not left.
    pub fn withdraw(&self) -> Effect {
        if self.advance(Self::WITHDRAWN) {
            Effect::None
        } else {
            Effect::Unknown
        }
    }

    /// Marks the request as sent. `false` if it was withdrawn.
    fn leave(&self) -> bool {
        self.advance(Self::SENT)
    }

    fn advance(&self, to: u8) -> bool {
        self.0
            .compare_exchange(Self::QUEUED, to, AcqRel, Acquire)
            .is_ok()
    }
}

impl PendingBytes {
    /// `None` if there is no room. A request that waits alone always has room: its own size is
    /// bounded where it is received.
    fn reserve(all: &Arc<AtomicUsize>, lines: &[EncodedCheck]) -> Option<Self> {
        let bytes = lines.iter().map(EncodedCheck::heap_bytes).sum::<usize>() + size_of_val(lines);
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
    /// Whether it is to be sent. From then on it counts as sent.
    fn leaves(&self) -> bool {
        !self.reply.is_closed() && self.send_state.leave()
    }
}

impl Batcher {
    /// Starts on the runtime that this is called on.
    pub(crate) fn start(redis: Arc<Redis>, node: Arc<Node>, by_slot: bool) -> Self {
        let (queue, waiting) = mpsc::channel(WAITERS_MAX);
        let worker_connection =
            WorkerConnection::open(node.connector().clone(), redis.store_timeout.into());
        let task = Task {
            redis,
            node,
            by_slot,
            worker_connection,
            queue: waiting,
            next: None,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        Self(Arc::new(Inner {
            queue,
            waiting_bytes: Arc::default(),
            _task: tasks,
        }))
    }

    /// Whether its task has ended, as only a panic ends it: then it is of no use any more.
    pub fn has_ended(&self) -> bool {
        self.0.queue.is_closed()
    }

    /// Waits for the reply to these lines. A caller that stops waiting before they are sent is not
    /// charged; `send_state` tells it whether they were.
    ///
    /// # Errors
    /// There is no reply, or no room to wait for one (`WAITERS_MAX`, `WAITERS_BYTES_MAX`).
    pub async fn ask(
        &self,
        lines: Vec<EncodedCheck>,
        mode: Mode,
        send_state: SendState,
    ) -> Result<PartReply, CheckError> {
        let crowded = StoreError::QueueFull.not_counted();
        let bytes = PendingBytes::reserve(&self.0.waiting_bytes, &lines).ok_or(crowded)?;
        let (reply, told) = oneshot::channel();
        let waiting = PendingRequest {
            lines,
            mode,
            send_state: send_state.clone(),
            reply,
            _bytes: bytes,
        };
        self.0
            .queue
            .try_send(waiting)
            .map_err(|error| match error {
                TrySendError::Full(_) => crowded,
                TrySendError::Closed(_) => StoreError::Unreachable.not_counted(),
            })?;
        told.await.unwrap_or_else(|_| {
            Err(CheckError {
                error: StoreError::Unreachable,
                effect: send_state.withdraw(),
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

    /// The requests of the next call: waits for the first one, and takes what else is there.
    /// `None` if no more will come.
    async fn take(&mut self) -> Option<Vec<PendingRequest>> {
        let first = match self.next.take() {
            Some(next) => next,
            None => self.queue.recv().await?,
        };
        let (mut batch, mut checks, mut next) = (Vec::new(), 0, Some(first));
        while let Some(waiting) = next.or_else(|| self.queue.try_recv().ok()) {
            let count = waiting.lines.len();
            next = None;
            if waiting.reply.is_closed() {
                self.redis.metrics.abandoned.inc();
            } else if checks > 0 && checks + count > BATCH_SIZE_MAX {
                self.redis.metrics.full.inc();
                self.next = Some(waiting);
                break;
            } else {
                checks += count;
                batch.push(waiting);
            }
        }
        Some(batch)
    }

    async fn send(&self, batch: Vec<PendingRequest>) {
        let (redis, node) = (&self.redis, &self.node);
        let health = &node.health;
        if health.breaker.is_open() {
            return fail(batch, StoreError::Unreachable.not_counted());
        }
        let mut connection = match self.worker_connection.get().await {
            Ok(connection) => connection,
            Err(cause) => {
                health.record_failure(&cause);
                return fail(batch, StoreError::Unreachable.not_counted());
            }
        };
        let (mut batch, withdrawn): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(PendingRequest::leaves);
        redis.metrics.abandoned.inc_by(withdrawn.len() as u64);
        if batch.is_empty() {
            return;
        }
        keep_order(&mut batch);
        let groups = batch
            .iter()
            .map(|waiting| (waiting.mode, waiting.lines.as_slice()));
        let trip = BatchRequest::new(
            groups,
            self.by_slot,
            redis.clock.is_manual().then(|| redis.clock.now()),
        );
        redis
            .metrics
            .checks
            .observe(f64::from(u32::try_from(trip.checks()).unwrap_or(u32::MAX)));
        redis.metrics.in_flight.inc();
        let result = self.call(&mut connection, &trip).await;
        redis.metrics.in_flight.dec();
        match result {
            Ok(back) => {
                health.record_success();
                self.deliver(batch, back);
            }
            Err(error) => {
                health.record_failure(&error.to_string());
                redis.metrics.ambiguous.inc_by(batch.len() as u64);
                // INCRBY may have created a key, without a lifetime.
                let direct = batch
                    .iter()
                    .flat_map(|waiting| &waiting.lines)
                    .filter_map(EncodedCheck::lifetime);
                redis.lifetimes.add(node.id(), direct);
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
        trip: &BatchRequest<'_>,
    ) -> Result<BatchReply, RedisError> {
        let (redis, node) = (&self.redis, &self.node);
        let sent = redis.clock.now();
        let values = trip
            .send(connection, || redis.metrics.unknown_script.inc())
            .await?;
        let received = redis.clock.now();
        redis
            .metrics
            .seconds
            .observe(received.since(sent).as_secs_f64());
        let mut back = trip
            .read(values)
            .inspect_err(|_| connection.mark_broken())?;
        if let Some(now) = back.now {
            node.clock.observe(now, sent, received);
        }
        self.repair(connection, std::mem::take(&mut back.repairs))
            .await;
        if back.is_misplaced() {
            // Its name may lead to another server by now, which only a new connection finds.
            if node.relocation.leaves(connection.id(), redis.clock.now()) {
                connection.mark_broken();
            }
        } else if node.relocation.is_suspected() && trip.has_written(&back) {
            node.relocation.counted(connection.id());
        }
        Ok(back)
    }

    /// Repairs keys. Callers have their replies whether that works or not.
    async fn repair(&self, connection: &mut Connection, repairs: Vec<Repair>) {
        if repairs.is_empty() {
            return;
        }
        if connection.call(&Repair::commands(&repairs)).await.is_err() {
            self.node.health.record_fault(
                FaultKind::Unreachable,
                "the lifetime of a key could not be set",
            );
            self.redis.lifetimes.add(self.node.id(), repairs);
        }
    }

    fn deliver(&self, batch: Vec<PendingRequest>, back: BatchReply) {
        let redis = &self.redis;
        let now = redis.clock.now();
        let redis_now = back.now.unwrap_or(self.node.clock.at(now));
        let mut told = back.told.into_iter();
        for waiting in batch {
            let said = waiting
                .lines
                .iter()
                .zip(told.by_ref())
                .map(|(line, told)| self.hear(waiting.mode, line, told, now));
            let told = PartReply {
                now: redis_now,
                said: said.collect(),
                lines: waiting.lines,
            };
            if waiting.reply.send(Ok(told)).is_err() {
                redis.metrics.ambiguous.inc();
            }
        }
    }

    fn hear(
        &self,
        mode: Mode,
        line: &EncodedCheck,
        told: Result<CheckReply, ReplyError>,
        now: Time,
    ) -> Outcome {
        match told {
            Ok(said) => {
                if mode != Mode::DryRun {
                    self.redis
                        .last_seen
                        .record(line.hash(), line.used(&said), now);
                }
                Ok(said)
            }
            Err(ReplyError::Elsewhere(redirect)) => Err(Silence::Elsewhere(redirect)),
            Err(ReplyError::Wrong(text)) => {
                self.node.health.record_error_reply(&text);
                Err(Silence::None(StoreError::Rejected.not_counted()))
            }
        }
    }
}

/// Commands come before the script. A check whose counter an earlier one asks the script about
/// waits for it there.
fn keep_order(batch: &mut [PendingRequest]) {
    let mut scripted: SmallVec<[u64; BATCH_SIZE_MAX]> = SmallVec::new();
    for line in batch.iter_mut().flat_map(|waiting| &mut waiting.lines) {
        if line.is_direct() && scripted.contains(&line.hash()) {
            line.set_command(WindowCommand::Script);
        }
        if !line.is_direct() {
            scripted.push(line.hash());
        }
    }
}

fn fail(batch: Vec<PendingRequest>, failure: CheckError) {
    for waiting in batch {
        let _ = waiting.reply.send(Err(failure));
    }
}
