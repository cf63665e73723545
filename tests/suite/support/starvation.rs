//! Watches for how long threads have to wait for a processor.
//!
//! A machine that is busy with other things runs nobody in time, and that says nothing about the service. Linux knows for every thread
//! how long it was ready and not run, and a virtual machine how long it was not run itself: what is late may be excused by that. Where
//! Linux does not say, nothing is excused.
//!
//! The tests with a real Envoy use it, too, which is why it knows nothing of this suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A thread that looks again and again. `T` is what time is told in.
pub(crate) struct Watch<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Looks<T>>,
}

/// What it saw.
pub(crate) struct Looks<T>(Vec<(T, Duration)>);

/// How often to look. How long somebody waited may be seen one look later.
const INTERVAL: Duration = Duration::from_millis(5);

impl<T: Copy + Ord + Send + 'static> Watch<T> {
    /// Watches all threads of these processes, and these threads, which are directories of `/proc`.
    pub(crate) fn start(processes: &[u32], threads: Vec<PathBuf>, now: impl Fn() -> T + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let processes: Vec<String> = processes.iter().map(|process| format!("/proc/{process}/task")).collect();
        let thread = thread::spawn(move || {
            let mut looks = Vec::new();
            while !stopped.load(Relaxed) {
                let theirs = processes.iter().filter_map(|tasks| fs::read_dir(tasks).ok()).flatten().flatten();
                let all = theirs.map(|entry| entry.path()).chain(threads.iter().cloned());
                let so_far: Duration = all.filter_map(|thread| waited(&thread)).sum();
                looks.push((now(), so_far + stolen()));
                thread::sleep(INTERVAL);
            }
            Looks(looks)
        });
        Self { stop, thread }
    }

    /// Ends it.
    pub(crate) fn stop(self) -> Looks<T> {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("it only looks")
    }
}

impl<T: Copy + Ord> Looks<T> {
    /// How long threads have waited in all.
    pub(crate) fn waited_in_all(&self) -> Duration {
        self.0.first().zip(self.0.last()).map_or(Duration::ZERO, |(first, last)| last.1.saturating_sub(first.1))
    }

    /// How long threads have waited, added up, from the last look but one before `begin` (what begins late is late at its end) to the
    /// first one after `end`.
    pub(crate) fn waited(&self, begin: T, end: T) -> Duration {
        let until = |then: T| self.0.partition_point(|(at, _)| *at < then);
        let before = self.0.get(until(begin).saturating_sub(2));
        let after = self.0.get(until(end)).or(self.0.last());
        before.zip(after).map_or(Duration::ZERO, |((_, before), (_, after))| after.saturating_sub(*before))
    }
}

/// How long the machine itself was ready to run and was not run, if it is a virtual one.
fn stolen() -> Duration {
    // USER_HZ is 100 for programs on every architecture.
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text.lines().next().and_then(|all| all.split_ascii_whitespace().nth(8)?.parse().ok());
    Duration::from_millis(10) * ticks.unwrap_or(0)
}

/// How long a thread was ready to run and was not run, since it was started.
fn waited(thread: &Path) -> Option<Duration> {
    let text = fs::read_to_string(thread.join("schedstat")).ok()?;
    Some(Duration::from_nanos(text.split(' ').nth(1)?.parse().ok()?))
}

/// That it excuses what it should, and nothing else.
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_for_counts_from_the_looks_before_to_the_look_after() {
        let looks = |waited: [u64; 4]| Looks([0, 50, 110, 170].into_iter().zip(waited.map(Duration::from_millis)).collect());
        for (waited, expected) in [([0, 0, 0, 0], 0), ([0, 9, 10, 10], 10), ([0, 0, 9, 9], 9), ([9, 9, 9, 20], 0)] {
            assert_eq!(looks(waited).waited(20, 80), Duration::from_millis(expected), "{waited:?}");
        }
        assert_eq!(looks([0, 1, 2, 3]).waited(120, 300), Duration::from_millis(2), "beyond the last look");
        assert_eq!(looks([5, 6, 7, 8]).waited_in_all(), Duration::from_millis(3));
        assert_eq!(Looks(Vec::new()).waited(1, 2), Duration::ZERO);
    }
}
