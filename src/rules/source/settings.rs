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

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::{Command, FromArgMatches as _};
    use tempfile::TempDir;

    use super::*;
    use crate::base::time::{MICROS_PER_SECOND, Time};
    use crate::limits::Unit;
    use crate::limits::check::{Check, Hits, Key, Verdict};
    use crate::rules::RuleSet;
    use crate::rules::config::{self, Source};
    use crate::rules::plan::{Modes, plan};
    use crate::rules::query::{Override, Query};
    use crate::rules::stats::METRIC_SERIES_MAX;
    use crate::rules::stats::counts::Disposition;
    use crate::telemetry::metric::Metrics;

    /// The names of the rules in these files below RUNTIME_ROOT; the other flags are separated by
    /// blanks.
    fn names(files: &[&str], flags: &str) -> Vec<String> {
        let root = TempDir::new().expect("a temporary directory can be made");
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("it is below")).expect("it is writable");
            fs::write(path, "").expect("it is writable");
        }
        let root = root.path().to_str().expect("a plain name");
        let flags = flags.split(' ').filter(|flag| !flag.is_empty()).map(str::to_owned);
        let arguments = ["test".to_owned(), format!("--runtime-root={root}")].into_iter();
        let command = Reading::augment_args(Command::new("test"));
        let matches = command.try_get_matches_from(arguments.chain(flags)).expect("valid flags");
        let reading = Reading::from_arg_matches(&matches).expect("valid flags");
        let environment = Environment::new([("RUNTIME_ROOT".to_owned(), root.to_owned())], []);
        let directory = reading.files(None, &environment).expect("rules are in files");
        let sources = directory.read().expect("there are rules");
        sources.iter().map(|source| source.name.to_string()).collect()
    }

    /// The rules of these texts with a flag.
    fn load(flag: &str, texts: &[&str], metrics: &Metrics) -> Result<RuleSet, String> {
        let command = Reading::augment_args(Command::new("test"));
        let matches = command.try_get_matches_from(["test", flag]).expect("a valid flag");
        let reading = Reading::from_arg_matches(&matches).expect("a valid flag");
        let stats = StatsTable::new(METRIC_SERIES_MAX, metrics);
        let source = |(index, text): (usize, &&str)| {
            let name = format!("{index}.yaml");
            Source { name: name.as_str().into(), path: name.into(), text: (*text).into() }
        };
        let sources: Vec<Source> = texts.iter().enumerate().map(source).collect();
        let loaded = config::load(&sources, &reading.options(stats));
        loaded.map(|loaded| loaded.rules).map_err(|findings| format!("{findings:?}"))
    }

    #[test]
    fn files_of_one_domain_can_be_merged() {
        let files = ["k", "other"].map(|key| {
            format!("domain: d\ndescriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]")
        });
        let files = [&*files[0], &*files[1]];
        // MERGE_DOMAIN_CONFIG
        let load = |flag| load(flag, &files, &Metrics::new());
        let merged = load("--merge-domain-config=true").expect("they are one domain");
        assert_eq!((merged.domain_count(), merged.rule_count()), (1, 2));
        let apart = load("--merge-domain-config=false").expect_err("two of one name");
        assert!(apart.contains("duplicate domain 'd' in config file"), "{apart}");
    }

    #[test]
    fn months_can_be_calendar_months() {
        let text =
            "{domain: d, descriptors: [{key: k, rate_limit: {unit: month, requests_per_unit: 5}}]}";
        // USE_CALENDAR_MONTH_RATE_LIMIT
        let limit = |calendar: &str| {
            let flag = format!("--use-calendar-month-rate-limit={calendar}");
            let rules = load(&flag, &[text], &Metrics::new()).expect("the rules are valid");
            *rules.rules()[0].limit().expect("it has a limit")
        };
        let now = Time::from_rfc3339("2026-08-17T12:00:00Z").expect("a time");
        let fixed = limit("false").window(now).start;
        assert_eq!(fixed.as_micros() % (30 * 86_400 * MICROS_PER_SECOND), 0, "since the epoch");
        let calendar = limit("true");
        assert_eq!(calendar.window(now).start.to_rfc3339(), "2026-08-01T00:00:00Z");
        assert!(calendar.to_string().starts_with("5 per calendar month,"), "{calendar}");
    }

    #[test]
    fn dots_are_replaced_in_metric_names() {
        let text = "
domain: a.b
descriptors:
  - {key: host, value: foo.bar, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: path, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 5}}
";
        // SANITIZE_DESCRIPTOR_METRIC_DOTS
        let metrics = Metrics::new();
        let rules = load("--sanitize-descriptor-metric-dots=true", &[text], &metrics);
        let rules = rules.expect("they are valid");
        let host = rules.rules()[0];
        let check = Check::new(Key::default(), *host.limit().expect("it has one"), Hits::Add(1));
        host.stats.record(&check, &Verdict::default(), Disposition::Nothing, 0.8);
        let of_host = "ratelimit.service.rate_limit.a.b.host_foo_bar.total_hits: 1\n";
        assert!(metrics.lines().contains(of_host), "{}", metrics.lines());
        let day = Override { requests_per_unit: 5, wire_unit: 4, unit: Some(Unit::Day) };
        for (entry, limit, expected) in [
            ("path=/v1.Do", None, "a.b.path_/v1_Do"),
            ("other.key=1", Some(day), "a.b.other_key_1"),
        ] {
            let mut query = Query::of_entries("a.b", [entry]).expect("an entry");
            query.descriptors[0].limit = limit;
            let plan = plan(&rules, &query, Modes::default(), Time::default()).expect("valid");
            let link = &plan.steps[0].links()[0];
            assert_eq!(link.metric_name.as_deref(), Some(expected), "{entry}");
        }
    }

    #[test]
    fn rules_are_read_and_named_by_runtime_settings() {
        let files = ["sub/app/good.yaml", "sub/app/.hidden.yaml"];
        // RUNTIME_IGNOREDOTFILES and RUNTIME_WATCH_ROOT.
        for (others, expected) in [
            ("--runtime-ignoredotfiles", &["app.good.yaml"][..]),
            ("", &["app..hidden.yaml", "app.good.yaml"]),
            ("--runtime-watch-root=false", &[".hidden.yaml", "good.yaml"]),
        ] {
            let flags = format!("--runtime-subdirectory=sub --runtime-appdirectory=app {others}");
            assert_eq!(names(&files, &flags), expected, "{others}");
        }
    }

    /// As envoyproxy/ratelimit selects them: by their paths with dots for slashes.
    #[test]
    fn rules_are_selected_by_their_names_below_the_subdirectory() {
        // RUNTIME_SUBDIRECTORY, the files, and the names of those that are rules.
        let cases: [(&str, &[&str], &[&str]); 8] = [
            ("config", &["config/config.yaml"], &["config.yaml"]),
            ("ratelimit", &["ratelimit/config.one.yaml"], &["config.one.yaml"]),
            (".", &["config.yaml"], &["config.yaml"]),
            ("", &["config.yaml"], &["config.yaml"]),
            ("ratelimit", &["ratelimit/config.d/a.yaml"], &["config.d.a.yaml"]),
            (
                "ratelimit",
                &["ratelimit/config/a.yaml", "ratelimit/config.b.yaml"],
                &["config.a.yaml", "config.b.yaml"],
            ),
            // Others are not rules, and neither are test cases.
            (
                "ratelimit",
                &[
                    "ratelimit/config.yaml",
                    "ratelimit/config.test.yaml",
                    "ratelimit/configs/a.yaml",
                    "ratelimit/configs.yaml",
                    "ratelimit/other/config.yaml",
                    "config.yaml",
                ],
                &["config.yaml"],
            ),
            ("", &["config/a.yaml", "config/b/c.yaml"], &["config.a.yaml", "config.b.c.yaml"]),
        ];
        for (below, files, expected) in cases {
            let mut found = names(files, &format!("--runtime-subdirectory={below}"));
            found.sort();
            assert_eq!(found, expected, "{files:?}");
        }
    }
}
