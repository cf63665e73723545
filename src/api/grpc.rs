//! The life of gRPC connections on one worker: the handshake, the calls, GOAWAY when it is old, the
//! end.
//!
//! The library serves all connections of a stream by one rule. Here each has a server of its own,
//! for the sake of its age: the library's has no chance in it, and given a grace it cuts a
//! connection off without ever having said GOAWAY. A server is a few pointers.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::api::connection::{Accepted, Connection};
use crate::api::tls::{Failure, HELLO_TIMEOUT, Tls};
use crate::shutdown::{Lifecycle, Phase};
use crate::telemetry::metric::{Counter, Metrics};
use crate::time::Span;

/// TLS handshakes under way on one worker. For one more, the oldest whose client was silent is
/// closed. If there is none, it waits, and those after it wait in the queue of connections that are
/// handed over.
pub const HANDSHAKES_MAX: usize = 256;
/// A client is not taken for silent before: a distant one's ClientHello may be on its way, and in a
/// storm of handshakes those of others are computed first.
const SILENT_MIN: Duration = Duration::from_millis(100);
/// An age is drawn from within a tenth of what was set, as grpc-go does.
const JITTER_PARTS: u64 = 10;
/// So much later than here the library cuts a connection off: what is counted here goes first.
const CUT_SLACK: Duration = Duration::from_millis(20);

/// When connections end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// GOAWAY after this, give or take a tenth; `None` for never.
    pub max: Option<Span>,
    /// Cut off so much later, whatever is in flight; `None` for never.
    pub grace: Option<Span>,
}

/// What all gRPC connections have in common. Clones share it.
#[derive(Debug, Clone)]
pub struct Connections {
    tls: Option<Tls>,
    ages: ConnectionLimits,
    handshakes_full: Counter,
    preface_late: Counter,
    aged: Counter,
    cut: Counter,
}

/// The TLS handshakes of one worker.
#[derive(Debug)]
struct Handshakes {
    tls: Tls,
    room: Arc<Semaphore>,
    /// Oldest first, and some that have ended.
    under_way: VecDeque<Handshake>,
    full: Counter,
    /// What was done for the connection that waits.
    waiting: Waiting,
}

/// A handshake, and the task that makes it.
#[derive(Debug)]
struct Handshake {
    progress: Arc<Progress>,
    task: AbortHandle,
    began: Instant,
}

/// How far a handshake is: [`Progress::SILENT`] and so on.
#[derive(Debug, Default)]
struct Progress(AtomicU8);

/// What was done for a connection that waits for its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// Nothing.
    No,
    /// It was counted.
    Counted,
    /// And another was closed for it.
    RoomIsMade,
}

/// What a connection's server is told.
pub struct Orders {
    /// Say GOAWAY, and finish what is in flight.
    pub go: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Close the connection after these two, one after the other, whatever is in flight.
    pub force_close_after: Option<(Duration, Duration)>,
}

impl Connections {
    /// What all connections have in common.
    pub fn new(tls: Option<Tls>, ages: ConnectionLimits, metrics: &Metrics) -> Self {
        Self {
            tls,
            ages,
            handshakes_full: metrics.counter(
                "tollgate_tls_handshakes_full_total",
                "Connections that found as many TLS handshakes under way on their worker as it makes at once (256).",
            ),
            preface_late: metrics.counter(
                "tollgate_preface_timeouts_total",
                "gRPC connections that were closed because the preface of HTTP/2 did not come within 5 s.",
            ),
            aged: metrics
                .counter("tollgate_connections_aged_total", "gRPC connections that were told to go because of GRPC_MAX_CONNECTION_AGE."),
            cut: metrics
                .counter("tollgate_connections_force_closed_total", "gRPC connections that were cut off because of GRPC_MAX_CONNECTION_AGE_GRACE."),
        }
    }

    /// Has `serve` serve every connection that comes, and returns when the process stops and all of
    /// them have ended.
    pub async fn serve<F>(
        &self,
        mut incoming: mpsc::Receiver<Accepted>,
        lifecycle: &Lifecycle,
        serve: impl Fn(Connection, Orders) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut handshakes = self
            .tls
            .clone()
            .map(|tls| Handshakes::new(tls, self.handshakes_full.clone()));
        let mut waiting = None;
        // Not the lifecycle itself: it tells of much else, and each time would wake a task of every
        // connection.
        let (stop, stopped) = watch::channel(());
        let mut connections = JoinSet::new();
        {
            let mut stopping = pin!(lifecycle.reached(Phase::Stopping));
            loop {
                let next = async {
                    if waiting.is_none() {
                        waiting = Some(incoming.recv().await?);
                    }
                    let turn = match &mut handshakes {
                        Some(handshakes) => Some(handshakes.turn().await),
                        None => None,
                    };
                    Some((waiting.take()?, turn))
                };
                tokio::select! {
                    () = &mut stopping => break,
                    _ = connections.join_next(), if !connections.is_empty() => {}
                    next = next => {
                        let Some((accepted, turn)) = next else { break };
                        let (common, serve, mut stopped) = (self.clone(), serve.clone(), stopped.clone());
                        let progress = Arc::new(Progress::default());
                        let of_task = progress.clone();
                        let task = connections.spawn(async move {
                            let secured = tokio::select! {
                                secured = common.secured(accepted, &of_task) => secured,
                                _ = stopped.changed() => None,
                            };
                            of_task.set(Progress::OVER);
                            drop(turn);
                            if let Some(connection) = secured {
                                common.live(connection, stopped, serve).await;
                            }
                        });
                        if let Some(handshakes) = &mut handshakes {
                            handshakes.add(Handshake { progress, task, began: Instant::now() });
                        }
                    }
                }
            }
        }
        drop((incoming, waiting, stop));
        while connections.join_next().await.is_some() {}
    }

    async fn secured(&self, accepted: Accepted, progress: &Progress) -> Option<Connection> {
        let connection = Connection::take_over(accepted)?;
        match &self.tls {
            Some(tls) => {
                connection
                    .secured(tls, || progress.set(Progress::BEGUN))
                    .await
            }
            None => Some(connection),
        }
    }

    async fn live<F>(
        &self,
        mut connection: Connection,
        mut stopped: watch::Receiver<()>,
        serve: impl Fn(Connection, Orders) -> F,
    ) where
        F: Future<Output = ()>,
    {
        connection.expect_preface(self.preface_late.clone());
        let age = self.ages.draw();
        let (ended, aged) = (connection.ended(), self.aged.clone());
        let go = Box::pin(async move {
            tokio::select! {
                () = sleep(age) => aged.inc(),
                // The sender never sends: it is dropped when the process stops.
                _ = stopped.changed() => {}
                _ = ended => {}
            }
        });
        let force_close_after = age.zip(self.ages.grace.map(Duration::from));
        let mut serving = pin!(serve(
            connection,
            Orders {
                go,
                force_close_after: force_close_after.map(|(age, grace)| (age, grace + CUT_SLACK))
            }
        ));
        tokio::select! {
            () = &mut serving => return,
            () = sleep(force_close_after.map(|(age, grace)| age.saturating_add(grace))) => self.cut.inc(),
        }
        serving.await;
    }
}

impl Handshakes {
    fn new(tls: Tls, full: Counter) -> Self {
        Self {
            tls,
            room: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            under_way: VecDeque::new(),
            full,
            waiting: Waiting::No,
        }
    }

    fn add(&mut self, handshake: Handshake) {
        self.under_way
            .retain(|other| other.progress.get() != Progress::OVER);
        self.under_way.push_back(handshake);
    }

    /// Waits until there is room for one more. Cancelled and called again, it goes on.
    async fn turn(&mut self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(turn) = self.room.clone().try_acquire_owned() {
                self.waiting = Waiting::No;
                return turn;
            }
            if self.waiting == Waiting::No {
                self.full.inc();
                self.waiting = Waiting::Counted;
            }
            if self.waiting == Waiting::Counted && self.close_one() {
                self.waiting = Waiting::RoomIsMade;
            }
            let due = self
                .under_way
                .iter()
                .filter_map(Handshake::due)
                .min()
                .filter(|_| self.waiting == Waiting::Counted);
            let room = self.room.clone();
            tokio::select! {
                // Dropped at once, and acquired again above.
                _ = room.acquire() => {}
                () = sleep(due.map(|due| due - Instant::now())) => {}
            }
        }
    }

    /// Closes the oldest whose client is silent, or else the oldest whose client has sent no more
    /// than its ClientHello.
    fn close_one(&mut self) -> bool {
        let now = Instant::now();
        let oldest = |progress| {
            let is_due = |handshake: &Handshake| {
                handshake.progress.get() == progress
                    && handshake.due().is_some_and(|due| due <= now)
            };
            self.under_way.iter().position(is_due)
        };
        let Some(index) = oldest(Progress::SILENT).or_else(|| oldest(Progress::BEGUN)) else {
            return false;
        };
        if let Some(closed) = self.under_way.remove(index) {
            closed.task.abort();
            self.tls.count(Failure::Evicted);
        }
        true
    }
}

impl Handshake {
    /// When it may be closed to make room for another.
    fn due(&self) -> Option<Instant> {
        match self.progress.get() {
            Progress::SILENT => Some(self.began + SILENT_MIN),
            Progress::BEGUN => Some(self.began + HELLO_TIMEOUT),
            _ => None,
        }
    }
}

impl Progress {
    const SILENT: u8 = 0;
    const BEGUN: u8 = 1;
    const OVER: u8 = 2;

    fn set(&self, to: u8) {
        self.0.store(to, Relaxed);
    }

    fn get(&self) -> u8 {
        self.0.load(Relaxed)
    }
}

impl ConnectionLimits {
    /// The age of one connection: those that were opened together do not end together.
    fn draw(self) -> Option<Duration> {
        Some(jittered(self.max?, fastrand::u64(..)).into())
    }
}

/// A span from within a tenth of another, by a number drawn anywhere.
fn jittered(span: Span, any: u64) -> Span {
    let tenth = span.as_micros() / JITTER_PARTS;
    let earliest = span.as_micros() - tenth;
    Span::from_micros(earliest.saturating_add(any % (2 * tenth + 1)))
}

/// Sleeps, or for ever.
async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_spread_over_a_fifth_around_what_was_set() {
        let hour = Span::from_secs(3_600);
        let drawn: Vec<u64> = (0..1_000_000_u64)
            .map(|any| jittered(hour, any * 7_201).as_micros())
            .collect();
        let (min, max) = (
            drawn.iter().min().expect("there are some"),
            drawn.iter().max().expect("there are some"),
        );
        assert!(
            (3_240_000_000..3_240_100_000).contains(min)
                && (3_959_900_000..=3_960_000_000).contains(max),
            "{min} {max}"
        );
        assert_eq!(
            jittered(Span::from_micros(5), u64::MAX),
            Span::from_micros(5),
            "too short for a tenth"
        );
        assert!(
            jittered(Span::from_micros(u64::MAX), u64::MAX) > Span::from_micros(u64::MAX / 2),
            "and as long as it gets"
        );
    }
}
