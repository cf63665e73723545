//! Candidate rules: a directory that may be absent or empty, and then there are none.

use std::path::PathBuf;

use crate::file_watch::{RecursiveMode, Watched};
use crate::rule_source::files::Directory;
use crate::rule_source::loader::Loader;
use crate::rule_source::publisher::RulePublisher;

/// The directory of candidate rules.
#[derive(Debug)]
pub(crate) struct CandidateLoader(Loader);

impl CandidateLoader {
    pub(crate) fn new(directory: Directory, publisher: RulePublisher) -> Self {
        Self(Loader::new(directory, publisher))
    }
}

impl Watched for CandidateLoader {
    fn name(&self) -> &'static str {
        "candidate rules"
    }

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        self.0.directories()
    }

    fn has_changed(&mut self) -> bool {
        self.0.has_changed()
    }

    fn load(&mut self) {
        if self.0.has_files() {
            self.0.load();
        } else {
            self.0.withdraw();
        }
    }
}
