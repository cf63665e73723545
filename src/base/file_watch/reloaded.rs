//! Values from files that are replaced when the files change. While the files are invalid, the
//! previous value stays in use.

use std::fmt;
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::RecursiveMode;

use crate::base::file_watch::files::FileSet;
use crate::base::file_watch::watch::{POLL_INTERVAL_DEFAULT, Watched};
use crate::telemetry::metric::{Counter, Gauge, Metrics, gauged};

/// Values of one kind, each from files of its own.
#[derive(Debug, Clone)]
pub struct Reloaded {
    /// The name of the thread.
    name: &'static str,
    /// The values in the log.
    subject: &'static str,
    /// Finds changes without an event of the kernel within this time.
    pub(crate) poll_interval: Duration,
    loads: Option<Loads>,
    values: Vec<Value>,
}

/// Counts of loads.
#[derive(Debug, Clone)]
pub(crate) struct Loads {
    pub(crate) loaded: Counter,
    failed: Counter,
    /// Values whose newest files are invalid.
    rejected: Gauge,
}

#[derive(Clone)]
struct Value {
    files: FileSet,
    /// Replaces the value by the current content of the files.
    reload: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Whether the last reload was rejected.
    is_rejected: bool,
}

impl Loads {
    /// Registers the metrics, each with its name and help.
    pub(crate) fn new(loads: [&str; 2], rejected: [&str; 2], metrics: &Metrics) -> Self {
        let loads = |result| metrics.counter_with(loads[0], loads[1], &[("result", result)]);
        Self {
            loaded: loads("success"),
            failed: loads("error"),
            rejected: metrics.gauge(rejected[0], rejected[1]),
        }
    }
}

impl Reloaded {
    /// Without values. `name` is that of the thread, and `subject` that of the values in the log.
    pub(crate) fn new(name: &'static str, subject: &'static str) -> Self {
        Self {
            name,
            subject,
            poll_interval: POLL_INTERVAL_DEFAULT,
            loads: None,
            values: Vec::new(),
        }
    }

    pub(crate) fn counted(mut self, loads: Loads) -> Self {
        self.loads = Some(loads);
        self
    }

    /// Adds a value: `read` reads and checks it, and `replace` puts it in use.
    ///
    /// `files` are created before the first value is read, so that a change in between is noticed.
    pub(crate) fn add<T>(
        &mut self,
        files: FileSet,
        read: impl Fn() -> Result<T, String> + Send + Sync + 'static,
        replace: impl Fn(T) + Send + Sync + 'static,
    ) {
        self.values.push(Value {
            files,
            reload: Arc::new(move || read().map(&replace)),
            is_rejected: false,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(formatter)
    }
}

impl Watched for Reloaded {
    fn name(&self) -> &'static str {
        self.name
    }

    fn poll_interval(&self) -> Duration {
        self.poll_interval
    }

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        // Several values may share one.
        let mut directories: Vec<_> =
            self.values.iter().flat_map(|value| value.files.directories()).collect();
        directories.sort_by(|(one, _), (other, _)| one.cmp(other));
        directories.dedup();
        directories
    }

    fn has_changed(&mut self) -> bool {
        self.values.iter().any(|value| value.files.has_changed())
    }

    fn load(&mut self) {
        let mut loaded = 0;
        let mut failed = 0;
        let subject = self.subject;
        for value in &mut self.values {
            match value.files.load(|| (value.reload)()) {
                None => {}
                Some(Ok(())) => {
                    let was_rejected = mem::take(&mut value.is_rejected);
                    let event = if was_rejected { "valid again" } else { "reloaded" };
                    tracing::info!(files = ?value.files, "{subject} {event}");
                    loaded += 1;
                }
                Some(Err(error)) => {
                    tracing::error!(
                        "reload of the {subject} rejected; the previous content stays in use: {error}"
                    );
                    value.is_rejected = true;
                    failed += 1;
                }
            }
        }
        if let Some(loads) = &self.loads {
            let rejected = self.values.iter().filter(|value| value.is_rejected).count();
            loads.rejected.set(gauged(rejected));
            // Last, so that a reload that is counted is in use.
            loads.loaded.inc_by(loaded);
            loads.failed.inc_by(failed);
        }
    }
}
