//! Records requests to a file that `tollgate replay` reads.
//!
//! A worker writes a line into memory and goes on. A thread of its own writes lines to the file, so
//! a slow disk delays no request; lines that would wait beyond a bound are dropped and counted.

use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, UnboundedSender};

use crate::base::hash_key::HashKey;
use crate::base::sampling::SampleRate;
use crate::base::time::Time;
use crate::observe::record::pending::{Pending, dropped};
use crate::observe::record::settings::Options;
use crate::observe::record::writer::Writer;
use crate::observe::redact::Redaction;
use crate::rules::{Query, RuleSet};
use crate::telemetry::metric::{Counter, Metrics};

mod file;
pub(crate) mod line;
mod pending;
pub mod settings;
pub(crate) mod writer;

/// Bytes of recorded lines that wait for the file: about 100,000 requests.
// bound record_pending_bytes_max: not recorded;
// tollgate_record_dropped_total{reason="pending_bytes_max"}
const PENDING_BYTES_MAX: usize = 16 << 20;

/// Records the requests of all workers. Clones share the file.
#[derive(Debug, Clone)]
pub(crate) struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    rate: SampleRate,
    redaction: Option<Redaction>,
    lines: UnboundedSender<Pending>,
    pending: Arc<Semaphore>,
    /// Set when the recording ends: what counts the requests after.
    ended: Arc<OnceLock<Counter>>,
    pending_bytes_max: Counter,
}

impl Recorder {
    /// Opens the file. Lines wait until the writer is started.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(options: &Options, metrics: &Metrics) -> anyhow::Result<(Self, Writer)> {
        // bounded by record_pending_bytes_max
        let (lines, received) = mpsc::unbounded_channel();
        let writer = Writer::open(options, received, metrics)?;
        let shared = Shared {
            rate: options.rate,
            redaction: options.redact.then(|| {
                Redaction::hashing(
                    options
                        .key
                        .as_ref()
                        .map_or_else(HashKey::random, HashKey::of),
                )
            }),
            lines,
            pending: Arc::new(Semaphore::new(PENDING_BYTES_MAX)),
            ended: writer.ended(),
            pending_bytes_max: dropped("pending_bytes_max", metrics),
        };
        Ok((Self(Arc::new(shared)), writer))
    }

    /// Records a request that is decided by `rules`.
    pub(crate) fn record(&self, query: &Query<'_>, rules: &RuleSet, now: Time) {
        let shared = &*self.0;
        if !shared.rate.includes(line::hash(query)) {
            return;
        }
        if let Some(counter) = shared.ended.get() {
            counter.inc();
            return;
        }
        let line = match &shared.redaction {
            None => line::line(query, now),
            Some(redaction) => line::line(&redaction.of(query, rules).query(), now),
        };
        let bytes = u32::try_from(line.len()).unwrap_or(u32::MAX);
        match shared.pending.clone().try_acquire_many_owned(bytes) {
            // It fails only after the end of the writer.
            Ok(permit) => drop(shared.lines.send((line, permit))),
            Err(_) => shared.pending_bytes_max.inc(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::rules::tree::tests::rules_of;

    #[test]
    fn lines_beyond_the_bound_are_dropped_and_counted() {
        let folder = TempDir::new().expect("a temporary directory");
        let metrics = Metrics::new();
        let options = Options {
            file: folder.path().join("requests"),
            rate: SampleRate::of(1.0).expect("it is a rate"),
            file_bytes_max: u64::MAX,
            redact: false,
            key: None,
        };
        let (recorder, _writer) = Recorder::open(&options, &metrics).expect("it is writable");
        let value = format!("key={}", "v".repeat(1 << 20));
        let query = Query::of_entries("d", [&*value]).expect("it has an entry");
        let rules = rules_of("domain: d");
        for _ in 0..20 {
            recorder.record(&query, &rules, Time::default());
        }
        // A line is longer than its value, so the last of 16 does not fit.
        assert_eq!(recorder.0.pending_bytes_max.get(), 5);
    }
}
