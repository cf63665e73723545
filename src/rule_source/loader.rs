//! Loads the rules of a directory if they are not those that were loaded last.

use std::path::Path;

use crate::config::Source;
use crate::rule_source::files::{Directory, Signature};
use crate::rule_source::intake::{Intake, RulesHash};
use crate::rule_source::overlay::OverlayFile;
use crate::watch::{FileFacts, Starved};

/// Reads a directory into an [`Intake`].
#[derive(Debug)]
pub struct Loader {
    directory: Directory,
    intake: Intake,
    /// The files, and the overlay.
    last: Option<(Vec<Source>, Option<Source>)>,
    starved: Starved,
}

impl Loader {
    /// It has not loaded anything yet.
    pub fn new(directory: Directory, intake: Intake) -> Self {
        Self {
            directory,
            intake,
            last: None,
            starved: Starved::default(),
        }
    }

    /// What the rules look like from outside: see [`Directory::signature`].
    pub fn signature(&self) -> (Signature, Option<FileFacts>) {
        (
            self.directory.signature(),
            self.intake.overlay().and_then(OverlayFile::facts),
        )
    }

    /// Directories in which something happens when rules change, of which the first is to be
    /// watched with all below.
    pub fn watched(&self) -> Vec<&Path> {
        let mut watched = self.directory.watched();
        watched.extend(self.intake.overlay().map(OverlayFile::watched));
        watched
    }

    /// Loads the rules if they are not those that were loaded, or refused, last. Says whether it
    /// did.
    pub fn load(&mut self) -> bool {
        let read = self
            .directory
            .read()
            .and_then(|sources| Ok((sources, self.intake.read_overlay()?)));
        let (sources, overlay) = match read {
            Ok(read) => read,
            Err(error) if self.last.is_some() && self.is_starved(&error) => return false,
            Err(error) => {
                let error = format!("{error:#}");
                // Told once, not at every look.
                if self.intake.last_error().as_ref() != Some(&error) {
                    self.last = None;
                    self.intake.refuse(vec![error]);
                }
                return false;
            }
        };
        self.starved.end();
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
            .intake
            .take(&sources, overlay.clone(), RulesHash::of(texts));
        self.last = Some((sources, overlay));
        true
    }

    /// Whether the last try could not read the files. It may not be their fault, so nothing need
    /// change for the next try to do better.
    pub fn is_unread(&self) -> bool {
        self.last.is_none() || self.starved.lasts()
    }

    /// Whether the process lacks what it takes to read files, so that the rules may be as good as
    /// before.
    fn is_starved(&mut self, error: &anyhow::Error) -> bool {
        error
            .downcast_ref()
            .is_some_and(|error| self.starved.is_cause_of(error, "rules"))
    }
}
