//! Memory cgroups, on machines where a test may create one: version 1 or 2, as root.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Where a version has its memory controller, and the file of a cgroup with the limit.
const VERSIONS: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// A cgroup with a limit of memory. Dropped, it is removed; its processes must have ended.
#[derive(Debug)]
pub(crate) struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    /// `None` where this machine does not permit one.
    pub(crate) fn new(bytes_max: u64) -> Option<Self> {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let number = CREATED.fetch_add(1, Relaxed);
        let name = format!("tollgate-test-{}-{number}", std::process::id());
        VERSIONS.iter().find_map(|(controller, limit)| {
            let path = Path::new(controller).join(&name);
            fs::create_dir(&path).ok()?;
            let cgroup = Self(path);
            fs::write(cgroup.0.join(limit), bytes_max.to_string()).ok()?;
            Some(cgroup)
        })
    }

    /// The file that a process writes its id into to enter.
    pub(crate) fn processes(&self) -> String {
        self.0.join("cgroup.procs").display().to_string()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // The test does not depend on it, and an empty cgroup costs nothing.
        let _ = fs::remove_dir(&self.0);
    }
}
