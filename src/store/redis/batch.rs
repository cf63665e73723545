//! Group commit: what arrives while a call is in flight goes out with the next one.
//!
//! No timer is involved: a call that comes alone goes out alone, at once. The batch belongs to a task of the store, so that whoever
//! travels with a caller that goes away is not stranded.

use std::collections::VecDeque;
use std::sync::Arc;

use redis::RedisError;
use smallvec::SmallVec;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::check::StoreError;
use crate::store::redis::Redis;
use crate::store::redis::connection::{Lane, Link};
use crate::store::redis::health::Trouble;
use crate::store::redis::node::Node;
use crate::store::redis::redirect::Redirect;
use crate::store::redis::script::{Line, Manner, Said, WindowForm};
use crate::store::redis::trip::{Back, Trip, Untold};
use crate::time::Time;

/// How many checks go out with one call: about half a millisecond of Redis. An ask whose checks are decided together is never split, so
/// it may have more.
pub const BATCH_SIZE_MAX: usize = 64;
/// How many asks of one runtime wait for their turn. More would wait longer than anybody's time-out.
pub const WAITERS_MAX: usize = 8_192;

/// One runtime's way to one server. One call is in flight at a time. When the last clone is dropped, it ends.
#[derive(Debug, Clone)]
pub struct Batcher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queue: mpsc::Sender<Waiting>,
    _task: JoinSet<()>,
}

/// What a server told of one ask's checks, in order.
#[derive(Debug)]
pub struct Told {
    /// What it was asked.
    pub lines: Vec<Line>,
    /// What time it was there.
    pub now: Time,
    /// What it says of each.
    pub said: SmallVec<[Outcome; 2]>,
}

/// What a server says of a check, or why it says nothing.
pub type Outcome = Result<Said, Silence>;

/// Why a server says nothing of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Silence {
    /// It is not the one to ask.
    Elsewhere(Redirect),
    /// It has no verdict.
    None(StoreError),
}

/// An ask that waits for its turn.
#[derive(Debug)]
struct Waiting {
    lines: Vec<Line>,
    manner: Manner,
    reply: oneshot::Sender<Result<Told, StoreError>>,
}

/// The task.
struct Task {
    redis: Arc<Redis>,
    node: Arc<Node>,
    /// Whether it is one of a cluster's.
    by_slot: bool,
    lane: Lane,
    queue: mpsc::Receiver<Waiting>,
    /// Taken from the queue, but not sent yet.
    pending: VecDeque<Waiting>,
}

impl Batcher {
    /// Starts on the runtime that this is called on.
    pub fn start(redis: Arc<Redis>, node: Arc<Node>, by_slot: bool) -> Self {
        let (queue, waiting) = mpsc::channel(WAITERS_MAX);
        let lane = Lane::open(node.manager().clone(), redis.store_timeout.into());
        let task = Task { redis, node, by_slot, lane, queue: waiting, pending: VecDeque::new() };
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        Self(Arc::new(Inner { queue, _task: tasks }))
    }

    /// Waits for the answer to these lines. Whoever stops waiting before they are sent is taken out, uncharged.
    ///
    /// # Errors
    /// There is none, or no room to wait for it.
    pub async fn ask(&self, lines: Vec<Line>, manner: Manner) -> Result<Told, StoreError> {
        let (reply, told) = oneshot::channel();
        self.0.queue.try_send(Waiting { lines, manner, reply }).map_err(|_| StoreError::Crowded)?;
        told.await.unwrap_or(Err(StoreError::Unreachable))
    }
}

impl Task {
    async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            self.pending.push_back(first);
            while !self.pending.is_empty() {
                while let Ok(next) = self.queue.try_recv() {
                    self.pending.push_back(next);
                }
                let batch = self.take();
                if !batch.is_empty() {
                    self.send(batch).await;
                }
            }
        }
    }

    /// The asks of the next call.
    fn take(&mut self) -> Vec<Waiting> {
        let mut batch = Vec::new();
        let mut checks = 0;
        while let Some(next) = self.pending.front() {
            let count = next.lines.len();
            let is_gone = next.reply.is_closed();
            if !is_gone && checks > 0 && checks + count > BATCH_SIZE_MAX {
                self.redis.metrics.full.inc();
                break;
            }
            let next = self.pending.pop_front();
            if is_gone {
                self.redis.metrics.abandoned.inc();
            } else {
                checks += count;
                batch.extend(next);
            }
        }
        batch
    }

    async fn send(&self, mut batch: Vec<Waiting>) {
        let (redis, health) = (&self.redis, &self.node.health);
        keep_order(&mut batch);
        if health.breaker.is_open() {
            return refuse(batch, StoreError::Unreachable);
        }
        let mut link = match self.lane.link().await {
            Ok(link) => link,
            Err(cause) => {
                health.failed(&cause);
                return refuse(batch, StoreError::Unreachable);
            }
        };
        let groups = batch.iter().map(|waiting| (waiting.manner, waiting.lines.as_slice()));
        let trip = Trip::new(groups, self.by_slot, redis.clock.is_manual().then(|| redis.clock.now()));
        redis.metrics.checks.observe(f64::from(u32::try_from(trip.checks()).unwrap_or(u32::MAX)));
        redis.metrics.in_flight.inc();
        let result = self.call(&mut link, &trip).await;
        redis.metrics.in_flight.dec();
        match result {
            Ok(back) => {
                health.worked();
                self.deliver(batch, back);
            }
            Err(error) => {
                health.failed(&error.to_string());
                redis.metrics.ambiguous.inc_by(batch.len() as u64);
                refuse(batch, if error.is_timeout() { StoreError::Late } else { StoreError::Unreachable });
            }
        }
    }

    async fn call(&self, link: &mut Link, trip: &Trip<'_>) -> Result<Back, RedisError> {
        let (redis, node) = (&self.redis, &self.node);
        let sent = redis.clock.now();
        let values = trip.send(link, || redis.metrics.unknown_script.inc()).await?;
        let received = redis.clock.now();
        redis.metrics.seconds.observe(received.since(sent).as_secs_f64());
        let back = trip.read(values).inspect_err(|_| link.give_up())?;
        if let Some(now) = back.now {
            node.clock.hear(now, sent, received);
        }
        if !back.mends.is_empty() && link.call(&back.mends).await.is_err() {
            // The replies are here all the same. The connection is not handed out again, and the next hit of that counter mends it.
            node.health.see(Trouble::Unreachable, "a key's life could not be set");
        }
        if back.is_read_only() {
            // The server was the master. Its address may lead to another one by now, which only a new connection finds.
            link.give_up();
        }
        Ok(back)
    }

    fn deliver(&self, batch: Vec<Waiting>, back: Back) {
        let redis = &self.redis;
        let now = redis.clock.now();
        let redis_now = back.now.unwrap_or(self.node.clock.at(now));
        let mut told = back.told.into_iter();
        for waiting in batch {
            let said = waiting.lines.iter().zip(told.by_ref()).map(|(line, told)| self.hear(waiting.manner, line, told, now));
            let told = Told { now: redis_now, said: said.collect(), lines: waiting.lines };
            if waiting.reply.send(Ok(told)).is_err() {
                redis.metrics.ambiguous.inc();
            }
        }
    }

    fn hear(&self, manner: Manner, line: &Line, told: Result<Said, Untold>, now: Time) -> Outcome {
        match told {
            Ok(said) => {
                if manner != Manner::Tried {
                    self.redis.last_seen.remember(line.hash(), line.used(&said), now);
                }
                Ok(said)
            }
            Err(Untold::Elsewhere(redirect)) => Err(Silence::Elsewhere(redirect)),
            Err(Untold::Wrong(text)) => {
                self.node.health.refused(&text);
                Err(Silence::None(StoreError::Refused))
            }
        }
    }
}

/// Commands come before the script. A check whose counter an earlier one asks the script about waits for it there.
fn keep_order(batch: &mut [Waiting]) {
    let mut scripted: SmallVec<[u64; BATCH_SIZE_MAX]> = SmallVec::new();
    for line in batch.iter_mut().flat_map(|waiting| &mut waiting.lines) {
        if line.is_direct() && scripted.contains(&line.hash()) {
            line.set_form(WindowForm::Scripted);
        }
        if !line.is_direct() {
            scripted.push(line.hash());
        }
    }
}

fn refuse(batch: Vec<Waiting>, error: StoreError) {
    for waiting in batch {
        let _ = waiting.reply.send(Err(error));
    }
}
