//! Settings of where rules come from.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgAction, Args};

use crate::config::CompileOptions;
use crate::limit::{Algorithm, Months};
use crate::rule_source::files::Directory;
use crate::rule_source::overlay::OverlayFile;
use crate::rule_source::{Origin, xds};
use crate::rules::KeyFormat;
use crate::rules::stats::StatsTable;
use crate::rules::tree::Dots;
use crate::settings::parse::{self, Given};

const RUNTIME_ROOT_DEFAULT: &str = "/srv/runtime_data/current";
/// Where a checkout, or anybody who just tries, has rules.
const DIRECTORY_DEFAULT: &str = "config";

/// CONFIG_TYPE
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigType {
    /// `FILE`
    File,
    /// `GRPC_XDS_SOTW`
    Xds,
}

/// Which rules are read and what they mean: the same for every subcommand.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Rules")]
pub struct Reading {
    /// Where rules come from: FILE, or GRPC_XDS_SOTW [default: FILE]
    #[arg(long, env = "CONFIG_TYPE", default_value = "", hide_default_value = true, value_name = "TYPE", value_parser = parse::given(config_type))]
    pub config_type: Given<ConfigType>,
    /// Rules are read from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY [default:
    /// /srv/runtime_data/current]
    #[arg(long, env = "RUNTIME_ROOT", value_name = "DIR")]
    pub runtime_root: Option<String>,
    /// See RUNTIME_ROOT
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", value_name = "DIR")]
    pub runtime_subdirectory: Option<String>,
    /// See RUNTIME_ROOT [default: config]
    #[arg(long, env = "RUNTIME_APPDIRECTORY", value_name = "DIR")]
    pub runtime_appdirectory: Option<String>,
    /// Leave out files and directories whose names begin with a dot, as mounted ConfigMaps need
    /// [default: false; true for DIR]
    #[arg(long, env = "RUNTIME_IGNOREDOTFILES", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub runtime_ignoredotfiles: Option<bool>,
    /// Name files in messages by their path below RUNTIME_SUBDIRECTORY; changes are seen in either
    /// case [default: true]
    #[arg(long, env = "RUNTIME_WATCH_ROOT", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub runtime_watch_root: Option<bool>,
    /// Make one domain of a domain that several files have
    #[arg(long, alias = "merge-domain-configs", env = "MERGE_DOMAIN_CONFIG", default_value = "false", value_name = "BOOL",
        value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub merge_domain_config: bool,
    /// What every counter's key begins with
    #[arg(
        long,
        env = "CACHE_KEY_PREFIX",
        default_value = "",
        value_name = "TEXT"
    )]
    pub cache_key_prefix: String,
    /// How counters' keys are written on Redis: reference (as envoyproxy/ratelimit does, so that
    /// counts survive a change from it) or safe (so that no two counters can share one,
    /// whatever clients send). In memory they are always safe
    #[arg(long, env = "CACHE_KEY_FORMAT", default_value = "reference", value_name = "FORM", value_parser = key_format)]
    pub cache_key_format: KeyFormat,
    /// How rules count that do not say how: fixed_window, sliding_window, sliding_log,
    /// token_bucket or leaky_bucket [default: fixed_window]
    #[arg(long, env = "DEFAULT_ALGORITHM", default_value = "", hide_default_value = true, value_name = "ALGORITHM",
        value_parser = parse::given(default_algorithm))]
    pub default_algorithm: Given<Algorithm>,
    /// Count fixed windows of one month by calendar months in UTC instead of 30 days
    #[arg(long, env = "USE_CALENDAR_MONTH_RATE_LIMIT", default_value = "false", value_name = "BOOL", value_parser = months,
        num_args = 0..=1, default_missing_value = "true")]
    pub use_calendar_month_rate_limit: Months,
    /// Write dots in keys and values as `_` in the names of metrics, where dots part the levels
    #[arg(long, env = "SANITIZE_DESCRIPTOR_METRIC_DOTS", default_value = "false", value_name = "BOOL", value_parser = metric_dots,
        num_args = 0..=1, default_missing_value = "true")]
    pub sanitize_descriptor_metric_dots: Dots,
    /// A file of `tollgate` blocks for rules that somebody else writes, by domain and path
    #[arg(long, env = "TOLLGATE_OVERLAY", value_name = "FILE")]
    pub tollgate_overlay: Option<String>,
}

/// Rules of a service.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Rules")]
pub struct Settings {
    /// Which rules, and what they mean.
    #[command(flatten)]
    pub reading: Reading,
    /// Be healthy before the first rules came
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG", default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub force_start_without_initial_config: bool,
    /// Be healthy only while the rules have at least one domain
    #[arg(long, env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", default_value = "false", value_name = "BOOL", value_parser = parse::boolean, num_args = 0..=1, default_missing_value = "true")]
    pub healthy_with_at_least_one_config_loaded: bool,
    /// A control plane that has the rules.
    #[command(flatten)]
    pub xds: xds::settings::Settings,
}

impl Settings {
    /// Where the rules come from.
    ///
    /// # Errors
    /// What is wrong with the settings of xDS, or a directory beside them.
    pub(crate) fn origin(&self, argument: Option<PathBuf>) -> Result<Origin, String> {
        if self.reading.config_type.0 != Some(ConfigType::Xds) {
            return Ok(Origin::Files(self.reading.directory(argument)));
        }
        if let Some(path) = argument {
            return Err(format!(
                "rules are to be read from {}, and CONFIG_TYPE is GRPC_XDS_SOTW; give one of them",
                path.display()
            ));
        }
        Ok(Origin::Xds(Box::new(self.xds.options()?)))
    }

    /// What is accepted, and has no effect.
    pub fn warnings(&self) -> Vec<String> {
        self.xds.warnings()
    }
}

impl Reading {
    /// What rules are compiled with, without the overlay.
    pub fn options(&self, stats: Arc<StatsTable>) -> CompileOptions {
        CompileOptions {
            merge_domains: self.merge_domain_config,
            key_prefix: self.cache_key_prefix.as_str().into(),
            key_format: self.cache_key_format,
            default_algorithm: self.default_algorithm.0,
            months: self.use_calendar_month_rate_limit,
            metric_dots: self.sanitize_descriptor_metric_dots,
            ..CompileOptions::new(stats)
        }
    }

    /// The overlay, if there is to be one.
    pub(crate) fn overlay(&self) -> Option<OverlayFile> {
        self.tollgate_overlay
            .as_deref()
            .filter(|path| !path.is_empty())
            .map(OverlayFile::new)
    }

    /// The directory of a command that reads rules once, by the rule that serves.
    ///
    /// # Errors
    /// The rules come from a control plane, which only a service connects to.
    pub(crate) fn files(&self, argument: Option<PathBuf>) -> Result<Directory, String> {
        if argument.is_none() && self.config_type.0 == Some(ConfigType::Xds) {
            let instead = "name a directory of rules files, or ask the service: /explain and /rlconfig on its admin port";
            return Err(format!(
                "CONFIG_TYPE is GRPC_XDS_SOTW, so the rules are not in files; {instead}"
            ));
        }
        Ok(self.directory(argument))
    }

    /// Where files are: the directory on the command line, else what RUNTIME_* say, else `./config`
    /// if it is there.
    fn directory(&self, argument: Option<PathBuf>) -> Directory {
        let ignore_dot_files = self.runtime_ignoredotfiles;
        if let Some(path) = argument {
            return Directory::new(path, ignore_dot_files.unwrap_or(true));
        }
        let nothing_said = self.config_type.0.is_none()
            && self.runtime_root.is_none()
            && self.runtime_subdirectory.is_none()
            && self.runtime_appdirectory.is_none()
            && self.runtime_watch_root.is_none();
        let here = PathBuf::from(DIRECTORY_DEFAULT);
        if nothing_said && here.is_dir() {
            return Directory::new(here, ignore_dot_files.unwrap_or(true));
        }
        let root = PathBuf::from(self.runtime_root.as_deref().unwrap_or(RUNTIME_ROOT_DEFAULT));
        let app = self
            .runtime_appdirectory
            .as_deref()
            .unwrap_or(DIRECTORY_DEFAULT);
        let path = root
            .join(self.runtime_subdirectory.as_deref().unwrap_or(""))
            .join(app);
        let directory =
            Directory::new(path, ignore_dot_files.unwrap_or(false)).reached_through(root);
        if self.runtime_watch_root.unwrap_or(true) {
            directory.named_below(app)
        } else {
            directory
        }
    }
}

/// Reads CACHE_KEY_FORMAT.
///
/// # Errors
/// No such form.
fn key_format(text: &str) -> Result<KeyFormat, String> {
    KeyFormat::from_name(text)
        .ok_or_else(|| format!("write {}", KeyFormat::ALL.map(KeyFormat::name).join(" or ")))
}

/// Reads DEFAULT_ALGORITHM.
///
/// # Errors
/// No such algorithm, or one that needs more than its name.
fn default_algorithm(text: &str) -> Result<Algorithm, String> {
    let alone: Vec<Algorithm> = Algorithm::ALL
        .into_iter()
        .filter(|algorithm| *algorithm != Algorithm::Concurrency)
        .collect();
    alone
        .iter()
        .copied()
        .find(|algorithm| algorithm.name() == text)
        .ok_or_else(|| {
            let names: Vec<&str> = alone.iter().map(|algorithm| algorithm.name()).collect();
            format!("write one of {}", names.join(", "))
        })
}

/// Reads USE_CALENDAR_MONTH_RATE_LIMIT.
///
/// # Errors
/// Neither true nor false.
fn months(text: &str) -> Result<Months, String> {
    parse::boolean(text).map(|calendar| {
        if calendar {
            Months::Calendar
        } else {
            Months::ThirtyDays
        }
    })
}

fn metric_dots(text: &str) -> Result<Dots, String> {
    parse::boolean(text).map(|replace| if replace { Dots::Replace } else { Dots::Keep })
}

fn config_type(text: &str) -> Result<ConfigType, String> {
    match text {
        "FILE" => Ok(ConfigType::File),
        "GRPC_XDS_SOTW" => Ok(ConfigType::Xds),
        _ => Err("write FILE or GRPC_XDS_SOTW".to_owned()),
    }
}
