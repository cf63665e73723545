//! Accept errors: counted, logged, and followed by a pause.

use std::io;
use std::time::Duration;

use futures_util::stream::unfold;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_stream::Stream;

use crate::telemetry::metric::{Counter, Metrics};

/// What accept lacks, such as file descriptors, it still lacks a microsecond later.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A process at its limit of file descriptors fails and succeeds by turns: one line per listener is
/// enough for this long.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// What a listener does about accept errors. A clone is for another listener and shares the metric.
#[derive(Debug, Clone)]
pub struct AcceptErrors {
    failed: Counter,
    logged: Option<Instant>,
}

impl AcceptErrors {
    /// No errors yet.
    pub fn new(metrics: &Metrics) -> Self {
        let help =
            "Tries to accept a connection that failed, for want of file descriptors for one.";
        Self {
            failed: metrics.counter("tollgate_accept_errors_total", help),
            logged: None,
        }
    }

    /// Counts an error, logs it unless one was logged lately, and waits until another try makes
    /// sense.
    pub async fn pause(&mut self, error: &io::Error) {
        self.failed.inc();
        if self
            .logged
            .is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL)
        {
            self.logged = Some(Instant::now());
            tracing::warn!(%error, "cannot accept connections; trying again until it works");
        }
        sleep(ACCEPT_PAUSE).await;
    }
}

/// The connections of a listener, in the order in which they are accepted.
pub fn incoming(listener: TcpListener, errors: AcceptErrors) -> impl Stream<Item = TcpStream> {
    unfold((listener, errors), |(listener, mut errors)| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((stream, (listener, errors))),
                Err(error) => errors.pause(&error).await,
            }
        }
    })
}
