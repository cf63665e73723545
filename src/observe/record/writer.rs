//! Writes lines to the file, in a thread of its own. The recording ends when the file is full or
//! cannot be written.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use memchr::memchr_iter;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::base::runtime::StoppableThread;
use crate::observe::record::file::{Failed, RecordFile};
use crate::observe::record::pending::{Pending, dropped};
use crate::observe::record::settings::Options;
use crate::telemetry::metric::{Counter, Metrics};

/// Lines of one write to the recording.
// bound record_lines_max: written after them; -
const LINES_MAX: usize = 1_024;

/// Writes lines once it is started.
#[derive(Debug)]
pub(crate) struct Writer {
    file: RecordFile,
    path: PathBuf,
    bytes_max: u64,
    lines: UnboundedReceiver<Pending>,
    stop: CancellationToken,
    ended: Arc<OnceLock<Counter>>,
    recorded: Counter,
    full: Counter,
    failed: Counter,
}

impl Writer {
    /// Opens the file, at its end.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn open(
        options: &Options,
        lines: UnboundedReceiver<Pending>,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let path = options.file.clone();
        let file = RecordFile::open(&path)
            .with_context(|| format!("RECORD_FILE: open {}", path.display()))?;
        Ok(Self {
            file,
            path,
            bytes_max: options.file_bytes_max,
            lines,
            stop: CancellationToken::new(),
            ended: Arc::default(),
            recorded: metrics.counter(
                "tollgate_recorded_requests_total",
                "Requests written to RECORD_FILE.",
            ),
            full: dropped("file_bytes_max", metrics),
            failed: dropped("write_error", metrics),
        })
    }

    /// Set when the recording ends, with what counts the requests after.
    pub(super) fn ended(&self) -> Arc<OnceLock<Counter>> {
        self.ended.clone()
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(self) -> anyhow::Result<StoppableThread> {
        StoppableThread::spawn("record", self.stop.clone(), self.run())
    }

    async fn run(mut self) {
        let stop = self.stop.clone();
        let mut batch = Vec::new();
        while self.ended.get().is_none() {
            let received = self.lines.recv_many(&mut batch, LINES_MAX);
            if !matches!(stop.run_until_cancelled(received).await, Some(1..)) {
                break;
            }
            self.write(&mut batch);
        }
        // What arrived before the end of the process.
        while let Ok(line) = self.lines.try_recv() {
            batch.push(line);
        }
        self.write(&mut batch);
    }

    /// Writes whole lines, or counts them as dropped.
    fn write(&mut self, batch: &mut Vec<Pending>) {
        let lines = batch.drain(..);
        if let Some(counter) = self.ended.get() {
            return counter.inc_by(lines.len() as u64);
        }
        let (mut text, mut count, mut is_full) = (Vec::new(), 0, false);
        for (line, _) in lines {
            let bytes = self.file.bytes() + (text.len() + line.len()) as u64;
            is_full |= bytes > self.bytes_max;
            if is_full {
                self.full.inc();
            } else {
                text.extend_from_slice(&line);
                count += 1;
            }
        }
        match self.file.append(&text) {
            Ok(()) => {
                self.recorded.inc_by(count);
                if is_full {
                    let (path, bytes_max) = (self.path.display(), self.bytes_max);
                    tracing::warn!(%path, bytes_max, "recording ended: the file has RECORD_FILE_BYTES_MAX");
                    let _ = self.ended.set(self.full.clone());
                }
            }
            Err(Failed { error, written }) => {
                let recorded = memchr_iter(b'\n', &text[..written]).count() as u64;
                self.recorded.inc_by(recorded);
                self.failed.inc_by(count - recorded);
                tracing::error!(path = %self.path.display(), %error, "recording ended: the file cannot be written");
                let _ = self.ended.set(self.failed.clone());
            }
        }
    }
}
