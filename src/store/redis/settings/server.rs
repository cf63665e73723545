//! The settings of one Redis, defined once and used with the prefixes `REDIS` and
//! `REDIS_PERSECOND`.

use std::fmt;
use std::marker::PhantomData;

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

use crate::settings::environment::Environment;
use crate::settings::parse::{self, Secret};
use crate::time::Span;

/// That of envoyproxy/ratelimit.
const CONNECT_TIMEOUT_DEFAULT: &str = "10s";

/// Which Redis the settings are for.
pub trait Prefix: fmt::Debug + Clone + Send + Sync + 'static {
    /// The names of its settings.
    const NAMES: &'static Names;
    /// Its heading in `--help`.
    const HEADING: &'static str;
}

/// For all limits, or all but those of one second.
#[derive(Debug, Clone)]
pub struct Main;

/// For limits of one second.
#[derive(Debug, Clone)]
pub struct PerSecond;

/// The settings of one Redis by name, and its default addresses.
#[derive(Debug)]
pub struct Names {
    pub(crate) url: &'static str,
    pub(crate) socket_type: &'static str,
    pub(crate) redis_type: &'static str,
    pub(crate) auth: &'static str,
    pub(crate) auth_file: &'static str,
    pub(crate) sentinel_auth: &'static str,
    pub(crate) sentinel_auth_file: &'static str,
    pub(crate) tls: &'static str,
    pub(crate) timeout: &'static str,
    /// `None` if the address is required.
    pub(crate) url_default: Option<&'static str>,
    /// The default address with a socket type of `unix`: that of envoyproxy/ratelimit.
    pub(crate) socket_default: &'static str,
    /// Settings of envoyproxy/ratelimit without an effect here, and why.
    pub(crate) without_effect: [(&'static str, &'static str); 6],
}

macro_rules! names {
    ($prefix:literal, $url_default:expr, $socket_default:literal) => {
        &Names {
            url: concat!($prefix, "_URL"),
            socket_type: concat!($prefix, "_SOCKET_TYPE"),
            redis_type: concat!($prefix, "_TYPE"),
            auth: concat!($prefix, "_AUTH"),
            auth_file: concat!($prefix, "_AUTH_FILE"),
            sentinel_auth: concat!($prefix, "_SENTINEL_AUTH"),
            sentinel_auth_file: concat!($prefix, "_SENTINEL_AUTH_FILE"),
            tls: concat!($prefix, "_TLS"),
            timeout: concat!($prefix, "_TIMEOUT"),
            url_default: $url_default,
            socket_default: $socket_default,
            without_effect: [
                (concat!($prefix, "_POOL_SIZE"), ONE_CONNECTION),
                (concat!($prefix, "_POOL_ON_EMPTY_BEHAVIOR"), ONE_CONNECTION),
                (
                    concat!($prefix, "_POOL_ON_EMPTY_WAIT_DURATION"),
                    ONE_CONNECTION,
                ),
                (concat!($prefix, "_PIPELINE_WINDOW"), GROUP_COMMIT),
                (concat!($prefix, "_PIPELINE_LIMIT"), GROUP_COMMIT),
                (
                    concat!($prefix, "_CLUSTER_PIPELINE_PARALLELISM"),
                    "all nodes of a cluster are asked at the same time",
                ),
            ],
        }
    };
}

const ONE_CONNECTION: &str = "one connection per worker carries all calls to a server";
const GROUP_COMMIT: &str = "concurrent calls are sent together, without waiting for more";

impl Prefix for Main {
    const NAMES: &'static Names = names!(
        "REDIS",
        Some("127.0.0.1:6379"),
        "/var/run/nutcracker/ratelimit.sock"
    );
    const HEADING: &'static str = "Redis";
}

impl Prefix for PerSecond {
    const NAMES: &'static Names = names!(
        "REDIS_PERSECOND",
        None,
        "/var/run/nutcracker/ratelimitpersecond.sock"
    );
    const HEADING: &'static str = PER_SECOND_HEADING;
}

/// The heading of the settings of the Redis for limits of one second.
pub(crate) const PER_SECOND_HEADING: &str = "Redis for limits of one second";

/// The arguments of one Redis.
#[derive(Debug, Clone)]
pub struct ServerArgs<P> {
    values: ServerValues,
    prefix: PhantomData<P>,
}

/// The values of the settings of one Redis.
#[derive(Debug, Clone)]
pub(crate) struct ServerValues {
    pub(crate) names: &'static Names,
    pub(crate) url: Option<Secret>,
    pub(crate) socket_type: SocketType,
    /// Parsed only if Redis is used.
    pub(crate) redis_type: String,
    pub(crate) auth: Option<Secret>,
    pub(crate) auth_file: Option<String>,
    pub(crate) sentinel_auth: Option<Secret>,
    pub(crate) sentinel_auth_file: Option<String>,
    pub(crate) tls: bool,
    pub(crate) timeout: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketType {
    Tcp,
    Unix,
}

impl<P> ServerArgs<P> {
    pub(crate) fn values(&self) -> &ServerValues {
        &self.values
    }
}

impl ServerValues {
    /// The timeout of a server whose own is 0.
    pub(crate) fn timeout_default() -> Span {
        parse::duration(CONNECT_TIMEOUT_DEFAULT).expect("the default is a duration")
    }
}

impl Names {
    /// A setting that is set, with or without an effect.
    pub(crate) fn any_set(&self, environment: &Environment) -> Option<&'static str> {
        let with_effect = [
            self.url,
            self.socket_type,
            self.redis_type,
            self.auth,
            self.auth_file,
            self.sentinel_auth,
            self.sentinel_auth_file,
            self.tls,
            self.timeout,
        ];
        let without = self.without_effect.iter().map(|(name, _)| *name);
        let mut names = with_effect.into_iter().chain(without);
        names.find(|name| environment.is_set(name))
    }

    fn arguments(&self) -> [Arg; 9] {
        let auth = |name, of: &str| {
            secret(
                name,
                "PASSWORD",
                format!("Password, or user:password, of {of}"),
            )
        };
        let file = |name, of: &str| {
            arg(
                name,
                "FILE",
                format!("File with the value of {of} in one line, reloaded when it changes"),
            )
        };
        let default = self.url_default.unwrap_or("none");
        let url = format!(
            "Address: host:port, the path of a socket, or a URL of redis://, rediss:// (TLS) or \
             unix://; of a cluster host:port,host:port,…; of Sentinel master,host:port,host:port,… \
             [default: {default}; with {}=unix {}]",
            self.socket_type, self.socket_default
        );
        [
            secret(self.url, "ADDRESS", url),
            arg(
                self.socket_type,
                "TYPE",
                format!("tcp or unix; only used without {}", self.url),
            )
            .value_parser(socket_type)
            .default_value("tcp"),
            arg(
                self.redis_type,
                "TYPE",
                "Kind of deployment: SINGLE, SENTINEL or CLUSTER",
            )
            .default_value("SINGLE"),
            auth(
                self.auth,
                &format!("the servers; takes precedence over {}", self.url),
            ),
            file(self.auth_file, self.auth),
            auth(self.sentinel_auth, "the sentinels"),
            file(self.sentinel_auth_file, self.sentinel_auth),
            arg(
                self.tls,
                "BOOL",
                "Connect by TLS, also to the sentinels, as rediss:// does",
            )
            .value_parser(parse::boolean)
            .default_value("false")
            .num_args(0..=1)
            .default_missing_value("true"),
            arg(
                self.timeout,
                "DURATION",
                "How long connecting may take; STORE_TIMEOUT bounds calls",
            )
            .value_parser(parse::duration)
            .default_value(CONNECT_TIMEOUT_DEFAULT),
        ]
    }
}

impl<P: Prefix> Args for ServerArgs<P> {
    fn augment_args(command: Command) -> Command {
        command
            .next_help_heading(P::HEADING)
            .args(P::NAMES.arguments())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<P: Prefix> FromArgMatches for ServerArgs<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let names = P::NAMES;
        let secret = |name: &str| matches.get_one::<Secret>(name).cloned();
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let values = ServerValues {
            names,
            url: secret(names.url),
            socket_type: value(matches, names.socket_type),
            redis_type: value(matches, names.redis_type),
            auth: secret(names.auth),
            auth_file: text(names.auth_file),
            sentinel_auth: secret(names.sentinel_auth),
            sentinel_auth_file: text(names.sentinel_auth_file),
            tls: value(matches, names.tls),
            timeout: value(matches, names.timeout),
        };
        Ok(Self {
            values,
            prefix: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn arg(name: &'static str, value: &'static str, help: impl Into<String>) -> Arg {
    let flag = name.to_lowercase().replace('_', "-");
    Arg::new(name)
        .long(flag)
        .env(name)
        .value_name(value)
        .help(help.into())
}

fn secret(name: &'static str, value: &'static str, help: impl Into<String>) -> Arg {
    arg(name, value, help)
        .value_parser(Secret::read)
        .hide_env_values(true)
}

fn value<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> T {
    matches
        .get_one::<T>(name)
        .cloned()
        .expect("the argument has a default")
}

fn socket_type(text: &str) -> Result<SocketType, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" | "tcp4" | "tcp6" => Ok(SocketType::Tcp),
        "unix" => Ok(SocketType::Unix),
        _ => Err("write tcp or unix".to_owned()),
    }
}
