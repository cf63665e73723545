//! A named thread with its own single-threaded runtime.
//!
//! The runtime is dropped without waiting for blocking tasks: `getaddrinfo` cannot be cancelled,
//! and an unresponsive DNS server must not delay the end of the process.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::base::time::Span;

/// After how long an idle thread for blocking tasks ends. The allocator returns the memory of the
/// start to the kernel when a thread ends, and an idle process has no other reason to.
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Threads for blocking tasks of one runtime. The allocator keeps memory for each. The admin port
/// has most tasks; of those, a check, a change and two reads of rules files may last for seconds.
const BLOCKING_THREADS_MAX: usize = 8;

/// The start of the names of threads that serve requests.
pub(crate) const WORKER: &str = "worker-";

/// A running thread. Dropping it cancels its work at the next `await`.
#[derive(Debug)]
pub struct Thread {
    /// Cancels the work when it is dropped.
    _running: oneshot::Sender<Infallible>,
    ended: oneshot::Receiver<Infallible>,
}

/// Reports a panic, and the end of the thread by being dropped.
struct Guard {
    name: String,
    _ended: oneshot::Sender<Infallible>,
}

/// Builds a single-threaded runtime, with the name of the thread that runs it.
///
/// # Errors
/// The system has no file descriptors left.
pub(crate) fn build(name: &str) -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .thread_name(format!("{name}-blocking"))
        .thread_keep_alive(BLOCKING_KEEP_ALIVE)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
}

/// Runs a call that takes much memory on a thread of its own, and waits for the end of the thread:
/// then the allocator returns the memory, while each thread for blocking tasks would keep its own.
/// `held` is dropped after it, even if the caller is cancelled. `None` after a panic, or if the
/// thread cannot be started.
pub(crate) async fn run_on_thread<T: Send + 'static>(
    name: &'static str,
    held: impl Send + 'static,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let run = move || {
        let _held = held;
        let thread = thread::Builder::new().name(name.to_owned()).spawn(call);
        thread.ok()?.join().ok()
    };
    tokio::task::spawn_blocking(run).await.ok().flatten()
}

/// How long the threads of workers waited for a CPU when they could have run. Zero where the kernel
/// does not report it.
pub(crate) fn workers_cpu_wait() -> Span {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let waits = tasks.filter_map(|task| {
        let read = |file| fs::read_to_string(task.path().join(file)).ok();
        let is_worker = read("comm")?.starts_with(WORKER);
        // Nanoseconds on a CPU, then those of waiting for one.
        let times = is_worker.then(|| read("schedstat"))??;
        times.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Span::from_micros(waits.sum::<u64>() / 1_000)
}

impl Thread {
    /// Starts a thread that runs `work`: boxed, so that the runtime is compiled once and not for
    /// each work.
    ///
    /// # Errors
    /// The runtime or the thread cannot be started.
    pub fn spawn(name: &str, work: BoxFuture<'static, ()>) -> anyhow::Result<Self> {
        let runtime = build(name).with_context(|| format!("start the runtime of thread {name}"))?;
        let (running, stopped) = oneshot::channel::<Infallible>();
        let (ended_here, ended) = oneshot::channel();
        let guard = Guard { name: name.to_owned(), _ended: ended_here };
        let run = move || {
            let _guard = guard;
            runtime.block_on(async {
                tokio::select! {
                    () = work => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .with_context(|| format!("start thread {name}"))?;
        Ok(Self { _running: running, ended })
    }

    /// Waits until the thread has ended.
    pub async fn ended(mut self) {
        // Fails when the thread drops its sender.
        let _ = (&mut self.ended).await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!(name = self.name, "a thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::spin_loop;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Bounds a hang.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn workers_that_wait_for_a_cpu_are_noticed() {
        let spinners = 2 * thread::available_parallelism().map_or(1, usize::from);
        let noticed = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..spinners {
                let name = format!("{WORKER}{number}");
                let spin = || {
                    while !noticed.load(Relaxed) {
                        spin_loop();
                    }
                };
                let spawned = thread::Builder::new().name(name).spawn_scoped(scope, spin);
                spawned.expect("threads can be started");
            }
            let before = tokio::time::Instant::now();
            let mut waited = Span::ZERO;
            while waited == Span::ZERO && before.elapsed() < PATIENCE {
                waited = workers_cpu_wait();
            }
            noticed.store(true, Relaxed);
            assert!(
                waited > Span::ZERO,
                "this kernel has no /proc/PID/schedstat (CONFIG_SCHED_INFO)"
            );
        });
    }

    #[tokio::test]
    async fn blocking_tasks_do_not_delay_the_end_of_the_thread() {
        // As `getaddrinfo` while its DNS server does not respond.
        let (answer, no_answer) = mpsc::channel::<()>();
        let (blocked, is_blocked) = oneshot::channel();
        let work = async move {
            drop(tokio::task::spawn_blocking(move || {
                let _ = blocked.send(());
                let _ = no_answer.recv();
            }));
            let _ = is_blocked.await;
        };
        let thread = Thread::spawn("test", Box::pin(work));
        let ended =
            tokio::time::timeout(PATIENCE, thread.expect("threads can be started").ended()).await;
        assert!(ended.is_ok(), "the thread waits for its blocking task");
        drop(answer);
    }

    #[tokio::test]
    async fn drop_cancels_the_work() {
        let (ended, work_ended) = oneshot::channel::<Infallible>();
        let work = async move {
            let _ended = ended;
            std::future::pending::<()>().await;
        };
        let thread = Thread::spawn("test", Box::pin(work));
        drop(thread.expect("threads can be started"));
        assert!(tokio::time::timeout(PATIENCE, work_ended).await.is_ok(), "it goes on");
    }
}
