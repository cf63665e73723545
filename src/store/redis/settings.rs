//! Settings of Redis: one server, deployment or cluster for all limits, and optionally a second one
//! for limits of one second.

use std::path::PathBuf;

use clap::{Args, Command};

use crate::base::environment::Environment;
use crate::base::net::tls::{Identity, PemFile};
use crate::base::parse;
use crate::base::time::Span;
use crate::store::redis::connect::credentials::CredentialFiles;
use crate::store::redis::connect::tls::Tls;
use crate::store::redis::settings::resolve::Resolver;
use crate::store::redis::settings::server::{MAIN, PER_SECOND, Servers};
use crate::store::redis::topology::deployment::PoolOptions;

pub(crate) use resolve::CLUSTER;

mod resolve;
mod server;

const STARTS_WITHOUT_REDIS: &str =
    "the service starts without Redis and connects once it is available";
/// Settings of envoyproxy/ratelimit without an effect here, and why.
const WITHOUT_EFFECT: [(&str, &str); 3] = [
    (
        "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
        "connections whose server replies READONLY are always closed, about one a second",
    ),
    ("REDIS_STARTUP_INITIAL_INTERVAL", STARTS_WITHOUT_REDIS),
    ("REDIS_STARTUP_MAX_INTERVAL", STARTS_WITHOUT_REDIS),
];

/// Redis.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Redis")]
pub struct Settings {
    #[command(flatten)]
    servers: Servers,
    /// The only trusted authorities, a PEM file, reloaded when it changes [default: those of the
    /// system]
    #[arg(long, env, value_name = "FILE")]
    redis_tls_cacert: Option<PathBuf>,
    /// Client certificate, a PEM file, reloaded when it changes
    #[arg(long, env, value_name = "FILE")]
    redis_tls_client_cert: Option<PathBuf>,
    /// Its key, a PEM file
    #[arg(long, env, value_name = "FILE")]
    redis_tls_client_key: Option<PathBuf>,
    /// Accept certificates of any name that a trusted authority has signed
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    redis_tls_skip_hostname_verification: bool,
    /// Report healthy only while Redis is reachable
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    redis_health_check_active_connection: bool,
    /// Exit if Redis is unreachable this long after the start; 0 disables
    #[arg(long, env, default_value = "0", value_name = "DURATION", value_parser = parse::duration)]
    redis_startup_max_elapsed_time: Span,
}

/// The resolved settings of Redis.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// For all limits, or all but those of one second.
    pub main: PoolOptions,
    /// For limits of one second.
    pub per_second: Option<PoolOptions>,
    /// Files to reload when they change.
    pub files: CredentialFiles,
    /// Whether the process is only healthy while Redis is reachable.
    pub required: bool,
    /// A sentence for each setting without an effect, or with another one than expected.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Whether any setting of Redis is set. Then Redis is the store, as in envoyproxy/ratelimit.
    pub(crate) fn any_set(environment: &Environment) -> bool {
        let arguments = Self::augment_args(Command::new(""));
        let mut names = arguments.get_arguments().filter_map(|arg| arg.get_env()?.to_str());
        names.any(|name| environment.is_set(name))
            || without_flag().any(|name| environment.is_set(&name))
    }

    /// How long after the start Redis must be reachable; `None` for no bound.
    pub(crate) fn startup_max(&self) -> Option<Span> {
        Some(self.redis_startup_max_elapsed_time).filter(|max| *max > Span::ZERO)
    }

    /// Resolves settings that depend on each other, and reads the files that they name.
    ///
    /// # Errors
    /// The first setting that cannot be used, by name.
    pub fn resolve(&self, environment: &Environment) -> Result<Resolved, String> {
        let mut resolver = Resolver {
            environment,
            tls: self.tls()?,
            tls_client: None,
            files: CredentialFiles::default(),
            warnings: Vec::new(),
        };
        for (name, reason) in WITHOUT_EFFECT {
            resolver.warn_without_effect(name, reason);
        }
        let main = self.servers.main.resolve(&mut resolver)?;
        let mut per_second = None;
        if self.servers.has_per_second {
            per_second = Some(self.servers.per_second.resolve(&mut resolver)?);
        } else if let Some(name) = PER_SECOND.any_set(environment) {
            resolver.warn(format!("{name} has no effect without REDIS_PERSECOND=true: all limits are counted on one Redis"));
        }
        if resolver.tls_client.is_none() && resolver.tls != Tls::default() {
            resolver
                .warn("REDIS_TLS_* have no effect without REDIS_TLS=true: connecting without TLS");
        }
        Ok(Resolved {
            main,
            per_second,
            files: resolver.files,
            required: self.redis_health_check_active_connection,
            warnings: resolver.warnings,
        })
    }

    fn tls(&self) -> Result<Tls, String> {
        let client = Identity::of_settings(
            ("REDIS_TLS_CLIENT_CERT", self.redis_tls_client_cert.as_ref()),
            ("REDIS_TLS_CLIENT_KEY", self.redis_tls_client_key.as_ref()),
        )?;
        let ca = self.redis_tls_cacert.as_ref();
        Ok(Tls {
            ca: ca.map(|path| PemFile::new("REDIS_TLS_CACERT", path)),
            client,
            accepts_any_name: self.redis_tls_skip_hostname_verification,
        })
    }
}

/// Settings of envoyproxy/ratelimit about Redis that have no effect, and no flag.
pub(crate) fn without_flag() -> impl Iterator<Item = String> {
    let servers = MAIN.without_effect().chain(PER_SECOND.without_effect());
    let others = WITHOUT_EFFECT.map(|(name, _)| name.to_owned());
    others.into_iter().chain(servers.map(|(name, _)| name))
}
