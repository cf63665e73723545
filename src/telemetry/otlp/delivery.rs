//! Delivers batches to the collector: retries within a time, and logs the first of several
//! failures.

use std::mem;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::telemetry::metric::Counter;
use crate::telemetry::otlp::options::Options;
use crate::telemetry::otlp::send::Sender;

pub(crate) use crate::telemetry::otlp::send::Request;

/// Waits between attempts, doubled each time.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Pause between attempts to send to a collector.
// bound otlp_retry_max: tried again; -
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The way to the collector for one signal.
pub(crate) struct Delivery {
    sender: Sender,
    /// `trace` or `metric`, for the log.
    signal: &'static str,
    endpoint: String,
    timeout: Duration,
    stop: CancellationToken,
    is_failing: bool,
    counters: Counters,
}

/// What became of the items of one signal.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    /// Items that the collector accepted.
    pub(crate) sent: Counter,
    /// Items that the collector rejected.
    pub(crate) rejected: Counter,
    /// Failed attempts.
    pub(crate) failures: Counter,
}

impl Delivery {
    /// Called on the runtime that sends. After `stop` there are no retries.
    pub(crate) fn new(
        options: &Options,
        signal: &'static str,
        counters: Counters,
        stop: CancellationToken,
    ) -> Self {
        Self {
            sender: Sender::new(options),
            signal,
            endpoint: options.endpoint.to_string(),
            timeout: options.timeout.into(),
            stop,
            is_failing: false,
            counters,
        }
    }

    /// Sends a number of items until the collector accepts, a retry is useless, or the time is
    /// over. Returns whether it accepted the batch.
    pub(crate) async fn deliver(&mut self, request: &impl Request, items: u64) -> bool {
        let timeout = self.timeout;
        let sent = tokio::time::timeout(timeout, self.send(request)).await;
        let sent = sent.unwrap_or_else(|_| {
            self.count_failure(&format!("not accepted within {timeout:?}"));
            None
        });
        let Some(rejected) = sent.map(|rejected| rejected.min(items)) else {
            return false;
        };
        self.counters.sent.inc_by(items - rejected);
        self.counters.rejected.inc_by(rejected);
        if mem::take(&mut self.is_failing) {
            tracing::info!(endpoint = self.endpoint, "{} export recovered", self.signal);
        }
        true
    }

    /// The number of rejected items; `None` if the batch failed.
    async fn send(&mut self, request: &impl Request) -> Option<u64> {
        let mut pause = RETRY_FIRST;
        loop {
            let failure = match self.sender.send(request).await {
                Ok(rejected) => return Some(rejected),
                Err(failure) => failure,
            };
            self.count_failure(&failure.text);
            if !failure.may_retry {
                return None;
            }
            self.stop
                .run_until_cancelled(tokio::time::sleep(pause))
                .await?;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Counts a failure, and logs the first of several.
    fn count_failure(&mut self, why: &str) {
        self.counters.failures.inc();
        let (endpoint, signal) = (&self.endpoint, self.signal);
        if mem::replace(&mut self.is_failing, true) {
            tracing::debug!(endpoint, why, "{signal} export failed again");
        } else {
            tracing::warn!(
                endpoint,
                why,
                "{signal} export failed; requests are unaffected"
            );
        }
    }
}
