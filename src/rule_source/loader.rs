//! Publishes the rules of a directory when they change.

use std::iter;
use std::path::{Path, PathBuf};

use crate::config::Source;
use crate::file_watch::{DescriptorShortage, FileStat, RecursiveMode, Watched};
use crate::rule_source::files::{Directory, Signature};
use crate::rule_source::overlay::OverlayFile;
use crate::rule_source::publisher::{RulePublisher, RulesHash};

/// A directory of rules and the overlay, with their last content.
#[derive(Debug)]
pub(crate) struct Loader {
    directory: Directory,
    publisher: RulePublisher,
    /// The files and the overlay that were published or rejected last.
    last: Option<(Vec<Source>, Option<Source>)>,
    shortage: DescriptorShortage,
}

impl Loader {
    pub(crate) fn new(directory: Directory, publisher: RulePublisher) -> Self {
        Self {
            directory,
            publisher,
            last: None,
            shortage: DescriptorShortage::default(),
        }
    }

    /// Reads the rules, and publishes them if they have changed.
    pub(crate) fn load(&mut self) {
        let read = self
            .directory
            .read()
            .and_then(|sources| Ok((sources, self.publisher.read_overlay()?)));
        let (sources, overlay) = match read {
            Ok(read) => read,
            Err(error) if self.last.is_some() && self.is_shortage(&error) => return,
            Err(error) => {
                let error = format!("{error:#}");
                // Logged once, not on every attempt.
                if self.publisher.last_error().as_ref() != Some(&error) {
                    self.last = None;
                    self.publisher.reject(vec![error]);
                }
                return;
            }
        };
        self.shortage.end();
        if self
            .last
            .as_ref()
            .is_some_and(|(last, last_overlay)| *last == sources && *last_overlay == overlay)
        {
            return;
        }
        if sources.is_empty() {
            tracing::warn!(directory = %self.directory.path().display(), "no rules files: nothing is limited");
        }
        let texts = sources
            .iter()
            .map(|source| (self.directory.name_within(source), source.text.as_bytes()));
        // The errors are logged.
        let _ = self
            .publisher
            .publish(&sources, overlay.clone(), RulesHash::of(texts));
        self.last = Some((sources, overlay));
    }

    /// Whether the error is a shortage of file descriptors: the rules may be unchanged.
    fn is_shortage(&mut self, error: &anyhow::Error) -> bool {
        error
            .downcast_ref()
            .is_some_and(|error| self.shortage.is_cause_of(error, "rules"))
    }
}

impl Watched for Loader {
    type Signature = (Signature, Option<FileStat>);

    const NAME: &'static str = "rules";

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        let mut directories = self.directory.watched();
        directories.extend(self.publisher.overlay().map(OverlayFile::watched));
        // Everything below the directory of rules counts; elsewhere only links that change.
        let modes =
            iter::once(RecursiveMode::Recursive).chain(iter::repeat(RecursiveMode::NonRecursive));
        directories
            .into_iter()
            .map(Path::to_owned)
            .zip(modes)
            .collect()
    }

    fn signature(&self) -> Self::Signature {
        let overlay = self.publisher.overlay().and_then(OverlayFile::stat);
        (self.directory.signature(), overlay)
    }

    fn needs_retry(&self) -> bool {
        self.last.is_none() || self.shortage.lasts()
    }

    fn load(&mut self) {
        self.load();
    }
}
