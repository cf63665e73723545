//! Settings of a trial.

use std::path::PathBuf;

use clap::Args;
use http::Uri;

use crate::base::named_enum::named_enum;
use crate::base::net::remote::Server;
use crate::base::net::remote::address::Address;
use crate::base::net::tls::{ClientTls, Identity, PemFile};
use crate::base::parse;
use crate::rules::EnforcedShare;
use crate::trial::share;

/// The start of the keys of counters, before CACHE_KEY_PREFIX.
const KEY_PREFIX: &str = "trial:";
const TLS_CACERT: &str = "TRIAL_UPSTREAM_TLS_CACERT";
const TLS_CERT: &str = "TRIAL_UPSTREAM_TLS_CERT";
const TLS_KEY: &str = "TRIAL_UPSTREAM_TLS_KEY";

named_enum! {
    /// TRIAL_ON_UPSTREAM_ERROR
    pub enum OnUpstreamError {
        /// The caller gets the error.
        Error = "error",
        /// The caller gets our response.
        Decide = "decide",
    }
}

/// A trial beside another rate limit service.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Trial")]
#[expect(clippy::struct_field_names, reason = "flags and variables are named by their fields")]
pub struct Settings {
    /// Forward gRPC calls to this rate limit service and return its answers, and compare them with
    /// those of this service: host:port, dns:///host:port or unix:/path
    #[arg(long, env, value_name = "ADDRESS", value_parser = Address::read)]
    pub trial_upstream: Option<Address>,
    /// Connect to TRIAL_UPSTREAM with TLS
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub trial_upstream_tls: bool,
    /// Authority of TRIAL_UPSTREAM's certificate (PEM) [default: those of the system]
    #[arg(long, env, value_name = "FILE")]
    pub trial_upstream_tls_cacert: Option<String>,
    /// Client certificate for TRIAL_UPSTREAM (PEM)
    #[arg(long, env, value_name = "FILE")]
    pub trial_upstream_tls_cert: Option<String>,
    /// Private key of that certificate (PEM)
    #[arg(long, env, value_name = "FILE")]
    pub trial_upstream_tls_key: Option<String>,
    /// Name in TRIAL_UPSTREAM's certificate, if it is not its host
    #[arg(long, env, value_name = "NAME")]
    pub trial_upstream_server_name: Option<String>,
    /// Answer when the upstream returns an error or does not reply in time: error (the upstream's,
    /// or UNAVAILABLE or DEADLINE_EXCEEDED) or decide (that of this service; a fifth of the
    /// deadline is reserved for it)
    #[arg(long, env, default_value = "error", value_name = "POLICY")]
    pub trial_on_upstream_error: OnUpstreamError,
    /// Percentage of callers that get the answer of this service, by a hash of domain and entries
    #[arg(long, env, default_value = "0", value_name = "PERCENT", value_parser = share::parse)]
    pub trial_enforce_percent: EnforcedShare,
    /// File with that percentage; a change is in force within a second
    #[arg(long, env, value_name = "FILE")]
    pub trial_enforce_percent_file: Option<PathBuf>,
    /// Continue to use the counters of a trial after it: without TRIAL_UPSTREAM, too, keys begin
    /// with trial:
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub trial_keep_counters: bool,
}

/// The settings of a trial.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) server: Server,
    /// Scheme and authority of requests.
    pub(crate) origin: String,
    pub(crate) on_upstream_error: OnUpstreamError,
    pub(crate) share: EnforcedShare,
    pub(crate) share_file: Option<PathBuf>,
}

impl Settings {
    /// The options of the trial; `None` without TRIAL_UPSTREAM.
    ///
    /// # Errors
    /// An invalid host, or files of TLS that cannot be used.
    pub(crate) fn options(&self) -> Result<Option<Options>, String> {
        let Some(address) = self.trial_upstream.clone() else {
            return Ok(None);
        };
        let tls = self.trial_upstream_tls.then(|| self.tls()).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let server = Server { address, tls };
        let origin = format!("{scheme}://{}", server.authority());
        origin
            .parse::<Uri>()
            .map_err(|error| format!("TRIAL_UPSTREAM: {}: {error}", server.address))?;
        Ok(Some(Options {
            server,
            origin,
            on_upstream_error: self.trial_on_upstream_error,
            share: self.trial_enforce_percent,
            share_file: self.trial_enforce_percent_file.clone(),
        }))
    }

    /// TRIAL_UPSTREAM as text.
    pub(crate) fn upstream(&self) -> Option<String> {
        self.trial_upstream.as_ref().map(Address::to_string)
    }

    /// The start of the keys of counters, before CACHE_KEY_PREFIX: those of a trial are
    /// separate.
    pub(crate) fn key_prefix(&self) -> &'static str {
        if self.trial_upstream.is_some() || self.trial_keep_counters { KEY_PREFIX } else { "" }
    }

    /// Settings that are set and have no effect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let of_tls = [
            (TLS_CACERT, &self.trial_upstream_tls_cacert),
            (TLS_CERT, &self.trial_upstream_tls_cert),
            (TLS_KEY, &self.trial_upstream_tls_key),
            ("TRIAL_UPSTREAM_SERVER_NAME", &self.trial_upstream_server_name),
        ];
        let unused = of_tls.into_iter().filter(|(_, value)| value.is_some());
        if !self.trial_upstream_tls {
            warnings.extend(
                unused.map(|(name, _)| {
                    format!("{name} has no effect: TRIAL_UPSTREAM_TLS is not true")
                }),
            );
        }
        let is_answering = self.trial_enforce_percent.percent() > 0
            || self.trial_enforce_percent_file.is_some()
            || self.trial_upstream_tls
            || self.trial_on_upstream_error == OnUpstreamError::Decide;
        if self.trial_upstream.is_none() && is_answering {
            warnings.push(
                "TRIAL_* have no effect without TRIAL_UPSTREAM, except TRIAL_KEEP_COUNTERS"
                    .to_owned(),
            );
        }
        warnings
    }

    fn tls(&self) -> Result<ClientTls, String> {
        let identity = Identity::of_settings(
            (TLS_CERT, self.trial_upstream_tls_cert.as_deref()),
            (TLS_KEY, self.trial_upstream_tls_key.as_deref()),
        )?;
        let authority = self.trial_upstream_tls_cacert.as_ref();
        let tls = ClientTls {
            authority: authority.map(|path| PemFile::new(TLS_CACERT, path)),
            identity,
            name: self.trial_upstream_server_name.clone(),
        };
        // They are read again for each connection.
        tls.config().map_err(|error| error.to_string())?;
        Ok(tls)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches as _};

    use super::*;

    /// The settings of flags, which are separated by blanks.
    fn settings(flags: &str) -> Result<Settings, String> {
        let command = Settings::augment_args(Command::new("test"));
        let arguments = std::iter::once("test").chain(flags.split_whitespace());
        let matches = command.try_get_matches_from(arguments).map_err(|error| error.to_string())?;
        Settings::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    #[test]
    fn invalid_settings_are_errors() {
        let cases = "
--trial-upstream=http://host:1 => write host:port, dns:///host:port or unix:/path
--trial-enforce-percent=101 => write a whole number from 0 to 100
--trial-on-upstream-error=allow => write one of error, decide
--trial-upstream=host:1 --trial-upstream-tls --trial-upstream-tls-cert=/c => TRIAL_UPSTREAM_TLS_KEY is not; set both or none
--trial-upstream=host:1 --trial-upstream-tls --trial-upstream-tls-cacert=/none => TRIAL_UPSTREAM_TLS_CACERT: /none";
        for line in cases.trim().lines() {
            let (flags, expected) = line.split_once(" => ").expect("flags => a text");
            let error = settings(flags).and_then(|settings| settings.options()).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn settings_without_an_effect_are_warned_about() {
        let warnings = |flags| settings(flags).expect("they are valid").warnings().join("\n");
        let unused = warnings("--trial-enforce-percent=5 --trial-upstream-tls-cert=/c");
        assert!(unused.contains("TRIAL_* have no effect without TRIAL_UPSTREAM"), "{unused}");
        assert!(unused.contains("TRIAL_UPSTREAM_TLS_CERT has no effect"), "{unused}");
        assert_eq!(warnings("--trial-upstream=host:1 --trial-enforce-percent=5"), "");
    }
}
