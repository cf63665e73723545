//! The settings REDIS_* lead to the right server, user and database.

use std::path::Path;

use clap::Parser;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};
use tempfile::TempDir;
use tollgate::base::environment::Environment;
use tollgate::store::redis::connect::address::Address;
use tollgate::store::redis::connect::dialer::Dialer;
use tollgate::store::redis::settings::Resolved;
use tollgate::store::redis::topology::deployment::Deployment;
use tollgate::store::settings::Settings;

use crate::support::certificates::{Authority, KeyForm};
use crate::support::redis::RedisProcess;
use crate::support::{PATIENCE, write};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    store: Settings,
}

/// Resolves settings, given as flags; empty ones are unset.
pub(crate) fn connecting(settings: &[(&str, &str)]) -> Result<Resolved, String> {
    let set = settings.iter().filter(|(_, value)| !value.is_empty());
    let flags = set.flat_map(|(name, value)| {
        [format!("--{}", name.to_lowercase().replace('_', "-")), (*value).to_owned()]
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
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let stream = Dialer::default().open(address).await?;
    let (mut connection, driver) =
        MultiplexedConnection::new_with_config(&address.session(), stream, config).await?;
    #[expect(clippy::disallowed_methods, reason = "ends with its connection")]
    tokio::spawn(driver);
    let pong: String = redis::cmd("PING").query_async(&mut connection).await?;
    assert_eq!(pong, "PONG");
    Ok(connection)
}

async fn connect(settings: &[(&str, &str)]) -> RedisResult<MultiplexedConnection> {
    open(&resolve(settings).unwrap_or_else(|error| panic!("{settings:?}: {error}"))).await
}

pub(crate) async fn info(connection: &mut MultiplexedConnection) -> String {
    redis::cmd("INFO").arg("server").query_async(connection).await.expect("it answers")
}

/// Asserts that the settings lead to this server and no other, and gives its word about the
/// connection: user, database and more.
pub(crate) async fn reach(server: &RedisProcess, settings: &[(&str, &str)]) -> String {
    let mut connection =
        connect(settings).await.unwrap_or_else(|error| panic!("{settings:?}: {error}"));
    let info = info(&mut connection).await;
    assert!(
        info.contains(&format!("process_id:{}\r", server.pid())),
        "{settings:?} lead elsewhere: {info}"
    );
    redis::cmd("CLIENT").arg("INFO").query_async(&mut connection).await.expect("it answers")
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
    path.to_str().expect("temporary directories have plain names")
}

#[tokio::test]
async fn user_password_and_database_are_those_of_the_url_or_of_redis_auth() {
    let password = "p@ss:w/o,r%d?#";
    let encoded = "p%40ss%3Aw%2Fo%2Cr%25d%3F%23";
    let server =
        RedisProcess::builder().with_user(&format!("user app on >{password} ~* &* +@all")).start();
    let address = server.address();
    let socket = server.socket();
    let socket = text(&socket);
    let auth = &*format!("app:{password}");
    for (url, auth, user, database) in [
        (address.clone(), "", "default", 0),
        (address.clone(), auth, "app", 0),
        (socket.to_owned(), auth, "app", 0),
        (format!("redis://app:{encoded}@{address}/3"), "", "app", 3),
        (format!("redis://{address}?username=app&password={encoded}&db=4"), "", "app", 4),
        (format!("unix://{socket}?user=app&password={encoded}&db=5"), "", "app", 5),
        (format!("redis://default:wrong@{address}/3?db=4"), auth, "app", 3),
        (format!("redis://app@{address}"), &auth["app".len()..], "app", 0),
    ] {
        let info = reach(&server, &[("REDIS_URL", &url), ("REDIS_AUTH", auth)]).await;
        for expected in [format!("user={user} "), format!(" db={database} ")] {
            assert!(info.contains(&expected), "{url} {auth}: {info}");
        }
    }
    let none = connect_error(&[("REDIS_URL", &format!("{}/99", server.url()))]).await;
    assert!(none.contains("refused"), "{none}");
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let authority = Authority::new();
    let (one, other) = (
        authority.sign("one", "DNS:one", KeyForm::Pkcs8),
        authority.sign("other", "DNS:other", KeyForm::Pkcs8),
    );
    let directory = TempDir::new().expect("a temporary directory can be made");
    let [empty, garbled] = ["empty", "garbled"].map(|name| directory.path().join(name));
    write(&empty, "");
    let nothing = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    write(&garbled, nothing);
    let [cert, key, other, empty, garbled] =
        [&one.cert, &one.key, &other.key, &empty, &garbled].map(|path| text(path));
    let missing = "/no/such.pem";
    let [of_ca, of_cert, of_key] =
        ["REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"];
    let no_file = format!("{missing}: No such file");
    let no_cert = format!("{key} has no certificate in PEM");
    // The authority, or the client's certificate and key; the setting that is named, and why.
    for (files, named, why) in [
        (&[missing][..], of_ca, no_file.clone()),
        (&[empty], of_ca, format!("{empty} has no certificate in PEM")),
        (&[key], of_ca, no_cert.clone()),
        (&[garbled], of_ca, format!("{garbled} has no authority's certificate")),
        (&[missing, key], of_cert, no_file.clone()),
        (&[cert, missing], of_key, no_file),
        (&[key, cert], of_cert, no_cert),
        (&[cert, cert], of_key, format!("{cert} has no private key in PEM")),
        (&[cert, other], "REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY", String::new()),
    ] {
        let settings = match files {
            [ca] => vec![(of_ca, *ca)],
            [cert, key] => vec![(of_cert, *cert), (of_key, *key)],
            _ => unreachable!("one file or two"),
        };
        let expected = format!("{named}: {why}");
        let settings = [&[("REDIS_URL", "rediss://redis")], &settings[..]].concat();
        let error = resolve(&settings).expect_err("an error");
        assert!(error.starts_with(&expected), "{settings:?}: {error}");
    }
}
