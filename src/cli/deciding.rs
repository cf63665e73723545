//! Settings of subcommands that decide requests as `serve` would.

use std::path::{Path, PathBuf};

use crate::base::environment::Environment;
use crate::cli::input;
use crate::cli::output::CliError;
use crate::limiter;
use crate::rules::source::settings::Reading;
use crate::rules::{KeyFormat, RuleSet};
use crate::store::settings::Memory;
use crate::what_if::engine::Engine;

/// Which rules decide, and how.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Deciding {
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) limiter: limiter::Settings,
    #[command(flatten)]
    memory: Memory,
}

impl Deciding {
    /// The rules of a directory, by default of the one that `serve` reads. Their keys are those of
    /// the memory store.
    ///
    /// # Errors
    /// Files that cannot be read, rules that are invalid.
    pub(crate) fn rules(
        &self,
        directory: Option<&PathBuf>,
        environment: &Environment,
    ) -> Result<RuleSet, CliError> {
        let reading = Reading { cache_key_format: KeyFormat::Safe, ..self.reading.clone() };
        input::load(directory, &reading, environment)
    }

    /// The directory that these rules are in.
    ///
    /// # Errors
    /// The rules come from a control plane.
    pub(crate) fn directory(
        &self,
        rules: Option<&PathBuf>,
        environment: &Environment,
    ) -> Result<PathBuf, CliError> {
        match rules {
            None => match self.reading.files(None, environment) {
                Ok(files) => Ok(files.path),
                Err(error) => Err(CliError::Config(error)),
            },
            Some(path) if path.is_dir() => Ok(path.clone()),
            Some(path) => {
                let parent = path.parent().filter(|path| !path.as_os_str().is_empty());
                Ok(parent.unwrap_or(Path::new(".")).to_owned())
            }
        }
    }

    /// Decides by these rules.
    pub(crate) fn engine(&self, rules: RuleSet) -> Engine {
        Engine::new(rules, &self.limiter, self.memory.memory_bytes_max)
    }
}
