//! Every form of an address, its display and its errors.

use crate::settings::parse::Secret;
use crate::store::redis::connect::credentials::Reloadable;

use super::*;

/// A value of REDIS_URL, the address as displayed, user and password.
const GOOD: &[(&str, &str, Option<&str>, Option<&str>)] = &[
    ("redis:6379", "redis://redis:6379", None, None),
    ("redis", "redis://redis:6379", None, None),
    (
        "my_redis.cache-1.svc.cluster.local:7000",
        "redis://my_redis.cache-1.svc.cluster.local:7000",
        None,
        None,
    ),
    ("10.0.0.5:6379\n", "redis://10.0.0.5:6379", None, None),
    ("[::1]:7000", "redis://[::1]:7000", None, None),
    ("[fe80::1%eth0]", "redis://[fe80::1%eth0]:6379", None, None),
    ("::1", "redis://[::1]:6379", None, None),
    ("2001:db8::5", "redis://[2001:db8::5]:6379", None, None),
    (
        "/var/run/nutcracker/ratelimit.sock",
        "unix:///var/run/nutcracker/ratelimit.sock",
        None,
        None,
    ),
    ("unix:/run/redis.sock", "unix:///run/redis.sock", None, None),
    (
        "unix:///run/redis.sock",
        "unix:///run/redis.sock",
        None,
        None,
    ),
    (
        "redis+unix:///run/a%20b.sock?db=3",
        "unix:///run/a b.sock?db=3",
        None,
        None,
    ),
    (
        "unix:///run/redis.sock?user=app&pass=p%40ss",
        "unix:///run/redis.sock",
        Some("app"),
        Some("p@ss"),
    ),
    ("redis://10.0.0.5", "redis://10.0.0.5:6379", None, None),
    (
        "redis://10.0.0.5:6379/3",
        "redis://10.0.0.5:6379/3",
        None,
        None,
    ),
    (
        "REDIS://10.0.0.5:6379/",
        "redis://10.0.0.5:6379",
        None,
        None,
    ),
    ("redis://[::1]:7000/3", "redis://[::1]:7000/3", None, None),
    ("redis://h:1?db=4", "redis://h:1/4", None, None),
    ("redis://h:1/3?db=4", "redis://h:1/3", None, None),
    ("redis://:s3cret@h:1", "redis://h:1", None, Some("s3cret")),
    (
        "redis://app:s3cret@h:1/2",
        "redis://h:1/2",
        Some("app"),
        Some("s3cret"),
    ),
    ("redis://app@h:1", "redis://h:1", Some("app"), Some("")),
    (
        "redis://a%3Ap:%40%3A%2F%3F%23%25@h",
        "redis://h:6379",
        Some("a:p"),
        Some("@:/?#%"),
    ),
    (
        "redis://app:p@ss:word,1@h:1",
        "redis://h:1",
        Some("app"),
        Some("p@ss:word,1"),
    ),
    (
        "redis://h:1?username=app&password=p@ss",
        "redis://h:1",
        Some("app"),
        Some("p@ss"),
    ),
    (
        "redis://one:1st@h:1?username=two&password=2nd",
        "redis://h:1",
        Some("one"),
        Some("1st"),
    ),
    (
        "rediss://app:s3cret@h/3",
        "rediss://h:6379/3",
        Some("app"),
        Some("s3cret"),
    ),
    ("valkey://h:1", "redis://h:1", None, None),
];

/// A value of REDIS_URL and its error.
const BAD: &[(&str, AddressError)] = &[
    ("h1:6379,h2:6379", AddressError::List),
    ("mymaster,h1:26379,h2:26379", AddressError::List),
    ("redis://h1:6379,h2:6379", AddressError::List),
    (
        "redis://:s3cret@h1:6379,redis://:s3cret@h2:6379",
        AddressError::List,
    ),
    ("h1:6379,redis://:s3cret@h2:6379", AddressError::List),
    ("", AddressError::NoHost),
    (":6379", AddressError::NoHost),
    ("redis://", AddressError::NoHost),
    ("redis://:s3cret@", AddressError::NoHost),
    ("redis://:s3cret@:6379", AddressError::NoHost),
    ("h:", AddressError::Port),
    ("h:0", AddressError::Port),
    ("h:65536", AddressError::Port),
    ("h:s3cret", AddressError::Port),
    ("redis://app:s3cret", AddressError::Port),
    ("redis://:s3cret@h:6379x", AddressError::Port),
    ("[::1]6379", AddressError::Port),
    ("a b:1", AddressError::Host),
    ("ho$t:6379", AddressError::Host),
    ("./redis.sock", AddressError::Host),
    ("[::1", AddressError::Brackets),
    ("[h]:1", AddressError::Brackets),
    ("::1:6379", AddressError::Ambiguous),
    ("2001:db8::1:6379", AddressError::Ambiguous),
    ("http://h:1", AddressError::Scheme),
    ("tcp://10.0.0.5:6379", AddressError::Scheme),
    ("s3cret@h:6379", AddressError::NoScheme),
    ("app:s3cret@h:6379", AddressError::NoScheme),
    ("redis://h:6379/three", AddressError::Database),
    ("redis://h:6379/-1", AddressError::Database),
    ("redis://h:6379/1/2", AddressError::Database),
    ("redis://h:6379?db=s3cret", AddressError::Database),
    ("redis://:s3/cret@h:6379", AddressError::Unescaped),
    ("redis://:s3?cret@h:6379", AddressError::Unescaped),
    ("redis://:s3#cret@h:6379", AddressError::Unescaped),
    ("redis://app:123/s3cret@h:6379", AddressError::Unescaped),
    ("redis://app:123?s3cret@h:6379", AddressError::Unescaped),
    ("redis://app:123#s3cret@h:6379", AddressError::Unescaped),
    ("redis://:s3cret%ff@h:6379", AddressError::Encoding),
    ("unix://run/redis.sock", AddressError::Path),
    ("unix:", AddressError::Path),
];

/// REDIS_URL, REDIS_AUTH, and the effective user and password.
const AUTH: &[(&str, &str, Option<&str>, Option<&str>)] = &[
    ("h:1", "s3cret", None, Some("s3cret")),
    ("h:1", "app:s3cret", Some("app"), Some("s3cret")),
    ("h:1", "app:s3:cr@et/", Some("app"), Some("s3:cr@et/")),
    ("h:1", ":s3:cret", None, Some("s3:cret")),
    ("h:1", "p%40ss", None, Some("p%40ss")),
    ("/run/redis.sock", "app:s3cret", Some("app"), Some("s3cret")),
    ("redis://one:1st@h:1", "two:2nd", Some("two"), Some("2nd")),
    ("redis://one:1st@h:1", "2nd", Some("one"), Some("2nd")),
    ("redis://one:1st@h:1", "two:", Some("two"), Some("1st")),
];

fn parsed(url: &str) -> Address {
    let parsed = server_address(url).unwrap_or_else(|error| panic!("{url} {error}"));
    assert_eq!(parsed.warning, None, "{url}");
    parsed.address
}

fn credentials(address: &Address) -> (Option<String>, Option<String>) {
    let info = address.connection_info();
    let settings = info.redis_settings();
    let owned = |text: Option<&str>| text.map(str::to_owned);
    (owned(settings.username()), owned(settings.password()))
}

#[test]
fn every_form_is_parsed_and_displayed_without_credentials() {
    for &(url, displayed, user, password) in GOOD {
        let address = parsed(url);
        assert_eq!(address.to_string(), displayed, "{url}");
        let expected = (user.map(str::to_owned), password.map(str::to_owned));
        assert_eq!(credentials(&address), expected, "{url}");
        for secret in [user, password].into_iter().flatten() {
            let shown = format!("{address:?} {address}");
            assert!(secret.len() < 2 || !shown.contains(secret), "{shown}");
        }
    }
    let addr = |url: &str| parsed(url).connection_info().addr().clone();
    let ipv6 = ConnectionAddr::Tcp("::1".to_owned(), 7000);
    assert_eq!(addr("[::1]:7000"), ipv6);
    assert_eq!(addr("unix:///a%20b"), ConnectionAddr::Unix("/a b".into()));
    assert_eq!(parsed("redis://h:1/3").database(), 3);
}

#[test]
fn errors_never_quote_the_text() {
    for (url, expected) in BAD {
        let error = server_address(url).expect_err(url);
        assert_eq!(error, *expected, "{url}");
        let text = error.to_string();
        assert!(
            !text.contains("s3") && !text.contains("cret"),
            "{url}: {text}"
        );
    }
}

#[test]
fn each_part_of_redis_auth_wins_over_the_url() {
    for &(url, auth, user, password) in AUTH {
        let address = parsed(url).with_credentials(Reloadable::new(Secret::new(auth)));
        let expected = (user.map(str::to_owned), password.map(str::to_owned));
        assert_eq!(credentials(&address), expected, "{url} {auth}");
    }
}

#[test]
fn unknown_parameters_are_warned_about() {
    for url in [
        "redis://h:1?protocol=3",
        "rediss://h:1/#insecure",
        "redis://h:1?ssl=true&db=3",
    ] {
        let parsed = server_address(url).expect(url);
        assert!(parsed.warning.is_some(), "{url}");
    }
}
