//! Queues log lines for a thread that writes them.
//!
//! A pipe that is not read, or a slow disk, blocks that thread and nothing else. Lines beyond the
//! bound are dropped and counted; once the thread has written what waits, it reports how many.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::telemetry::metric::{Series, Source};

/// Log lines that wait to be written. Those that clients cause have a few hundred bytes.
// bound log_queue_lines_max: the line is dropped, the log reports how many once it is written
// again; tollgate_log_lines_dropped_total
const QUEUE_LINES_MAX: usize = 2_048;

/// Wait for the last log lines to be written at the end of the process.
const FLUSH_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// Lines that wait for their output. Dropping it writes them, for at most [`FLUSH_TIMEOUT_MAX`].
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) lines: NonBlocking,
    pub(super) dropped: Dropped,
    /// Until it is dropped.
    guard: Option<WorkerGuard>,
}

/// Counts the lines that were not written. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub(super) struct Dropped {
    /// Lines beyond the bound.
    full: Arc<OnceLock<ErrorCounter>>,
    /// Lines that the output did not accept.
    failed: Arc<AtomicU64>,
}

/// Reports dropped lines on the output when the thread flushes it: no line waits then.
struct Reporter<W, R> {
    output: W,
    dropped: Dropped,
    reported: u64,
    report: R,
}

impl Queue {
    /// Starts the thread. `report` formats the line about dropped ones.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        report: impl Fn(u64) -> String + Send + 'static,
    ) -> Self {
        let dropped = Dropped::default();
        let output = Reporter { output, dropped: dropped.clone(), reported: 0, report };
        let (lines, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(QUEUE_LINES_MAX)
            .thread_name("log")
            .finish(output);
        // It is set only here.
        let _ = dropped.full.set(lines.error_counter());
        Self { lines, dropped, guard: Some(guard) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let guard = self.guard.take();
        let (written, all_written) = mpsc::channel::<()>();
        // With a full queue the guard prints to stdout, which may not be read either.
        // Without a thread the guard is dropped here.
        let _ = thread::Builder::new().spawn(move || {
            drop(guard);
            drop(written);
        });
        let _ = all_written.recv_timeout(FLUSH_TIMEOUT_MAX);
    }
}

impl Dropped {
    fn lines(&self) -> u64 {
        let full = self.full.get().map_or(0, ErrorCounter::dropped_lines);
        full as u64 + self.failed.load(Ordering::Relaxed)
    }
}

impl Source for Dropped {
    fn collect(&self, series: &mut Vec<Series>) {
        let help = "Log lines that were dropped: they would have waited beyond log_queue_lines_max, or could not be written.";
        let name = "tollgate_log_lines_dropped_total";
        series.push(Series::counter(name, help, Vec::new(), self.lines(), None));
    }
}

impl<W: Write, R: Fn(u64) -> String> Write for Reporter<W, R> {
    /// One write for each line, which a pipe does not mix with the lines of other processes.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.output.write_all(line).is_err() {
            self.dropped.failed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let dropped = self.dropped.lines();
        if dropped > self.reported {
            self.output.write_all((self.report)(dropped - self.reported).as_bytes())?;
            self.reported = dropped;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output that blocks until each write is permitted, and how that write ends.
    struct Permitted {
        results: mpsc::Receiver<io::Result<()>>,
        written: mpsc::Sender<String>,
    }

    impl Write for Permitted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            // Fails when the test is over.
            let _ = self.written.send(text);
            let result = self.results.recv();
            result.unwrap_or(Ok(())).map(|()| bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue() -> (Queue, mpsc::Sender<io::Result<()>>, mpsc::Receiver<String>) {
        let ((results, permitted), (writing, written)) = (mpsc::channel(), mpsc::channel());
        let output = Permitted { results: permitted, written: writing };
        (Queue::start(output, |lines| format!("{lines} dropped")), results, written)
    }

    fn push(queue: &Queue, line: &str) {
        queue.lines.clone().write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn line_above_the_bound_is_dropped_and_reported() {
        let (queue, results, written) = queue();
        push(&queue, "being written");
        assert_eq!(written.recv().unwrap(), "being written");
        for _ in 0..=QUEUE_LINES_MAX {
            push(&queue, "waits");
        }
        assert_eq!(queue.dropped.lines(), 1);
        drop(results);
        let written: Vec<String> = written.iter().take(QUEUE_LINES_MAX + 1).collect();
        assert!(written[..QUEUE_LINES_MAX].iter().all(|line| line == "waits"));
        assert_eq!(written[QUEUE_LINES_MAX], "1 dropped");
    }

    #[test]
    fn lines_that_cannot_be_written_are_reported_later() {
        let (queue, results, written) = queue();
        let fail = || Err(io::Error::from(io::ErrorKind::StorageFull));
        push(&queue, "lost");
        // The report is lost, too.
        for result in [fail(), fail(), Ok(()), Ok(())] {
            results.send(result).unwrap();
        }
        assert_eq!(written.recv().unwrap(), "lost");
        assert_eq!(written.recv().unwrap(), "1 dropped");
        push(&queue, "line");
        assert_eq!(written.recv().unwrap(), "line");
        assert_eq!(written.recv().unwrap(), "1 dropped");
        assert_eq!(queue.dropped.lines(), 1);
    }

    #[test]
    fn drop_writes_every_line() {
        let (queue, results, written) = queue();
        for index in 0..100 {
            push(&queue, &index.to_string());
            results.send(Ok(())).unwrap();
        }
        drop(queue);
        assert_eq!(written.try_iter().count(), 100);
    }
}
