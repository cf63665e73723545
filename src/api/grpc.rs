//! The life of gRPC connections on one worker: the handshake, the calls, GOAWAY when it is old, the end.
//!
//! The library serves all connections of a stream by one rule. Here each has a server of its own, for the sake of its age: the library's
//! has no chance in it, and given a grace it cuts a connection off without ever having said GOAWAY. A server is a few pointers.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::api::connection::{Accepted, Connection};
use crate::api::tls::Tls;
use crate::chance;
use crate::shutdown::{Lifecycle, Phase};
use crate::telemetry::metric::{Counter, Metrics};
use crate::time::Span;

/// TLS handshakes under way on one worker. Those beyond wait until one is over, in the queue of connections that are handed over.
pub const HANDSHAKES_MAX: usize = 256;
/// An age is drawn from within a tenth of what was set, as grpc-go does.
const JITTER_PARTS: u64 = 10;
/// So much later than here the library cuts a connection off: what is counted here goes first.
const CUT_SLACK: Duration = Duration::from_millis(20);

/// When connections end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ages {
    /// GOAWAY after this, give or take a tenth; `None` for never.
    pub max: Option<Span>,
    /// Cut off so much later, whatever is in flight; `None` for never.
    pub grace: Option<Span>,
}

/// What all gRPC connections have in common. Clones share it.
#[derive(Debug, Clone)]
pub struct Connections {
    tls: Option<Tls>,
    ages: Ages,
    handshakes_full: Counter,
    aged: Counter,
    cut: Counter,
}

/// What a connection's server is told.
pub struct Orders {
    /// Say GOAWAY, and finish what is in flight.
    pub go: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Close the connection after these two, one after the other, whatever is in flight.
    pub cut_after: Option<(Duration, Duration)>,
}

impl Connections {
    /// What all connections have in common.
    pub fn new(tls: Option<Tls>, ages: Ages, metrics: &Metrics) -> Self {
        Self {
            tls,
            ages,
            handshakes_full: metrics.counter(
                "tollgate_tls_handshakes_full_total",
                "Times that a worker had as many TLS handshakes under way as it makes at once (256).",
            ),
            aged: metrics
                .counter("tollgate_connections_aged_total", "gRPC connections that were told to go because of GRPC_MAX_CONNECTION_AGE."),
            cut: metrics
                .counter("tollgate_connections_cut_total", "gRPC connections that were cut off because of GRPC_MAX_CONNECTION_AGE_GRACE."),
        }
    }

    /// Has `serve` serve every connection that comes, and returns when the process stops and all of them have ended.
    pub async fn serve<F>(
        &self,
        mut incoming: mpsc::Receiver<Accepted>,
        lifecycle: &Lifecycle,
        serve: impl Fn(Connection, Orders) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        // Not the lifecycle itself: it tells of much else, and each time would wake a task of every connection.
        let (stop, stopped) = watch::channel(());
        let mut connections = JoinSet::new();
        {
            let mut stopping = pin!(lifecycle.reached(Phase::Stopping));
            loop {
                let next = async {
                    let turn = self.turn(&handshakes).await;
                    incoming.recv().await.map(|accepted| (accepted, turn))
                };
                tokio::select! {
                    () = &mut stopping => break,
                    _ = connections.join_next(), if !connections.is_empty() => {}
                    next = next => {
                        let Some((accepted, turn)) = next else { break };
                        let (common, serve, mut stopped) = (self.clone(), serve.clone(), stopped.clone());
                        connections.spawn(async move {
                            let secured = tokio::select! {
                                secured = common.secured(accepted) => secured,
                                _ = stopped.changed() => None,
                            };
                            drop(turn);
                            if let Some(connection) = secured {
                                common.live(connection, stopped, serve).await;
                            }
                        });
                    }
                }
            }
        }
        drop((incoming, stop));
        while connections.join_next().await.is_some() {}
    }

    /// Waits until there is room for one more handshake. Without TLS there are none.
    async fn turn(&self, handshakes: &Arc<Semaphore>) -> Option<tokio::sync::OwnedSemaphorePermit> {
        self.tls.as_ref()?;
        let turn = handshakes.clone().acquire_owned().await.ok()?;
        if handshakes.available_permits() == 0 {
            self.handshakes_full.inc();
        }
        Some(turn)
    }

    async fn secured(&self, accepted: Accepted) -> Option<Connection> {
        let connection = Connection::take_over(accepted)?;
        match &self.tls {
            Some(tls) => connection.secured(tls).await,
            None => Some(connection),
        }
    }

    async fn live<F>(&self, mut connection: Connection, mut stopped: watch::Receiver<()>, serve: impl Fn(Connection, Orders) -> F)
    where
        F: Future<Output = ()>,
    {
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
        let cut_after = age.zip(self.ages.grace.map(Duration::from));
        let mut serving = pin!(serve(connection, Orders { go, cut_after: cut_after.map(|(age, grace)| (age, grace + CUT_SLACK)) }));
        tokio::select! {
            () = &mut serving => return,
            () = sleep(cut_after.map(|(age, grace)| age.saturating_add(grace))) => self.cut.inc(),
        }
        serving.await;
    }
}

impl Ages {
    /// The age of one connection: those that were opened together do not end together.
    fn draw(self) -> Option<Duration> {
        Some(jittered(self.max?, chance::any()).into())
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
        let drawn: Vec<u64> = (0..1_000_000_u64).map(|any| jittered(hour, any * 7_201).as_micros()).collect();
        let (min, max) = (drawn.iter().min().expect("there are some"), drawn.iter().max().expect("there are some"));
        assert!((3_240_000_000..3_240_100_000).contains(min) && (3_959_900_000..=3_960_000_000).contains(max), "{min} {max}");
        assert_eq!(jittered(Span::from_micros(5), u64::MAX), Span::from_micros(5), "too short for a tenth");
        assert!(jittered(Span::from_micros(u64::MAX), u64::MAX) > Span::from_micros(u64::MAX / 2), "and as long as it gets");
    }
}
