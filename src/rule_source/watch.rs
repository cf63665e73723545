//! Watches a rules directory from a thread of its own, so that no load stands in a request's way.
//!
//! Directories are watched, never files: a mounted ConfigMap is a link that is turned, and a watch on a file would follow the old one.
//! What the kernel does not tell, as on network file systems, a look every few seconds finds.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::rule_source::loader::Loader;

/// Events within this time are one change: editors write in two steps, and a ConfigMap in seven.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A directory that never comes to rest is read all the same, after so many of these.
const DEBOUNCE_ROUNDS_MAX: usize = 20;
/// How often to look where nobody tells.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Wake-ups that may wait. One is as good as many: each reads everything.
const WAKES_MAX: usize = 1;

/// The thread that watches. Dropping it ends the thread, as soon as it has nothing to read.
///
/// Nobody waits for it: on a network file system that hangs, it hangs, and neither signals nor the operators' door may.
#[derive(Debug)]
pub struct Watch {
    wake: SyncSender<()>,
    orders: Arc<Orders>,
}

/// What the thread is to do when it wakes, other than to look whether something has changed.
#[derive(Debug, Default)]
struct Orders {
    /// Load, whatever it looks like.
    load: AtomicBool,
    stop: AtomicBool,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(loader: Loader) -> anyhow::Result<Self> {
        let (wake, woken) = sync_channel(WAKES_MAX);
        let orders = Arc::new(Orders::default());
        let (waker, ordered) = (wake.clone(), orders.clone());
        let work = move || run(loader, waker, &woken, &ordered);
        thread::Builder::new().name("rules".to_owned()).spawn(work).context("start the rules thread")?;
        Ok(Self { wake, orders })
    }

    /// Loads the rules again, as an operator asks for with SIGHUP.
    pub fn load(&self) {
        self.orders.load.store(true, Relaxed);
        // It fails if the thread is about to wake anyway.
        let _ = self.wake.try_send(());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.orders.stop.store(true, Relaxed);
        let _ = self.wake.try_send(());
    }
}

fn run(mut loader: Loader, waker: SyncSender<()>, woken: &Receiver<()>, orders: &Orders) {
    let mut events = Events::new(waker);
    events.watch(&loader);
    // Before the load: what changes while it reads must look new afterwards.
    let mut seen = loader.directory().signature();
    // Whatever happened between the first load and the watch.
    loader.load();
    loop {
        match woken.recv_timeout(LOOK_INTERVAL) {
            Ok(()) => come_to_rest(woken, orders),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if orders.stop.load(Relaxed) {
            return;
        }
        let ordered = orders.load.swap(false, Relaxed);
        let signature = loader.directory().signature();
        if ordered || signature != seen || loader.is_unread() {
            seen = signature;
            // The directory may be another one by now, under the same name.
            events.watch(&loader);
            loader.load();
        }
    }
}

/// Waits until no event comes for a while, or an order.
fn come_to_rest(woken: &Receiver<()>, orders: &Orders) {
    for _ in 0..DEBOUNCE_ROUNDS_MAX {
        let ordered = orders.load.load(Relaxed) || orders.stop.load(Relaxed);
        if ordered || woken.recv_timeout(DEBOUNCE).is_err() {
            return;
        }
    }
}

/// The kernel's events about a directory.
struct Events {
    watcher: Option<RecommendedWatcher>,
    watched: Vec<PathBuf>,
}

impl Events {
    fn new(waker: SyncSender<()>) -> Self {
        let handler = move |event: notify::Result<notify::Event>| {
            // That somebody read a file, we among them, is no news.
            if event.is_ok_and(|event| !event.kind.is_access()) {
                let _ = waker.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(handler).inspect_err(
            |error| tracing::warn!(%error, every = ?LOOK_INTERVAL, "cannot watch for changes of rules; looking from time to time"),
        );
        Self { watcher: watcher.ok(), watched: Vec::new() }
    }

    fn watch(&mut self, loader: &Loader) {
        let Some(watcher) = &mut self.watcher else { return };
        for path in self.watched.drain(..) {
            // It fails where the directory is gone, and the watch with it.
            let _ = watcher.unwatch(&path);
        }
        for (index, path) in loader.directory().watched().into_iter().enumerate() {
            let mode = if index == 0 { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            if watcher.watch(path, mode).is_ok() {
                self.watched.push(path.to_owned());
            }
        }
    }
}
