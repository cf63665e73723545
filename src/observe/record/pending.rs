//! Lines that wait for the file, and the count of those that are dropped.

use tokio::sync::OwnedSemaphorePermit;

use crate::telemetry::metric::{Counter, Metrics};

/// A line, and the part of the bound that it takes until it is written.
pub(super) type Pending = (Vec<u8>, OwnedSemaphorePermit);

/// Requests that were not recorded, by reason.
pub(super) fn dropped(reason: &str, metrics: &Metrics) -> Counter {
    metrics.counter_with(
        "tollgate_record_dropped_total",
        "Sampled requests that were not recorded: too many bytes waited for the file (pending_bytes_max), the file has RECORD_FILE_BYTES_MAX \
         (file_bytes_max), or it could not be written (write_error). The last two end the recording.",
        &[("reason", reason)],
    )
}
