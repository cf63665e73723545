//! Watches directories on a thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::base::runtime::Thread;

/// Events within this time are one change: editors write in two steps, and a ConfigMap in seven.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Events in a row that delay a reload of a directory.
const DEBOUNCE_ROUNDS_MAX: usize = 20;
/// See [`Watched::poll_interval`].
pub(crate) const POLL_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
/// Content of files that is reloaded when they change.
pub trait Watched: Send + 'static {
    /// The name of the thread, and of the content in the log.
    fn name(&self) -> &'static str;

    /// Changes without an event are found within this time.
    fn poll_interval(&self) -> Duration {
        POLL_INTERVAL_DEFAULT
    }

    /// The directories to watch.
    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)>;

    /// Whether the metadata of the files has changed since the last load, or that load may succeed
    /// now. Opens no file.
    fn has_changed(&mut self) -> bool;

    /// Reloads the content, if it has changed.
    fn load(&mut self);
}

/// The thread that watches. Dropping it ends the thread without waiting for it, since a read from a
/// network file system may hang.
#[derive(Debug)]
pub(crate) struct FileWatch {
    load: Arc<Notify>,
    _thread: Thread,
}

/// Events of the kernel about directories.
struct Events {
    watcher: Option<RecommendedWatcher>,
    watched: Vec<PathBuf>,
}

impl FileWatch {
    /// Starts to watch.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start<S: Watched>(subject: S) -> anyhow::Result<Self> {
        Self::start_with(subject, Arc::default())
    }

    /// Starts to watch, and also loads when `load` is notified.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start_with<S: Watched>(subject: S, load: Arc<Notify>) -> anyhow::Result<Self> {
        let thread = Thread::spawn(subject.name(), Box::pin(run(Box::new(subject), load.clone())))?;
        Ok(Self { load, _thread: thread })
    }

    /// Loads again, as on SIGHUP.
    pub(crate) fn load(&self) {
        self.load.notify_one();
    }
}

async fn run(mut subject: Box<dyn Watched>, load: Arc<Notify>) {
    let changed = Arc::new(Notify::new());
    let mut events = Events::new(&*subject, changed.clone());
    events.watch(&*subject);
    // For changes between the first load and the watch.
    subject.load();
    loop {
        let commanded = tokio::select! {
            () = load.notified() => true,
            () = changed.notified() => tokio::select! {
                () = load.notified() => true,
                () = debounce(&changed) => false,
            },
            () = sleep(subject.poll_interval()) => false,
        };
        if commanded || subject.has_changed() {
            // A directory may have been replaced by another of the same name.
            events.watch(&*subject);
            subject.load();
        }
    }
}

/// Waits until no event arrives for a while.
async fn debounce(changed: &Notify) {
    for _ in 0..DEBOUNCE_ROUNDS_MAX {
        if timeout(DEBOUNCE, changed.notified()).await.is_err() {
            return;
        }
    }
}

impl Events {
    fn new(subject: &dyn Watched, changed: Arc<Notify>) -> Self {
        let (subject, every) = (subject.name(), subject.poll_interval());
        let handler = move |event: notify::Result<notify::Event>| {
            // Reading a file is not a change.
            if event.is_ok_and(|event| !event.kind.is_access()) {
                changed.notify_one();
            }
        };
        let watcher = notify::recommended_watcher(handler).inspect_err(
            |error| tracing::warn!(%error, ?every, "cannot watch {subject} for changes; polling"),
        );
        Self { watcher: watcher.ok(), watched: Vec::new() }
    }

    fn watch(&mut self, subject: &dyn Watched) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for path in self.watched.drain(..) {
            // It fails if the directory is gone, and the watch with it.
            let _ = watcher.unwatch(&path);
        }
        for (path, mode) in subject.directories() {
            if watcher.watch(&path, mode).is_ok() {
                self.watched.push(path);
            }
        }
    }
}
