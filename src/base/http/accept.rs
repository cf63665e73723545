//! Accepts connections; errors are counted, logged, and followed by a pause.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::stream::unfold;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_stream::Stream;

use crate::telemetry::metric::{Counter, Metrics};

/// Pause after an error: a shortage, as of file descriptors, does not end within microseconds.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// At most one log line per listener in this time: at the limit of file descriptors, accept fails
/// and succeeds by turns.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Error handling of one listener. A clone is for another listener and shares the metric.
#[derive(Debug, Clone)]
pub(crate) struct AcceptErrors {
    failed: Counter,
    logged: Option<Instant>,
}

impl AcceptErrors {
    /// Registers the metric.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let help =
            "Failed attempts to accept a connection, such as at the limit of file descriptors.";
        Self { failed: metrics.counter("tollgate_accept_errors_total", help), logged: None }
    }

    /// Counts an error, logs it unless one was logged recently, and waits before the next attempt.
    pub(crate) async fn pause(&mut self, error: &io::Error) {
        self.failed.inc();
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            self.logged = Some(Instant::now());
            tracing::warn!(%error, "cannot accept connections; retrying");
        }
        sleep(ACCEPT_PAUSE).await;
    }
}

/// The connections of a listener, with the addresses of their clients.
pub(crate) fn incoming(
    listener: TcpListener,
    errors: AcceptErrors,
) -> impl Stream<Item = (TcpStream, Option<IpAddr>)> {
    unfold((listener, errors), |(listener, mut errors)| async move {
        loop {
            match listener.accept().await {
                Ok((stream, addr)) => {
                    return Some(((stream, Some(addr.ip())), (listener, errors)));
                }
                Err(error) => errors.pause(&error).await,
            }
        }
    })
}
