//! `tollgate config`: the settings that `serve` would run with, and where each comes from.

use std::process::ExitCode;

use clap::{Arg, Args as _, Command};

use crate::app::settings::Settings;
use crate::base::environment::Environment;
use crate::base::text::Escaped;
use crate::cli::output::{CliError, Format, print_report};
use crate::cli::serve;
use crate::cli::table::table;
use crate::report::effective::{EffectiveSetting, EffectiveSettings, SettingSource};

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

/// Prints the settings.
///
/// # Errors
/// `serve` would not start with them; they are printed all the same.
pub(crate) fn run(args: Args, environment: &Environment) -> Result<ExitCode, CliError> {
    let serve = args.serve;
    let resolved = serve.settings.resolve(serve.rules, environment);
    let definitions = Settings::augment_args(Command::new(""));
    let settings = definitions.get_arguments();
    let (warnings, invalid) = match resolved {
        Ok(resolved) => (resolved.warnings, None),
        Err(error) => (Vec::new(), Some(CliError::Config(error))),
    };
    let report = EffectiveSettings {
        settings: settings.filter_map(|one| effective(one, environment)).collect(),
        warnings,
    };
    print_report(args.format, &report, text);
    invalid.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn effective(setting: &Arg, environment: &Environment) -> Option<EffectiveSetting> {
    let name = setting.get_env()?.to_str()?;
    let default = setting.get_default_values().first();
    let default = default.and_then(|value| value.to_str()).filter(|value| !value.is_empty());
    let (value, source) = match (environment.flag(name), environment.variable(name)) {
        _ if environment.is_set(&format!("{name}_FILE")) => (None, SettingSource::File),
        (None, None) => (default, SettingSource::Default),
        (None, value) => (value, SettingSource::Environment),
        (value, _) => (value, SettingSource::Flag),
    };
    let shown = |value| {
        if setting.is_hide_env_values_set() { HIDDEN } else { value }
    };
    Some(EffectiveSetting {
        name: name.to_owned(),
        value: value.map(shown).map(str::to_owned),
        source,
    })
}

fn text(report: &EffectiveSettings) -> String {
    let rows = report.settings.iter().map(|EffectiveSetting { name, value, source }| {
        let value = value.as_deref().unwrap_or_default();
        vec![name.clone(), source.name().to_owned(), Escaped(value).to_string()]
    });
    let warnings = report.warnings.iter().map(|warning| format!("warning: {}\n", Escaped(warning)));
    table(3, &[], rows) + &warnings.collect::<String>()
}
