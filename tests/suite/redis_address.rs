//! Whatever REDIS_* say, the settings lead to a real Redis, as the right user, on the right database, and to no other.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use clap::Parser;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use tempfile::TempDir;
use tollgate::store::redis::address::Address;
use tollgate::store::redis::deployment::Deployment;
use tollgate::store::redis::secrets::SecretSource;
use tollgate::store::redis::settings::Connecting;
use tollgate::store::settings::Settings;
use tollgate::telemetry::metric::Metrics;
use tollgate::watch::Subject as _;

use crate::support::PATIENCE;
use crate::support::certificates::{Authority, Identity, KeyForm};
use crate::support::redis::RedisProcess;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    store: Settings,
}

/// What the settings come to. They are given as flags, which mean the same as their variables.
fn connecting(settings: &[(&str, &str)]) -> Result<Connecting, String> {
    let flags = settings.iter().flat_map(|(name, value)| [format!("--{}", name.to_lowercase().replace('_', "-")), (*value).to_owned()]);
    let cli = Cli::try_parse_from(std::iter::once("tollgate".to_owned()).chain(flags)).expect("each of them is right");
    cli.store.redis.connecting(&[])
}

/// The same, where it is one server.
fn resolve(settings: &[(&str, &str)]) -> Result<Address, String> {
    match connecting(settings)?.main.deployment {
        Deployment::Single(address) => Ok(address),
        other => panic!("{settings:?} mean {other}"),
    }
}

/// Connects, and asks for a sign of life: a server may let in whom it then tells nothing.
async fn open(address: &Address) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
    let mut connection = Client::open(address.connection_info())?.get_multiplexed_async_connection_with_config(&config).await?;
    let pong: String = redis::cmd("PING").query_async(&mut connection).await?;
    assert_eq!(pong, "PONG");
    Ok(connection)
}

async fn connect(settings: &[(&str, &str)]) -> RedisResult<MultiplexedConnection> {
    open(&resolve(settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"))).await
}

async fn info(connection: &mut MultiplexedConnection) -> String {
    redis::cmd("INFO").arg("server").query_async(connection).await.expect("it answers")
}

/// Asserts that the settings lead to this server and no other, and gives its word about the connection: user, database and more.
async fn reach(server: &RedisProcess, settings: &[(&str, &str)]) -> String {
    let mut connection = connect(settings).await.unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    let info = info(&mut connection).await;
    assert!(info.contains(&format!("process_id:{}\r", server.pid())), "{settings:?} lead elsewhere: {info}");
    redis::cmd("CLIENT").arg("INFO").query_async(&mut connection).await.expect("it answers")
}

/// Asserts that nobody is let in, and gives the reason.
async fn refusal(settings: &[(&str, &str)]) -> String {
    match connect(settings).await {
        Ok(_) => panic!("{settings:?}: it is let in"),
        Err(error) => {
            let explained = resolve(settings).expect("it was good").explain(&error);
            format!("{explained} ({error:?})")
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

#[tokio::test]
async fn a_server_is_reached_by_tcp() {
    let server = RedisProcess::start();
    let port = server.port();
    for url in
        [server.address(), server.url(), format!("localhost:{port}"), format!("redis://localhost:{port}/"), format!(" 127.0.0.1:{port}\n")]
    {
        reach(&server, &[("REDIS_URL", &url), ("REDIS_SOCKET_TYPE", "tcp")]).await;
    }
    let info = resolve(&[("REDIS_URL", &server.url())]).expect("it is good").connection_info();
    assert!(info.tcp_settings().nodelay() && info.tcp_settings().keepalive().is_some());
}

#[tokio::test]
async fn a_server_is_reached_by_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("not tested: this machine has no IPv6");
        return;
    }
    let server = RedisProcess::start();
    for url in [format!("[::1]:{}", server.port()), format!("redis://[::1]:{}/0", server.port())] {
        let info = reach(&server, &[("REDIS_URL", &url)]).await;
        assert!(info.contains("addr=[::1]:"), "{info}");
    }
}

#[tokio::test]
async fn what_the_url_is_wins_over_the_socket_type() {
    let (by_tcp, by_socket) = (RedisProcess::start(), RedisProcess::builder().with_nothing_but_a_socket().start());
    for socket_type in ["tcp", "unix", ""] {
        reach(&by_tcp, &[("REDIS_URL", &by_tcp.address()), ("REDIS_SOCKET_TYPE", socket_type)]).await;
        for url in [by_socket.address(), by_socket.url(), format!("unix:{}", by_socket.address()), format!("redis+{}", by_socket.url())] {
            reach(&by_socket, &[("REDIS_URL", &url), ("REDIS_SOCKET_TYPE", socket_type)]).await;
        }
    }
}

#[tokio::test]
async fn a_password_is_sent_whatever_is_in_it() {
    let password = "p@ss:w/o,r%d?#";
    let server = RedisProcess::builder().with_password(password).start();
    let encoded = "p%40ss%3Aw%2Fo%2Cr%25d%3F%23";
    let (address, socket, by_user) = (server.address(), server.socket(), format!(":{password}"));
    let url = format!("redis://:{encoded}@{address}");
    reach(&server, &[("REDIS_URL", &url)]).await;
    reach(&server, &[("REDIS_URL", &format!("redis://{address}?password={encoded}"))]).await;
    reach(&server, &[("REDIS_URL", &format!("unix://{}?password={encoded}", socket.display()))]).await;
    // With a colon in it, a password needs one before it.
    reach(&server, &[("REDIS_URL", &address), ("REDIS_AUTH", &by_user)]).await;
    reach(&server, &[("REDIS_URL", text(&socket)), ("REDIS_AUTH", &by_user)]).await;
    reach(&server, &[("REDIS_URL", &format!("redis://:wrong@{address}")), ("REDIS_AUTH", &by_user)]).await;
    assert!(refusal(&[("REDIS_URL", &address)]).await.contains("wants a password (NOAUTH); set REDIS_AUTH"));
}

#[tokio::test]
async fn a_user_of_an_acl_is_let_in_by_the_url_or_by_redis_auth() {
    let server = RedisProcess::builder().with_user("user app on >s3:cret ~* +@all").start();
    let (address, named) = (server.address(), format!("redis://app@{}", server.address()));
    let ways: [&[(&str, &str)]; 5] = [
        &[("REDIS_URL", &format!("redis://app:s3:cret@{address}"))],
        &[("REDIS_URL", &format!("redis://{address}?username=app&password=s3:cret"))],
        &[("REDIS_URL", &address), ("REDIS_AUTH", "app:s3:cret")],
        &[("REDIS_URL", &format!("redis://default:wrong@{address}")), ("REDIS_AUTH", "app:s3:cret")],
        &[("REDIS_URL", &named), ("REDIS_AUTH", ":s3:cret")],
    ];
    for way in ways {
        let info = reach(&server, way).await;
        assert!(info.contains("user=app "), "{way:?}: {info}");
    }
    // Whoever is nobody in particular may still come in.
    assert!(reach(&server, &[("REDIS_URL", &address)]).await.contains("user=default "));
}

#[tokio::test]
async fn a_user_without_a_password_is_let_in_if_the_acl_asks_for_none() {
    let server = RedisProcess::builder().with_user("user app on nopass ~* +@all").start();
    let info = reach(&server, &[("REDIS_URL", &format!("redis://app@{}", server.address()))]).await;
    assert!(info.contains("user=app "), "{info}");
}

#[tokio::test]
async fn a_wrong_password_is_told_and_not_shown() {
    let server = RedisProcess::builder().with_password("right").start();
    for settings in [
        &[("REDIS_URL", format!("redis://:s3cret@{}", server.address()))][..],
        &[("REDIS_URL", server.address()), ("REDIS_AUTH", "default:s3cret".to_owned())],
    ] {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let error = refusal(&settings).await;
        assert!(error.contains("refuses the user or the password (WRONGPASS)"), "{error}");
        assert!(error.contains(&server.url()) && !error.contains("s3cret"), "{error}");
    }
}

#[tokio::test]
async fn the_database_is_the_one_that_is_named() {
    let server = RedisProcess::start();
    let (url, socket) = (server.url(), server.socket());
    let socket = socket.display();
    let ways =
        [(format!("{url}/3"), 3), (format!("{url}?db=4"), 4), (format!("{url}/3?db=4"), 3), (format!("unix://{socket}?db=5"), 5), (url, 0)];
    for (url, database) in ways {
        let mut connection = connect(&[("REDIS_URL", &url)]).await.expect("it is let in");
        let () = redis::cmd("SET").arg("here").arg(&url).query_async(&mut connection).await.expect("it answers");
        let keyspace: String = server.command(&["INFO", "keyspace"]);
        assert!(keyspace.contains(&format!("db{database}:keys=1,")), "{url}: {keyspace}");
        server.command::<()>(&["FLUSHALL"]);
    }
    assert!(refusal(&[("REDIS_URL", &format!("{}/99", server.url()))]).await.contains("refused"));
}

#[tokio::test]
async fn tls_trusts_the_authority_that_is_named() {
    let authority = Authority::new();
    let server = RedisProcess::builder().with_tls(&authority.sign("server", "DNS:localhost,IP:127.0.0.1", KeyForm::Pkcs8), "no").start();
    let ca = authority.cacert();
    let ca = ("REDIS_TLS_CACERT", text(&ca));
    reach(&server, &[("REDIS_URL", &server.url()), ca]).await;
    reach(&server, &[("REDIS_URL", &server.address()), ("REDIS_TLS", "true"), ca]).await;
    reach(&server, &[("REDIS_URL", &format!("redis://localhost:{}", server.port())), ("REDIS_TLS", "true"), ca]).await;
    // Without it the system's are asked, and in plain text nobody answers.
    refusal(&[("REDIS_URL", &server.url())]).await;
    refusal(&[("REDIS_URL", &server.address()), ca]).await;
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let (one, other) = (Authority::new(), Authority::new());
    let server = RedisProcess::builder().with_tls(&one.sign("server", "IP:127.0.0.1", KeyForm::Pkcs8), "no").start();
    let ca = other.cacert();
    for skip in ["false", "true"] {
        let error =
            refusal(&[("REDIS_URL", &server.url()), ("REDIS_TLS_CACERT", text(&ca)), ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", skip)]).await;
        assert!(error.contains("invalid peer certificate"), "{error}");
    }
}

#[tokio::test]
async fn a_server_of_another_name_is_refused_unless_names_do_not_matter() {
    let authority = Authority::new();
    let server = RedisProcess::builder().with_tls(&authority.sign("server", "DNS:redis.example", KeyForm::Pkcs8), "no").start();
    let (url, ca) = (server.url(), authority.cacert());
    let settings = [("REDIS_URL", url.as_str()), ("REDIS_TLS_CACERT", text(&ca)), ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false")];
    let error = refusal(&settings).await;
    assert!(error.contains("NotValidForName") || error.contains("not valid for name"), "{error}");
    reach(&server, &[settings[0], settings[1], ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true")]).await;
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_asked_for() {
    let authority = Authority::new();
    let server = RedisProcess::builder().with_tls(&authority.sign("server", "IP:127.0.0.1", KeyForm::Pkcs8), "yes").start();
    let (url, ca) = (server.url(), authority.cacert());
    let settings = [("REDIS_URL", url.as_str()), ("REDIS_TLS_CACERT", text(&ca))];
    refusal(&settings).await;
    for (form, heading) in [(KeyForm::Pkcs8, "BEGIN PRIVATE KEY"), (KeyForm::Pkcs1, "BEGIN RSA PRIVATE KEY")] {
        let Identity { cert, key, .. } = authority.sign("client", "DNS:tollgate", form);
        assert!(fs::read_to_string(&key).expect("it is there").contains(heading), "openssl wrote another form than {form:?}");
        reach(&server, &[settings[0], settings[1], ("REDIS_TLS_CLIENT_CERT", text(&cert)), ("REDIS_TLS_CLIENT_KEY", text(&key))]).await;
    }
}

#[tokio::test]
async fn both_redises_are_reached_with_the_same_files_of_tls_and_these_are_watched_once() {
    let authority = Authority::new();
    let start = || RedisProcess::builder().with_tls(&authority.sign("server", "IP:127.0.0.1", KeyForm::Pkcs8), "yes").start();
    let (main, per_second) = (start(), start());
    let Identity { cert, key, .. } = authority.sign("client", "DNS:tollgate", KeyForm::Pkcs8);
    let (ca, main_url, per_second_url) = (authority.cacert(), main.url(), per_second.address());
    let resolved = connecting(&[
        ("REDIS_URL", &main_url),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", &per_second_url),
        ("REDIS_PERSECOND_TLS", "true"),
        ("REDIS_TLS_CACERT", text(&ca)),
        ("REDIS_TLS_CLIENT_CERT", text(&cert)),
        ("REDIS_TLS_CLIENT_KEY", text(&key)),
    ]);
    let Connecting { main: pool, per_second: other, secrets, .. } = resolved.expect("it is good");
    for (server, pool) in [(&main, pool), (&per_second, other.expect("it is set"))] {
        let Deployment::Single(address) = pool.deployment else { panic!("one server, not {}", pool.deployment) };
        assert!(info(&mut open(&address).await.expect("it is let in")).await.contains(&format!("process_id:{}\r", server.pid())));
    }
    assert_eq!(format!("{secrets:?}").matches(text(&cert)).count(), 1, "{secrets:?}");
}

#[tokio::test]
async fn what_is_exchanged_is_for_connections_that_begin_later() {
    let authority = Authority::new();
    let [before, after] = ["before", "after"].map(|_| Authority::new());
    let redis = RedisProcess::builder().with_tls(&authority.sign("server", "IP:127.0.0.1", KeyForm::Pkcs8), "yes");
    let redis = redis.with_user("user app on >1st ~* +@all").start();
    let home = TempDir::new().expect("a temporary directory can be made");
    let [password, cert, key] = ["password", "cert", "key"].map(|name| home.path().join(name));
    let exchange = |content: &str, authority: &Authority, form: KeyForm| {
        redis.command::<()>(&["CONFIG", "SET", "tls-ca-cert-file", text(&authority.cacert())]);
        let identity = authority.sign("client", "DNS:tollgate", form);
        fs::write(&password, content).expect("a file can be written");
        fs::copy(identity.cert, &cert).expect("a file can be copied");
        fs::copy(identity.key, &key).expect("a file can be copied");
    };
    exchange("app:1st\n", &before, KeyForm::Pkcs8);
    let (url, ca) = (redis.url(), authority.cacert());
    let resolved = connecting(&[
        ("REDIS_URL", &url),
        ("REDIS_AUTH_FILE", text(&password)),
        ("REDIS_TLS_CACERT", text(&ca)),
        ("REDIS_TLS_CLIENT_CERT", text(&cert)),
        ("REDIS_TLS_CLIENT_KEY", text(&key)),
    ]);
    let Connecting { main, secrets, .. } = resolved.expect("it is good");
    let Deployment::Single(address) = main.deployment else { panic!("one server, not {}", main.deployment) };
    let mut source = SecretSource::new(secrets, &Metrics::new()).expect("there are files");
    let mut old = open(&address).await.expect("it is let in");

    exchange("app:2nd", &after, KeyForm::Sec1);
    redis.command::<()>(&["ACL", "SETUSER", "app", "resetpass", ">2nd"]);
    assert!(open(&address).await.is_err(), "nobody has read the files again");
    source.load();
    // Somewhere else, as a cluster or Sentinel names it, the same is said.
    for address in [&address, &address.at("127.0.0.1", redis.port())] {
        open(address).await.expect("it is let in");
    }
    info(&mut old).await;
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let authority = Authority::new();
    let (one, other) = (authority.sign("one", "DNS:one", KeyForm::Pkcs8), authority.sign("other", "DNS:other", KeyForm::Pkcs8));
    let directory = TempDir::new().expect("a temporary directory can be made");
    let (empty, garbled) = (directory.path().join("empty"), directory.path().join("garbled"));
    fs::write(&empty, "").expect("a file can be written");
    fs::write(&garbled, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("a file can be written");
    let client = |cert, key| [("REDIS_TLS_CLIENT_CERT", text(cert)), ("REDIS_TLS_CLIENT_KEY", text(key))];
    let (cert, key) = (&one.cert, &one.key);
    let missing = Path::new("/no/such.pem");
    let cases = [
        (vec![("REDIS_TLS_CACERT", text(missing))], "REDIS_TLS_CACERT: /no/such.pem: No such file".to_owned()),
        (vec![("REDIS_TLS_CACERT", text(&empty))], format!("REDIS_TLS_CACERT: {} has no certificate in PEM", empty.display())),
        (vec![("REDIS_TLS_CACERT", text(key))], format!("REDIS_TLS_CACERT: {} has no certificate in PEM", key.display())),
        (vec![("REDIS_TLS_CACERT", text(&garbled))], format!("REDIS_TLS_CACERT: {} has no authority's certificate", garbled.display())),
        (client(missing, key).to_vec(), "REDIS_TLS_CLIENT_CERT: /no/such.pem: No such file".to_owned()),
        (client(cert, missing).to_vec(), "REDIS_TLS_CLIENT_KEY: /no/such.pem: No such file".to_owned()),
        (client(key, cert).to_vec(), format!("REDIS_TLS_CLIENT_CERT: {} has no certificate in PEM", key.display())),
        (client(cert, cert).to_vec(), format!("REDIS_TLS_CLIENT_KEY: {} has no private key in PEM", cert.display())),
        (client(cert, &other.key).to_vec(), "REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY: ".to_owned()),
    ];
    for (settings, expected) in cases {
        let settings = [&[("REDIS_URL", "rediss://redis")], &settings[..]].concat();
        let error = resolve(&settings).expect_err("it is refused");
        assert!(error.starts_with(&expected), "{settings:?}: {error}");
    }
}
