//! The settings of one Redis, defined once and used with the prefixes `REDIS` and
//! `REDIS_PERSECOND`.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

use crate::base::environment::Environment;
use crate::base::parse::{self, Secret};
use crate::base::time::Span;

/// Time to connect to Redis: that of envoyproxy/ratelimit.
// bound REDIS_TIMEOUT: the attempt fails; tollgate_store_probes_failed_total
pub(crate) const CONNECT_TIMEOUT_DEFAULT: &str = "10s";

const ONE_CONNECTION: &str = "one connection per worker carries all calls to a server";
const GROUP_COMMIT: &str = "concurrent calls are sent together, without waiting for more";
/// Settings of envoyproxy/ratelimit without an effect here, after the prefix, and why.
const WITHOUT_EFFECT: [(&str, &str); 6] = [
    ("POOL_SIZE", ONE_CONNECTION),
    ("POOL_ON_EMPTY_BEHAVIOR", ONE_CONNECTION),
    ("POOL_ON_EMPTY_WAIT_DURATION", ONE_CONNECTION),
    ("PIPELINE_WINDOW", GROUP_COMMIT),
    ("PIPELINE_LIMIT", GROUP_COMMIT),
    ("CLUSTER_PIPELINE_PARALLELISM", "all nodes of a cluster are asked at the same time"),
];

/// Which Redis settings are for.
#[derive(Debug)]
pub(crate) struct Role {
    /// The first part of the names of its settings.
    pub(crate) prefix: &'static str,
    /// The heading in `--help`.
    heading: &'static str,
    /// `None` if the address is required.
    pub(crate) url_default: Option<&'static str>,
    /// The default address with a socket type of `unix`: that of envoyproxy/ratelimit.
    pub(crate) socket_default: &'static str,
}

/// For all limits, or all but those of one second.
pub(crate) static MAIN: Role = Role {
    prefix: "REDIS",
    heading: "Redis",
    url_default: Some("127.0.0.1:6379"),
    socket_default: "/var/run/nutcracker/ratelimit.sock",
};

/// For limits of one second.
pub(crate) static PER_SECOND: Role = Role {
    prefix: "REDIS_PERSECOND",
    heading: "Redis for limits of one second",
    url_default: None,
    socket_default: "/var/run/nutcracker/ratelimitpersecond.sock",
};

/// The settings of both Redis.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    pub(crate) main: Server,
    /// REDIS_PERSECOND.
    pub(crate) has_per_second: bool,
    pub(crate) per_second: Server,
}

/// The settings of one Redis.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) role: &'static Role,
    pub(crate) url: Option<Secret>,
    pub(crate) socket_type: SocketType,
    /// Parsed only if Redis is used.
    pub(crate) redis_type: String,
    pub(crate) auth: Auth,
    pub(crate) sentinel_auth: Auth,
    pub(crate) tls: bool,
    pub(crate) timeout: Span,
}

/// Credentials as a value or in a file.
#[derive(Debug, Clone)]
pub(crate) struct Auth {
    /// The name of the setting; that of the file ends with `_FILE`.
    pub(crate) setting: String,
    pub(crate) value: Option<Secret>,
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketType {
    Tcp,
    Unix,
}

impl Role {
    /// The name of a setting.
    pub(crate) fn name(&self, suffix: &str) -> String {
        format!("{}_{suffix}", self.prefix)
    }

    /// The names of settings without an effect, and why.
    pub(crate) fn without_effect(&self) -> impl Iterator<Item = (String, &'static str)> {
        WITHOUT_EFFECT.map(|(suffix, reason)| (self.name(suffix), reason)).into_iter()
    }

    /// A setting that is set, with or without an effect.
    pub(crate) fn any_set(&self, environment: &Environment) -> Option<String> {
        let names = self.arguments().map(|argument| argument.get_id().to_string());
        let without_effect = self.without_effect().map(|(name, _)| name);
        let mut names = names.into_iter().chain(without_effect);
        names.find(|name| environment.is_set(name))
    }

    fn arguments(&self) -> [Arg; 9] {
        let name = |suffix| self.name(suffix);
        let url = name("URL");
        let default = self.url_default.unwrap_or("none");
        let auth = |suffix, of: &str| {
            secret(name(suffix), "PASSWORD", format!("Password, or user:password, of {of}"))
        };
        let auth_file = |suffix, of| {
            let help = format!(
                "File with the value of {} in one line, reloaded when it changes",
                name(of)
            );
            arg(name(suffix), "FILE", help).value_parser(clap::value_parser!(PathBuf))
        };
        let url_help = format!(
            "Address: host:port, the path of a socket, or a URL of redis://, rediss:// (TLS) or \
             unix://; of a cluster host:port,host:port,…; of Sentinel master,host:port,host:port,… \
             [default: {default}; with {}=unix {}]",
            name("SOCKET_TYPE"),
            self.socket_default
        );
        [
            secret(url.clone(), "ADDRESS", url_help),
            arg(name("SOCKET_TYPE"), "TYPE", format!("tcp or unix; only used without {url}"))
                .value_parser(socket_type)
                .default_value("tcp"),
            arg(name("TYPE"), "TYPE", "Kind of deployment: SINGLE, SENTINEL or CLUSTER")
                .default_value("SINGLE"),
            auth("AUTH", &format!("the servers; takes precedence over {url}")),
            auth_file("AUTH_FILE", "AUTH"),
            auth("SENTINEL_AUTH", "the sentinels"),
            auth_file("SENTINEL_AUTH_FILE", "SENTINEL_AUTH"),
            boolean(name("TLS"), "Connect by TLS, also to the sentinels, as rediss:// does"),
            arg(
                name("TIMEOUT"),
                "DURATION",
                "How long connecting may take; STORE_TIMEOUT bounds calls",
            )
            .value_parser(parse::duration)
            .default_value(CONNECT_TIMEOUT_DEFAULT),
        ]
    }
}

impl Args for Servers {
    fn augment_args(command: Command) -> Command {
        let per_second = boolean(
            PER_SECOND.prefix.to_owned(),
            "Count limits of one second on a Redis of their own, with the files of REDIS_TLS_*",
        );
        command
            .next_help_heading(MAIN.heading)
            .args(MAIN.arguments())
            .next_help_heading(PER_SECOND.heading)
            .arg(per_second)
            .args(PER_SECOND.arguments())
            // Of the settings that follow.
            .next_help_heading(MAIN.heading)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Servers {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(Self {
            main: Server::read(&MAIN, matches),
            has_per_second: value(matches, PER_SECOND.prefix),
            per_second: Server::read(&PER_SECOND, matches),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Server {
    fn read(role: &'static Role, matches: &ArgMatches) -> Self {
        let auth = |suffix| {
            let setting = role.name(suffix);
            Auth {
                value: matches.get_one(&setting).cloned(),
                file: matches.get_one(&format!("{setting}_FILE")).cloned(),
                setting,
            }
        };
        Self {
            role,
            url: matches.get_one(&role.name("URL")).cloned(),
            socket_type: value(matches, &role.name("SOCKET_TYPE")),
            redis_type: value(matches, &role.name("TYPE")),
            auth: auth("AUTH"),
            sentinel_auth: auth("SENTINEL_AUTH"),
            tls: value(matches, &role.name("TLS")),
            timeout: value(matches, &role.name("TIMEOUT")),
        }
    }
}

fn arg(name: String, value: &'static str, help: impl Into<String>) -> Arg {
    Arg::new(name.clone())
        .long(name.to_lowercase().replace('_', "-"))
        .env(name)
        .value_name(value)
        .help(help.into())
}

fn secret(name: String, value: &'static str, help: String) -> Arg {
    arg(name, value, help).value_parser(Secret::read).hide_env_values(true)
}

fn boolean(name: String, help: &'static str) -> Arg {
    arg(name, "BOOL", help)
        .value_parser(parse::boolean)
        .default_value("false")
        .num_args(0..=1)
        .default_missing_value("true")
}

fn value<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> T {
    matches.get_one::<T>(name).cloned().expect("the argument has a default")
}

fn socket_type(text: &str) -> Result<SocketType, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" | "tcp4" | "tcp6" => Ok(SocketType::Tcp),
        "unix" => Ok(SocketType::Unix),
        _ => Err("write tcp or unix".to_owned()),
    }
}
