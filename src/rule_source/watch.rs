//! Watches a rules directory from a thread of its own, so that no load stands in a request's way.
//!
//! Directories are watched, never files: a mounted ConfigMap is a link that is turned, and a watch on a file would follow the old one.
//! What the kernel does not tell, as on network file systems, a look every few seconds finds.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::rule_source::RuleSource;

/// Events within this time are one change: editors write in two steps, and a ConfigMap in seven.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A directory that never comes to rest is read all the same, after so many of these.
const DEBOUNCE_ROUNDS_MAX: usize = 20;
/// How often to look where nobody tells.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Wake-ups that may wait. One is as good as many: each reads everything.
const WAKES_MAX: usize = 1;

/// The thread that watches. Dropping it ends the thread.
#[derive(Debug)]
pub struct Watch {
    wake: SyncSender<Wake>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    /// Something may have changed.
    Look,
    /// Load, whatever it looks like.
    Load,
    Stop,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(source: RuleSource) -> anyhow::Result<Self> {
        let (wake, woken) = sync_channel(WAKES_MAX);
        let waker = wake.clone();
        let thread = thread::Builder::new().name("rules".to_owned()).spawn(move || run(source, waker, &woken)).context("start the rules thread")?;
        Ok(Self { wake, thread: Some(thread) })
    }

    /// Loads the rules again, as an operator asks for with SIGHUP.
    pub fn load(&self) {
        // It fails only if the thread is gone.
        let _ = self.wake.send(Wake::Load);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It fails only if the thread is gone.
        let _ = self.wake.send(Wake::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the rules thread panicked");
        }
    }
}

fn run(mut source: RuleSource, waker: SyncSender<Wake>, woken: &Receiver<Wake>) {
    let mut events = Events::new(waker);
    events.watch(&source);
    // Whatever happened between the first load and the watch.
    source.load();
    let mut seen = source.directory().signature();
    loop {
        let wake = match woken.recv_timeout(LOOK_INTERVAL) {
            Ok(Wake::Look) => come_to_rest(woken),
            Ok(wake) => wake,
            Err(RecvTimeoutError::Disconnected) => Wake::Stop,
            Err(RecvTimeoutError::Timeout) => Wake::Look,
        };
        if wake == Wake::Stop {
            return;
        }
        let signature = source.directory().signature();
        if wake == Wake::Load || signature != seen {
            seen = signature;
            // The directory may be another one by now, under the same name.
            events.watch(&source);
            source.load();
        }
    }
}

/// Waits until no event comes for a while.
fn come_to_rest(woken: &Receiver<Wake>) -> Wake {
    for _ in 0..DEBOUNCE_ROUNDS_MAX {
        match woken.recv_timeout(DEBOUNCE) {
            Ok(Wake::Look) => {}
            Ok(wake) => return wake,
            Err(RecvTimeoutError::Disconnected) => return Wake::Stop,
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    Wake::Look
}

/// The kernel's events about a directory.
struct Events {
    watcher: Option<RecommendedWatcher>,
    watched: Vec<PathBuf>,
}

impl Events {
    fn new(waker: SyncSender<Wake>) -> Self {
        let handler = move |event: notify::Result<notify::Event>| {
            // That somebody read a file, we among them, is no news.
            if event.is_ok_and(|event| !event.kind.is_access()) {
                let _ = waker.try_send(Wake::Look);
            }
        };
        let watcher = notify::recommended_watcher(handler)
            .inspect_err(|error| tracing::warn!(%error, every = ?LOOK_INTERVAL, "cannot watch for changes of rules; looking from time to time"));
        Self { watcher: watcher.ok(), watched: Vec::new() }
    }

    fn watch(&mut self, source: &RuleSource) {
        let Some(watcher) = &mut self.watcher else { return };
        for path in self.watched.drain(..) {
            // It fails where the directory is gone, and the watch with it.
            let _ = watcher.unwatch(&path);
        }
        for (index, path) in source.directory().watched().into_iter().enumerate() {
            let mode = if index == 0 { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            if watcher.watch(path, mode).is_ok() {
                self.watched.push(path.to_owned());
            }
        }
    }
}
