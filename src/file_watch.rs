//! Watches files on a thread of its own, and reloads them when they change.
//!
//! Directories are watched, never files: a mounted ConfigMap or Secret is a link that is replaced,
//! and a watch on a file would follow the old one. Polling finds changes that the kernel does not
//! report, as on network file systems.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, Watcher as _};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::regular_file;
use crate::runtime::Thread;

pub use notify::RecursiveMode;

/// Events within this time are one change: editors write in two steps, and a ConfigMap in seven.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Events in a row that delay a reload of a directory.
// bound debounce_rounds_max: the directory is read while it changes; -
const DEBOUNCE_ROUNDS_MAX: usize = 20;
/// See [`Watched::POLL_INTERVAL`].
const POLL_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
/// EMFILE and ENFILE.
const OUT_OF_DESCRIPTORS: [i32; 2] = [24, 23];

/// Content of files that is reloaded when they change.
pub trait Watched: Send + 'static {
    /// The name of the thread, and of the content in the log.
    const NAME: &'static str;
    /// Changes without an event are found within this time.
    const POLL_INTERVAL: Duration = POLL_INTERVAL_DEFAULT;

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

/// Metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStat {
    path: PathBuf,
    bytes: u64,
    modified: (i64, i64),
    inode: u64,
}

/// Files that are loaded together, and their last content.
#[derive(Clone)]
pub(crate) struct FileSet {
    paths: Vec<PathBuf>,
    /// `None` if one of them could not be read.
    last: Option<Vec<Vec<u8>>>,
    /// Their metadata before the last load.
    seen: Vec<Option<FileStat>>,
    last_error: Option<String>,
    shortage: DescriptorShortage,
}

/// Whether the process has no file descriptor to read files with. The previous content stays, and
/// reading is retried.
#[derive(Debug, Clone, Default)]
pub(crate) struct DescriptorShortage(bool);

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
        let thread = Thread::spawn(S::NAME, run(subject, load.clone()))?;
        Ok(Self {
            load,
            _thread: thread,
        })
    }

    /// Loads again, as on SIGHUP.
    pub(crate) fn load(&self) {
        self.load.notify_one();
    }
}

async fn run<S: Watched>(mut subject: S, load: Arc<Notify>) {
    let changed = Arc::new(Notify::new());
    let mut events = Events::new::<S>(changed.clone());
    events.watch(&subject);
    // For changes between the first load and the watch.
    subject.load();
    loop {
        let commanded = tokio::select! {
            () = load.notified() => true,
            () = changed.notified() => tokio::select! {
                () = load.notified() => true,
                () = debounce(&changed) => false,
            },
            () = sleep(S::POLL_INTERVAL) => false,
        };
        if commanded || subject.has_changed() {
            // A directory may have been replaced by another of the same name.
            events.watch(&subject);
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
    fn new<S: Watched>(changed: Arc<Notify>) -> Self {
        let (subject, every) = (S::NAME, S::POLL_INTERVAL);
        let handler = move |event: notify::Result<notify::Event>| {
            // Reading a file is not a change.
            if event.is_ok_and(|event| !event.kind.is_access()) {
                changed.notify_one();
            }
        };
        let watcher = notify::recommended_watcher(handler).inspect_err(
            |error| tracing::warn!(%error, ?every, "cannot watch {subject} for changes; polling"),
        );
        Self {
            watcher: watcher.ok(),
            watched: Vec::new(),
        }
    }

    fn watch(&mut self, subject: &impl Watched) {
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

impl FileStat {
    /// The metadata of a file, following links; `None` if there is none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Some(Self {
            path: path.to_owned(),
            bytes: metadata.len(),
            modified,
            inode: metadata.ino(),
        })
    }
}

impl DescriptorShortage {
    /// Whether the shortage is the cause of an error. Logged when it begins.
    pub(crate) fn is_cause_of(&mut self, error: &io::Error, subject: &str) -> bool {
        let is_cause = error
            .raw_os_error()
            .is_some_and(|code| OUT_OF_DESCRIPTORS.contains(&code));
        if is_cause && !std::mem::replace(&mut self.0, true) {
            tracing::warn!(%error, "cannot read {subject}; keeping the previous content");
        }
        is_cause
    }

    pub(crate) fn end(&mut self) {
        self.0 = false;
    }

    pub(crate) fn lasts(&self) -> bool {
        self.0
    }
}

impl fmt::Debug for FileSet {
    /// Without the content, which may be secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(&self.paths).finish()
    }
}

impl FileSet {
    /// Files whose current content needs no load.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let mut files = Self {
            paths,
            last: None,
            seen: Vec::new(),
            last_error: None,
            shortage: DescriptorShortage::default(),
        };
        files.seen = files.stat();
        files.last = files.contents().ok();
        files
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    pub(crate) fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        let mut directories: Vec<_> = self
            .paths
            .iter()
            .map(|path| (directory_of(path).to_owned(), RecursiveMode::NonRecursive))
            .collect();
        directories.dedup();
        directories
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.last.is_none() || self.shortage.lasts() || self.stat() != self.seen
    }

    fn stat(&self) -> Vec<Option<FileStat>> {
        self.paths.iter().map(|path| FileStat::of(path)).collect()
    }

    /// Calls `load` if the content has changed. `None` if it has not, and for an error that was
    /// returned already.
    ///
    /// # Errors
    /// Those of `load`.
    pub(crate) fn load<T>(
        &mut self,
        load: impl FnOnce() -> Result<T, String>,
    ) -> Option<Result<T, String>> {
        self.seen = self.stat();
        let contents = match self.contents() {
            Err(error) if self.last.is_some() && self.shortage.is_cause_of(&error, "files") => {
                return None;
            }
            contents => contents.ok(),
        };
        self.shortage.end();
        if contents.is_some() && contents == self.last {
            return None;
        }
        // Before `load` reads the files itself: a change in between is found by the next call.
        self.last = contents;
        match load() {
            Ok(loaded) => {
                self.last_error = None;
                Some(Ok(loaded))
            }
            Err(error) if self.last_error.as_ref() == Some(&error) => None,
            Err(error) => {
                self.last_error = Some(error.clone());
                Some(Err(error))
            }
        }
    }

    fn contents(&self) -> io::Result<Vec<Vec<u8>>> {
        self.paths
            .iter()
            .map(|path| regular_file::read(path))
            .collect()
    }
}

/// The directory to watch for a file: a mounted ConfigMap changes a link beside it.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}
