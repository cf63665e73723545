//! Delivers batches to the collector: retries within a time, and logs the first of several
//! failures.

use std::mem;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::base::proto::opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
use crate::telemetry::metric::Counter;
use crate::telemetry::otlp::options::Options;
use crate::telemetry::otlp::send::Sender;

/// Waits between attempts, doubled each time.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Pause between attempts to send to a collector.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The way to the collector.
pub(crate) struct Delivery {
    sender: Sender,
    endpoint: String,
    timeout: Duration,
    stop: CancellationToken,
    is_failing: bool,
    counters: Counters,
}

/// What became of the spans.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    /// Spans that the collector accepted.
    pub(crate) sent: Counter,
    /// Spans that the collector rejected.
    pub(crate) rejected: Counter,
    /// Failed attempts.
    pub(crate) failures: Counter,
}

impl Delivery {
    /// Called on the runtime that sends. After `stop` there are no retries.
    pub(crate) fn new(options: &Options, counters: Counters, stop: CancellationToken) -> Self {
        Self {
            sender: Sender::new(options),
            endpoint: options.endpoint.to_string(),
            timeout: options.timeout.into(),
            stop,
            is_failing: false,
            counters,
        }
    }

    /// Sends a number of spans until the collector accepts, a retry is useless, or the time is
    /// over. Returns whether it accepted the batch.
    pub(crate) async fn deliver(
        &mut self,
        request: &ExportTraceServiceRequest,
        spans: u64,
    ) -> bool {
        let timeout = self.timeout;
        let sent = tokio::time::timeout(timeout, self.send(request)).await;
        let sent = sent.unwrap_or_else(|_| {
            self.count_failure(&format!("not accepted within {timeout:?}"));
            None
        });
        let Some(rejected) = sent.map(|rejected| rejected.min(spans)) else {
            return false;
        };
        self.counters.sent.inc_by(spans - rejected);
        self.counters.rejected.inc_by(rejected);
        if mem::take(&mut self.is_failing) {
            tracing::info!(endpoint = self.endpoint, "trace export recovered");
        }
        true
    }

    /// The number of rejected spans; `None` if the batch failed.
    async fn send(&mut self, request: &ExportTraceServiceRequest) -> Option<u64> {
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
            self.stop.run_until_cancelled(tokio::time::sleep(pause)).await?;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Counts a failure, and logs the first of several.
    fn count_failure(&mut self, why: &str) {
        self.counters.failures.inc();
        let endpoint = &self.endpoint;
        if mem::replace(&mut self.is_failing, true) {
            tracing::debug!(endpoint, why, "trace export failed again");
        } else {
            tracing::warn!(endpoint, why, "trace export failed; requests are unaffected");
        }
    }
}
