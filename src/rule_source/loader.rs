//! Loads the rules of a directory if they are not those that were loaded last.

use crate::config::Source;
use crate::rule_source::files::Directory;
use crate::rule_source::intake::{Intake, RulesHash};

/// Reads a directory into an [`Intake`].
#[derive(Debug)]
pub struct Loader {
    directory: Directory,
    intake: Intake,
    last: Option<Vec<Source>>,
}

impl Loader {
    /// It has not loaded anything yet.
    pub fn new(directory: Directory, intake: Intake) -> Self {
        Self { directory, intake, last: None }
    }

    /// Where the rules come from.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Loads the rules if they are not those that were loaded, or refused, last. Says whether it did.
    pub fn load(&mut self) -> bool {
        let sources = match self.directory.read() {
            Ok(sources) => sources,
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
        if self.last.as_ref() == Some(&sources) {
            return false;
        }
        if sources.is_empty() {
            tracing::warn!(directory = %self.directory.path().display(), "no rules files: nothing is limited");
        }
        let texts = sources.iter().map(|source| (self.directory.name_within(source), source.text.as_bytes()));
        // What is wrong with them was told.
        let _ = self.intake.take(&sources, RulesHash::of(texts));
        self.last = Some(sources);
        true
    }

    /// Whether the last try could not read the files. It may not be their fault, so nothing need change for the next try to do better.
    pub fn is_unread(&self) -> bool {
        self.last.is_none()
    }
}
