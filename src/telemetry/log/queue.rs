//! Queues log lines for a thread that writes them.
//!
//! A pipe that is not read, or a slow disk, blocks that thread and nothing else. Lines beyond the
//! bound are dropped and counted; the next line that is written reports how many.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use std::{mem, thread};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

use crate::telemetry::metric::Counter;

/// Memory of log lines that wait to be written.
// bound log_queue_bytes_max: the line is dropped, the next one that is written reports how many;
// tollgate_log_lines_dropped_total
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// Wait for the last log lines to be written at the end of the process.
const FLUSH_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// Lines that wait for their output. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// All lines that were not written.
    dropped: Counter,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<Box<[u8]>>,
    /// Memory of the queued lines, and of those that the thread has taken and not written.
    bytes: usize,
    /// Lines dropped since the thread last took lines.
    dropped: u64,
    /// Whether the thread is writing.
    is_writing: bool,
}

impl Queue {
    /// Starts the thread. `report` formats the line about dropped ones.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        dropped: Counter,
        report: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let queue =
            Self(Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), dropped }));
        let writer = queue.clone();
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writer.write_lines(output, report))?;
        Ok(queue)
    }

    /// Queues a line, or drops and counts it. Never waits for the output.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.0.state.lock();
        let bytes = state.bytes + memory_of(line);
        if bytes > QUEUE_BYTES_MAX {
            state.dropped += 1;
            self.0.dropped.inc();
        } else {
            state.bytes = bytes;
            state.lines.push(line.into());
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// Waits until every queued line was written, for at most [`FLUSH_TIMEOUT_MAX`].
    pub(super) fn flush(&self) {
        let is_pending = |state: &mut State| state.is_writing || state.has_news();
        let mut state = self.0.state.lock();
        self.0.changed.wait_while_for(&mut state, is_pending, FLUSH_TIMEOUT_MAX);
    }

    /// Runs in the thread.
    fn write_lines(self, mut output: impl Write, report: impl Fn(u64) -> String) {
        let mut unreported = 0;
        loop {
            let (lines, dropped) = self.take();
            unreported += dropped;
            // One write for each, which a pipe does not mix with the lines of other processes.
            for line in lines {
                if output.write_all(&line).is_err() {
                    self.0.dropped.inc();
                    unreported += 1;
                }
                self.0.state.lock().bytes -= memory_of(&line);
            }
            if unreported > 0 && output.write_all(report(unreported).as_bytes()).is_ok() {
                unreported = 0;
            }
        }
    }

    /// Waits for lines, and takes them with the number of those that were dropped.
    fn take(&self) -> (Vec<Box<[u8]>>, u64) {
        let mut state = self.0.state.lock();
        state.is_writing = false;
        self.0.changed.notify_all();
        self.0.changed.wait_while(&mut state, |state| !state.has_news());
        state.is_writing = true;
        (mem::take(&mut state.lines), mem::take(&mut state.dropped))
    }
}

impl State {
    /// Whether there is anything that the thread has not taken.
    fn has_news(&self) -> bool {
        !self.lines.is_empty() || self.dropped > 0
    }
}

impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Each event is one `write` of a whole line.
impl<'q> MakeWriter<'q> for Queue {
    type Writer = &'q Self;

    fn make_writer(&'q self) -> &'q Self {
        self
    }
}

fn memory_of(line: &[u8]) -> usize {
    line.len() + size_of::<Box<[u8]>>()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// An output that blocks until each write is permitted, and how that write ends.
    struct Output {
        results: mpsc::Receiver<io::Result<()>>,
        written: mpsc::Sender<String>,
    }

    impl Write for Output {
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
        let output = Output { results: permitted, written: writing };
        let dropped = Counter::new("dropped", "help").unwrap();
        let queue = Queue::start(output, dropped, |lines| format!("{lines} dropped"));
        (queue.unwrap(), results, written)
    }

    #[test]
    fn bound_includes_the_line_that_is_being_written() {
        let (queue, results, written) = queue();
        let line = vec![b'x'; QUEUE_BYTES_MAX / 2];
        queue.push(&line);
        assert_eq!(written.recv().unwrap().len(), line.len());
        queue.push(&line);
        queue.push(b"short");
        assert_eq!(queue.0.dropped.get(), 1);
        results.send(Ok(())).unwrap();
        assert_eq!(written.recv().unwrap(), "short");
        results.send(Ok(())).unwrap();
        assert_eq!(written.recv().unwrap(), "1 dropped");
    }

    #[test]
    fn line_above_the_bound_is_dropped_and_reported() {
        let (queue, _results, written) = queue();
        queue.push(&vec![b'x'; QUEUE_BYTES_MAX]);
        assert_eq!(written.recv().unwrap(), "1 dropped");
    }

    #[test]
    fn lines_that_cannot_be_written_are_reported_later() {
        let (queue, results, written) = queue();
        let fail = || Err(io::Error::from(io::ErrorKind::StorageFull));
        queue.push(b"lost");
        // The report is lost, too.
        for result in [fail(), fail(), Ok(()), Ok(())] {
            results.send(result).unwrap();
        }
        assert_eq!(written.recv().unwrap(), "lost");
        assert_eq!(written.recv().unwrap(), "1 dropped");
        queue.push(b"line");
        assert_eq!(written.recv().unwrap(), "line");
        assert_eq!(written.recv().unwrap(), "1 dropped");
        assert_eq!(queue.0.dropped.get(), 1);
    }

    #[test]
    fn flush_waits_for_every_line() {
        let (queue, results, written) = queue();
        for index in 0..100 {
            queue.push(index.to_string().as_bytes());
            results.send(Ok(())).unwrap();
        }
        queue.flush();
        assert_eq!(written.try_iter().count(), 100);
    }
}
