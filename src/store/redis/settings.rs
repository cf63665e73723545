//! Settings of Redis: what the reference's environment says about it, and what becomes of it here.
//!
//! There may be two: one for all limits, or for all but those of a second, and one for these. Both
//! are set in the same way, by names that begin differently, and read by the same code (`Said`).

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::settings::parse::{self, Given, Secret};
use crate::store::redis::connect::address::{Address, AddressSettings};
use crate::store::redis::connect::credentials::{AuthFile, CredentialFiles, Reloadable};
use crate::store::redis::connect::parse::{self as parse_address, AddressError, ServerKind};
use crate::store::redis::connect::tls::{Names, Tls, TlsClient};
use crate::store::redis::topology::deployment::{Deployment, PoolOptions, SentinelConfig};
use crate::time::Span;

/// Where Redis is if nobody says. The reference looks for the next one, which is nobody's default
/// any more.
const URL_DEFAULT: &str = "127.0.0.1:6379";
/// Where the reference looks for a socket. Only with REDIS_SOCKET_TYPE=unix.
const SOCKET_DEFAULT: &str = "/var/run/nutcracker/ratelimit.sock";
/// Where it looks for that of the second Redis. Only with REDIS_PERSECOND_SOCKET_TYPE=unix: two
/// servers on one port are nobody's default.
const PER_SECOND_SOCKET_DEFAULT: &str = "/var/run/nutcracker/ratelimitpersecond.sock";
/// As in the reference.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// What the settings of one Redis are called.
struct SettingNames {
    socket_type: &'static str,
    redis_type: &'static str,
    url: &'static str,
    auth: &'static str,
    auth_file: &'static str,
    tls: &'static str,
    timeout: &'static str,
    sentinel_auth: &'static str,
    sentinel_auth_file: &'static str,
    /// Settings of the reference that have nothing to do here, and why.
    without_effect: [(&'static str, &'static str); 6],
}

macro_rules! names {
    ($redis:literal) => {
        SettingNames {
            socket_type: concat!($redis, "_SOCKET_TYPE"),
            redis_type: concat!($redis, "_TYPE"),
            url: concat!($redis, "_URL"),
            auth: concat!($redis, "_AUTH"),
            auth_file: concat!($redis, "_AUTH_FILE"),
            tls: concat!($redis, "_TLS"),
            timeout: concat!($redis, "_TIMEOUT"),
            sentinel_auth: concat!($redis, "_SENTINEL_AUTH"),
            sentinel_auth_file: concat!($redis, "_SENTINEL_AUTH_FILE"),
            without_effect: [
                (
                    concat!($redis, "_POOL_SIZE"),
                    "one connection per thread carries all calls to a server",
                ),
                (
                    concat!($redis, "_PIPELINE_WINDOW"),
                    "calls that come together are sent together, without waiting for more",
                ),
                (
                    concat!($redis, "_PIPELINE_LIMIT"),
                    "calls that come together are sent together, without waiting for more",
                ),
                (
                    concat!($redis, "_CLUSTER_PIPELINE_PARALLELISM"),
                    "all nodes of a cluster are asked at the same time",
                ),
                (
                    concat!($redis, "_POOL_ON_EMPTY_BEHAVIOR"),
                    "one connection per thread carries all calls, and no call waits for another's",
                ),
                (
                    concat!($redis, "_POOL_ON_EMPTY_WAIT_DURATION"),
                    "one connection per thread carries all calls, and no call waits for another's",
                ),
            ],
        }
    };
}

static MAIN: SettingNames = names!("REDIS");
static PER_SECOND: SettingNames = names!("REDIS_PERSECOND");

/// Settings of the reference that have nothing to do here, and why.
const WITHOUT_EFFECT: [(&str, &str); 3] = [
    (
        "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
        "connections whose server replies READONLY are always closed, about one a second",
    ),
    (
        "REDIS_STARTUP_INITIAL_INTERVAL",
        "the service starts without Redis and picks it up",
    ),
    (
        "REDIS_STARTUP_MAX_INTERVAL",
        "the service starts without Redis and picks it up",
    ),
];

/// Redis.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Redis")]
pub struct Settings {
    /// Where Redis is: host:port, the path of a socket, or a URL of redis://, rediss:// (with TLS)
    /// or unix://; of a cluster host:port,host:port and so on, of Sentinel
    /// master,host:port,host:port and so on [default: 127.0.0.1:6379; with REDIS_SOCKET_TYPE=unix
    /// /var/run/nutcracker/ratelimit.sock]
    #[arg(long, env = "REDIS_URL", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "ADDRESS", value_parser = parse::given(Secret::read))]
    pub redis_url: Given<Secret>,
    /// tcp or unix; only looked at without REDIS_URL, which shows what it is [default: tcp]
    #[arg(long, env = "REDIS_SOCKET_TYPE", default_value = "", hide_default_value = true, value_name = "TYPE", value_parser = parse::given(socket_type))]
    pub redis_socket_type: Given<SocketType>,
    /// SINGLE, SENTINEL or CLUSTER [default: SINGLE]
    #[arg(long, env = "REDIS_TYPE", default_value = "", hide_default_value = true, value_name = "TYPE", value_parser = parse::given(parse::text))]
    pub redis_type: Given<String>,
    /// Password, or user:password; wins over the one in REDIS_URL
    #[arg(long, env = "REDIS_AUTH", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "PASSWORD", value_parser = parse::given(Secret::read))]
    pub redis_auth: Given<Secret>,
    /// A file with the same in one line, read again when it changes
    #[arg(long, env = "REDIS_AUTH_FILE", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub redis_auth_file: Given<String>,
    /// Password, or user:password, of the sentinels
    #[arg(long, env = "REDIS_SENTINEL_AUTH", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "PASSWORD", value_parser = parse::given(Secret::read))]
    pub redis_sentinel_auth: Given<Secret>,
    /// A file with the same in one line, read again when it changes
    #[arg(long, env = "REDIS_SENTINEL_AUTH_FILE", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub redis_sentinel_auth_file: Given<String>,
    /// Connect by TLS, as rediss:// does, also to the sentinels [default: false]
    #[arg(long, env = "REDIS_TLS", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub redis_tls: Given<bool>,
    /// The only authority to trust, a PEM file, read again when it changes [default: the system's
    /// authorities]
    #[arg(long, env = "REDIS_TLS_CACERT", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub redis_tls_cacert: Given<String>,
    /// Certificate to show to Redis, a PEM file, read again when it changes
    #[arg(long, env = "REDIS_TLS_CLIENT_CERT", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub redis_tls_client_cert: Given<String>,
    /// Its key, a PEM file
    #[arg(long, env = "REDIS_TLS_CLIENT_KEY", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub redis_tls_client_key: Given<String>,
    /// Take certificates of any name, if a trusted authority has signed them [default: false]
    #[arg(long, env = "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub redis_tls_skip_hostname_verification: Given<bool>,
    /// How long making a connection may take; STORE_TIMEOUT bounds the calls on it [default: 10s]
    #[arg(long, env = "REDIS_TIMEOUT", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = parse::given(parse::duration))]
    pub redis_timeout: Given<Span>,
    /// Be healthy only while Redis answers [default: false]
    #[arg(long, env = "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub redis_health_check_active_connection: Given<bool>,
    /// End if Redis was not reached within so long after the start; 0 is never [default: 0]
    #[arg(long, env = "REDIS_STARTUP_MAX_ELAPSED_TIME", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = parse::given(parse::duration))]
    pub redis_startup_max_elapsed_time: Given<Span>,
    /// The second Redis.
    #[command(flatten)]
    pub per_second: PerSecondSettings,
}

/// A second Redis, for limits whose period is a second. The files of TLS are those of the first.
#[derive(Debug, Clone, Args)]
#[group(skip)]
#[command(next_help_heading = "Redis for limits of a second")]
pub struct PerSecondSettings {
    /// Count limits of a second on a Redis of their own [default: false]
    #[arg(long, env = "REDIS_PERSECOND", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub redis_persecond: Given<bool>,
    /// Where it is, as REDIS_URL [default: none; with REDIS_PERSECOND_SOCKET_TYPE=unix
    /// /var/run/nutcracker/ratelimitpersecond.sock]
    #[arg(long, env = "REDIS_PERSECOND_URL", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "ADDRESS", value_parser = parse::given(Secret::read))]
    pub redis_persecond_url: Given<Secret>,
    /// tcp or unix, as REDIS_SOCKET_TYPE [default: tcp]
    #[arg(long, env = "REDIS_PERSECOND_SOCKET_TYPE", default_value = "", hide_default_value = true, value_name = "TYPE", value_parser = parse::given(socket_type))]
    pub redis_persecond_socket_type: Given<SocketType>,
    /// SINGLE, SENTINEL or CLUSTER [default: SINGLE]
    #[arg(long, env = "REDIS_PERSECOND_TYPE", default_value = "", hide_default_value = true, value_name = "TYPE", value_parser = parse::given(parse::text))]
    pub redis_persecond_type: Given<String>,
    /// Password, or user:password; wins over the one in REDIS_PERSECOND_URL
    #[arg(long, env = "REDIS_PERSECOND_AUTH", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "PASSWORD", value_parser = parse::given(Secret::read))]
    pub redis_persecond_auth: Given<Secret>,
    /// A file with the same in one line, read again when it changes
    #[arg(long, env = "REDIS_PERSECOND_AUTH_FILE", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub redis_persecond_auth_file: Given<String>,
    /// Password, or user:password, of its sentinels
    #[arg(long, env = "REDIS_PERSECOND_SENTINEL_AUTH", default_value = "", hide_default_value = true, hide_env_values = true, value_name = "PASSWORD", value_parser = parse::given(Secret::read))]
    pub redis_persecond_sentinel_auth: Given<Secret>,
    /// A file with the same in one line, read again when it changes
    #[arg(long, env = "REDIS_PERSECOND_SENTINEL_AUTH_FILE", default_value = "", hide_default_value = true, value_name = "FILE", value_parser = parse::given(parse::text))]
    pub redis_persecond_sentinel_auth_file: Given<String>,
    /// Connect by TLS, also to its sentinels, with the files of REDIS_TLS_* [default: false]
    #[arg(long, env = "REDIS_PERSECOND_TLS", default_value = "", hide_default_value = true, value_name = "BOOL", value_parser = parse::given(parse::boolean), num_args = 0..=1, default_missing_value = "true")]
    pub redis_persecond_tls: Given<bool>,
    /// How long making a connection may take [default: 10s]
    #[arg(long, env = "REDIS_PERSECOND_TIMEOUT", default_value = "", hide_default_value = true, value_name = "DURATION", value_parser = parse::given(parse::duration))]
    pub redis_persecond_timeout: Given<Span>,
}

/// REDIS_SOCKET_TYPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// TCP.
    Tcp,
    /// A Unix socket.
    Unix,
}

/// REDIS_TYPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeploymentType {
    Single,
    Sentinel,
    Cluster,
}

/// How to reach Redis: settings in agreement with each other.
#[derive(Debug, Clone)]
pub struct Connecting {
    /// Where to count.
    pub main: PoolOptions,
    /// Where to count limits whose period is a second, if not there.
    pub per_second: Option<PoolOptions>,
    /// What of it comes from files, and comes anew if somebody watches them.
    pub secrets: CredentialFiles,
    /// Whether to be healthy only while Redis answers.
    pub health_check_active_connection: bool,
}

/// What is set for one Redis.
struct Said<'a> {
    names: &'static SettingNames,
    /// Where it is if nobody says; `None` if somebody has to.
    url_default: Option<&'static str>,
    url: Option<&'a Secret>,
    socket_type: Option<SocketType>,
    redis_type: Option<&'a str>,
    auth: SaidAuth<'a>,
    sentinel_auth: SaidAuth<'a>,
    tls: Option<bool>,
    timeout: Option<Span>,
}

/// Credentials, as they are or in a file.
struct SaidAuth<'a> {
    setting: &'static str,
    secret: Option<&'a Secret>,
    file_setting: &'static str,
    file: Option<&'a str>,
}

/// What both have in common, and what comes of reading them besides.
struct Reading {
    tls: Tls,
    /// Made of the files as soon as one of the two connects by TLS.
    tls_client: Option<Reloadable<TlsClient>>,
    secrets: CredentialFiles,
    /// Whole sentences about what has no effect, or another than one might think.
    warnings: Vec<String>,
}

impl Settings {
    /// Whether any is set, here or, of those that have no flag, in the environment. To the
    /// reference they mean Redis.
    pub fn are_given(&self, environment: &[(String, String)]) -> bool {
        // Taken apart, so that none is forgotten.
        let Self {
            redis_url: Given(url),
            redis_socket_type: Given(socket_type),
            redis_type: Given(redis_type),
            redis_auth: Given(auth),
            redis_auth_file: Given(auth_file),
            redis_sentinel_auth: Given(sentinel_auth),
            redis_sentinel_auth_file: Given(sentinel_auth_file),
            redis_tls: Given(tls),
            redis_tls_cacert: Given(cacert),
            redis_tls_client_cert: Given(client_cert),
            redis_tls_client_key: Given(client_key),
            redis_tls_skip_hostname_verification: Given(skip),
            redis_timeout: Given(timeout),
            redis_health_check_active_connection: Given(health_check),
            redis_startup_max_elapsed_time: Given(startup),
            per_second,
        } = self;
        let secrets = [url.is_some(), auth.is_some(), sentinel_auth.is_some()];
        let files = [
            auth_file,
            sentinel_auth_file,
            cacert,
            client_cert,
            client_key,
        ]
        .map(Option::is_some);
        let kinds = [socket_type.is_some(), redis_type.is_some()];
        let flags = [tls, skip, health_check].map(Option::is_some);
        let times = [timeout, startup].map(Option::is_some);
        let is_any = |given: &[bool]| given.contains(&true);
        [&secrets[..], &files, &kinds, &flags, &times]
            .into_iter()
            .any(is_any)
            || per_second.redis_persecond.0.is_some()
            || per_second.given().is_some()
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
        self.resolve(environment)
            .map(|(_, warnings)| warnings)
            .unwrap_or_default()
    }

    fn resolve(
        &self,
        environment: &[(String, String)],
    ) -> Result<(Connecting, Vec<String>), String> {
        let mut reading = Reading {
            tls: self.tls()?,
            tls_client: None,
            secrets: CredentialFiles::default(),
            warnings: Vec::new(),
        };
        reading.warn_of(&WITHOUT_EFFECT, environment);
        let main = self.main().resolve(environment, &mut reading)?;
        let per_second = self.per_second.resolve(environment, &mut reading)?;
        if reading.tls_client.is_none() && reading.tls != Tls::default() {
            reading
                .warn("REDIS_TLS_* have no effect without REDIS_TLS=true: connecting without TLS");
        }
        let health_check_active_connection =
            self.redis_health_check_active_connection.0.unwrap_or(false);
        let Reading {
            secrets, warnings, ..
        } = reading;
        Ok((
            Connecting {
                main,
                per_second,
                secrets,
                health_check_active_connection,
            },
            warnings,
        ))
    }

    fn main(&self) -> Said<'_> {
        let url_default = if self.redis_socket_type.0 == Some(SocketType::Unix) {
            SOCKET_DEFAULT
        } else {
            URL_DEFAULT
        };
        Said {
            names: &MAIN,
            url_default: Some(url_default),
            url: self.redis_url.0.as_ref(),
            socket_type: self.redis_socket_type.0,
            redis_type: self.redis_type.0.as_deref(),
            auth: SaidAuth::of(&MAIN, &self.redis_auth, &self.redis_auth_file),
            sentinel_auth: SaidAuth::of_sentinels(
                &MAIN,
                &self.redis_sentinel_auth,
                &self.redis_sentinel_auth_file,
            ),
            tls: self.redis_tls.0,
            timeout: self.redis_timeout.0,
        }
    }

    fn tls(&self) -> Result<Tls, String> {
        let path = |setting: &Given<String>| setting.0.as_ref().map(PathBuf::from);
        let client = match (
            path(&self.redis_tls_client_cert),
            path(&self.redis_tls_client_key),
        ) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err(
                "REDIS_TLS_CLIENT_CERT is set, and REDIS_TLS_CLIENT_KEY is not; set both or none"
                    .to_owned(),
            ),
            (None, Some(_)) => return Err(
                "REDIS_TLS_CLIENT_KEY is set, and REDIS_TLS_CLIENT_CERT is not; set both or none"
                    .to_owned(),
            ),
        };
        let names = if self.redis_tls_skip_hostname_verification.0 == Some(true) {
            Names::Any
        } else {
            Names::Host
        };
        Ok(Tls {
            ca: path(&self.redis_tls_cacert),
            client,
            names,
        })
    }
}

impl PerSecondSettings {
    fn resolve(
        &self,
        environment: &[(String, String)],
        reading: &mut Reading,
    ) -> Result<Option<PoolOptions>, String> {
        if self.redis_persecond.0 == Some(true) {
            return self.said().resolve(environment, reading).map(Some);
        }
        let without_flag = || {
            PER_SECOND
                .without_effect
                .iter()
                .map(|(name, _)| *name)
                .find(|name| value_of(name, environment).is_some())
        };
        if let Some(name) = self.given().or_else(without_flag) {
            reading.warn(format!("{name} has no effect without REDIS_PERSECOND=true: all limits are counted on one Redis"));
        }
        Ok(None)
    }

    /// The first that says how to reach it.
    fn given(&self) -> Option<&'static str> {
        // Taken apart, so that none is forgotten.
        let Self {
            redis_persecond: _,
            redis_persecond_url: Given(url),
            redis_persecond_socket_type: Given(socket_type),
            redis_persecond_type: Given(redis_type),
            redis_persecond_auth: Given(auth),
            redis_persecond_auth_file: Given(auth_file),
            redis_persecond_sentinel_auth: Given(sentinel_auth),
            redis_persecond_sentinel_auth_file: Given(sentinel_auth_file),
            redis_persecond_tls: Given(tls),
            redis_persecond_timeout: Given(timeout),
        } = self;
        let given = [
            (PER_SECOND.url, url.is_some()),
            (PER_SECOND.socket_type, socket_type.is_some()),
            (PER_SECOND.redis_type, redis_type.is_some()),
            (PER_SECOND.auth, auth.is_some()),
            (PER_SECOND.auth_file, auth_file.is_some()),
            (PER_SECOND.sentinel_auth, sentinel_auth.is_some()),
            (PER_SECOND.sentinel_auth_file, sentinel_auth_file.is_some()),
            (PER_SECOND.tls, tls.is_some()),
            (PER_SECOND.timeout, timeout.is_some()),
        ];
        given
            .into_iter()
            .find(|(_, is_given)| *is_given)
            .map(|(name, _)| name)
    }

    fn said(&self) -> Said<'_> {
        let is_socket = self.redis_persecond_socket_type.0 == Some(SocketType::Unix);
        Said {
            names: &PER_SECOND,
            url_default: is_socket.then_some(PER_SECOND_SOCKET_DEFAULT),
            url: self.redis_persecond_url.0.as_ref(),
            socket_type: self.redis_persecond_socket_type.0,
            redis_type: self.redis_persecond_type.0.as_deref(),
            auth: SaidAuth::of(
                &PER_SECOND,
                &self.redis_persecond_auth,
                &self.redis_persecond_auth_file,
            ),
            sentinel_auth: SaidAuth::of_sentinels(
                &PER_SECOND,
                &self.redis_persecond_sentinel_auth,
                &self.redis_persecond_sentinel_auth_file,
            ),
            tls: self.redis_persecond_tls.0,
            timeout: self.redis_persecond_timeout.0,
        }
    }
}

impl Said<'_> {
    fn resolve(
        &self,
        environment: &[(String, String)],
        reading: &mut Reading,
    ) -> Result<PoolOptions, String> {
        let deployment_type = self.deployment_type()?;
        reading.warn_of(&self.names.without_effect, environment);
        let deployment = match deployment_type {
            DeploymentType::Single => Deployment::Single(self.single(reading)?),
            DeploymentType::Sentinel => Deployment::Sentinel(self.sentinels(reading)?),
            DeploymentType::Cluster => Deployment::Cluster(self.cluster(reading)?),
        };
        if let Some(setting) = self
            .sentinel_auth
            .given()
            .filter(|_| deployment_type != DeploymentType::Sentinel)
        {
            reading.warn(format!(
                "{setting} has no effect: {} is not SENTINEL",
                self.names.redis_type
            ));
        }
        Ok(PoolOptions {
            deployment,
            connect_timeout: self.connect_timeout(reading),
        })
    }

    // With BACKEND_TYPE=memory nobody asks, so whoever moves there need not clear it.
    fn deployment_type(&self) -> Result<DeploymentType, String> {
        let Some(text) = self.redis_type else {
            return Ok(DeploymentType::Single);
        };
        match text.to_ascii_lowercase().as_str() {
            "single" => Ok(DeploymentType::Single),
            "sentinel" => Ok(DeploymentType::Sentinel),
            "cluster" => Ok(DeploymentType::Cluster),
            _ => Err(format!(
                "{}: Unrecognized redis type {text}; write SINGLE, SENTINEL or CLUSTER",
                self.names.redis_type
            )),
        }
    }

    fn single(&self, reading: &mut Reading) -> Result<Address, String> {
        let address = self.address(ServerKind::Server, self.url()?, reading)?;
        match self.socket_type {
            Some(SocketType::Unix) if !address.is_socket() => {
                reading.warn(format!(
                    "{} is unix, and {} is no path: connecting by TCP",
                    self.names.socket_type, self.names.url
                ));
            }
            Some(SocketType::Tcp) if address.is_socket() => {
                let SettingNames {
                    socket_type, url, ..
                } = self.names;
                reading.warn(format!(
                    "{socket_type} is tcp, and {url} is the path of a socket: connecting to that"
                ));
            }
            _ => {}
        }
        let tls = self.tls(&address, reading)?;
        self.auth.enter(address, tls, self.names.url, reading)
    }

    fn sentinels(&self, reading: &mut Reading) -> Result<SentinelConfig, String> {
        let url = self.names.url;
        let text = self.url()?.trim();
        let (master, addresses) = text.split_once(',').unwrap_or((text, ""));
        let master = master.trim();
        if addresses.trim_matches([',', ' ']).is_empty() {
            return Err(format!(
                "{url}: Expected master name and a list of urls for the sentinels; write mymaster,host:port,host:port"
            ));
        }
        if master.is_empty()
            || !master
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter))
        {
            return Err(format!(
                "{url} does not begin with the name of a master; write mymaster,host:port,host:port"
            ));
        }
        let (first, others) = self.list(ServerKind::Sentinel, addresses, reading)?;
        let tls = self.tls(&first, reading)?;
        let first = self.sentinel_auth.enter(first, tls.clone(), url, reading)?;
        let server = self.auth.enter(Address::unresolved(), tls, url, reading)?;
        Ok(SentinelConfig {
            master: master.to_owned(),
            sentinels: all_entered_as(first, &others),
            server,
        })
    }

    fn cluster(&self, reading: &mut Reading) -> Result<Vec<Address>, String> {
        let (first, others) = self.list(ServerKind::Server, self.url()?, reading)?;
        let tls = self.tls(&first, reading)?;
        let first = self.auth.enter(first, tls, self.names.url, reading)?;
        Ok(all_entered_as(first, &others))
    }

    fn url(&self) -> Result<&str, String> {
        let said = self.url.map(Secret::reveal).or(self.url_default);
        let SettingNames {
            url, socket_type, ..
        } = self.names;
        said.ok_or_else(|| {
            format!("{url} is not set; write the server's host:port, or set {socket_type} to unix for {PER_SECOND_SOCKET_DEFAULT}")
        })
    }

    /// Addresses with commas between them: the first, and the others, which are entered as that is.
    fn list(
        &self,
        kind: ServerKind,
        text: &str,
        reading: &mut Reading,
    ) -> Result<(Address, Vec<Address>), String> {
        // One alone may have a comma in its password; in a list it is `%2C`.
        let items: Vec<&str> = match parse_address::address(kind, text) {
            Ok(_) => vec![text],
            Err(_) => text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .collect(),
        };
        let mut addresses = Vec::new();
        for item in &items {
            addresses.push(self.address(kind, item, reading)?);
        }
        let SettingNames {
            url, redis_type, ..
        } = self.names;
        if addresses.iter().any(Address::is_socket) {
            return Err(format!(
                "{url} has the path of a socket, and {redis_type} is not SINGLE; write host:port,host:port"
            ));
        }
        if addresses.iter().any(|address| address.database() != 0) {
            return Err(format!(
                "{url} has the number of a database, and {redis_type} is not SINGLE: there is only 0; leave it out"
            ));
        }
        let mut addresses = addresses.into_iter();
        let first = addresses
            .next()
            .ok_or_else(|| format!("{url} has no address; write host:port,host:port"))?;
        let others: Vec<Address> = addresses.collect();
        let with_scheme = others
            .iter()
            .zip(&items[1..])
            .filter(|(_, item)| item.contains("://"));
        if with_scheme
            .clone()
            .any(|(address, _)| address.is_tls() != first.is_tls())
        {
            reading.warn(format!(
                "{url} has addresses with TLS and without: that of the first counts for all"
            ));
        }
        if with_scheme
            .clone()
            .any(|(address, _)| address.contradicts(&first))
        {
            reading.warn(format!(
                "{url} has several users or passwords: those of the first address count for all"
            ));
        }
        Ok((first, others))
    }

    fn address(
        &self,
        kind: ServerKind,
        text: &str,
        reading: &mut Reading,
    ) -> Result<Address, String> {
        let SettingNames {
            url,
            redis_type,
            auth,
            ..
        } = self.names;
        let parsed = parse_address::address(kind, text).map_err(|error| match error {
            AddressError::List => {
                format!("{url} {error}: set {redis_type} to CLUSTER or SENTINEL, or write the one server to count on, as host:port")
            }
            AddressError::Unescaped | AddressError::NoScheme => format!("{url} {error}, or set {auth}"),
            error => format!("{url} {error}"),
        })?;
        if let Some(warning) = parsed.warning {
            reading.warn(format!("{url}: {warning}"));
        }
        Ok(parsed.address)
    }

    /// What to say by TLS, if that is how to connect: to servers and sentinels alike, as in the
    /// reference.
    fn tls(
        &self,
        address: &Address,
        reading: &mut Reading,
    ) -> Result<Option<Reloadable<TlsClient>>, String> {
        let SettingNames { tls, url, .. } = self.names;
        if !address.is_tls() && self.tls != Some(true) {
            return Ok(None);
        }
        if address.is_socket() {
            return Err(format!(
                "{tls}: there is no TLS on a Unix socket; set it to false, or write the server's host:port into {url}"
            ));
        }
        if self.tls == Some(false) {
            reading.warn(format!(
                "{tls} is false, and {url} begins with rediss: connecting by TLS"
            ));
        }
        reading.tls_client().map(Some)
    }

    fn connect_timeout(&self, reading: &mut Reading) -> Span {
        if self.timeout == Some(Span::ZERO) {
            reading.warn(format!(
                "{} is 0, which would be for ever: connecting may take 10 s",
                self.names.timeout
            ));
        }
        self.timeout
            .filter(|timeout| *timeout > Span::ZERO)
            .unwrap_or(CONNECT_TIMEOUT_DEFAULT.into())
    }
}

impl<'a> SaidAuth<'a> {
    fn of(
        names: &'static SettingNames,
        secret: &'a Given<Secret>,
        file: &'a Given<String>,
    ) -> Self {
        Self {
            setting: names.auth,
            secret: secret.0.as_ref(),
            file_setting: names.auth_file,
            file: file.0.as_deref(),
        }
    }

    fn of_sentinels(
        names: &'static SettingNames,
        secret: &'a Given<Secret>,
        file: &'a Given<String>,
    ) -> Self {
        Self {
            setting: names.sentinel_auth,
            file_setting: names.sentinel_auth_file,
            ..Self::of(names, secret, file)
        }
    }

    /// Which of the two is set.
    fn given(&self) -> Option<&'static str> {
        self.secret
            .map(|_| self.setting)
            .or(self.file.map(|_| self.file_setting))
    }

    /// The same address, entered with these credentials and by TLS.
    fn enter(
        &self,
        address: Address,
        tls: Option<Reloadable<TlsClient>>,
        url: &'static str,
        reading: &mut Reading,
    ) -> Result<Address, String> {
        let auth = match (self.secret, self.file) {
            (Some(_), Some(_)) => {
                return Err(format!(
                    "{} and {} are both set; set one of them",
                    self.setting, self.file_setting
                ));
            }
            (Some(secret), None) => {
                if secret.reveal().ends_with('\n') {
                    reading.warn(format!(
                        "{} ends with a line break, which is sent as a part of the password",
                        self.setting
                    ));
                }
                Some(Reloadable::new(secret.clone()))
            }
            (None, Some(path)) => Some(
                reading
                    .secrets
                    .auth(AuthFile::new(self.file_setting, path))
                    .map_err(|error| error.to_string())?,
            ),
            (None, None) => None,
        };
        let address = address.with_settings(AddressSettings {
            url,
            auth: self.given().unwrap_or(self.setting),
        });
        let address = if let Some(auth) = auth {
            address.with_credentials(auth)
        } else {
            address
        };
        let address = if let Some(tls) = tls {
            address.with_tls(tls)
        } else {
            address
        };
        if address.has_only_user() {
            reading.warn("Redis is told a user without a password; for a password alone write redis://:password@host:port");
        }
        Ok(address)
    }
}

impl Reading {
    fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Warns of what is set, and is one of these.
    fn warn_of(&mut self, without_effect: &[(&str, &str)], environment: &[(String, String)]) {
        let are_set = without_effect
            .iter()
            .filter(|(name, _)| value_of(name, environment).is_some());
        are_set.for_each(|(name, reason)| self.warn(format!("{name} has no effect: {reason}")));
    }

    fn tls_client(&mut self) -> Result<Reloadable<TlsClient>, String> {
        if let Some(made) = &self.tls_client {
            return Ok(made.clone());
        }
        let made = self
            .secrets
            .tls(self.tls.clone())
            .map_err(|error| error.to_string())?;
        self.tls_client = Some(made.clone());
        Ok(made)
    }
}

/// Settings of the reference about Redis that have no flag here.
pub fn without_flag() -> impl Iterator<Item = &'static str> {
    let tables = [
        &WITHOUT_EFFECT[..],
        &MAIN.without_effect,
        &PER_SECOND.without_effect,
    ];
    tables.into_iter().flatten().map(|(name, _)| *name)
}

/// One address, and others that are entered in the same way.
fn all_entered_as(first: Address, others: &[Address]) -> Vec<Address> {
    let others: Vec<Address> = others
        .iter()
        .filter_map(Address::endpoint)
        .map(|(host, port)| first.at(host, port))
        .collect();
    std::iter::once(first).chain(others).collect()
}

/// What is set to something.
fn set(environment: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    environment
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .filter(|(_, value)| !value.is_empty())
}

fn value_of<'e>(wanted: &str, environment: &'e [(String, String)]) -> Option<&'e str> {
    set(environment)
        .find(|(name, _)| *name == wanted)
        .map(|(_, value)| value)
}

fn socket_type(text: &str) -> Result<SocketType, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" | "tcp4" | "tcp6" => Ok(SocketType::Tcp),
        "unix" => Ok(SocketType::Unix),
        _ => Err("write tcp or unix".to_owned()),
    }
}
