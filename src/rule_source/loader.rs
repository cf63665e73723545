//! Loads the rules of a directory if they are not those that were loaded last.

use std::path::Path;

use crate::config::Source;
use crate::file_watch::{DescriptorShortage, FileStat};
use crate::rule_source::files::{Directory, Signature};
use crate::rule_source::overlay::OverlayFile;
use crate::rule_source::publisher::{RulePublisher, RulesHash};

/// Reads a directory into an [`RulePublisher`].
#[derive(Debug)]
pub struct Loader {
    directory: Directory,
    publisher: RulePublisher,
    /// The files, and the overlay.
    last: Option<(Vec<Source>, Option<Source>)>,
    shortage: DescriptorShortage,
}

impl Loader {
    /// It has not loaded anything yet.
    pub fn new(directory: Directory, publisher: RulePublisher) -> Self {
        Self {
            directory,
            publisher,
            last: None,
            shortage: DescriptorShortage::default(),
        }
    }

    /// What the rules look like from outside: see [`Directory::signature`].
    pub fn signature(&self) -> (Signature, Option<FileStat>) {
        (
            self.directory.signature(),
            self.publisher.overlay().and_then(OverlayFile::facts),
        )
    }

    /// Directories in which something happens when rules change, of which the first is to be
    /// watched with all below.
    pub fn watched(&self) -> Vec<&Path> {
        let mut watched = self.directory.watched();
        watched.extend(self.publisher.overlay().map(OverlayFile::watched));
        watched
    }

    /// Loads the rules if they are not those that were loaded, or refused, last. Says whether it
    /// did.
    pub fn load(&mut self) -> bool {
        let read = self
            .directory
            .read()
            .and_then(|sources| Ok((sources, self.publisher.read_overlay()?)));
        let (sources, overlay) = match read {
            Ok(read) => read,
            Err(error) if self.last.is_some() && self.is_starved(&error) => return false,
            Err(error) => {
                let error = format!("{error:#}");
                // Told once, not at every look.
                if self.publisher.last_error().as_ref() != Some(&error) {
                    self.last = None;
                    self.publisher.reject(vec![error]);
                }
                return false;
            }
        };
        self.shortage.end();
        if self
            .last
            .as_ref()
            .is_some_and(|(last, last_overlay)| *last == sources && *last_overlay == overlay)
        {
            return false;
        }
        if sources.is_empty() {
            tracing::warn!(directory = %self.directory.path().display(), "no rules files: nothing is limited");
        }
        let texts = sources
            .iter()
            .map(|source| (self.directory.name_within(source), source.text.as_bytes()));
        // What is wrong with them was told.
        let _ = self
            .publisher
            .publish(&sources, overlay.clone(), RulesHash::of(texts));
        self.last = Some((sources, overlay));
        true
    }

    /// Whether the last try could not read the files. It may not be their fault, so nothing need
    /// change for the next try to do better.
    pub fn needs_retry(&self) -> bool {
        self.last.is_none() || self.shortage.lasts()
    }

    /// Whether the process lacks what it takes to read files, so that the rules may be as good as
    /// before.
    fn is_starved(&mut self, error: &anyhow::Error) -> bool {
        error
            .downcast_ref()
            .is_some_and(|error| self.shortage.is_cause_of(error, "rules"))
    }
}
