//! What is to be watched of rules, so that no load stands in a request's way.

use std::path::{Path, PathBuf};

use crate::file_watch::{FileStat, RecursiveMode, Watched};
use crate::rule_source::files::Signature;
use crate::rule_source::loader::Loader;

impl Watched for Loader {
    type Signature = (Signature, Option<FileStat>);

    const NAME: &'static str = "rules";

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        // What lies below counts in the directory itself; above it, only that a link is turned.
        let modes = std::iter::once(RecursiveMode::Recursive)
            .chain(std::iter::repeat(RecursiveMode::NonRecursive));
        self.watched()
            .into_iter()
            .map(Path::to_owned)
            .zip(modes)
            .collect()
    }

    fn signature(&self) -> Self::Signature {
        self.signature()
    }

    fn needs_retry(&self) -> bool {
        self.needs_retry()
    }

    fn load(&mut self) {
        self.load();
    }
}
