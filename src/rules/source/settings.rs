//! Settings of the rules and their source.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use crate::base::environment::Environment;
use crate::base::named_enum::named_enum;
use crate::base::parse;
use crate::limits::{Algorithm, Consistency, LimitOption, Windows};
use crate::rules::KeyFormat;
use crate::rules::config::CompileOptions;
use crate::rules::config::calendar::utc_months;
use crate::rules::source::files::Directory;
use crate::rules::source::xds;
use crate::rules::source::xds::stream::XdsOptions;
use crate::rules::stats::StatsTable;
use crate::rules::tree::Dots;

/// Name of the folder of rules, below RUNTIME_ROOT and in a checkout.
const DIRECTORY_DEFAULT: &str = "config";
/// Settings that say where rules are. While none is set, ./config is used if it exists.
const LOCATION: [&str; 5] = [
    "CONFIG_TYPE",
    "RUNTIME_ROOT",
    "RUNTIME_SUBDIRECTORY",
    "RUNTIME_APPDIRECTORY",
    "RUNTIME_WATCH_ROOT",
];

named_enum! {
    /// CONFIG_TYPE
    pub enum ConfigType {
        /// A directory.
        File = "FILE",
        /// A control plane.
        Xds = "GRPC_XDS_SOTW",
    }
}

/// Which rules are read and how they are compiled; the same for every subcommand.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Rules")]
pub struct Reading {
    /// Source of the rules: FILE or GRPC_XDS_SOTW
    #[arg(long, env, default_value = "FILE", value_name = "TYPE")]
    pub config_type: ConfigType,
    /// Rules are read from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY
    #[arg(long, env, default_value = "/srv/runtime_data/current", value_name = "DIR")]
    pub runtime_root: PathBuf,
    /// See RUNTIME_ROOT
    #[arg(long, env, value_name = "DIR")]
    pub runtime_subdirectory: Option<String>,
    /// See RUNTIME_ROOT
    #[arg(long, env, default_value = DIRECTORY_DEFAULT, value_name = "DIR")]
    pub runtime_appdirectory: String,
    /// Ignore files and directories whose names begin with a dot, as mounted ConfigMaps need
    /// [default: false; true for DIR]
    #[arg(long, env, value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub runtime_ignoredotfiles: Option<bool>,
    /// Read all files below RUNTIME_SUBDIRECTORY whose paths, with dots for slashes, begin with
    /// RUNTIME_APPDIRECTORY and a dot, and name them so in messages. Changes are always watched
    #[arg(long, env, default_value = "true", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub runtime_watch_root: bool,
    /// Merge domains that several files have
    #[arg(long, alias = "merge-domain-configs", env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub merge_domain_config: bool,
    /// Prefix of every counter key
    #[arg(long, env, default_value = "", value_name = "TEXT")]
    pub cache_key_prefix: String,
    /// Format of counter keys on Redis: reference (as envoyproxy/ratelimit, to keep counts when
    /// migrating from it) or safe (no two counters can share a key, whatever clients send). Keys in
    /// memory are always safe
    #[arg(long, env, default_value = "reference", value_name = "FORM")]
    pub cache_key_format: KeyFormat,
    /// Algorithm of rules that name none: fixed_window, sliding_window, sliding_log, token_bucket
    /// or leaky_bucket [default: fixed_window]
    #[arg(long, env, value_name = "ALGORITHM", value_parser = default_algorithm)]
    pub default_algorithm: Option<Algorithm>,
    /// Consistency of rules that name none: exact, or leased, where hits can be taken ahead
    #[arg(long, env, default_value = "exact", value_name = "CONSISTENCY")]
    pub default_consistency: Consistency,
    /// Count fixed windows of a month by calendar month in UTC instead of 30 days
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = months, num_args = 0..=1, default_missing_value = "true")]
    pub use_calendar_month_rate_limit: Windows,
    /// Replace dots of keys and values by `_` in metric names, where dots separate levels
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = metric_dots, num_args = 0..=1, default_missing_value = "true")]
    pub sanitize_descriptor_metric_dots: Dots,
    /// File of `tollgate` blocks for rules that others write, by domain and path
    #[arg(long, env, value_name = "FILE")]
    pub tollgate_overlay: Option<PathBuf>,
}

/// Rules of a service.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Rules")]
pub struct Settings {
    /// Which rules are read.
    #[command(flatten)]
    pub reading: Reading,
    /// Report healthy before the first rules are loaded
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub force_start_without_initial_config: bool,
    /// Report healthy only while the rules have at least one domain
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub healthy_with_at_least_one_config_loaded: bool,
    /// Let requests with ADMIN_TOKEN change rules files through /api/v1/rules of the admin port
    #[arg(long, env, default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub rules_writable: bool,
    /// Rules by xDS.
    #[command(flatten)]
    pub xds: xds::settings::Settings,
}

/// Where rules come from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A directory.
    Files(Directory),
    /// A control plane.
    Xds(Box<XdsOptions>),
}

impl Origin {
    /// Whether it is `./config`, as in a first try in a clone.
    pub(crate) fn is_here(&self) -> bool {
        let is_here =
            |files: &Directory| files.root.is_none() && files.path == Path::new(DIRECTORY_DEFAULT);
        matches!(self, Self::Files(files) if is_here(files))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(directory) => write!(formatter, "{}", directory.path.display()),
            Self::Xds(options) => write!(formatter, "xDS server {}", options.server.address),
        }
    }
}

impl Settings {
    /// The source of the rules; `argument` is the directory on the command line.
    ///
    /// # Errors
    /// Invalid settings of xDS, or a directory besides them.
    pub(crate) fn origin(
        &self,
        argument: Option<PathBuf>,
        environment: &Environment,
    ) -> Result<Origin, String> {
        if self.reading.config_type == ConfigType::File {
            return Ok(Origin::Files(self.reading.directory(argument, environment)));
        }
        if let Some(path) = argument {
            return Err(format!(
                "rules cannot be read from {} with CONFIG_TYPE=GRPC_XDS_SOTW; remove one of the two",
                path.display()
            ));
        }
        Ok(Origin::Xds(Box::new(self.xds.options()?)))
    }
}

impl Reading {
    /// The options of the compiler, without the overlay.
    pub fn options(&self, stats: Arc<StatsTable>) -> CompileOptions {
        CompileOptions {
            merge_domains: self.merge_domain_config,
            key_prefix: self.cache_key_prefix.as_str().into(),
            key_format: self.cache_key_format,
            default_algorithm: self.default_algorithm,
            default_consistency: self.default_consistency,
            windows: self.use_calendar_month_rate_limit,
            metric_dots: self.sanitize_descriptor_metric_dots,
            ..CompileOptions::new(stats)
        }
    }

    /// The directory for a command that reads rules once: the one that `serve` would read.
    ///
    /// # Errors
    /// The rules come from a control plane, to which only `serve` connects.
    pub(crate) fn files(
        &self,
        argument: Option<PathBuf>,
        environment: &Environment,
    ) -> Result<Directory, String> {
        if argument.is_none() && self.config_type == ConfigType::Xds {
            return Err(
                "CONFIG_TYPE is GRPC_XDS_SOTW, so the rules are not in files; name a directory of rules files, or use /explain and /rlconfig of the service's admin port"
                    .to_owned(),
            );
        }
        Ok(self.directory(argument, environment))
    }

    /// The directory above RUNTIME_APPDIRECTORY in this path, if all files below it are selected by
    /// their names.
    fn base_of(&self, path: &Path) -> Option<PathBuf> {
        let app = Path::new(&self.runtime_appdirectory);
        let mut parts = app.components();
        let is_name = self.runtime_watch_root && !self.runtime_appdirectory.is_empty();
        let is_plain = is_name && parts.all(|part| matches!(part, Component::Normal(_)));
        let above = path.ancestors().nth(app.components().count())?;
        is_plain.then(|| above.to_owned())
    }

    /// The directory on the command line, else that of RUNTIME_*; while none of [`LOCATION`] is set
    /// `./config`, if it exists.
    fn directory(&self, argument: Option<PathBuf>, environment: &Environment) -> Directory {
        let is_located = LOCATION.iter().any(|name| environment.is_set(name));
        let here = PathBuf::from(DIRECTORY_DEFAULT);
        let direct = argument.or_else(|| (!is_located && here.is_dir()).then_some(here));
        if let Some(path) = direct {
            return Directory {
                path,
                ignore_dot_files: self.runtime_ignoredotfiles.unwrap_or(true),
                ..Directory::default()
            };
        }
        let app = &self.runtime_appdirectory;
        let name_prefix = if self.runtime_watch_root {
            format!("{}.", app.replace('/', "."))
        } else {
            String::new()
        };
        let below = self.runtime_subdirectory.as_deref().unwrap_or_default();
        let path = joined(&self.runtime_root, [below, app]);
        Directory {
            base: self.base_of(&path),
            path,
            root: Some(self.runtime_root.clone()),
            name_prefix,
            ignore_dot_files: self.runtime_ignoredotfiles.unwrap_or(false),
        }
    }
}

/// A path below a directory. As in Go, parts that begin with a slash are below it, too.
fn joined(root: &Path, parts: [&str; 2]) -> PathBuf {
    let below = parts.map(|part| part.trim_start_matches('/'));
    let below = below.iter().filter(|part| !part.is_empty());
    below.fold(root.to_owned(), |path, part| path.join(part))
}

/// An algorithm that needs nothing but its name.
fn default_algorithm(text: &str) -> Result<Algorithm, String> {
    let mut known = Algorithm::ALL.to_vec();
    known.retain(|algorithm| !algorithm.takes(LimitOption::Lease));
    let found = known.iter().find(|algorithm| algorithm.name() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|algorithm| algorithm.name()).collect();
        format!("write one of {}", names.join(", "))
    })
}

fn months(text: &str) -> Result<Windows, String> {
    parse::boolean(text).map(|calendar| if calendar { utc_months() } else { Windows::Aligned })
}

fn metric_dots(text: &str) -> Result<Dots, String> {
    parse::boolean(text).map(|replace| if replace { Dots::Replace } else { Dots::Keep })
}
