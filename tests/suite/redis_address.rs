//! The settings REDIS_* lead to the right server, user and database.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use clap::Parser;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use tempfile::TempDir;
use tollgate::settings::environment::Environment;
use tollgate::store::redis::connect::address::Address;
use tollgate::store::redis::settings::Resolved;
use tollgate::store::redis::topology::deployment::Deployment;
use tollgate::store::settings::Settings;

use crate::support::PATIENCE;
use crate::support::certificates::{Authority, KeyForm};
use crate::support::redis::RedisProcess;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    store: Settings,
}

/// Resolves settings, given as flags; empty ones are unset.
pub(crate) fn connecting(settings: &[(&str, &str)]) -> Result<Resolved, String> {
    let set = settings.iter().filter(|(_, value)| !value.is_empty());
    let flags = set.flat_map(|(name, value)| {
        [
            format!("--{}", name.to_lowercase().replace('_', "-")),
            (*value).to_owned(),
        ]
    });
    let cli = Cli::try_parse_from(std::iter::once("tollgate".to_owned()).chain(flags))
        .expect("each of them is right");
    cli.store.redis.resolve(&Environment::default())
}

/// The address of a single server.
fn resolve(settings: &[(&str, &str)]) -> Result<Address, String> {
    match connecting(settings)?.main.deployment {
        Deployment::Single(address) => Ok(address),
        other => panic!("{settings:?} mean {other}"),
    }
}

/// Connects and sends a PING: a server may accept clients that it then rejects.
pub(crate) async fn open(address: &Address) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let mut connection = Client::open(address.connection_info())?
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    let pong: String = redis::cmd("PING").query_async(&mut connection).await?;
    assert_eq!(pong, "PONG");
    Ok(connection)
}

async fn connect(settings: &[(&str, &str)]) -> RedisResult<MultiplexedConnection> {
    open(&resolve(settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"))).await
}

pub(crate) async fn info(connection: &mut MultiplexedConnection) -> String {
    redis::cmd("INFO")
        .arg("server")
        .query_async(connection)
        .await
        .expect("it answers")
}

/// Asserts that the settings lead to this server and no other, and gives its word about the
/// connection: user, database and more.
pub(crate) async fn reach(server: &RedisProcess, settings: &[(&str, &str)]) -> String {
    let mut connection = connect(settings)
        .await
        .unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    let info = info(&mut connection).await;
    assert!(
        info.contains(&format!("process_id:{}\r", server.pid())),
        "{settings:?} lead elsewhere: {info}"
    );
    redis::cmd("CLIENT")
        .arg("INFO")
        .query_async(&mut connection)
        .await
        .expect("it answers")
}

/// Asserts that connecting fails, and returns the error.
pub(crate) async fn connect_error(settings: &[(&str, &str)]) -> String {
    match connect(settings).await {
        Ok(_) => panic!("{settings:?}: connected"),
        Err(error) => {
            let explained = resolve(settings).expect("it was good").explain(&error);
            format!("{explained} ({error:?})")
        }
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str()
        .expect("temporary directories have plain names")
}

#[tokio::test]
async fn a_server_is_reached_by_tcp() {
    let server = RedisProcess::start();
    let port = server.port();
    for url in [
        server.address(),
        server.url(),
        format!("localhost:{port}"),
        format!("redis://localhost:{port}/"),
        format!(" 127.0.0.1:{port}\n"),
    ] {
        reach(
            &server,
            &[("REDIS_URL", &url), ("REDIS_SOCKET_TYPE", "tcp")],
        )
        .await;
    }
    let info = resolve(&[("REDIS_URL", &server.url())])
        .expect("it is good")
        .connection_info();
    assert!(info.tcp_settings().nodelay() && info.tcp_settings().keepalive().is_some());
}

#[tokio::test]
async fn a_server_is_reached_by_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("not tested: this machine has no IPv6");
        return;
    }
    let server = RedisProcess::start();
    for url in [
        format!("[::1]:{}", server.port()),
        format!("redis://[::1]:{}/0", server.port()),
    ] {
        let info = reach(&server, &[("REDIS_URL", &url)]).await;
        assert!(info.contains("addr=[::1]:"), "{info}");
    }
}

#[tokio::test]
async fn what_the_url_is_wins_over_the_socket_type() {
    let (by_tcp, by_socket) = (
        RedisProcess::start(),
        RedisProcess::builder().with_nothing_but_a_socket().start(),
    );
    for socket_type in ["tcp", "unix", ""] {
        reach(
            &by_tcp,
            &[
                ("REDIS_URL", &by_tcp.address()),
                ("REDIS_SOCKET_TYPE", socket_type),
            ],
        )
        .await;
        for url in [
            by_socket.address(),
            by_socket.url(),
            format!("unix:{}", by_socket.address()),
            format!("redis+{}", by_socket.url()),
        ] {
            reach(
                &by_socket,
                &[("REDIS_URL", &url), ("REDIS_SOCKET_TYPE", socket_type)],
            )
            .await;
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
    reach(
        &server,
        &[(
            "REDIS_URL",
            &format!("redis://{address}?password={encoded}"),
        )],
    )
    .await;
    reach(
        &server,
        &[(
            "REDIS_URL",
            &format!("unix://{}?password={encoded}", socket.display()),
        )],
    )
    .await;
    // With a colon in it, a password needs one before it.
    reach(
        &server,
        &[("REDIS_URL", &address), ("REDIS_AUTH", &by_user)],
    )
    .await;
    reach(
        &server,
        &[("REDIS_URL", text(&socket)), ("REDIS_AUTH", &by_user)],
    )
    .await;
    reach(
        &server,
        &[
            ("REDIS_URL", &format!("redis://:wrong@{address}")),
            ("REDIS_AUTH", &by_user),
        ],
    )
    .await;
    assert!(
        connect_error(&[("REDIS_URL", &address)])
            .await
            .contains("requires a password (NOAUTH); set REDIS_AUTH")
    );
}

#[tokio::test]
async fn a_user_of_an_acl_is_let_in_by_the_url_or_by_redis_auth() {
    let server = RedisProcess::builder()
        .with_user("user app on >s3:cret ~* +@all")
        .start();
    let (address, named) = (
        server.address(),
        format!("redis://app@{}", server.address()),
    );
    let ways: [&[(&str, &str)]; 5] = [
        &[("REDIS_URL", &format!("redis://app:s3:cret@{address}"))],
        &[(
            "REDIS_URL",
            &format!("redis://{address}?username=app&password=s3:cret"),
        )],
        &[("REDIS_URL", &address), ("REDIS_AUTH", "app:s3:cret")],
        &[
            ("REDIS_URL", &format!("redis://default:wrong@{address}")),
            ("REDIS_AUTH", "app:s3:cret"),
        ],
        &[("REDIS_URL", &named), ("REDIS_AUTH", ":s3:cret")],
    ];
    for way in ways {
        let info = reach(&server, way).await;
        assert!(info.contains("user=app "), "{way:?}: {info}");
    }
    // The default user is still accepted.
    assert!(
        reach(&server, &[("REDIS_URL", &address)])
            .await
            .contains("user=default ")
    );
}

#[tokio::test]
async fn a_user_without_a_password_is_let_in_if_the_acl_asks_for_none() {
    let server = RedisProcess::builder()
        .with_user("user app on nopass ~* +@all")
        .start();
    let info = reach(
        &server,
        &[("REDIS_URL", &format!("redis://app@{}", server.address()))],
    )
    .await;
    assert!(info.contains("user=app "), "{info}");
}

#[tokio::test]
async fn a_wrong_password_is_told_and_not_shown() {
    let server = RedisProcess::builder().with_password("right").start();
    for settings in [
        &[("REDIS_URL", format!("redis://:s3cret@{}", server.address()))][..],
        &[
            ("REDIS_URL", server.address()),
            ("REDIS_AUTH", "default:s3cret".to_owned()),
        ],
    ] {
        let settings: Vec<_> = settings
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let error = connect_error(&settings).await;
        assert!(
            error.contains("rejects the user or password (WRONGPASS)"),
            "{error}"
        );
        assert!(
            error.contains(&server.url()) && !error.contains("s3cret"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn the_database_is_the_one_that_is_named() {
    let server = RedisProcess::start();
    let (url, socket) = (server.url(), server.socket());
    let socket = socket.display();
    let ways = [
        (format!("{url}/3"), 3),
        (format!("{url}?db=4"), 4),
        (format!("{url}/3?db=4"), 3),
        (format!("unix://{socket}?db=5"), 5),
        (url, 0),
    ];
    for (url, database) in ways {
        let mut connection = connect(&[("REDIS_URL", &url)]).await.expect("connected");
        let () = redis::cmd("SET")
            .arg("here")
            .arg(&url)
            .query_async(&mut connection)
            .await
            .expect("it answers");
        let keyspace: String = server.command(&["INFO", "keyspace"]);
        assert!(
            keyspace.contains(&format!("db{database}:keys=1,")),
            "{url}: {keyspace}"
        );
        server.command::<()>(&["FLUSHALL"]);
    }
    assert!(
        connect_error(&[("REDIS_URL", &format!("{}/99", server.url()))])
            .await
            .contains("refused")
    );
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let authority = Authority::new();
    let (one, other) = (
        authority.sign("one", "DNS:one", KeyForm::Pkcs8),
        authority.sign("other", "DNS:other", KeyForm::Pkcs8),
    );
    let directory = TempDir::new().expect("a temporary directory can be made");
    let (empty, garbled) = (
        directory.path().join("empty"),
        directory.path().join("garbled"),
    );
    fs::write(&empty, "").expect("a file can be written");
    fs::write(
        &garbled,
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .expect("a file can be written");
    let client = |cert, key| {
        [
            ("REDIS_TLS_CLIENT_CERT", text(cert)),
            ("REDIS_TLS_CLIENT_KEY", text(key)),
        ]
    };
    let (cert, key) = (&one.cert, &one.key);
    let missing = Path::new("/no/such.pem");
    let cases = [
        (
            vec![("REDIS_TLS_CACERT", text(missing))],
            "REDIS_TLS_CACERT: /no/such.pem: No such file".to_owned(),
        ),
        (
            vec![("REDIS_TLS_CACERT", text(&empty))],
            format!(
                "REDIS_TLS_CACERT: {} has no certificate in PEM",
                empty.display()
            ),
        ),
        (
            vec![("REDIS_TLS_CACERT", text(key))],
            format!(
                "REDIS_TLS_CACERT: {} has no certificate in PEM",
                key.display()
            ),
        ),
        (
            vec![("REDIS_TLS_CACERT", text(&garbled))],
            format!(
                "REDIS_TLS_CACERT: {} has no authority's certificate",
                garbled.display()
            ),
        ),
        (
            client(missing, key).to_vec(),
            "REDIS_TLS_CLIENT_CERT: /no/such.pem: No such file".to_owned(),
        ),
        (
            client(cert, missing).to_vec(),
            "REDIS_TLS_CLIENT_KEY: /no/such.pem: No such file".to_owned(),
        ),
        (
            client(key, cert).to_vec(),
            format!(
                "REDIS_TLS_CLIENT_CERT: {} has no certificate in PEM",
                key.display()
            ),
        ),
        (
            client(cert, cert).to_vec(),
            format!(
                "REDIS_TLS_CLIENT_KEY: {} has no private key in PEM",
                cert.display()
            ),
        ),
        (
            client(cert, &other.key).to_vec(),
            "REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY: ".to_owned(),
        ),
    ];
    for (settings, expected) in cases {
        let settings = [&[("REDIS_URL", "rediss://redis")], &settings[..]].concat();
        let error = resolve(&settings).expect_err("an error");
        assert!(error.starts_with(&expected), "{settings:?}: {error}");
    }
}
