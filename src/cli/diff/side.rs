//! One side of a comparison: where its rules come from.

use std::path::Path;
use std::slice;

use crate::base::environment::Environment;
use crate::cli::diff::git;
use crate::cli::fetch;
use crate::cli::input::{Input, compile_options, rejected};
use crate::cli::manifest;
use crate::cli::output::CliError;
use crate::config::{self, Source};
use crate::limit::Limit;
use crate::rule_source::settings::Reading;
use crate::rules::key::KeyTail;
use crate::rules::{Allowance, RuleSet};
use crate::what_if::diff::served;

const GIT: &str = "git:";
const PAGE: &str = "/rlconfig?format=json";

/// Rules that were read, and not compiled.
#[derive(Debug)]
pub(super) struct Side {
    /// The name on the command line.
    pub(super) name: String,
    rules: Rules,
}

#[derive(Debug)]
enum Rules {
    Files(Vec<Source>),
    /// The JSON of `/rlconfig`.
    Served(String),
}

impl Side {
    /// Reads `git:REV:PATH`, the rules of a service by its URL, or anything that `check` reads.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn read(
        name: &str,
        reading: &Reading,
        environment: &Environment,
    ) -> Result<Self, CliError> {
        let invalid = |error: anyhow::Error| CliError::Config(format!("{error:#}"));
        let rules = if let Some(revision) = name.strip_prefix(GIT) {
            let mut files = git::read(revision, reading, environment).map_err(invalid)?;
            if let [file] = &files[..]
                && let Some(manifest) = manifest::read(file)
            {
                files = manifest.config_maps.concat();
            }
            Rules::Files(files)
        } else if name.contains("://") {
            Rules::Served(fetch::get(name, PAGE, &[]).map_err(invalid)?)
        } else {
            let path = Path::new(name).to_owned();
            let input = Input::read(slice::from_ref(&path), reading, environment)?;
            Rules::Files(input.sets.concat())
        };
        Ok(Self {
            name: name.to_owned(),
            rules,
        })
    }

    pub(super) fn is_served(&self) -> bool {
        matches!(self.rules, Rules::Served(_))
    }

    /// Compiles the rules.
    ///
    /// # Errors
    /// They are invalid.
    pub(super) fn compile(
        &self,
        reading: &Reading,
        environment: &Environment,
    ) -> Result<RuleSet, CliError> {
        let options = compile_options(reading, environment)?;
        match &self.rules {
            Rules::Files(sources) => match config::load(sources, &options) {
                Ok(loaded) => Ok(loaded.rules),
                Err(problems) => Err(rejected(&self.name, problems)),
            },
            Rules::Served(page) => served::rules(page, &self.name, options)
                .map_err(|error| CliError::Config(format!("{error:#}"))),
        }
    }
}

/// Makes keys comparable with those of a service, which shows 60 seconds as one minute.
pub(super) fn forget_multipliers(rules: &mut RuleSet) {
    rules.change_rules(|rule, format| {
        if let Allowance::Limited(limit) = &rule.allowance {
            rule.key_tail = KeyTail::new(format, limit, multiplier(limit));
        }
    });
}

/// Whether it is one is all that a key depends on.
fn multiplier(limit: &Limit) -> u32 {
    if limit.unit().is_some() { 1 } else { 2 }
}
