//! `tollgate config`: the settings that `serve` would run with, and where each comes from.

use std::process::ExitCode;

use clap::ValueEnum;

use crate::base::environment::Environment;
use crate::base::text::Escaped;
use crate::cli::output::{CliError, json, print};
use crate::cli::serve;
use crate::cli::table::table;
use crate::report::effective::{EffectiveSetting, EffectiveSettings, SettingSource};
use crate::settings::definition::Definition;

/// As secrets are shown.
const HIDDEN: &str = "<hidden>";

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    #[command(flatten)]
    serve: serve::Args,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// A table for each group of settings
    Text,
    /// For programs
    Json,
}

/// Prints the settings.
///
/// # Errors
/// `serve` would not start with them; they are printed all the same.
pub(crate) fn run(args: Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let serve = args.serve;
    let resolved = serve.settings.resolve(serve.rules, environment);
    let (warnings, failure) = match resolved {
        Ok(resolved) => (resolved.warnings, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let definitions = Definition::all().into_iter();
    let report = EffectiveSettings {
        settings: definitions.map(|one| effective(one, environment)).collect(),
        warnings,
    };
    print(&match args.format {
        Format::Text => text(&report),
        Format::Json => json(&report),
    });
    failure.map_or(Ok(ExitCode::SUCCESS), |error| Err(CliError::Config(error)))
}

fn effective(setting: Definition, environment: &Environment) -> EffectiveSetting {
    let Definition { name, default, .. } = setting;
    let flag = environment.flag(&name);
    let variable = || environment.variable(&name);
    let (value, source) = if environment.is_set(&format!("{name}_FILE")) {
        (None, SettingSource::File)
    } else if let Some(value) = flag {
        (Some(value.to_owned()), SettingSource::Flag)
    } else if let Some(value) = variable() {
        (Some(value.to_owned()), SettingSource::Environment)
    } else {
        (default, SettingSource::Default)
    };
    let is_hidden = setting.is_secret && source != SettingSource::Default;
    EffectiveSetting {
        section: setting.section,
        value: if is_hidden {
            Some(HIDDEN.to_owned())
        } else {
            value
        },
        default: setting
            .default_in_words
            .filter(|_| source == SettingSource::Default),
        source,
        name,
    }
}

fn text(report: &EffectiveSettings) -> String {
    let mut text = String::new();
    for settings in report
        .settings
        .chunk_by(|one, next| one.section == next.section)
    {
        text += &format!("{}\n", settings[0].section);
        let rows = settings.iter().map(|setting| {
            let words = setting.default.as_ref().map(|words| format!("({words})"));
            let value = setting.value.clone().or(words).unwrap_or_default();
            let source = setting.source.name().to_owned();
            vec![setting.name.clone(), source, Escaped(value).to_string()]
        });
        text += &table(3, &rows.collect::<Vec<_>>());
        text.push('\n');
    }
    for warning in &report.warnings {
        text += &format!("warning: {}\n", Escaped(warning));
    }
    text
}
