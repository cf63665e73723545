//! Every form of an address, its display and its errors.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::base::parse::Secret;

use super::*;

/// A value of REDIS_URL, the address as displayed, user and password.
const GOOD: &str = r#"
redis:6379 | redis://redis:6379
redis | redis://redis:6379
my_redis.cache-1.svc.cluster.local:7000 | redis://my_redis.cache-1.svc.cluster.local:7000
10.0.0.5:6379\n | redis://10.0.0.5:6379
[::1]:7000 | redis://[::1]:7000
[fe80::1%eth0] | redis://[fe80::1%eth0]:6379
::1 | redis://[::1]:6379
2001:db8::5 | redis://[2001:db8::5]:6379
/var/run/nutcracker/ratelimit.sock | unix:///var/run/nutcracker/ratelimit.sock
unix:/run/redis.sock | unix:///run/redis.sock
unix:///run/redis.sock | unix:///run/redis.sock
redis+unix:///run/a%20b.sock?db=3 | unix:///run/a b.sock?db=3
unix:///run/redis.sock?user=app&pass=p%40ss | unix:///run/redis.sock | app | p@ss
redis://10.0.0.5 | redis://10.0.0.5:6379
redis://10.0.0.5:6379/3 | redis://10.0.0.5:6379/3
REDIS://10.0.0.5:6379/ | redis://10.0.0.5:6379
redis://[::1]:7000/3 | redis://[::1]:7000/3
redis://h:1?db=4 | redis://h:1/4
redis://h:1/3?db=4 | redis://h:1/3
redis://:s3cret@h:1 | redis://h:1 | - | s3cret
redis://app:s3cret@h:1/2 | redis://h:1/2 | app | s3cret
redis://app@h:1 | redis://h:1 | app | ""
redis://a%3Ap:%40%3A%2F%3F%23%25@h | redis://h:6379 | a:p | @:/?#%
redis://app:p@ss:word,1@h:1 | redis://h:1 | app | p@ss:word,1
redis://h:1?username=app&password=p@ss | redis://h:1 | app | p@ss
redis://one:1st@h:1?username=two&password=2nd | redis://h:1 | one | 1st
rediss://app:s3cret@h/3 | rediss://h:6379/3 | app | s3cret
valkey://h:1 | redis://h:1
"#;

/// A value of REDIS_URL and its error.
const BAD: &str = r"
h1:6379,h2:6379 | List
mymaster,h1:26379,h2:26379 | List
redis://h1:6379,h2:6379 | List
redis://:s3cret@h1:6379,redis://:s3cret@h2:6379 | List
h1:6379,redis://:s3cret@h2:6379 | List
 | NoHost
:6379 | NoHost
redis:// | NoHost
redis://:s3cret@ | NoHost
redis://:s3cret@:6379 | NoHost
h: | Port
h:0 | Port
h:65536 | Port
h:s3cret | Port
redis://app:s3cret | Port
redis://:s3cret@h:6379x | Port
[::1]6379 | Port
a b:1 | Host
ho$t:6379 | Host
./redis.sock | Host
[::1 | Brackets
[h]:1 | Brackets
::1:6379 | Ambiguous
2001:db8::1:6379 | Ambiguous
http://h:1 | Scheme
tcp://10.0.0.5:6379 | Scheme
s3cret@h:6379 | NoScheme
app:s3cret@h:6379 | NoScheme
redis://h:6379/three | Database
redis://h:6379/-1 | Database
redis://h:6379/1/2 | Database
redis://h:6379?db=s3cret | Database
redis://:s3/cret@h:6379 | Unescaped
redis://:s3?cret@h:6379 | Unescaped
redis://:s3#cret@h:6379 | Unescaped
redis://app:123/s3cret@h:6379 | Unescaped
redis://app:123?s3cret@h:6379 | Unescaped
redis://app:123#s3cret@h:6379 | Unescaped
redis://:s3cret%ff@h:6379 | Encoding
unix://run/redis.sock | Path
unix: | Path
";

/// REDIS_URL, REDIS_AUTH, and the effective user and password.
const AUTH: &str = r"
h:1 | s3cret | - | s3cret
h:1 | app:s3cret | app | s3cret
h:1 | app:s3:cr@et/ | app | s3:cr@et/
h:1 | :s3:cret | - | s3:cret
h:1 | p%40ss | - | p%40ss
/run/redis.sock | app:s3cret | app | s3cret
redis://one:1st@h:1 | two:2nd | two | 2nd
redis://one:1st@h:1 | 2nd | one | 2nd
redis://one:1st@h:1 | two: | two | 1st
";

/// The columns of each line: `-` and missing ones are none, `""` is an empty text.
fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [Option<String>; N]> {
    let column = |text: &str| match text {
        "-" => None,
        "\"\"" => Some(String::new()),
        text => Some(text.replace("\\n", "\n")),
    };
    table.trim_matches('\n').lines().map(move |line| {
        let mut columns = line.split(" | ").map(column);
        [(); N].map(|()| columns.next().flatten())
    })
}

fn parsed(url: &str) -> Address {
    let parsed = address(SERVER_PORT, url).unwrap_or_else(|error| panic!("{url} {error}"));
    assert_eq!(parsed.warning, None, "{url}");
    parsed.address
}

fn credentials(address: &Address) -> (Option<String>, Option<String>) {
    let settings = address.session();
    let owned = |text: Option<&str>| text.map(str::to_owned);
    (owned(settings.username()), owned(settings.password()))
}

#[test]
fn every_form_is_parsed_and_displayed_without_credentials() {
    for [url, displayed, user, password] in rows(GOOD) {
        let url = url.unwrap_or_default();
        let address = parsed(&url);
        assert_eq!(Some(address.to_string()), displayed, "{url}");
        let expected = (user.clone(), password.clone());
        assert_eq!(credentials(&address), expected, "{url}");
        for secret in [user, password].into_iter().flatten() {
            let shown = format!("{address:?} {address}");
            assert!(secret.len() < 2 || !shown.contains(&secret), "{shown}");
        }
    }
    let addr = |url: &str| parsed(url).addr;
    let ipv6 = ConnectionAddr::Tcp("::1".to_owned(), 7000);
    assert_eq!(addr("[::1]:7000"), ipv6);
    assert_eq!(addr("unix:///a%20b"), ConnectionAddr::Unix("/a b".into()));
    assert_eq!(parsed("redis://h:1/3").database(), 3);
}

#[test]
fn errors_never_quote_the_text() {
    for [url, expected] in rows(BAD) {
        let url = url.unwrap_or_default();
        let error = address(SERVER_PORT, &url).expect_err(&url);
        assert_eq!(Some(format!("{error:?}")), expected, "{url}");
        let text = error.to_string();
        assert!(!text.contains("s3") && !text.contains("cret"), "{url}: {text}");
    }
}

#[test]
fn each_part_of_redis_auth_wins_over_the_url() {
    for [url, auth, user, password] in rows(AUTH) {
        let url = url.unwrap_or_default();
        let auth = auth.unwrap_or_default();
        let mut address = parsed(&url);
        address.auth = Some(Arc::new(ArcSwap::from_pointee(Secret::new(&*auth))));
        assert_eq!(credentials(&address), (user, password), "{url} {auth}");
    }
}

#[test]
fn unknown_parameters_are_warned_about() {
    for url in ["redis://h:1?protocol=3", "rediss://h:1/#insecure", "redis://h:1?ssl=true&db=3"] {
        let parsed = address(SERVER_PORT, url).expect(url);
        assert!(parsed.warning.is_some(), "{url}");
    }
}
