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
use crate::store::redis::Node;
use crate::store::redis::connection::{Lane, Link};
use crate::store::redis::health::Trouble;
use crate::store::redis::script::{Line, Said};
use crate::store::redis::trip::{self, Back, Trip};
use crate::time::Time;

/// How many checks go out with one call: about half a millisecond of Redis. An ask whose checks are decided together is never split, so
/// it may have more.
pub const BATCH_SIZE_MAX: usize = 64;
/// How many asks of one runtime wait for their turn. More would wait longer than anybody's time-out.
pub const WAITERS_MAX: usize = 8_192;

/// One runtime's way to Redis. One call is in flight at a time. Dropped, it ends.
#[derive(Debug, Clone)]
pub struct Batcher {
    queue: mpsc::Sender<Waiting>,
    _task: Arc<JoinSet<()>>,
}

/// What Redis told of one ask's checks, in order.
#[derive(Debug)]
pub struct Told {
    /// What it was asked.
    pub lines: Vec<Line>,
    /// What time it was there.
    pub now: Time,
    /// What it says of each, or why it says nothing.
    pub said: SmallVec<[Result<Said, StoreError>; 2]>,
}

/// An ask that waits for its turn.
#[derive(Debug)]
struct Waiting {
    lines: Vec<Line>,
    together: bool,
    reply: oneshot::Sender<Result<Told, StoreError>>,
}

/// The task.
struct Task {
    node: Arc<Node>,
    lane: Lane,
    queue: mpsc::Receiver<Waiting>,
    /// Taken from the queue, but not sent yet.
    pending: VecDeque<Waiting>,
}

impl Batcher {
    /// Starts on the runtime that this is called on.
    pub fn start(node: Arc<Node>) -> Self {
        let (queue, waiting) = mpsc::channel(WAITERS_MAX);
        let lane = Lane::open(node.manager.clone(), node.store_timeout.into());
        let task = Task { node, lane, queue: waiting, pending: VecDeque::new() };
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        Self { queue, _task: Arc::new(tasks) }
    }

    /// Waits for the answer to these lines. Whoever stops waiting before they are sent is taken out, uncharged.
    ///
    /// # Errors
    /// There is none, or no room to wait for it.
    pub async fn ask(&self, lines: Vec<Line>, together: bool) -> Result<Told, StoreError> {
        let (reply, told) = oneshot::channel();
        self.queue.try_send(Waiting { lines, together, reply }).map_err(|_| StoreError::Crowded)?;
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
                self.node.metrics.full.inc();
                break;
            }
            let next = self.pending.pop_front();
            if is_gone {
                self.node.metrics.abandoned.inc();
            } else {
                checks += count;
                batch.extend(next);
            }
        }
        batch
    }

    async fn send(&self, mut batch: Vec<Waiting>) {
        let node = &self.node;
        keep_order(&mut batch);
        if node.health.breaker.is_open() {
            return refuse(batch, StoreError::Unreachable);
        }
        let mut link = match self.lane.link().await {
            Ok(link) => link,
            Err(cause) => {
                node.health.failed(&cause);
                return refuse(batch, StoreError::Unreachable);
            }
        };
        let groups = batch.iter().map(|waiting| (waiting.together, waiting.lines.as_slice()));
        let trip = Trip::new(groups, node.clock.is_manual().then(|| node.clock.now()));
        node.metrics.checks.observe(f64::from(u32::try_from(trip.checks()).unwrap_or(u32::MAX)));
        node.metrics.in_flight.inc();
        let result = self.call(&mut link, &trip).await;
        node.metrics.in_flight.dec();
        match result {
            Ok(back) => {
                node.health.worked();
                self.deliver(batch, back);
            }
            Err(error) => {
                node.health.failed(&error.to_string());
                node.metrics.ambiguous.inc_by(batch.len() as u64);
                refuse(batch, if error.is_timeout() { StoreError::Late } else { StoreError::Unreachable });
            }
        }
    }

    async fn call(&self, link: &mut Link, trip: &Trip<'_>) -> Result<Back, RedisError> {
        let node = &self.node;
        let sent = node.clock.now();
        let mut values = link.call(&trip.commands()).await?;
        if trip::is_forgotten(&values) {
            // Normal life: after a restart, a failover or a flush. The text runs and is remembered in one trip.
            node.metrics.unknown_script.inc();
            values.pop();
            values.extend(link.call(&trip.script()).await?);
        }
        let received = node.clock.now();
        node.metrics.seconds.observe(received.since(sent).as_secs_f64());
        let back = trip.read(values).inspect_err(|_| link.give_up())?;
        if let Some(now) = back.now {
            node.redis_clock.hear(now, sent, received);
        }
        if !back.mends.is_empty() && link.call(&back.mends).await.is_err() {
            // The replies are here all the same. The connection is not handed out again, and the next hit of that counter mends it.
            node.health.see(Trouble::Unreachable, "a key's life could not be set");
        }
        Ok(back)
    }

    fn deliver(&self, batch: Vec<Waiting>, back: Back) {
        let node = &self.node;
        let now = node.clock.now();
        let redis_now = back.now.unwrap_or(node.redis_clock.at(now));
        let mut told = back.told.into_iter();
        for waiting in batch {
            let said = waiting.lines.iter().zip(told.by_ref()).map(|(line, told)| match told {
                Ok(said) => {
                    node.last_seen.remember(line.hash(), line.used(&said), now);
                    Ok(said)
                }
                Err(text) => {
                    node.health.see(Trouble::of_reply(&text), &text);
                    Err(StoreError::Refused)
                }
            });
            let told = Told { now: redis_now, said: said.collect(), lines: waiting.lines };
            if waiting.reply.send(Ok(told)).is_err() {
                node.metrics.ambiguous.inc();
            }
        }
    }
}

/// Commands come before the script. A check whose counter an earlier one asks the script about waits for it there.
fn keep_order(batch: &mut [Waiting]) {
    let mut scripted: SmallVec<[u64; BATCH_SIZE_MAX]> = SmallVec::new();
    for line in batch.iter_mut().flat_map(|waiting| &mut waiting.lines) {
        if line.is_direct() && scripted.contains(&line.hash()) {
            line.set_known(false);
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
