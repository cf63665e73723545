//! One side of a comparison: where its rules come from.

use std::path::Path;
use std::slice;

use crate::base::environment::Environment;
use crate::cli::diff::git;
use crate::cli::input::{Input, compile};
use crate::cli::manifest;
use crate::cli::output::CliError;
use crate::rules::RuleSet;
use crate::rules::config::Source;
use crate::rules::source::settings::Reading;

const GIT: &str = "git:";

/// Compiles `git:REV:PATH`, or anything that `check` reads.
///
/// # Errors
/// The rules cannot be read, or are invalid.
pub(super) fn rules(
    name: &str,
    reading: &Reading,
    environment: &Environment,
) -> Result<RuleSet, CliError> {
    compile(name, &sources(name, reading, environment)?, reading, environment)
}

fn sources(
    name: &str,
    reading: &Reading,
    environment: &Environment,
) -> Result<Vec<Source>, CliError> {
    if name.contains("://") {
        return Err(CliError::Usage(format!(
            "{name}: rules in force on a service are not compared; name their files, or decide recorded requests by both with `tollgate replay FILE OLD --compare NEW`"
        )));
    }
    let Some(revision) = name.strip_prefix(GIT) else {
        let path = Path::new(name).to_owned();
        let input = Input::read(slice::from_ref(&path), reading, environment)?;
        return Ok(input.sets.concat());
    };
    let read = git::read(revision, reading, environment);
    let files = read.map_err(|error| CliError::Config(format!("{error:#}")))?;
    Ok(match &files[..] {
        [file] => manifest::read(file).map_or(files, |manifest| manifest.config_maps.concat()),
        _ => files,
    })
}
