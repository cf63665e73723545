//! All settings, composed of what each room needs. Flag, environment variable, default and help
//! stand in one place each: the room's.

use clap::{Args, Command};

use crate::store::redis;
use crate::store::settings::BackendChoice;

pub mod parse;
pub mod unknown;
pub mod unsupported;

/// Settings of the service. Flags win over environment variables, and those over defaults.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Settings {
    /// Envoy's door.
    #[command(flatten)]
    pub api: crate::api::settings::Settings,
    /// Rules.
    #[command(flatten)]
    pub rules: crate::rule_source::settings::Settings,
    /// The store.
    #[command(flatten)]
    pub store: crate::store::settings::Settings,
    /// Answers.
    #[command(flatten)]
    pub limiter: crate::limiter::settings::Settings,
    /// The operators' door.
    #[command(flatten)]
    pub admin: crate::admin::settings::Settings,
    /// Log and metrics.
    #[command(flatten)]
    pub telemetry: crate::telemetry::settings::Settings,
    /// Traces.
    #[command(flatten)]
    pub traces: crate::telemetry::traces::settings::Settings,
}

impl Settings {
    /// What is wrong with settings that are right one by one.
    ///
    /// # Errors
    /// The first such thing, and what to set instead.
    pub fn check(&self) -> Result<(), String> {
        self.telemetry.check(&environment())?;
        self.traces.check()?;
        self.api.tls()?;
        self.backend().map(|_| ())
    }

    /// What is accepted, and has no effect.
    pub fn warnings(&self) -> Vec<String> {
        let environment = environment();
        let mut warnings = self.store.warnings(&environment);
        warnings.extend(self.api.warnings());
        warnings.extend(self.rules.warnings());
        warnings.extend(self.telemetry.warnings());
        warnings.extend(self.traces.warnings());
        warnings.extend(unsupported::warnings(&environment));
        warnings.extend(unknown::warnings(&environment, &Self::names()));
        warnings
    }

    /// The names of all settings, those without an effect included.
    fn names() -> Vec<String> {
        let flags = Self::augment_args(Command::new(""));
        let flags: Vec<_> = flags
            .get_arguments()
            .filter_map(|flag| Some(flag.get_env()?.to_str()?.to_owned()))
            .collect();
        let others = unsupported::names().chain(crate::store::redis::settings::without_flag());
        flags.into_iter().chain(others.map(str::to_owned)).collect()
    }

    /// Where to count.
    ///
    /// # Errors
    /// What is wrong with the settings of Redis or the files they name.
    pub fn backend(&self) -> Result<BackendChoice, String> {
        let choice = self.store.backend(&environment())?;
        // What is said where limits and keys are, and what counting without Redis needs to know.
        Ok(match choice {
            BackendChoice::Redis(options, secrets) => {
                let (replicas, key_prefix) = (
                    self.limiter.replicas,
                    self.rules.reading.cache_key_prefix.as_str().into(),
                );
                BackendChoice::Redis(
                    Box::new(redis::Options {
                        replicas,
                        key_prefix,
                        ..*options
                    }),
                    secrets,
                )
            }
            BackendChoice::Memory => BackendChoice::Memory,
        })
    }

    /// Where to send metrics, if anywhere.
    ///
    /// # Errors
    /// What is wrong with the settings of a mogrifier.
    pub fn statsd(&self) -> Result<Option<crate::telemetry::statsd::Options>, String> {
        self.telemetry.statsd(&environment())
    }
}

/// What is set, by name. What is no text is no setting.
fn environment() -> Vec<(String, String)> {
    let mut variables: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    variables.sort();
    variables
}
