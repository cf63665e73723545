//! Watches for how long threads have to wait for a processor.
//!
//! A machine that is busy with other things runs nobody in time, and that says nothing about the service. Linux knows for every thread
//! how long it was ready and not run, and a virtual machine how long it was not run itself: what is late may be excused by that. Not every
//! host tells its machines, so on each processor a sentry sleeps and wakes: what it oversleeps, nobody ran there.
//!
//! The tests with a real Envoy use it, too, which is why it knows nothing of this suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use tollgate::time::Clock;

/// A thread that looks again and again. `T` is what time is told in.
pub(crate) struct Watch<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Looks<T>>,
    sentries: Vec<JoinHandle<()>>,
}

/// What it saw.
pub(crate) struct Looks<T>(Vec<Look<T>>);

struct Look<T> {
    at: T,
    /// How long threads have waited so far, as Linux says.
    waited: Duration,
    /// How long sentries have overslept so far.
    overslept: Duration,
}

/// How often to look. How long somebody waited may be seen one look later.
const INTERVAL: Duration = Duration::from_millis(5);
/// How long a sentry sleeps, and what it may oversleep, because a timer is not exact.
const NAP: Duration = Duration::from_millis(1);

impl<T: Copy + Ord + Send + 'static> Watch<T> {
    /// Watches all threads of these processes, and these threads, which are directories of `/proc`.
    pub(crate) fn start(processes: &[u32], threads: Vec<PathBuf>, now: impl Fn() -> T + Send + 'static) -> Self {
        let (stop, overslept) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let sentries = (0..processors).map(|processor| sentry(processor, stop.clone(), overslept.clone())).collect();
        let stopped = stop.clone();
        let processes: Vec<String> = processes.iter().map(|process| format!("/proc/{process}/task")).collect();
        let thread = thread::spawn(move || {
            let mut looks: Vec<Look<T>> = Vec::new();
            while !stopped.load(Relaxed) {
                let theirs = processes.iter().filter_map(|tasks| fs::read_dir(tasks).ok()).flatten().flatten();
                let all = theirs.map(|entry| entry.path()).chain(threads.iter().cloned());
                let so_far: Duration = all.filter_map(|thread| waited(&thread)).sum();
                let overslept = Duration::from_micros(overslept.load(Relaxed));
                looks.push(Look { at: now(), waited: so_far + stolen(), overslept });
                thread::sleep(INTERVAL);
            }
            Looks(looks)
        });
        Self { stop, thread, sentries }
    }

    /// Ends it.
    pub(crate) fn stop(self) -> Looks<T> {
        self.stop.store(true, Relaxed);
        self.sentries.into_iter().for_each(|sentry| sentry.join().expect("it only sleeps"));
        self.thread.join().expect("it only looks")
    }
}

impl<T: Copy + Ord> Looks<T> {
    /// How long threads have waited in all.
    pub(crate) fn waited_in_all(&self) -> Duration {
        Look::between(self.0.first(), self.0.last())
    }

    /// How long threads have waited, added up, from the last look but one before `begin` (what begins late is late at its end) to the
    /// first one after `end`.
    pub(crate) fn waited(&self, begin: T, end: T) -> Duration {
        let until = |then: T| self.0.partition_point(|look| look.at < then);
        Look::between(self.0.get(until(begin).saturating_sub(2)), self.0.get(until(end)).or(self.0.last()))
    }
}

impl<T> Look<T> {
    fn between(first: Option<&Self>, last: Option<&Self>) -> Duration {
        let Some((first, last)) = first.zip(last) else { return Duration::ZERO };
        last.waited.saturating_sub(first.waited).max(last.overslept.saturating_sub(first.overslept))
    }
}

/// Sleeps and wakes on that processor, and adds up in µs what it oversleeps.
fn sentry(processor: usize, stop: Arc<AtomicBool>, overslept: Arc<AtomicU64>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut only_this = CpuSet::new();
        only_this.set(processor);
        // Where it must not be there, it watches wherever it is.
        let _ = sched_setaffinity(None, &only_this);
        let clock = Clock::system();
        while !stop.load(Relaxed) {
            let begun = clock.now();
            thread::sleep(NAP);
            let late = Duration::from(clock.now().since(begun)).saturating_sub(2 * NAP);
            overslept.fetch_add(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Relaxed);
        }
    })
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
        let looks = |waited: [u64; 4], overslept: [u64; 4]| {
            let ms = Duration::from_millis;
            let looks = [0, 50, 110, 170].into_iter().zip(waited.map(ms)).zip(overslept.map(ms));
            Looks(looks.map(|((at, waited), overslept)| Look { at, waited, overslept }).collect())
        };
        for (numbers, expected) in [([0, 0, 0, 0], 0), ([0, 9, 10, 10], 10), ([0, 0, 9, 9], 9), ([9, 9, 9, 20], 0)] {
            assert_eq!(looks(numbers, [0; 4]).waited(20, 80), Duration::from_millis(expected), "{numbers:?}");
            assert_eq!(looks([0; 4], numbers).waited(20, 80), Duration::from_millis(expected), "{numbers:?}");
        }
        assert_eq!(looks([0, 1, 2, 3], [0; 4]).waited(120, 300), Duration::from_millis(2), "beyond the last look");
        assert_eq!(looks([5, 6, 7, 8], [0, 0, 1, 4]).waited_in_all(), Duration::from_millis(4), "the longer of the two");
        assert_eq!(Looks(Vec::new()).waited(1, 2), Duration::ZERO);
    }
}
