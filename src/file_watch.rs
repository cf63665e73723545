//! Watches files from a thread of its own, so that reading them again stands in nobody's way.
//!
//! Directories are watched, never files: a mounted ConfigMap or Secret is a link that is turned,
//! and a watch on a file would follow the old one. What the kernel does not tell, as on network
//! file systems, a look every few seconds finds.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use notify::{RecommendedWatcher, Watcher as _};

pub use notify::RecursiveMode;

/// Events within this time are one change: editors write in two steps, and a ConfigMap in seven.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A directory that never comes to rest is read all the same, after so many of these.
const DEBOUNCE_ROUNDS_MAX: usize = 20;
/// How often to look where nobody tells.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// EMFILE and ENFILE, for which the standard library has no name.
const OUT_OF_DESCRIPTORS: [i32; 2] = [24, 23];
/// Wake-ups that may wait. One is as good as many: each reads everything.
const WAKES_MAX: usize = 1;

/// Something that is read from files, and read again when they change.
pub trait Watched: Send + 'static {
    /// What it looks like from outside. If two of these are equal, nobody has written to it in
    /// between.
    type Signature: PartialEq;

    /// What it is called: the name of the thread, and a word in the log.
    const NAME: &'static str;

    /// Directories in which something happens when it changes.
    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)>;

    /// What it looks like now. It opens no file.
    fn signature(&self) -> Self::Signature;

    /// Whether the last try could not read the files. It may not be their fault, so nothing need
    /// change for the next try to do better.
    fn needs_retry(&self) -> bool;

    /// Reads it, if it is not what was read last.
    fn load(&mut self);
}

/// The thread that watches. Dropping it ends the thread, as soon as it has nothing to read.
///
/// Nobody waits for it: on a network file system that hangs, it hangs, and neither signals nor the
/// operators' door may.
#[derive(Debug)]
pub struct FileWatch {
    wake: SyncSender<()>,
    commands: Arc<Commands>,
}

/// A file as it looks from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStat {
    path: PathBuf,
    bytes: u64,
    modified: (i64, i64),
    inode: u64,
}

/// Files that make sense only together, and what was in them when they were looked at last.
#[derive(Clone)]
pub struct FileSet {
    paths: Vec<PathBuf>,
    /// `None` if one of them could not be read.
    last: Option<Vec<Vec<u8>>>,
    last_error: Option<String>,
    shortage: DescriptorShortage,
}

/// The process has no file descriptor to read files with. That says nothing of the files: what was
/// read last stays, and is read again until it works.
#[derive(Debug, Clone, Default)]
pub struct DescriptorShortage(bool);

/// What the thread is to do when it wakes, other than to look whether something has changed.
#[derive(Debug, Default)]
struct Commands {
    /// Load, whatever it looks like.
    load: AtomicBool,
    stop: AtomicBool,
}

impl FileWatch {
    /// Begins to watch.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start<S: Watched>(subject: S) -> anyhow::Result<Self> {
        let (wake, woken) = sync_channel(WAKES_MAX);
        let commands = Arc::new(Commands::default());
        let (waker, commanded) = (wake.clone(), commands.clone());
        let work = move || run(subject, waker, &woken, &commanded);
        thread::Builder::new()
            .name(S::NAME.to_owned())
            .spawn(work)
            .with_context(|| format!("start the thread of {}", S::NAME))?;
        Ok(Self { wake, commands })
    }

    /// Reads again, as an operator asks for with SIGHUP.
    pub fn load(&self) {
        self.commands.load.store(true, Relaxed);
        // It fails if the thread is about to wake anyway.
        let _ = self.wake.try_send(());
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.commands.stop.store(true, Relaxed);
        let _ = self.wake.try_send(());
    }
}

impl FileStat {
    /// What a file looks like now, or the one that a link leads to; `None` if there is none.
    pub fn of(path: &Path) -> Option<Self> {
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
    /// Whether an error is of this kind, and not of the files. Logs when it begins.
    pub fn is_cause_of(&mut self, error: &io::Error, subject: &str) -> bool {
        let is_cause = error
            .raw_os_error()
            .is_some_and(|code| OUT_OF_DESCRIPTORS.contains(&code));
        if is_cause && !std::mem::replace(&mut self.0, true) {
            tracing::warn!(%error, "cannot look for changes of {subject}; what was read last stays in use");
        }
        is_cause
    }

    /// Files were read.
    pub fn end(&mut self) {
        self.0 = false;
    }

    /// Whether it lasts.
    pub fn lasts(&self) -> bool {
        self.0
    }
}

impl fmt::Debug for FileSet {
    /// Without what is in them, which may be a secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(&self.paths).finish()
    }
}

impl FileSet {
    /// Files that were loaded already, or are about to be: what changes from now on is news.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let mut files = Self {
            paths,
            last: None,
            last_error: None,
            shortage: DescriptorShortage::default(),
        };
        files.last = files.contents().ok();
        files
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The directories that they are in.
    pub fn directories(&self) -> impl Iterator<Item = (PathBuf, RecursiveMode)> {
        let parents = self.paths.iter().filter_map(|path| path.parent());
        let named = parents.map(|parent| {
            if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            }
        });
        let mut directories: Vec<_> = named
            .map(|parent| (parent.to_owned(), RecursiveMode::NonRecursive))
            .collect();
        directories.dedup();
        directories.into_iter()
    }

    /// What they look like now.
    pub fn signature(&self) -> impl Iterator<Item = Option<FileStat>> {
        self.paths.iter().map(|path| FileStat::of(path))
    }

    /// Whether one of them could not be read.
    pub fn needs_retry(&self) -> bool {
        self.last.is_none() || self.shortage.lasts()
    }

    /// Has them loaded, if they are not what they were at the last look. `None` if they are, and
    /// for an error that was told already.
    ///
    /// # Errors
    /// What `load` says of them.
    pub fn load<T>(
        &mut self,
        load: impl FnOnce() -> Result<T, String>,
    ) -> Option<Result<T, String>> {
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
        // Before `load` reads the files itself: what changes in between is news at the next look.
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
        self.paths.iter().map(fs::read).collect()
    }
}

fn run<S: Watched>(
    mut subject: S,
    waker: SyncSender<()>,
    woken: &Receiver<()>,
    commands: &Commands,
) {
    let mut events = Events::new(S::NAME, waker);
    events.watch(&subject);
    // Before the load: what changes while it reads must look new afterwards.
    let mut seen = subject.signature();
    // Whatever happened between the first load and the watch.
    subject.load();
    loop {
        match woken.recv_timeout(POLL_INTERVAL) {
            Ok(()) => debounce(woken, commands),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if commands.stop.load(Relaxed) {
            return;
        }
        let commanded = commands.load.swap(false, Relaxed);
        let signature = subject.signature();
        if commanded || signature != seen || subject.needs_retry() {
            seen = signature;
            // A directory may be another one by now, under the same name.
            events.watch(&subject);
            subject.load();
        }
    }
}

/// Waits until no event comes for a while, or an order.
fn debounce(woken: &Receiver<()>, commands: &Commands) {
    for _ in 0..DEBOUNCE_ROUNDS_MAX {
        let commanded = commands.load.load(Relaxed) || commands.stop.load(Relaxed);
        if commanded || woken.recv_timeout(DEBOUNCE).is_err() {
            return;
        }
    }
}

/// The kernel's events about directories.
struct Events {
    watcher: Option<RecommendedWatcher>,
    watched: Vec<PathBuf>,
}

impl Events {
    fn new(subject: &str, waker: SyncSender<()>) -> Self {
        let handler = move |event: notify::Result<notify::Event>| {
            // That somebody read a file, we among them, is no news.
            if event.is_ok_and(|event| !event.kind.is_access()) {
                let _ = waker.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(handler).inspect_err(
            |error| tracing::warn!(%error, every = ?POLL_INTERVAL, "cannot watch for changes of {subject}; looking from time to time"),
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
            // It fails where the directory is gone, and the watch with it.
            let _ = watcher.unwatch(&path);
        }
        for (path, mode) in subject.directories() {
            if watcher.watch(&path, mode).is_ok() {
                self.watched.push(path);
            }
        }
    }
}
