//! What is to be watched of rules, so that no load stands in a request's way.

use std::path::{Path, PathBuf};

use crate::rule_source::files::Signature;
use crate::rule_source::loader::Loader;
use crate::watch::{FileFacts, RecursiveMode, Subject};

impl Subject for Loader {
    type Signature = (Signature, Option<FileFacts>);

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

    fn is_unread(&self) -> bool {
        self.is_unread()
    }

    fn load(&mut self) {
        self.load();
    }
}
