//! All settings of the service, as defined by its components: flag, environment variable, default
//! and help are in one definition each.
//!
//! [`Settings::resolve`] makes them what the service runs with: what several settings decide
//! together, and what is read from the files that they name.

use std::path::PathBuf;

use clap::{Args, Command};

use crate::api::certificates::Files;
use crate::base::environment::Environment;
use crate::operator::admin::api::token::TokenOptions;
use crate::rules::source::Origin;
use crate::store::redis;
use crate::store::settings::BackendChoice;
use crate::telemetry::{statsd, traces};
use crate::trial;

pub(crate) mod unknown;
pub(crate) mod unsupported;

/// Settings of the service. Flags take precedence over environment variables.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Settings {
    /// Envoy-facing listeners.
    #[command(flatten)]
    pub api: crate::api::settings::Settings,
    /// Rules.
    #[command(flatten)]
    pub rules: crate::rules::source::settings::Settings,
    /// The store.
    #[command(flatten)]
    pub store: crate::store::settings::Settings,
    /// Decisions.
    #[command(flatten)]
    pub limiter: crate::limiter::settings::Settings,
    /// A trial.
    #[command(flatten)]
    pub trial: crate::trial::settings::Settings,
    /// The admin listener.
    #[command(flatten)]
    pub admin: crate::operator::admin::settings::Settings,
    /// Log and metrics.
    #[command(flatten)]
    pub telemetry: crate::telemetry::settings::Settings,
    /// Traces.
    #[command(flatten)]
    pub traces: crate::telemetry::traces::settings::Settings,
}

/// The settings of the service.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// Settings whose values are used as they are.
    pub(crate) settings: Settings,
    pub(crate) rules_from: Origin,
    pub(crate) backend: BackendChoice,
    /// The files of gRPC's TLS; `None` for plain text.
    pub(crate) grpc_tls: Option<Files>,
    pub(crate) admin_tokens: TokenOptions,
    /// `None` without TRIAL_UPSTREAM.
    pub(crate) trial: Option<trial::settings::Options>,
    pub(crate) statsd: Option<statsd::Options>,
    pub(crate) traces: Option<traces::options::Options>,
    /// A sentence for each setting that has no effect, or is misspelled.
    pub(crate) warnings: Vec<String>,
}

impl Settings {
    /// Resolves settings that depend on each other. `directory` is that of the command line.
    ///
    /// # Errors
    /// Settings that contradict each other, or files that cannot be used.
    pub(crate) fn resolve(
        mut self,
        directory: Option<PathBuf>,
        environment: &Environment,
    ) -> Result<Resolved, String> {
        let (backend, mut warnings) =
            self.store.resolve(self.limiter.replicas, &self.key_prefix(), environment)?;
        let host_name = || environment.get("HOSTNAME").map(str::to_owned);
        self.admin.pod_name = self.admin.pod_name.take().or_else(host_name);
        let admin_tokens = self.admin.tokens()?;
        warnings.extend(admin_tokens.warnings());
        Ok(Resolved {
            statsd: self.telemetry.statsd(environment)?,
            traces: self.traces.options()?,
            grpc_tls: self.api.tls()?,
            backend,
            trial: self.trial.options()?,
            rules_from: self.rules.origin(directory, environment)?,
            warnings: self.warnings(environment, warnings),
            admin_tokens,
            settings: self,
        })
    }

    /// The start of the keys of counters.
    pub(crate) fn key_prefix(&self) -> String {
        let prefix = &self.rules.reading.cache_key_prefix;
        format!("{}{prefix}", self.trial.key_prefix())
    }

    fn warnings(&self, environment: &Environment, mut warnings: Vec<String>) -> Vec<String> {
        let variables = environment.variables();
        warnings.extend(self.api.warnings());
        warnings.extend(self.rules.xds.warnings(environment));
        warnings.extend(self.trial.warnings());
        warnings.extend(self.telemetry.warnings());
        warnings.extend(unsupported::warnings(variables));
        warnings.extend(unknown::warnings(variables, &Self::names()));
        warnings
    }

    /// The names of all settings, those without an effect included.
    fn names() -> Vec<String> {
        let flags = Self::augment_args(Command::new(""));
        let flags: Vec<_> = flags
            .get_arguments()
            .filter_map(|flag| Some(flag.get_env()?.to_str()?.to_owned()))
            .collect();
        let others = unsupported::names().map(str::to_owned);
        let others = others.chain(redis::settings::without_flag());
        flags.into_iter().chain(others).collect()
    }
}
