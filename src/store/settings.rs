//! Settings of the store.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;

use crate::settings::parse::{self, Given};
use crate::store::redis;
use crate::store::redis::connect::credentials::CredentialFiles;
use crate::time::Span;

/// 256 MiB: three and a half million counters. An operator who has more wants Redis.
const MEMORY_BYTES_MAX_DEFAULT: &str = "268435456";
/// For callers that send no grpc-timeout, or a long one (Istio's samples say 10 s): nobody's page
/// should wait longer for a counter.
const STORE_TIMEOUT_DEFAULT: Duration = Duration::from_millis(100);
/// Whoever waits a minute for a counter does not know that it is one.
const STORE_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// The store.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Store")]
pub struct Settings {
    /// Where to count: memory (one instance) or redis [default: redis if any setting of Redis is
    /// set, else memory]
    #[arg(long, env = "BACKEND_TYPE", default_value = "", hide_default_value = true, value_name = "STORE", value_parser = parse::given(backend_type))]
    pub backend_type: Given<BackendType>,
    /// How much memory counters may take in the memory store; beyond it, those closest to their
    /// reset are forgotten
    #[arg(long, env = "MEMORY_BYTES_MAX", default_value = MEMORY_BYTES_MAX_DEFAULT, value_name = "BYTES", value_parser = parse::bytes)]
    pub memory_bytes_max: u64,
    /// How long a call to Redis may take; what then happens, the rule says [default: 100ms]
    #[arg(long, env = "STORE_TIMEOUT", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = parse::given(store_timeout))]
    pub store_timeout: Given<Span>,
    /// Remember refusals, and save the trip to Redis; in memory there is none to save
    #[arg(long, env = "LOCAL_CACHE_SIZE_IN_BYTES", default_value = "0", value_name = "BYTES", value_parser = parse::bytes)]
    pub local_cache_size_in_bytes: u64,
    /// Keep keys in Redis longer by up to so much, so that not all expire at once; 0 or less keeps
    /// none longer
    #[arg(
        long,
        env = "EXPIRATION_JITTER_MAX_SECONDS",
        default_value = "300",
        value_name = "SECONDS",
        allow_negative_numbers = true
    )]
    pub expiration_jitter_max_seconds: i64,
    /// Redis.
    #[command(flatten)]
    pub redis: redis::settings::Settings,
}

/// BACKEND_TYPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendType {
    /// In this process.
    Memory,
    /// On Redis.
    Redis,
}

/// Where to count, by all settings together.
#[derive(Debug, Clone)]
pub enum BackendChoice {
    /// In this process.
    Memory,
    /// On Redis, of which somebody has to watch what comes from files.
    Redis(Box<redis::Options>, CredentialFiles),
}

impl Settings {
    /// Where to count: as BACKEND_TYPE says; without it on Redis, if anything that is set is about
    /// Redis, else in memory.
    ///
    /// # Errors
    /// What is wrong with the settings of Redis or the files they name, and what to write instead.
    pub fn backend(
        &self,
        environment: &[(String, String)],
        replicas: NonZeroU32,
        key_prefix: &str,
    ) -> Result<BackendChoice, String> {
        if self.backend_type(environment) == BackendType::Memory {
            return Ok(BackendChoice::Memory);
        }
        let connecting = self.redis.connecting(environment)?;
        let options = redis::Options {
            main: connecting.main,
            per_second: connecting.per_second,
            store_timeout: self.store_timeout.0.unwrap_or(STORE_TIMEOUT_DEFAULT.into()),
            required: connecting.health_check_active_connection,
            expiration_jitter_max: Span::from_secs(
                self.expiration_jitter_max_seconds.try_into().unwrap_or(0),
            ),
            over_limit_cache_bytes: self.local_cache_size_in_bytes,
            replicas,
            key_prefix: key_prefix.into(),
            dialer: redis::connect::dialer::Dialer::default(),
        };
        Ok(BackendChoice::Redis(Box::new(options), connecting.secrets))
    }

    /// Within which time after the start Redis has to be reached; `None` if it may come whenever it
    /// comes.
    pub fn must_come_within(&self) -> Option<Span> {
        self.redis
            .redis_startup_max_elapsed_time
            .0
            .filter(|within| *within > Span::ZERO)
    }

    /// What is accepted, and has no effect.
    pub fn warnings(&self, environment: &[(String, String)]) -> Vec<String> {
        let mut warnings = Vec::new();
        match self.backend_type(environment) {
            BackendType::Redis => warnings.extend(self.redis.warnings(environment)),
            BackendType::Memory => {
                if self.redis.are_given(environment) {
                    warnings.push("REDIS_* have no effect with BACKEND_TYPE=memory".to_owned());
                }
                if self.local_cache_size_in_bytes > 0 {
                    warnings.push("LOCAL_CACHE_SIZE_IN_BYTES has no effect with the memory store, which has no trip to save".to_owned());
                }
            }
        }
        warnings
    }

    fn backend_type(&self, environment: &[(String, String)]) -> BackendType {
        let implied = || {
            if self.redis.are_given(environment) {
                BackendType::Redis
            } else {
                BackendType::Memory
            }
        };
        self.backend_type.0.unwrap_or_else(implied)
    }
}

fn backend_type(text: &str) -> Result<BackendType, String> {
    match text {
        "memory" => Ok(BackendType::Memory),
        "redis" => Ok(BackendType::Redis),
        "memcache" => Err(
            "memcached cannot count exactly and is not supported; write redis, or memory"
                .to_owned(),
        ),
        other => Err(format!(
            "Invalid setting for BackendType: {other}; write redis, or memory"
        )),
    }
}

fn store_timeout(text: &str) -> Result<Span, String> {
    let timeout = parse::duration(text)?;
    let is_in_bounds = timeout > Span::ZERO && timeout <= STORE_TIMEOUT_MAX.into();
    if is_in_bounds {
        Ok(timeout)
    } else {
        Err("write a time from 1us to 60s, such as 100ms".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use ::redis::{ErrorKind, RedisError};
    use clap::Parser;

    use super::*;
    use crate::store::redis::connect::address::Address;
    use crate::store::redis::settings::Connecting;
    use crate::store::redis::topology::deployment::{Deployment, SentinelConfig};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        store: Settings,
    }

    /// Reads settings as if they came from the environment, but without touching this process'.
    fn settings(environment: &[(&str, &str)]) -> (Settings, Vec<(String, String)>) {
        let flag = |(name, value): &(&str, &str)| {
            [
                format!("--{}", name.to_lowercase().replace('_', "-")),
                (*value).to_owned(),
            ]
        };
        let with_flag = environment.iter().filter(|(name, _)| {
            <Cli as clap::CommandFactory>::command()
                .get_arguments()
                .any(|known| known.get_env() == Some(name.as_ref()))
        });
        let arguments: Vec<String> = std::iter::once("tollgate".to_owned())
            .chain(with_flag.flat_map(flag))
            .collect();
        let cli = Cli::try_parse_from(arguments)
            .unwrap_or_else(|error| panic!("{environment:?}: {error}"));
        (
            cli.store,
            environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    /// Where is counted, as an operator is shown it; of two, both.
    fn chosen(environment: &[(&str, &str)]) -> Result<String, String> {
        let (settings, environment) = settings(environment);
        if settings.backend_type(&environment) == BackendType::Memory {
            return Ok("memory".to_owned());
        }
        let Connecting {
            main, per_second, ..
        } = settings.redis.connecting(&environment)?;
        let per_second = per_second
            .map(|pool| format!(", {}", pool.deployment))
            .unwrap_or_default();
        Ok(format!("{}{per_second}", main.deployment))
    }

    fn warned(environment: &[(&str, &str)]) -> Vec<String> {
        let (settings, environment) = settings(environment);
        settings.warnings(&environment)
    }

    /// What Kubernetes sets beside Services named `redis`, `redis-persecond` and `redis-tls`.
    const OF_KUBERNETES: &[(&str, &str)] = &[
        ("REDIS_PORT", "tcp://10.96.0.12:6379"),
        ("REDIS_PORT_6379_TCP", "tcp://10.96.0.12:6379"),
        ("REDIS_PORT_6379_TCP_ADDR", "10.96.0.12"),
        ("REDIS_PORT_6379_TCP_PORT", "6379"),
        ("REDIS_PORT_6379_TCP_PROTO", "tcp"),
        ("REDIS_SERVICE_HOST", "10.96.0.12"),
        ("REDIS_SERVICE_PORT", "6379"),
        ("REDIS_SERVICE_PORT_REDIS", "6379"),
        ("REDIS_PERSECOND_PORT", "tcp://10.96.0.13:6379"),
        ("REDIS_PERSECOND_SERVICE_HOST", "10.96.0.13"),
        ("REDIS_TLS_PORT_6379_TCP_ADDR", "10.96.0.14"),
    ];

    const SOCKET: &str = "unix:///var/run/nutcracker/ratelimit.sock";
    const PER_SECOND_SOCKET: &str =
        "redis://127.0.0.1:6379, unix:///var/run/nutcracker/ratelimitpersecond.sock";

    /// Settings, and where they count.
    const CHOICES: &[(&[(&str, &str)], &str)] = &[
        (&[], "memory"),
        (OF_KUBERNETES, "memory"),
        (
            &[
                ("REDIS_URL", ""),
                ("REDIS_TLS", ""),
                ("REDIS_TIMEOUT", ""),
                ("BACKEND_TYPE", ""),
                ("STORE_TIMEOUT", ""),
            ],
            "memory",
        ),
        (&[("REDIS_HOST", "10.0.0.5")], "memory"),
        (
            &[
                ("BACKEND_TYPE", "memory"),
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "a:1,b:2"),
                ("REDIS_PERSECOND", "true"),
            ],
            "memory",
        ),
        (&[("BACKEND_TYPE", "redis")], "redis://127.0.0.1:6379"),
        (
            &[("BACKEND_TYPE", "redis"), ("REDIS_SOCKET_TYPE", "tcp")],
            "redis://127.0.0.1:6379",
        ),
        (
            &[("BACKEND_TYPE", "redis"), ("REDIS_SOCKET_TYPE", "unix")],
            SOCKET,
        ),
        (&[("REDIS_SOCKET_TYPE", "Unix")], SOCKET),
        (&[("REDIS_POOL_SIZE", "20")], "redis://127.0.0.1:6379"),
        (&[("REDIS_PERSECOND", "false")], "redis://127.0.0.1:6379"),
        (&[("REDIS_TLS", "1")], "rediss://127.0.0.1:6379"),
        (
            &[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "redis:6379")],
            "redis://redis:6379",
        ),
        (
            &[("REDIS_SOCKET_TYPE", "unix"), ("REDIS_URL", "redis:6379")],
            "redis://redis:6379",
        ),
        (
            &[
                ("REDIS_SOCKET_TYPE", "tcp"),
                ("REDIS_URL", "/run/redis.sock"),
            ],
            "unix:///run/redis.sock",
        ),
        (
            &[("REDIS_TYPE", "Single"), ("REDIS_URL", "redis:6379")],
            "redis://redis:6379",
        ),
        (
            &[("REDIS_URL", "redis://h:1/3"), ("REDIS_TLS", "true")],
            "rediss://h:1/3",
        ),
        (
            &[("REDIS_URL", "rediss://h:1"), ("REDIS_TLS", "false")],
            "rediss://h:1",
        ),
        (
            &[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b,[::1]:3")],
            "the cluster of redis://a:1, redis://b:6379, redis://[::1]:3",
        ),
        (
            &[("REDIS_TYPE", "Cluster"), ("REDIS_URL", " a:1 , b:2, ")],
            "the cluster of redis://a:1, redis://b:2",
        ),
        (
            &[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "a:1")],
            "the cluster of redis://a:1",
        ),
        (
            &[
                ("REDIS_TYPE", "CLUSTER"),
                ("REDIS_URL", "redis://:p,w@a:1/0"),
            ],
            "the cluster of redis://a:1",
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "rediss://:s3cret@a:1,b:2"),
            ],
            "the cluster of rediss://a:1, rediss://b:2",
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "a:1,b:2"),
                ("REDIS_TLS", "true"),
            ],
            "the cluster of rediss://a:1, rediss://b:2",
        ),
        (
            &[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "my-master,a:1,b")],
            "my-master of the sentinels at redis://a:1, redis://b:26379",
        ),
        (
            &[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "m, [::1]")],
            "m of the sentinels at redis://[::1]:26379",
        ),
        (
            &[
                ("REDIS_TYPE", "sentinel"),
                ("REDIS_URL", "m,redis://u:s3cret@a"),
                ("REDIS_TLS", "1"),
            ],
            "m of the sentinels at rediss://a:26379",
        ),
        (
            &[("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "b:2")],
            "redis://127.0.0.1:6379, redis://b:2",
        ),
        (
            &[
                ("REDIS_PERSECOND", "true"),
                ("REDIS_PERSECOND_SOCKET_TYPE", "unix"),
            ],
            PER_SECOND_SOCKET,
        ),
        (
            &[
                ("REDIS_URL", "a:1"),
                ("REDIS_PERSECOND", "1"),
                ("REDIS_PERSECOND_URL", "b:2"),
                ("REDIS_PERSECOND_TLS", "true"),
            ],
            "redis://a:1, rediss://b:2",
        ),
        (
            &[
                ("REDIS_URL", "a:1"),
                ("REDIS_PERSECOND", "1"),
                ("REDIS_PERSECOND_TYPE", "sentinel"),
                ("REDIS_PERSECOND_URL", "m,b:2"),
            ],
            "redis://a:1, m of the sentinels at redis://b:2",
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "a:1"),
                ("REDIS_PERSECOND", "1"),
                ("REDIS_PERSECOND_URL", "b:2"),
            ],
            "the cluster of redis://a:1, redis://b:2",
        ),
    ];

    #[test]
    fn what_is_set_decides_where_to_count() {
        for (environment, expected) in CHOICES {
            assert_eq!(
                chosen(environment).as_deref(),
                Ok(*expected),
                "{environment:?}"
            );
        }
    }

    /// Settings that cannot be together, and what the message begins with.
    const REFUSED: &[(&[(&str, &str)], &str)] = &[
        (
            &[("REDIS_TYPE", "ring")],
            "REDIS_TYPE: Unrecognized redis type ring; write SINGLE, SENTINEL or CLUSTER",
        ),
        (
            &[("REDIS_URL", "redis:port")],
            "REDIS_URL has a port that is not from 1 to 65535",
        ),
        (
            &[("REDIS_URL", "app:s3cret@redis:6379")],
            "REDIS_URL has a user or password but no scheme; expected redis://user:password@host:port, or set REDIS_AUTH",
        ),
        (
            &[("REDIS_URL", "a:1,b:2")],
            "REDIS_URL is a list of addresses: set REDIS_TYPE to CLUSTER or SENTINEL, or write the one server",
        ),
        (
            &[("REDIS_TYPE", "single"), ("REDIS_URL", "mymaster,a:1")],
            "REDIS_URL is a list of addresses: set REDIS_TYPE to CLUSTER or SENTINEL",
        ),
        (
            &[("REDIS_TYPE", "cluster"), ("REDIS_URL", ",")],
            "REDIS_URL has no address; write host:port,host:port",
        ),
        (
            &[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:port")],
            "REDIS_URL has a port that is not from 1 to 65535",
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "redis://a:1,redis://b:1/3"),
            ],
            "REDIS_URL has the number of a database, and REDIS_TYPE is not",
        ),
        (
            &[("REDIS_TYPE", "cluster"), ("REDIS_URL", "/run/redis.sock")],
            "REDIS_URL has the path of a socket, and REDIS_TYPE is not SINGLE",
        ),
        (
            &[("REDIS_TYPE", "cluster"), ("REDIS_SOCKET_TYPE", "unix")],
            "REDIS_URL has the path of a socket, and REDIS_TYPE is not SINGLE",
        ),
        (
            &[("REDIS_TYPE", "sentinel")],
            "REDIS_URL: Expected master name and a list of urls for the sentinels; write mymaster,host:port",
        ),
        (
            &[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "mymaster, ,")],
            "REDIS_URL: Expected master name and a list of urls for the sentinels",
        ),
        (
            &[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "a:1,b:2")],
            "REDIS_URL does not begin with the name of a master",
        ),
        (
            &[
                ("REDIS_TYPE", "sentinel"),
                ("REDIS_URL", "redis://:s3cret@a,b:2"),
            ],
            "REDIS_URL does not begin with the name of a master",
        ),
        (
            &[("REDIS_TYPE", "sentinel"), ("REDIS_URL", ",b:2")],
            "REDIS_URL does not begin with the name of a master",
        ),
        (
            &[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "m,redis://b:2/3")],
            "REDIS_URL has the number of a database, and REDIS_TYPE is not",
        ),
        (
            &[
                ("REDIS_TYPE", "sentinel"),
                ("REDIS_URL", "m,b:2,unix:/run/s"),
            ],
            "REDIS_URL has the path of a socket, and REDIS_TYPE is not",
        ),
        (
            &[("REDIS_PERSECOND", "true")],
            "REDIS_PERSECOND_URL is not set; write the server's host:port, or set REDIS_PERSECOND_SOCKET_TYPE",
        ),
        (
            &[
                ("REDIS_PERSECOND", "1"),
                ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
            ],
            "REDIS_PERSECOND_URL is not set; write the server's host:port",
        ),
        (
            &[("REDIS_PERSECOND", "1"), ("REDIS_PERSECOND_URL", "a,b")],
            "REDIS_PERSECOND_URL is a list of addresses: set REDIS_PERSECOND_TYPE",
        ),
        (
            &[("REDIS_PERSECOND", "1"), ("REDIS_PERSECOND_URL", "a@b")],
            "REDIS_PERSECOND_URL has a user or password but no scheme",
        ),
        (
            &[("REDIS_PERSECOND", "1"), ("REDIS_PERSECOND_TYPE", "ring")],
            "REDIS_PERSECOND_TYPE: Unrecognized redis type ring",
        ),
        (
            &[
                ("REDIS_PERSECOND", "1"),
                ("REDIS_PERSECOND_URL", "/s"),
                ("REDIS_PERSECOND_TLS", "1"),
            ],
            "REDIS_PERSECOND_TLS: there is no TLS on a Unix socket; set it to false, or write the server's host:port into REDIS_PERSECOND_URL",
        ),
        (
            &[("REDIS_AUTH", "s3cret"), ("REDIS_AUTH_FILE", "/f")],
            "REDIS_AUTH and REDIS_AUTH_FILE are both set; set one of them",
        ),
        (
            &[("REDIS_AUTH_FILE", "/no/password")],
            "REDIS_AUTH_FILE: /no/password: No such file or directory",
        ),
        (
            &[
                ("REDIS_TYPE", "sentinel"),
                ("REDIS_URL", "m,a"),
                ("REDIS_SENTINEL_AUTH_FILE", "/no/password"),
            ],
            "REDIS_SENTINEL_AUTH_FILE: /no/password: No such file or directory",
        ),
        (
            &[
                ("REDIS_PERSECOND", "1"),
                ("REDIS_PERSECOND_URL", "a"),
                ("REDIS_PERSECOND_AUTH_FILE", "/no/password"),
            ],
            "REDIS_PERSECOND_AUTH_FILE: /no/password: No such file or directory",
        ),
        (
            &[("REDIS_URL", "/run/redis.sock"), ("REDIS_TLS", "true")],
            "REDIS_TLS: there is no TLS on a Unix socket",
        ),
        (
            &[("REDIS_TLS", "true"), ("REDIS_TLS_CLIENT_CERT", "/c.pem")],
            "REDIS_TLS_CLIENT_CERT is set, and REDIS_TLS_CLIENT_KEY is not",
        ),
        (
            &[("REDIS_TLS", "true"), ("REDIS_TLS_CLIENT_KEY", "/k.pem")],
            "REDIS_TLS_CLIENT_KEY is set, and REDIS_TLS_CLIENT_CERT is not",
        ),
        (
            &[("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "/no/ca.pem")],
            "REDIS_TLS_CACERT: /no/ca.pem: No such file or directory",
        ),
    ];

    #[test]
    fn settings_that_cannot_be_together_are_refused_by_name() {
        for (environment, expected) in REFUSED {
            let error = chosen(environment).expect_err("it is refused");
            assert!(error.starts_with(expected), "{environment:?}: {error}");
            assert!(!error.contains("s3cret"), "{environment:?}: {error}");
        }
    }

    /// Settings, and what the only warning contains.
    const WARNED: &[(&[(&str, &str)], &str)] = &[
        (
            &[("REDIS_POOL_SIZE", "20")],
            "REDIS_POOL_SIZE has no effect: one connection per thread carries all calls",
        ),
        (
            &[("REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "true")],
            "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR has no effect: connections whose server replies READONLY are always closed, about one a second",
        ),
        (
            &[("REDIS_STARTUP_MAX_INTERVAL", "1m")],
            "the service starts without Redis and picks it up",
        ),
        (
            &[("REDIS_SENTINEL_AUTH", "s3cret")],
            "REDIS_SENTINEL_AUTH has no effect: REDIS_TYPE is not SENTINEL",
        ),
        (
            &[("REDIS_SENTINEL_AUTH_FILE", "/f")],
            "REDIS_SENTINEL_AUTH_FILE has no effect: REDIS_TYPE is not SENTINEL",
        ),
        (
            &[
                ("REDIS_PERSECOND_URL", "/s"),
                ("REDIS_PERSECOND_AUTH", "s3cret"),
            ],
            "REDIS_PERSECOND_URL has no effect without REDIS_PERSECOND=true",
        ),
        (
            &[
                ("REDIS_PERSECOND", "false"),
                ("REDIS_PERSECOND_POOL_SIZE", "9"),
            ],
            "REDIS_PERSECOND_POOL_SIZE has no effect without",
        ),
        (
            &[
                ("REDIS_PERSECOND", "true"),
                ("REDIS_PERSECOND_URL", "h"),
                ("REDIS_PERSECOND_POOL_SIZE", "9"),
            ],
            "REDIS_PERSECOND_POOL_SIZE has no effect: one connection per thread carries all calls",
        ),
        (
            &[
                ("REDIS_PERSECOND", "true"),
                ("REDIS_PERSECOND_URL", "h"),
                ("REDIS_PERSECOND_TIMEOUT", "0"),
            ],
            "REDIS_PERSECOND_TIMEOUT is 0, which would be for ever",
        ),
        (
            &[("REDIS_CLUSTER_PIPELINE_PARALLELISM", "4")],
            "all nodes of a cluster are asked at the same time",
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "redis://:s3cret@a,redis://:other@b"),
            ],
            "REDIS_URL has several users or passwords",
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "a,redis://:s3cret@b"),
            ],
            "those of the first address count for all",
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "redis://a,rediss://b"),
            ],
            "REDIS_URL has addresses with TLS and without",
        ),
        (
            &[
                ("REDIS_TYPE", "sentinel"),
                ("REDIS_URL", "m,rediss://a,redis://b"),
            ],
            "REDIS_URL has addresses with TLS and without",
        ),
        (
            &[("REDIS_SOCKET_TYPE", "unix"), ("REDIS_URL", "redis:6379")],
            "connecting by TCP",
        ),
        (
            &[
                ("REDIS_SOCKET_TYPE", "tcp"),
                ("REDIS_URL", "/run/redis.sock"),
            ],
            "connecting to that",
        ),
        (
            &[("REDIS_URL", "rediss://h"), ("REDIS_TLS", "false")],
            "connecting by TLS",
        ),
        (
            &[("REDIS_URL", "h"), ("REDIS_TLS_CACERT", "/ca.pem")],
            "REDIS_TLS_* have no effect without REDIS_TLS=true",
        ),
        (
            &[("REDIS_URL", "redis://s3cret@h")],
            "a user without a password",
        ),
        (
            &[("REDIS_URL", "h"), ("REDIS_AUTH", "s3cret\n")],
            "REDIS_AUTH ends with a line break",
        ),
        (
            &[("REDIS_URL", "h"), ("REDIS_TIMEOUT", "0")],
            "connecting may take 10 s",
        ),
        (
            &[("REDIS_URL", "redis://h?protocol=3")],
            "only db, username and password have an effect",
        ),
        (
            &[("BACKEND_TYPE", "memory"), ("REDIS_URL", "redis:6379")],
            "REDIS_* have no effect with BACKEND_TYPE=memory",
        ),
        (
            &[("LOCAL_CACHE_SIZE_IN_BYTES", "1")],
            "LOCAL_CACHE_SIZE_IN_BYTES has no effect with the memory store",
        ),
    ];

    #[test]
    fn what_has_no_effect_is_warned_about() {
        for (environment, expected) in WARNED {
            let warnings = warned(environment);
            assert!(
                warnings.len() == 1 && warnings[0].contains(expected),
                "{environment:?}: {warnings:?}"
            );
            assert!(!warnings[0].contains("s3cret"), "{warnings:?}");
        }
    }

    #[test]
    fn what_has_an_effect_and_what_is_nobodys_mistake_is_not_warned_about() {
        let with_redis = &[
            ("REDIS_URL", "redis:6379"),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "1"),
            ("REDIS_SOCKET_TYPE", "tcp"),
        ][..];
        let a_list = &[
            ("REDIS_TYPE", "cluster"),
            (
                "REDIS_URL",
                "redis://:s3cret@a,redis://:s3cret@b,c,redis://d",
            ),
            ("REDIS_AUTH", "x"),
        ][..];
        let per_second = &[
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", "h"),
            ("REDIS_PERSECOND_AUTH", "s3cret"),
        ][..];
        let foreign = &[
            ("REDIS_HOST", "h"),
            ("REDIS_PASSWORD", "s3cret"),
            ("REDIS_PORT", "6379"),
        ][..];
        for environment in [OF_KUBERNETES, with_redis, a_list, per_second, foreign] {
            assert_eq!(warned(environment), Vec::<String>::new(), "{environment:?}");
        }
    }

    #[test]
    fn a_store_on_redis_has_bounds_whatever_is_set() {
        let redis = |environment: &[(&str, &str)]| {
            let (settings, environment) = settings(environment);
            match settings
                .backend(&environment, NonZeroU32::MIN, "")
                .expect("it is good")
            {
                BackendChoice::Redis(redis, _) => redis,
                BackendChoice::Memory => panic!("{environment:?} means Redis"),
            }
        };
        let default = redis(&[("REDIS_URL", "h")]);
        assert_eq!(
            (default.store_timeout, default.main.connect_timeout),
            (Span::from_micros(100_000), Span::from_secs(10))
        );
        assert_eq!(
            (
                default.expiration_jitter_max,
                default.over_limit_cache_bytes
            ),
            (Span::from_secs(300), 0)
        );
        assert!(!default.required);
        let set = redis(&[
            ("REDIS_URL", "h"),
            ("STORE_TIMEOUT", "15ms"),
            ("REDIS_TIMEOUT", "1s"),
            ("EXPIRATION_JITTER_MAX_SECONDS", "-1"),
        ]);
        assert_eq!(
            (set.store_timeout, set.main.connect_timeout),
            (Span::from_micros(15_000), Span::from_secs(1))
        );
        assert_eq!(set.expiration_jitter_max, Span::ZERO);
        assert!(
            store_timeout("0").is_err()
                && store_timeout("61s").is_err()
                && store_timeout("60s").is_ok()
        );
    }

    /// Settings, what servers are told (user and password), and what sentinels are.
    type Entries = (
        &'static [(&'static str, &'static str)],
        (&'static str, &'static str),
        Option<(&'static str, &'static str)>,
    );
    const ENTRIES: &[Entries] = &[
        (
            &[("REDIS_URL", "h"), ("REDIS_AUTH", "a:1st")],
            ("a", "1st"),
            None,
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "redis://a:1st@h,i,redis://b:2nd@j"),
            ],
            ("a", "1st"),
            None,
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "h,redis://b:2nd@i"),
            ],
            ("", ""),
            None,
        ),
        (
            &[
                ("REDIS_TYPE", "cluster"),
                ("REDIS_URL", "redis://a:1st@h,i"),
                ("REDIS_AUTH", "3rd"),
            ],
            ("a", "3rd"),
            None,
        ),
        (
            &[
                ("REDIS_TYPE", "sentinel"),
                ("REDIS_URL", "m,h,i"),
                ("REDIS_AUTH", "a:1st"),
            ],
            ("a", "1st"),
            Some(("", "")),
        ),
        (
            &[
                ("REDIS_TYPE", "sentinel"),
                ("REDIS_URL", "m,h,i"),
                ("REDIS_SENTINEL_AUTH", "s:2nd"),
            ],
            ("", ""),
            Some(("s", "2nd")),
        ),
        (
            &[
                ("REDIS_TYPE", "sentinel"),
                ("REDIS_URL", "m,redis://s:2nd@h,i"),
                ("REDIS_AUTH", "1st"),
            ],
            ("", "1st"),
            Some(("s", "2nd")),
        ),
    ];

    #[test]
    fn servers_and_sentinels_are_each_told_what_is_theirs() {
        for (environment, of_servers, of_sentinels) in ENTRIES {
            let told = |addresses: &[Address], expected: &(&str, &str)| {
                for address in addresses {
                    let info = address.connection_info();
                    let settings = info.redis_settings();
                    let (user, password) = (
                        settings.username().unwrap_or_default(),
                        settings.password().unwrap_or_default(),
                    );
                    assert_eq!((user, password), *expected, "{environment:?}: {address}");
                }
            };
            let (settings, environment) = settings(environment);
            match settings
                .redis
                .connecting(&environment)
                .expect("it is good")
                .main
                .deployment
            {
                Deployment::Single(address) => told(&[address], of_servers),
                Deployment::Cluster(seeds) => told(&seeds, of_servers),
                Deployment::Sentinel(SentinelConfig {
                    sentinels, server, ..
                }) => {
                    told(&sentinels, &of_sentinels.expect("there are sentinels"));
                    told(&[server.at("10.0.0.9", 7_000)], of_servers);
                }
            }
        }
    }

    #[test]
    fn what_is_wrong_with_credentials_is_told_by_the_setting_that_has_them() {
        let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
        let path = directory.path().join("password");
        std::fs::write(&path, "s3cret").expect("a file can be written");
        let path = path
            .to_str()
            .expect("temporary directories have plain names");
        let wrong = RedisError::from((ErrorKind::AuthenticationFailed, "no"));
        let explained = |settings: &[(&str, &str)]| {
            let (settings, environment) = self::settings(
                &[
                    settings,
                    &[("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "p")],
                ]
                .concat(),
            );
            let Connecting {
                main, per_second, ..
            } = settings.redis.connecting(&environment).expect("it is good");
            let deployments = [main, per_second.expect("it is set")].map(|pool| pool.deployment);
            let addresses = deployments
                .into_iter()
                .flat_map(|deployment| match deployment {
                    Deployment::Single(address) => vec![address],
                    Deployment::Cluster(seeds) => seeds,
                    Deployment::Sentinel(SentinelConfig {
                        sentinels, server, ..
                    }) => [sentinels, vec![server.at("s", 1)]].concat(),
                });
            addresses
                .map(|address| address.explain(&wrong))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let said = explained(&[
            ("REDIS_TYPE", "sentinel"),
            ("REDIS_URL", "m,h"),
            ("REDIS_AUTH_FILE", path),
        ]);
        for expected in [
            "redis://h:26379 rejects the user or password (WRONGPASS), or has none; check REDIS_SENTINEL_AUTH and REDIS_URL",
            "redis://s:1 rejects the user or password (WRONGPASS), or has none; check REDIS_AUTH_FILE and REDIS_URL",
            "redis://p:6379 rejects the user or password (WRONGPASS), or has none; check REDIS_PERSECOND_AUTH and REDIS_PERSECOND_URL",
        ] {
            assert!(said.contains(expected), "{expected} is missing in {said}");
        }
    }

    #[test]
    fn settings_show_no_credentials() {
        let (settings, environment) = settings(&[
            ("REDIS_URL", "redis://app:s3cret@h:1"),
            ("REDIS_AUTH", "app:s3cret"),
        ]);
        let shown = format!(
            "{settings:?} {:?}",
            settings.backend(&environment, NonZeroU32::MIN, "")
        );
        assert!(
            !shown.contains("s3cret") && shown.contains("redis://h:1"),
            "{shown}"
        );
    }
}
