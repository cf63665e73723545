//! Publishes the rules of a directory when they change.

use std::iter;
use std::path::{Path, PathBuf};

use crate::base::file_watch::{DescriptorShortage, FileStat, RecursiveMode, Watched, directory_of};
use crate::rules::config::Source;
use crate::rules::source::files::Directory;
use crate::rules::source::publisher::RulePublisher;
use crate::rules::source::reload::{LastLoad, Reload};

/// A directory of rules and the overlay, with their last content.
#[derive(Debug)]
pub(crate) struct Loader {
    directory: Directory,
    publisher: RulePublisher,
    /// The files and the overlay that were published or rejected last.
    last: Option<(Vec<Source>, Option<Source>)>,
    /// The metadata of the files that were read last. `None` if it changed meanwhile: a file that
    /// is gone may have been read.
    seen: Option<Stat>,
    shortage: DescriptorShortage,
    reload: Reload,
}

/// The metadata of all files. If two are equal, no file has changed in between.
type Stat = (Option<Vec<FileStat>>, Option<FileStat>);

impl Loader {
    pub(crate) fn new(directory: Directory, publisher: RulePublisher) -> Self {
        Self {
            directory,
            publisher,
            last: None,
            seen: None,
            shortage: DescriptorShortage::default(),
            reload: Reload::default(),
        }
    }

    /// Requests loads and reports them.
    pub(crate) fn reload(&self) -> &Reload {
        &self.reload
    }

    fn stat(&self) -> Stat {
        (self.directory.stat(), self.publisher.overlay().and_then(FileStat::of))
    }

    /// Whether the error is a shortage of file descriptors: the rules may be unchanged.
    fn is_shortage(&mut self, error: &anyhow::Error) -> bool {
        error.downcast_ref().is_some_and(|error| self.shortage.is_cause_of(error, "rules"))
    }
}

impl Watched for Loader {
    fn name(&self) -> &'static str {
        "rules"
    }

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        // Everything below the directory of rules counts; elsewhere only links that change.
        let modes =
            iter::once(RecursiveMode::Recursive).chain(iter::repeat(RecursiveMode::NonRecursive));
        let directories =
            self.directory.watched().into_iter().chain(self.publisher.overlay().map(directory_of));
        directories.map(Path::to_owned).zip(modes).collect()
    }

    fn has_changed(&mut self) -> bool {
        self.last.is_none() || self.shortage.lasts() || self.seen != Some(self.stat())
    }

    /// Reads the rules, and publishes them if they have changed.
    fn load(&mut self) {
        let before = self.stat();
        let read =
            self.directory.read().and_then(|sources| Ok((sources, self.publisher.read_overlay()?)));
        self.seen = Some(before).filter(|before| *before == self.stat());
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
        let read = (sources, overlay);
        if self.last.as_ref() == Some(&read) {
            return;
        }
        let (sources, overlay) = &read;
        if sources.is_empty() {
            tracing::warn!(directory = %self.directory.path.display(), "no rules files: nothing is limited");
        }
        let texts = sources
            .iter()
            .map(|source| (self.directory.name_within(source), source.text.as_bytes()))
            .collect();
        // The errors are logged.
        let published = self.publisher.publish(sources, texts, overlay.clone());
        self.reload.report(LastLoad {
            sources: sources.clone(),
            problems: published.err().unwrap_or_default(),
        });
        self.last = Some(read);
    }
}
