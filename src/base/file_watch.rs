//! Watches files on a thread of its own, and reloads them when they change.
//!
//! Directories are watched, never files: a mounted ConfigMap or Secret is a link that is replaced,
//! and a watch on a file would follow the old one. Polling finds changes that the kernel does not
//! report, as on network file systems.

pub use files::FileStat;
pub(crate) use files::{DescriptorShortage, FileSet, directory_of};
pub use notify::RecursiveMode;
pub(crate) use reloaded::Loads;
pub use reloaded::Reloaded;
pub(crate) use watch::FileWatch;
pub use watch::Watched;

mod files;
mod reloaded;
mod watch;
