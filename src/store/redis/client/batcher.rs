//! Group commit: checks that arrive while a batch is in flight are sent with the next one.
//!
//! No request waits for others: a single one is sent at once. The batch belongs to a task of the
//! store, so cancelling one caller does not cancel the batch it is part of.

use std::sync::Arc;
use std::time::Duration;

use bb8_redis::bb8::PooledConnection;
use bb8_redis::redis::{Pipeline, RedisError, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::base::time::{Span, Time};
use crate::limits::check::{CheckError, Effect, StoreError};
use crate::store::redis::client::decode::ReplyError;
use crate::store::redis::client::encode::{EncodedCheck, Mode};
use crate::store::redis::client::expiry::expire_at_once;
use crate::store::redis::client::pipeline::{BatchReply, BatchRequest, keep_order};
use crate::store::redis::client::repair::Repair;
use crate::store::redis::client::waiting::{
    Batch, Caller, NodeReply, PendingRequest, Reservation, Reserved, Waiting, until,
};
use crate::store::redis::connect::connection::{Connection, Connector, WorkerConnection};
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::fault::FaultKind;
use crate::store::redis::topology::node::Node;

/// A connection without a call for this long may have been closed by its peer. Servers and proxies
/// count idle time in seconds.
const IDLE_AFTER: Span = Span::from_micros(500_000);

/// Sends one worker's batches to one server, one at a time, until it is dropped.
#[derive(Debug)]
pub(crate) struct Batcher {
    queue: mpsc::UnboundedSender<PendingRequest>,
    in_use: Arc<Reserved>,
    _task: JoinSet<()>,
}

struct Task {
    server: Server,
    waiting: Waiting,
    /// In flight, until its reply is here.
    batch: Batch,
    /// Repairs of keys of earlier batches, until Redis has confirmed them.
    repairs: Vec<Repair>,
}

/// A batch without a reply.
struct Failure {
    /// `None` if there was none in time.
    cause: Option<RedisError>,
    effect: Effect,
}

struct Server {
    shared: Arc<Redis>,
    node: Arc<Node>,
    connection: WorkerConnection,
    timeout: Duration,
}

impl Batcher {
    /// Starts on the runtime of the caller.
    pub(crate) fn start(shared: Arc<Redis>, node: Arc<Node>) -> Self {
        // bounded by waiters_max
        let (queue, receiver) = mpsc::unbounded_channel();
        let timeout = shared.store_timeout.into();
        let task = Task {
            waiting: Waiting::new(shared.clone(), node.clone(), receiver),
            server: Server {
                connection: WorkerConnection::open(node.connector.clone(), timeout),
                shared,
                node,
                timeout,
            },
            batch: Batch::default(),
            repairs: Vec::new(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        Self { queue, in_use: Arc::default(), _task: tasks }
    }

    /// Whether its task has panicked.
    pub(crate) fn has_ended(&self) -> bool {
        self.queue.is_closed()
    }

    /// Sends checks and waits for the replies for the time that is left. Checks are not charged if
    /// the future is dropped before they are sent. Without checks it reads the clock of the server.
    ///
    /// # Errors
    /// There is no reply, or a bound on waiting requests is reached (`WAITERS_MAX`,
    /// `WAITERS_BYTES_MAX`).
    pub(crate) async fn send(
        &self,
        checks: Vec<EncodedCheck>,
        mode: Mode,
        left: Duration,
    ) -> Result<NodeReply, CheckError> {
        let full = StoreError::QueueFull.not_counted();
        let reservation = Reservation::reserve(&self.in_use, &checks).ok_or(full)?;
        let (reply, received) = oneshot::channel();
        let caller = Caller { until: until(left), reply: Some(reply), _reservation: reservation };
        let request = PendingRequest { checks, mode, caller };
        let ended = StoreError::Unreachable;
        self.queue.send(request).map_err(|_| ended.not_counted())?;
        received.await.unwrap_or(Err(ended.maybe_counted()))
    }
}

impl Task {
    async fn run(mut self) {
        loop {
            while !self.repairs.is_empty() && !self.waiting.has_requests() {
                self.repair().await;
            }
            if !self.waiting.wait().await {
                return;
            }
            self.send().await;
        }
    }

    /// Sends a batch of what waits.
    async fn send(&mut self) {
        let (Server { shared, node, .. }, waiting) = (&self.server, &mut self.waiting);
        let unreachable = StoreError::Unreachable.not_counted();
        if node.health.breaker.is_open() {
            self.keep_lifetimes();
            return self.waiting.take_batch().fail(unreachable);
        }
        // The batch is what waits when there is a connection, which bounds the time of connecting.
        let connecting = self.server.connection.get();
        let connection = match waiting.during(&mut [], None, connecting).await {
            Some(Ok(connection)) => connection,
            Some(Err(error)) => {
                node.health.record_failure(&error, node.address());
                return waiting.take_batch().fail(unreachable);
            }
            None => return,
        };
        self.batch = waiting.take_batch();
        let Batch { groups, callers } = &mut self.batch;
        if callers.is_empty() {
            return;
        }
        keep_order(groups);
        expire_at_once(groups, shared, node);
        let checks = groups.iter().map(|(mode, checks)| (*mode, &checks[..]));
        let now = shared.clock_for_redis();
        let mut request = BatchRequest::new(checks, &self.repairs, node.has_slots, now);
        let checks = u32::try_from(request.len()).unwrap_or(u32::MAX);
        if checks == 0 || node.clock.is_outdated(shared.clock.now()) {
            request.read_clock();
        }
        if checks > 0 {
            shared.metrics.checks.observe(checks.into());
        }
        shared.metrics.in_flight.inc();
        let server = &self.server;
        let result = server.exchange(waiting, callers, connection, &request);
        let result = result.await;
        shared.metrics.in_flight.dec();
        match result {
            Ok(mut reply) => {
                node.health.record_success();
                self.repairs = std::mem::take(&mut reply.repairs);
                self.server.dispatch(std::mem::take(&mut self.batch), reply);
            }
            Err(Failure { cause, effect }) => {
                let error = match cause.filter(|error| !error.is_timeout()) {
                    Some(error) => {
                        node.health.record_failure(&error, node.address());
                        StoreError::Unreachable
                    }
                    None => {
                        // Without it, the slowest calls would be missing.
                        let timeout = self.server.timeout.as_secs_f64();
                        shared.metrics.seconds.observe(timeout);
                        node.health.record_timeout();
                        StoreError::TimedOut
                    }
                };
                self.fail(CheckError { error, effect });
            }
        }
    }

    /// Sends the repairs in a pipeline of their own.
    async fn repair(&mut self) {
        let health = &self.server.node.health;
        if health.breaker.is_open() {
            return self.keep_lifetimes();
        }
        let mut commands = Pipeline::with_capacity(self.repairs.len());
        Repair::add_all(&self.repairs, &mut commands);
        let repair = self.server.repair(&commands);
        let deadline = Some(until(self.server.timeout));
        let result = self.waiting.during(&mut [], deadline, repair).await;
        let replies = result.and_then(Result::ok).unwrap_or_default();
        if replies.is_empty() {
            let cause = "the lifetime of a key could not be set";
            health.record_fault(FaultKind::Unreachable, cause);
        }
        let mut replies = replies.iter();
        let is_confirmed = |reply: Option<&Value>| reply.is_some_and(Repair::is_confirmed);
        let has_replied = replies.len() > 0;
        self.repairs.retain(|_| !is_confirmed(replies.next()));
        let rejected = self.repairs.iter().filter(|_| has_replied);
        let again = rejected.filter_map(Repair::with_script).collect();
        self.keep_lifetimes();
        self.repairs = again;
    }

    /// There is no reply.
    fn fail(&mut self, error: CheckError) {
        if error.effect == Effect::Unknown {
            let requests =
                self.batch.groups.iter().filter(|(_, checks)| !checks.is_empty()).count();
            let metrics = &self.server.shared.metrics;
            metrics.ambiguous.inc_by(requests as u64);
            self.keep_lifetimes();
        }
        // Otherwise the batch has created no key.
        std::mem::take(&mut self.batch).fail(error);
        self.keep_lifetimes();
    }

    /// Lets the lifetimes that Redis has not confirmed be set in the background: of keys that the
    /// batch may have created, and of those to repair.
    fn keep_lifetimes(&mut self) {
        let created = self.batch.checks().filter_map(EncodedCheck::lifetime);
        let shown = self.repairs.drain(..).filter_map(Repair::into_lifetime);
        self.server.node.lifetimes.add(created.chain(shown));
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.keep_lifetimes();
    }
}

impl Server {
    /// Sends a batch and waits for its reply. A call that failed before a part of it was sent was
    /// not executed, as on a connection that its peer has closed: it is sent again, once.
    async fn exchange(
        &self,
        waiting: &mut Waiting,
        callers: &mut [Caller],
        mut connection: PooledConnection<'_, Connector>,
        request: &BatchRequest<'_>,
    ) -> Result<BatchReply, Failure> {
        let deadline = Some(until(self.timeout));
        let mut is_repeated = false;
        loop {
            let sent = connection.sent();
            let call = self.call(&mut connection, request);
            let result = waiting.during(callers, deadline, call).await;
            let is_sent = connection.sent() != sent;
            drop(connection);
            let effect = if is_sent { Effect::Unknown } else { Effect::None };
            let cause = match result {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(error)) => Some(error),
                None => None,
            };
            if is_sent || is_repeated || cause.is_none() {
                return Err(Failure { cause, effect });
            }
            is_repeated = true;
            let connecting = self.connection.get();
            connection = match waiting.during(callers, deadline, connecting).await {
                Some(Ok(connection)) => connection,
                failed => {
                    let cause = failed.and_then(Result::err);
                    return Err(Failure { cause, effect });
                }
            };
        }
    }

    async fn call(
        &self,
        connection: &mut Connection,
        request: &BatchRequest<'_>,
    ) -> Result<BatchReply, RedisError> {
        let shared = &*self.shared;
        let node = &self.node;
        let sent = shared.clock.now();
        if sent.since(connection.used_at) > IDLE_AFTER {
            // Lets the runtime notice a close that has arrived.
            tokio::task::yield_now().await;
        }
        let on_noscript = || shared.metrics.unknown_script.inc();
        let values = request.send(connection, on_noscript).await?;
        let received = shared.clock.now();
        connection.used_at = received;
        let seconds = received.since(sent).as_secs_f64();
        shared.metrics.seconds.observe(seconds);
        let read = request.read(values);
        let mut reply = read.inspect_err(|_| connection.mark_broken())?;
        if let Some(now) = reply.now {
            node.clock.observe(now, sent, received);
        }
        if let Some(error) = &reply.no_time
            && !node.uses_own_clock(error)
        {
            node.health.record_error_reply(&node.address().explain(error));
        }
        if reply.is_unwritable() {
            // Its name may resolve to another server by now, which only a new connection finds.
            if node.relocation.should_reconnect(connection.id, received) {
                connection.mark_broken();
            }
        } else if node.relocation.is_suspected() && request.has_written(&reply) {
            node.relocation.record_write(connection.id);
        }
        if node.health.rejects() && request.has_written(&reply) {
            node.health.record_served();
        }
        let again = reply.unconfirmed.iter().filter_map(Repair::with_script);
        reply.repairs.extend(again);
        let unconfirmed = reply.unconfirmed.drain(..);
        let unconfirmed = unconfirmed.filter_map(Repair::into_lifetime);
        node.lifetimes.add(unconfirmed);
        Ok(reply)
    }

    async fn repair(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut connection = self.connection.get().await?;
        connection.call(commands).await
    }

    /// Gives each caller its replies.
    fn dispatch(&self, batch: Batch, reply: BatchReply) {
        let now = self.shared.clock.now();
        let redis_now = reply.now.unwrap_or(self.node.clock.at(now));
        let mut replies = reply.replies.into_iter();
        for ((mode, checks), mut caller) in batch.groups.into_iter().zip(batch.callers) {
            let replies = replies.by_ref().take(checks.len()).collect();
            let reply = NodeReply { checks, now: redis_now, replies };
            self.observe(mode, &reply, now);
            if !caller.answer(Ok(reply)) {
                self.shared.metrics.ambiguous.inc();
            }
        }
    }

    /// Remembers the usage of counters, and records error replies.
    fn observe(&self, mode: Mode, reply: &NodeReply, now: Time) {
        for (check, read) in reply.checks.iter().zip(&reply.replies) {
            match read {
                Ok(read) if mode != Mode::DryRun && check.has_usage_of(reply.now) => {
                    self.shared.usage.record(check.hash, read.used(check), now);
                }
                Err(ReplyError::Rejected(text)) => self.node.health.record_error_reply(text),
                _ => {}
            }
        }
    }
}
