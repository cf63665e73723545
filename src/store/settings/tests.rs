//! Which store the settings select, their errors and their warnings.

use bb8_redis::redis::{ErrorKind, RedisError};
use clap::Parser;

use super::*;
use crate::store::redis::connect::address::Address;
use crate::store::redis::settings::Resolved;
use crate::store::redis::topology::deployment::{Deployment, SentinelConfig};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    store: Settings,
}

/// The lines of a table: settings, and what is expected of them.
fn rows(table: &str) -> impl Iterator<Item = (String, &str)> {
    let lines = table.trim_matches('\n').lines();
    let rows = lines.map(|line| line.split_once(" => ").expect("two columns"));
    rows.map(|(settings, expected)| (settings.replace("\\n", "\n"), expected))
}

/// Settings as if these variables were set, with ` | ` between them.
fn settings(text: &str) -> (Settings, Environment) {
    let environment = text.split(" | ").filter_map(|setting| setting.split_once('='));
    let environment: Vec<(&str, &str)> = environment.collect();
    let flag = |(name, value): &(&str, &str)| {
        [format!("--{}", name.to_lowercase().replace('_', "-")), (*value).to_owned()]
    };
    let with_flag = environment.iter().filter(|(name, value)| {
        !value.is_empty()
            && <Cli as clap::CommandFactory>::command()
                .get_arguments()
                .any(|known| known.get_env() == Some(name.as_ref()))
    });
    let arguments: Vec<String> =
        std::iter::once("tollgate".to_owned()).chain(with_flag.flat_map(flag)).collect();
    let cli =
        Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{environment:?}: {error}"));
    let variables =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    (cli.store, Environment::new(variables, []))
}

fn resolve(
    settings: &Settings,
    environment: &Environment,
) -> Result<(BackendChoice, Vec<String>), String> {
    settings.resolve(Some(NonZeroU32::MIN), "", environment)
}

/// The display of the store, or of both Redis.
fn chosen(environment: &str) -> Result<String, String> {
    let (settings, environment) = settings(environment);
    if settings.backend_type(&environment) == BackendType::Memory {
        return Ok("memory".to_owned());
    }
    let Resolved { main, per_second, .. } = settings.redis.resolve(&environment)?;
    let per_second = per_second.map(|pool| format!(", {}", pool.deployment)).unwrap_or_default();
    Ok(format!("{}{per_second}", main.deployment))
}

fn warned(environment: &str) -> Vec<String> {
    let (settings, environment) = settings(environment);
    resolve(&settings, &environment).expect("the settings are valid").1
}

/// Variables that Kubernetes sets for Services named `redis`, `redis-persecond` and `redis-tls`.
const OF_KUBERNETES: &str = "\
    REDIS_PORT=tcp://10.96.0.12:6379 | REDIS_PORT_6379_TCP=tcp://10.96.0.12:6379 | REDIS_PORT_6379_TCP_ADDR=10.96.0.12 | \
    REDIS_PORT_6379_TCP_PORT=6379 | REDIS_PORT_6379_TCP_PROTO=tcp | REDIS_SERVICE_HOST=10.96.0.12 | \
    REDIS_SERVICE_PORT=6379 | REDIS_SERVICE_PORT_REDIS=6379 | REDIS_PERSECOND_PORT=tcp://10.96.0.13:6379 | \
    REDIS_PERSECOND_SERVICE_HOST=10.96.0.13 | REDIS_TLS_PORT_6379_TCP_ADDR=10.96.0.14";

/// Settings, and where they count.
const CHOICES: &str = r"
 => memory
REDIS_URL= | REDIS_TLS= | REDIS_TIMEOUT= | BACKEND_TYPE= | STORE_TIMEOUT= => memory
REDIS_HOST=10.0.0.5 => memory
BACKEND_TYPE=memory | REDIS_TYPE=cluster | REDIS_URL=a:1,b:2 | REDIS_PERSECOND=true => memory
BACKEND_TYPE=redis => redis://127.0.0.1:6379
BACKEND_TYPE=redis | REDIS_SOCKET_TYPE=tcp => redis://127.0.0.1:6379
BACKEND_TYPE=redis | REDIS_SOCKET_TYPE=unix => unix:///var/run/nutcracker/ratelimit.sock
REDIS_SOCKET_TYPE=Unix => unix:///var/run/nutcracker/ratelimit.sock
REDIS_POOL_SIZE=20 => redis://127.0.0.1:6379
REDIS_PERSECOND=false => redis://127.0.0.1:6379
REDIS_TLS=1 => rediss://127.0.0.1:6379
REDIS_SOCKET_TYPE=tcp | REDIS_URL=redis:6379 => redis://redis:6379
REDIS_SOCKET_TYPE=unix | REDIS_URL=redis:6379 => redis://redis:6379
REDIS_SOCKET_TYPE=tcp | REDIS_URL=/run/redis.sock => unix:///run/redis.sock
REDIS_TYPE=Single | REDIS_URL=redis:6379 => redis://redis:6379
REDIS_URL=redis://h:1/3 | REDIS_TLS=true => rediss://h:1/3
REDIS_URL=rediss://h:1 | REDIS_TLS=false => rediss://h:1
REDIS_TYPE=cluster | REDIS_URL=a:1,b,[::1]:3 => the cluster of redis://a:1, redis://b:6379, redis://[::1]:3
REDIS_TYPE=Cluster | REDIS_URL= a:1 , b:2,  => the cluster of redis://a:1, redis://b:2
REDIS_TYPE=CLUSTER | REDIS_URL=a:1 => the cluster of redis://a:1
REDIS_TYPE=CLUSTER | REDIS_URL=redis://:p,w@a:1/0 => the cluster of redis://a:1
REDIS_TYPE=cluster | REDIS_URL=rediss://:s3cret@a:1,b:2 => the cluster of rediss://a:1, rediss://b:2
REDIS_TYPE=cluster | REDIS_URL=a:1,b:2 | REDIS_TLS=true => the cluster of rediss://a:1, rediss://b:2
REDIS_TYPE=sentinel | REDIS_URL=my-master,a:1,b => my-master of the sentinels at redis://a:1, redis://b:26379
REDIS_TYPE=SENTINEL | REDIS_URL=m, [::1] => m of the sentinels at redis://[::1]:26379
REDIS_TYPE=sentinel | REDIS_URL=m,redis://u:s3cret@a | REDIS_TLS=1 => m of the sentinels at rediss://a:26379
REDIS_PERSECOND=true | REDIS_PERSECOND_URL=b:2 => redis://127.0.0.1:6379, redis://b:2
REDIS_PERSECOND=true | REDIS_PERSECOND_SOCKET_TYPE=unix => redis://127.0.0.1:6379, unix:///var/run/nutcracker/ratelimitpersecond.sock
REDIS_URL=a:1 | REDIS_PERSECOND=1 | REDIS_PERSECOND_URL=b:2 | REDIS_PERSECOND_TLS=true => redis://a:1, rediss://b:2
REDIS_URL=a:1 | REDIS_PERSECOND=1 | REDIS_PERSECOND_TYPE=sentinel | REDIS_PERSECOND_URL=m,b:2 => redis://a:1, m of the sentinels at redis://b:2
REDIS_TYPE=cluster | REDIS_URL=a:1 | REDIS_PERSECOND=1 | REDIS_PERSECOND_URL=b:2 => the cluster of redis://a:1, redis://b:2
";

#[test]
fn settings_select_the_store_and_its_addresses() {
    for (environment, expected) in rows(CHOICES).chain([(OF_KUBERNETES.to_owned(), "memory")]) {
        assert_eq!(chosen(&environment).as_deref(), Ok(expected), "{environment}");
    }
}

/// Invalid settings, and the beginning of the error.
const INVALID: &str = r"
REDIS_TYPE=ring => REDIS_TYPE: Unrecognized redis type ring; expected SINGLE, SENTINEL or CLUSTER
REDIS_URL=redis:port => REDIS_URL has a port that is not from 1 to 65535
REDIS_URL=redis://:s3cret@redis:port => REDIS_URL has a port that is not from 1 to 65535
REDIS_URL=redis://:1/s3cret@redis => REDIS_URL
REDIS_URL=redis://:s3cret@one:1,redis://:s3cret@two:1 => REDIS_URL is a list of addresses
REDIS_URL=s3cret@redis:6379 => REDIS_URL has a user or password but no scheme
REDIS_URL=app:s3cret@redis:6379 => REDIS_URL has a user or password but no scheme; expected redis://user:password@host:port, or set REDIS_AUTH
REDIS_URL=a:1,b:2 => REDIS_URL is a list of addresses: set REDIS_TYPE to CLUSTER or SENTINEL, or REDIS_URL to one host:port
REDIS_TYPE=single | REDIS_URL=mymaster,a:1 => REDIS_URL is a list of addresses: set REDIS_TYPE to CLUSTER or SENTINEL
REDIS_TYPE=cluster | REDIS_URL=, => REDIS_URL has no address; expected host:port,host:port
REDIS_TYPE=cluster | REDIS_URL=a:1,b:port => REDIS_URL has a port that is not from 1 to 65535
REDIS_TYPE=cluster | REDIS_URL=redis://a:1,redis://b:1/3 => REDIS_URL has a database, and REDIS_TYPE is not
REDIS_TYPE=cluster | REDIS_URL=/run/redis.sock => REDIS_URL has the path of a socket, and REDIS_TYPE is not SINGLE
REDIS_TYPE=cluster | REDIS_SOCKET_TYPE=unix => REDIS_URL has the path of a socket, and REDIS_TYPE is not SINGLE
REDIS_TYPE=sentinel => REDIS_URL: Expected master name and a list of urls for the sentinels, such as mymaster,host:port
REDIS_TYPE=sentinel | REDIS_URL=mymaster, , => REDIS_URL: Expected master name and a list of urls for the sentinels
REDIS_TYPE=sentinel | REDIS_URL=a:1,b:2 => REDIS_URL does not begin with the name of a master
REDIS_TYPE=sentinel | REDIS_URL=redis://:s3cret@a,b:2 => REDIS_URL does not begin with the name of a master
REDIS_TYPE=sentinel | REDIS_URL=,b:2 => REDIS_URL does not begin with the name of a master
REDIS_TYPE=sentinel | REDIS_URL=m,redis://b:2/3 => REDIS_URL has a database, and REDIS_TYPE is not
REDIS_TYPE=sentinel | REDIS_URL=m,b:2,unix:/run/s => REDIS_URL has the path of a socket, and REDIS_TYPE is not
REDIS_PERSECOND=true => REDIS_PERSECOND_URL is not set; set it to host:port, or REDIS_PERSECOND_SOCKET_TYPE
REDIS_PERSECOND=1 | REDIS_PERSECOND_SOCKET_TYPE=tcp => REDIS_PERSECOND_URL is not set; set it to host:port
REDIS_PERSECOND=1 | REDIS_PERSECOND_URL=a,b => REDIS_PERSECOND_URL is a list of addresses: set REDIS_PERSECOND_TYPE
REDIS_PERSECOND=1 | REDIS_PERSECOND_URL=a@b => REDIS_PERSECOND_URL has a user or password but no scheme
REDIS_PERSECOND=1 | REDIS_PERSECOND_TYPE=ring => REDIS_PERSECOND_TYPE: Unrecognized redis type ring
REDIS_PERSECOND=1 | REDIS_PERSECOND_URL=/s | REDIS_PERSECOND_TLS=1 => REDIS_PERSECOND_TLS: a Unix socket has no TLS; set it to false, or REDIS_PERSECOND_URL to host:port
REDIS_AUTH=s3cret | REDIS_AUTH_FILE=/f => REDIS_AUTH and REDIS_AUTH_FILE are both set; set one of them
REDIS_AUTH_FILE=/no/password => REDIS_AUTH_FILE: /no/password: No such file or directory
REDIS_TYPE=sentinel | REDIS_URL=m,a | REDIS_SENTINEL_AUTH_FILE=/no/password => REDIS_SENTINEL_AUTH_FILE: /no/password: No such file or directory
REDIS_PERSECOND=1 | REDIS_PERSECOND_URL=a | REDIS_PERSECOND_AUTH_FILE=/no/password => REDIS_PERSECOND_AUTH_FILE: /no/password: No such file or directory
REDIS_URL=/run/redis.sock | REDIS_TLS=true => REDIS_TLS: a Unix socket has no TLS
REDIS_TLS=true | REDIS_TLS_CLIENT_CERT=/c.pem => REDIS_TLS_CLIENT_CERT is set and REDIS_TLS_CLIENT_KEY is not
REDIS_TLS=true | REDIS_TLS_CLIENT_KEY=/k.pem => REDIS_TLS_CLIENT_KEY is set and REDIS_TLS_CLIENT_CERT is not
REDIS_TLS=true | REDIS_TLS_CACERT=/no/ca.pem => REDIS_TLS_CACERT: /no/ca.pem: No such file or directory
";

#[test]
fn errors_name_the_setting_and_no_secret() {
    for (environment, expected) in rows(INVALID) {
        let error = chosen(&environment).expect_err("an error");
        assert!(error.starts_with(expected), "{environment:?}: {error}");
        assert!(!error.contains("s3cret"), "{environment:?}: {error}");
    }
}

/// Settings, and a part of the only warning.
const WARNED: &str = r"
REDIS_POOL_SIZE=20 => REDIS_POOL_SIZE has no effect: one connection per worker carries all calls
REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR=true => REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR has no effect: connections whose server replies READONLY are always closed, about one a second
REDIS_STARTUP_MAX_INTERVAL=1m => the service starts without Redis
REDIS_SENTINEL_AUTH=s3cret => REDIS_SENTINEL_AUTH has no effect: REDIS_TYPE is not SENTINEL
REDIS_SENTINEL_AUTH_FILE=/f => REDIS_SENTINEL_AUTH_FILE has no effect: REDIS_TYPE is not SENTINEL
REDIS_PERSECOND_URL=/s | REDIS_PERSECOND_AUTH=s3cret => REDIS_PERSECOND_URL has no effect without REDIS_PERSECOND=true
REDIS_PERSECOND=false | REDIS_PERSECOND_POOL_SIZE=9 => REDIS_PERSECOND_POOL_SIZE has no effect without
REDIS_PERSECOND=true | REDIS_PERSECOND_URL=h | REDIS_PERSECOND_POOL_SIZE=9 => REDIS_PERSECOND_POOL_SIZE has no effect: one connection per worker carries all calls
REDIS_PERSECOND=true | REDIS_PERSECOND_URL=h | REDIS_PERSECOND_TIMEOUT=0 => REDIS_PERSECOND_TIMEOUT is 0, which would be unbounded
REDIS_CLUSTER_PIPELINE_PARALLELISM=4 => all nodes of a cluster are asked at the same time
REDIS_TYPE=cluster | REDIS_URL=redis://:s3cret@a,redis://:other@b => REDIS_URL has several users or passwords
REDIS_TYPE=cluster | REDIS_URL=a,redis://:s3cret@b => those of the first address apply to all
REDIS_TYPE=cluster | REDIS_URL=redis://a,rediss://b => REDIS_URL has addresses with and without TLS
REDIS_TYPE=sentinel | REDIS_URL=m,rediss://a,redis://b => REDIS_URL has addresses with and without TLS
REDIS_SOCKET_TYPE=unix | REDIS_URL=redis:6379 => connecting by TCP
REDIS_SOCKET_TYPE=tcp | REDIS_URL=/run/redis.sock => connecting to the socket
REDIS_URL=rediss://h | REDIS_TLS=false => connecting by TLS
REDIS_URL=h | REDIS_TLS_CACERT=/ca.pem => REDIS_TLS_* have no effect without REDIS_TLS=true
REDIS_URL=redis://s3cret@h => a user without a password
REDIS_URL=h | REDIS_AUTH=s3cret\n => REDIS_AUTH ends with a line break
REDIS_URL=h | REDIS_TIMEOUT=0 => using 10 s
REDIS_URL=redis://h?protocol=3 => only db, username and password have an effect
BACKEND_TYPE=memory | REDIS_URL=redis:6379 => REDIS_* have no effect with BACKEND_TYPE=memory
BACKEND_TYPE=memory | LOCAL_CACHE_SIZE_IN_BYTES=1 => LOCAL_CACHE_SIZE_IN_BYTES has no effect with the memory store
";

#[test]
fn settings_without_effect_are_warned_about() {
    for (environment, expected) in rows(WARNED) {
        let warnings = warned(&environment);
        assert!(
            warnings.len() == 1 && warnings[0].contains(expected),
            "{environment:?}: {warnings:?}"
        );
        assert!(!warnings[0].contains("s3cret"), "{warnings:?}");
    }
}

#[test]
fn effective_and_foreign_settings_are_not_warned_about() {
    let with_redis = "REDIS_URL=redis:6379 | LOCAL_CACHE_SIZE_IN_BYTES=1 | REDIS_SOCKET_TYPE=tcp";
    let a_list = "REDIS_TYPE=cluster | REDIS_URL=redis://:s3cret@a,redis://:s3cret@b,c,redis://d | REDIS_AUTH=x";
    let per_second = "REDIS_PERSECOND=true | REDIS_PERSECOND_URL=h | REDIS_PERSECOND_AUTH=s3cret";
    // They select no Redis, which the banner says, and the log when another machine calls.
    let foreign = "REDIS_HOST=h | REDIS_PASSWORD=s3cret | REDIS_PORT=6379";
    let in_memory = ["BACKEND_TYPE=memory", "", OF_KUBERNETES, foreign];
    for environment in [with_redis, a_list, per_second].into_iter().chain(in_memory) {
        assert_eq!(warned(environment), Vec::<String>::new(), "{environment:?}");
    }
}

#[test]
fn options_have_defaults_and_bounds() {
    let redis = |environment: &str| {
        let (settings, environment) = settings(environment);
        match resolve(&settings, &environment).expect("the settings are valid").0 {
            BackendChoice::Redis(redis, _) => redis,
            BackendChoice::Memory => panic!("{environment:?} means Redis"),
        }
    };
    let default = redis("REDIS_URL=h");
    assert_eq!(
        (default.store_timeout, default.main.connect_timeout),
        (Span::from_micros(100_000), Span::from_secs(10))
    );
    assert_eq!(
        (default.expiration_jitter_max, default.over_limit_cache_bytes),
        (Span::from_secs(300), 0)
    );
    assert!(!default.required);
    let set = redis(
        "REDIS_URL=h | STORE_TIMEOUT=15ms | REDIS_TIMEOUT=1s | EXPIRATION_JITTER_MAX_SECONDS=-1",
    );
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

/// Settings, user and password of servers, and those of sentinels.
type Entries = (&'static str, (&'static str, &'static str), Option<(&'static str, &'static str)>);
const ENTRIES: &[Entries] = &[
    ("REDIS_URL=h | REDIS_AUTH=a:1st", ("a", "1st"), None),
    ("REDIS_TYPE=cluster | REDIS_URL=redis://a:1st@h,i,redis://b:2nd@j", ("a", "1st"), None),
    ("REDIS_TYPE=cluster | REDIS_URL=h,redis://b:2nd@i", ("", ""), None),
    ("REDIS_TYPE=cluster | REDIS_URL=redis://a:1st@h,i | REDIS_AUTH=3rd", ("a", "3rd"), None),
    ("REDIS_TYPE=sentinel | REDIS_URL=m,h,i | REDIS_AUTH=a:1st", ("a", "1st"), Some(("", ""))),
    (
        "REDIS_TYPE=sentinel | REDIS_URL=m,h,i | REDIS_SENTINEL_AUTH=s:2nd",
        ("", ""),
        Some(("s", "2nd")),
    ),
    (
        "REDIS_TYPE=sentinel | REDIS_URL=m,redis://s:2nd@h,i | REDIS_AUTH=1st",
        ("", "1st"),
        Some(("s", "2nd")),
    ),
];

#[test]
fn servers_and_sentinels_have_credentials_of_their_own() {
    for (environment, of_servers, of_sentinels) in ENTRIES {
        let assert_credentials = |addresses: &[Address], expected: &(&str, &str)| {
            for address in addresses {
                let settings = address.session();
                let (user, password) = (
                    settings.username().unwrap_or_default(),
                    settings.password().unwrap_or_default(),
                );
                assert_eq!((user, password), *expected, "{environment:?}: {address}");
            }
        };
        let (settings, environment) = settings(environment);
        match settings.redis.resolve(&environment).expect("the settings are valid").main.deployment
        {
            Deployment::Single(address) => assert_credentials(&[address], of_servers),
            Deployment::Cluster(seeds) => assert_credentials(&seeds, of_servers),
            Deployment::Sentinel(SentinelConfig { sentinels, server, .. }) => {
                assert_credentials(&sentinels, &of_sentinels.expect("sentinels"));
                assert_credentials(&[server.at("10.0.0.9", 7_000)], of_servers);
            }
        }
    }
}

#[test]
fn authentication_errors_name_the_setting() {
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let path = directory.path().join("password");
    std::fs::write(&path, "s3cret").expect("a file can be written");
    let path = path.to_str().expect("temporary directories have plain names");
    let wrong = RedisError::from((ErrorKind::AuthenticationFailed, "no"));
    let explained = |settings: &str| {
        let (settings, environment) = self::settings(settings);
        let Resolved { main, per_second, .. } =
            settings.redis.resolve(&environment).expect("the settings are valid");
        let deployments = [main, per_second.expect("it is set")].map(|pool| pool.deployment);
        let addresses = deployments.into_iter().flat_map(|deployment| match deployment {
            Deployment::Single(address) => vec![address],
            Deployment::Cluster(seeds) => seeds,
            Deployment::Sentinel(SentinelConfig { sentinels, server, .. }) => {
                [sentinels, vec![server.at("s", 1)]].concat()
            }
        });
        addresses.map(|address| address.explain(&wrong)).collect::<Vec<_>>().join("\n")
    };
    let said = explained(&format!(
        "REDIS_TYPE=sentinel | REDIS_URL=m,h | REDIS_AUTH_FILE={path} | REDIS_PERSECOND=true | REDIS_PERSECOND_URL=p"
    ));
    for expected in [
        "redis://h:26379 rejects the user or password (WRONGPASS), or has none; check REDIS_SENTINEL_AUTH and REDIS_URL",
        "redis://s:1 rejects the user or password (WRONGPASS), or has none; check REDIS_AUTH_FILE and REDIS_URL",
        "redis://p:6379 rejects the user or password (WRONGPASS), or has none; check REDIS_PERSECOND_AUTH and REDIS_PERSECOND_URL",
    ] {
        assert!(said.contains(expected), "{expected} is missing in {said}");
    }
}

#[test]
fn debug_output_has_no_credentials() {
    let (settings, environment) =
        settings("REDIS_URL=redis://app:s3cret@h:1 | REDIS_AUTH=app:s3cret");
    let shown = format!("{settings:?} {:?}", resolve(&settings, &environment));
    assert!(!shown.contains("s3cret") && shown.contains("redis://h:1"), "{shown}");
}
