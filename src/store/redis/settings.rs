//! Settings of Redis: what the reference's environment says about it, and what becomes of it here.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::setting::{self, Given, Secret};
use crate::store::redis::address::Address;
use crate::store::redis::deployment::{Deployment, PoolOptions};
use crate::store::redis::tls::{Names, Tls};
use crate::time::Span;

/// Where Redis is if nobody says. The reference looks for the next one, which is nobody's default any more.
const URL_DEFAULT: &str = "127.0.0.1:6379";
/// Where the reference looks for a socket. Only with REDIS_SOCKET_TYPE=unix.
const SOCKET_DEFAULT: &str = "/var/run/nutcracker/ratelimit.sock";
/// As in the reference.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Settings of the reference that have nothing to do here, and why.
const WITHOUT_EFFECT: [(&str, &str); 9] = [
    ("REDIS_POOL_SIZE", "one connection per thread carries all calls"),
    ("REDIS_PIPELINE_WINDOW", "calls that come together are sent together, without waiting for more"),
    ("REDIS_PIPELINE_LIMIT", "calls that come together are sent together, without waiting for more"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "this version counts on a single Redis server"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "one connection per thread carries all calls, and no call waits for another's"),
    ("REDIS_POOL_ON_EMPTY_WAIT_DURATION", "one connection per thread carries all calls, and no call waits for another's"),
    ("REDIS_STARTUP_INITIAL_INTERVAL", "the service starts without Redis and picks it up"),
    ("REDIS_STARTUP_MAX_INTERVAL", "the service starts without Redis and picks it up"),
    ("REDIS_SENTINEL_AUTH", "this version counts on a single Redis server"),
];
/// The switch of a second Redis for limits of a second.
const PER_SECOND: &str = "REDIS_PERSECOND";
/// Settings of that Redis.
const OF_PER_SECOND: [&str; 13] = [
    "REDIS_PERSECOND_SOCKET_TYPE",
    "REDIS_PERSECOND_TYPE",
    "REDIS_PERSECOND_URL",
    "REDIS_PERSECOND_POOL_SIZE",
    "REDIS_PERSECOND_AUTH",
    "REDIS_PERSECOND_TLS",
    "REDIS_PERSECOND_SENTINEL_AUTH",
    "REDIS_PERSECOND_PIPELINE_WINDOW",
    "REDIS_PERSECOND_PIPELINE_LIMIT",
    "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_PERSECOND_TIMEOUT",
    "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION",
];

/// Redis.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Redis")]
pub struct Settings {
    /// Where Redis is: host:port, the path of a socket, or a URL of redis://, rediss:// (with TLS) or unix:// [default: 127.0.0.1:6379; with REDIS_SOCKET_TYPE=unix /var/run/nutcracker/ratelimit.sock]
    #[arg(long, env = "REDIS_URL", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "ADDRESS", value_parser = setting::given(Secret::read))]
    pub redis_url: Given<Secret>,
    /// tcp or unix; only looked at without REDIS_URL, which shows what it is [default: tcp]
    #[arg(long, env = "REDIS_SOCKET_TYPE", default_value = "", hide_default_value = true, value_name = "TYPE", value_parser = setting::given(socket_type))]
    pub redis_socket_type: Given<SocketType>,
    /// SINGLE: this version knows no Sentinel and no Cluster [default: SINGLE]
    #[arg(long, env = "REDIS_TYPE", default_value = "", hide_default_value = true, value_name = "TYPE", value_parser = setting::given(setting::text))]
    pub redis_type: Given<String>,
    /// Password, or user:password; wins over the one in REDIS_URL
    #[arg(long, env = "REDIS_AUTH", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "PASSWORD", value_parser = setting::given(Secret::read))]
    pub redis_auth: Given<Secret>,
    /// Connect by TLS, as rediss:// does [default: false]
    #[arg(long, env = "REDIS_TLS", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = setting::given(setting::flag), num_args = 0..=1, default_missing_value = "true")]
    pub redis_tls: Given<bool>,
    /// The only authority to trust, a PEM file [default: the system's authorities]
    #[arg(long, env = "REDIS_TLS_CACERT", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = setting::given(setting::text))]
    pub redis_tls_cacert: Given<String>,
    /// Certificate to show to Redis, a PEM file
    #[arg(long, env = "REDIS_TLS_CLIENT_CERT", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = setting::given(setting::text))]
    pub redis_tls_client_cert: Given<String>,
    /// Its key, a PEM file
    #[arg(long, env = "REDIS_TLS_CLIENT_KEY", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = setting::given(setting::text))]
    pub redis_tls_client_key: Given<String>,
    /// Take certificates of any name, if a trusted authority has signed them [default: false]
    #[arg(long, env = "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = setting::given(setting::flag), num_args = 0..=1, default_missing_value = "true")]
    pub redis_tls_skip_hostname_verification: Given<bool>,
    /// How long making a connection may take; STORE_TIMEOUT bounds the calls on it [default: 10s]
    #[arg(long, env = "REDIS_TIMEOUT", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = setting::given(setting::span))]
    pub redis_timeout: Given<Span>,
    /// Be healthy only while Redis answers [default: false]
    #[arg(long, env = "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = setting::given(setting::flag), num_args = 0..=1, default_missing_value = "true")]
    pub redis_health_check_active_connection: Given<bool>,
    /// End if Redis was not reached within so long after the start; 0 is never [default: 0]
    #[arg(long, env = "REDIS_STARTUP_MAX_ELAPSED_TIME", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = setting::given(setting::span))]
    pub redis_startup_max_elapsed_time: Given<Span>,
}

/// REDIS_SOCKET_TYPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// TCP.
    Tcp,
    /// A Unix socket.
    Unix,
}

/// How to reach Redis: settings in agreement with each other.
#[derive(Debug, Clone)]
pub struct Connecting {
    /// Where to count.
    pub main: PoolOptions,
    /// Where to count limits whose period is a second, if not there.
    pub per_second: Option<PoolOptions>,
    /// Whether to be healthy only while Redis answers.
    pub health_check_active_connection: bool,
}

impl Settings {
    /// Whether any is set, here or, of those that have no flag, in the environment. To the reference they mean Redis.
    pub fn are_given(&self, environment: &[(String, String)]) -> bool {
        // Taken apart, so that none is forgotten.
        let Self {
            redis_url: Given(url),
            redis_socket_type: Given(socket_type),
            redis_type: Given(redis_type),
            redis_auth: Given(auth),
            redis_tls: Given(tls),
            redis_tls_cacert: Given(cacert),
            redis_tls_client_cert: Given(client_cert),
            redis_tls_client_key: Given(client_key),
            redis_tls_skip_hostname_verification: Given(skip),
            redis_timeout: Given(timeout),
            redis_health_check_active_connection: Given(health_check),
            redis_startup_max_elapsed_time: Given(startup),
        } = self;
        let texts = [url.is_some(), auth.is_some(), cacert.is_some(), client_cert.is_some(), client_key.is_some()];
        let kinds = [socket_type.is_some(), redis_type.is_some()];
        let flags = [tls.is_some(), skip.is_some(), health_check.is_some()];
        let times = [timeout.is_some(), startup.is_some()];
        let is_any = |given: &[bool]| given.contains(&true);
        is_any(&texts)
            || is_any(&kinds)
            || is_any(&flags)
            || is_any(&times)
            || set(environment).any(|(name, _)| without_flag().any(|other| other == name))
    }

    /// How to reach Redis.
    ///
    /// # Errors
    /// The first thing that is wrong, by the setting's name, and what to write instead.
    pub fn connecting(&self, environment: &[(String, String)]) -> Result<Connecting, String> {
        self.resolve(environment).map(|(connecting, _)| connecting)
    }

    /// What is accepted, and has no effect, or another than one might think.
    pub fn warnings(&self, environment: &[(String, String)]) -> Vec<String> {
        self.resolve(environment).map(|(_, warnings)| warnings).unwrap_or_default()
    }

    fn resolve(&self, environment: &[(String, String)]) -> Result<(Connecting, Vec<String>), String> {
        // With BACKEND_TYPE=memory nobody asks, so whoever moves there need not clear it.
        self.redis_type.0.as_deref().map_or(Ok(()), check_type)?;
        let mut warnings = without_effect(environment)?;
        let url_default = if self.redis_socket_type.0 == Some(SocketType::Unix) { SOCKET_DEFAULT } else { URL_DEFAULT };
        let parsed = Address::parse(self.redis_url.0.as_ref().map_or(url_default, Secret::reveal));
        let parsed = parsed.map_err(|error| format!("REDIS_URL {error}"))?;
        warnings.extend(parsed.warnings.into_iter().map(str::to_owned));
        let mut address = parsed.address;
        match self.redis_socket_type.0 {
            Some(SocketType::Unix) if !address.is_socket() => {
                warnings.push("REDIS_SOCKET_TYPE is unix, and REDIS_URL is no path: connecting by TCP".to_owned());
            }
            Some(SocketType::Tcp) if address.is_socket() => {
                warnings.push("REDIS_SOCKET_TYPE is tcp, and REDIS_URL is the path of a socket: connecting to that".to_owned());
            }
            _ => {}
        }
        if let Some(auth) = &self.redis_auth.0 {
            address = address.with_auth(auth);
            if auth.reveal().ends_with('\n') {
                warnings.push("REDIS_AUTH ends with a line break, which is sent as a part of the password".to_owned());
            }
        }
        if address.has_user_alone() {
            warnings.push("Redis is told a user without a password; for a password alone write redis://:password@host:port".to_owned());
        }
        let tls = self.tls()?;
        if address.is_tls() && self.redis_tls.0 == Some(false) {
            warnings.push("REDIS_TLS is false, and REDIS_URL begins with rediss: connecting by TLS".to_owned());
        }
        if address.is_tls() || self.redis_tls.0 == Some(true) {
            address = address.with_tls(&tls).map_err(|error| error.to_string())?;
        } else if tls != Tls::default() {
            warnings.push("REDIS_TLS_* have no effect without REDIS_TLS=true: connecting without TLS".to_owned());
        }
        let connect_timeout = match self.redis_timeout.0 {
            Some(Span::ZERO) => {
                warnings.push("REDIS_TIMEOUT is 0, which would be for ever: connecting may take 10 s".to_owned());
                CONNECT_TIMEOUT_DEFAULT.into()
            }
            timeout => timeout.unwrap_or(CONNECT_TIMEOUT_DEFAULT.into()),
        };
        let health_check_active_connection = self.redis_health_check_active_connection.0.unwrap_or(false);
        let main = PoolOptions { deployment: Deployment::Single(address), connect_timeout };
        Ok((Connecting { main, per_second: None, health_check_active_connection }, warnings))
    }

    fn tls(&self) -> Result<Tls, String> {
        let path = |setting: &Given<String>| setting.0.as_ref().map(PathBuf::from);
        let client = match (path(&self.redis_tls_client_cert), path(&self.redis_tls_client_key)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err("REDIS_TLS_CLIENT_CERT is set, and REDIS_TLS_CLIENT_KEY is not; set both or none".to_owned()),
            (None, Some(_)) => return Err("REDIS_TLS_CLIENT_KEY is set, and REDIS_TLS_CLIENT_CERT is not; set both or none".to_owned()),
        };
        let names = if self.redis_tls_skip_hostname_verification.0 == Some(true) { Names::Any } else { Names::Host };
        Ok(Tls { ca: path(&self.redis_tls_cacert), client, names })
    }
}

/// Settings of the reference about Redis that have no flag here.
pub fn without_flag() -> impl Iterator<Item = &'static str> {
    WITHOUT_EFFECT.map(|(name, _)| name).into_iter().chain([PER_SECOND]).chain(OF_PER_SECOND)
}

/// What is set to something.
fn set(environment: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).filter(|(_, value)| !value.is_empty())
}

fn without_effect(environment: &[(String, String)]) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    let value_of = |wanted: &str| set(environment).find(|(name, _)| *name == wanted).map(|(_, value)| value);
    if let Some(value) = value_of(PER_SECOND)
        && setting::flag(value) != Ok(false)
    {
        return Err(format!(
            "{PER_SECOND} is {value}: limits of a second on a Redis of their own are not supported by this version; unset it"
        ));
    }
    if let Some(name) = OF_PER_SECOND.into_iter().find(|name| value_of(name).is_some()) {
        warnings.push(format!("{name} has no effect: all limits are counted on one Redis"));
    }
    for (name, reason) in WITHOUT_EFFECT {
        if value_of(name).is_some() {
            warnings.push(format!("{name} has no effect: {reason}"));
        }
    }
    Ok(warnings)
}

fn socket_type(text: &str) -> Result<SocketType, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" | "tcp4" | "tcp6" => Ok(SocketType::Tcp),
        "unix" => Ok(SocketType::Unix),
        _ => Err("write tcp or unix".to_owned()),
    }
}

fn check_type(text: &str) -> Result<(), String> {
    match text.to_ascii_lowercase().as_str() {
        "single" => Ok(()),
        "sentinel" | "cluster" => Err(format!("REDIS_TYPE is {text}: this version counts on a single Redis server; write SINGLE")),
        _ => Err(format!("REDIS_TYPE: Unrecognized redis type {text}; write SINGLE")),
    }
}
