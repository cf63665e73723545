//! Exports metrics by OTLP at an interval, in a thread of its own: no request waits for the
//! collector.
//!
//! Values are totals since the start, as on /metrics, so a failed export loses nothing: the next
//! one has it all. opentelemetry_sdk has instruments of its own, and would count everything twice.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::base::runtime::StoppableThread;
use crate::base::time::{Clock, Time};
use crate::proto::opentelemetry::proto::collector::metrics::v1::ExportMetricsServiceRequest;
use crate::proto::opentelemetry::proto::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use crate::telemetry::metric::Metrics;
use crate::telemetry::metric_export::convert::Times;
use crate::telemetry::metric_export::settings::Options;
use crate::telemetry::otlp::delivery::{Counters, Delivery};
use crate::telemetry::otlp::options::scope;

mod convert;
pub mod settings;

/// Data points in a request of metrics by OTLP. With names and labels of 1 KiB each it is below the
/// 4 MiB that gRPC servers accept by default.
// bound request_points_max: sent with the next request; -
const REQUEST_POINTS_MAX: usize = 1_000;
/// Time for the last export of metrics at shutdown.
// bound last_export_timeout: lost; -
pub(crate) const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Exports metrics once it is started.
#[derive(Debug)]
pub(crate) struct Exporter {
    options: Options,
    metrics: Metrics,
    clock: Clock,
    /// Since when totals count.
    start: Time,
    stop: CancellationToken,
    counters: Counters,
}

impl Exporter {
    /// Exports these metrics.
    pub(crate) fn new(options: Options, clock: &Clock, metrics: &Metrics) -> Self {
        Self {
            options,
            start: clock.now(),
            clock: clock.clone(),
            stop: CancellationToken::new(),
            counters: Counters {
                sent: metrics.counter(
                    "tollgate_metric_points_sent_total",
                    "Data points of metrics that the collector accepted.",
                ),
                rejected: metrics.counter(
                    "tollgate_metric_points_rejected_total",
                    "Data points of metrics that the collector rejected.",
                ),
                failures: metrics.counter(
                    "tollgate_metric_exports_failed_total",
                    "Failed attempts to export metrics. The next export has the same totals.",
                ),
            },
            metrics: metrics.clone(),
        }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub(crate) fn start(self) -> anyhow::Result<StoppableThread> {
        StoppableThread::spawn("otlp-metrics", self.stop.clone(), self.run())
    }

    async fn run(self) {
        let (options, counters) = (&self.options.otlp, self.counters.clone());
        let mut delivery = Delivery::new(options, "metric", counters, self.stop.clone());
        let interval = Duration::from(self.options.interval);
        let wait = || self.stop.run_until_cancelled(tokio::time::sleep(interval));
        while wait().await.is_some() {
            self.export(&mut delivery).await;
        }
        self.export(&mut delivery).await;
    }

    /// Exports what is on the page now. After a failure the rest waits for the next export.
    async fn export(&self, delivery: &mut Delivery) {
        let times = Times {
            start: self.start,
            now: self.clock.now(),
        };
        for batch in convert::batches(&self.metrics.families(), times, REQUEST_POINTS_MAX) {
            let points = batch.points as u64;
            let request = self.request(batch.metrics);
            if !delivery.deliver(&request, points).await {
                return;
            }
        }
    }

    fn request(&self, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
        let scope_metrics = vec![ScopeMetrics {
            scope: Some(scope()),
            metrics,
        }];
        ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.options.otlp.resource()),
                scope_metrics,
            }],
        }
    }
}
