//! Redis with TLS: the settings that reach it, and everything that changes while a service runs.
//!
//! The servers of `.tools` have no TLS, so these run on the distribution's redis-server.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tollgate::store::redis::settings::Resolved;
use tollgate::store::redis::topology::deployment::Deployment;

use crate::cluster::ready;
use crate::idle_closes;
use crate::redis_address::{connect_error, connecting, info, open, reach, text};
use crate::settings::{
    K, K_AND_S, S, TIGHT, counting, counts_on_a_new_connection, wait_until_ready_says,
    with_both_periods,
};
use crate::support::certificates::{Authority, Identity, KeyForm};
use crate::support::cluster::{self, ClusterProcess};
use crate::support::counting::{Counting, service};
use crate::support::fault::Servers as _;
use crate::support::redis::{Builder, RedisProcess};
use crate::support::sentinel::{self, SentinelProcess};
use crate::support::{TestServer, limit_of, look_until, write};

const LIMIT: u32 = 4;

/// A server whose certificate of this authority is for these names, and whether its clients must
/// show one.
fn with_tls(authority: &Authority, names: &str, auth_clients: &str) -> Builder {
    let identity = authority.sign("server", names, KeyForm::Pkcs8);
    RedisProcess::builder().with_tls(&identity, auth_clients)
}

/// The settings of a client with this identity.
fn client_settings(identity: &Identity) -> Vec<(&'static str, String)> {
    let path = |path: &Path| path.display().to_string();
    vec![
        ("REDIS_TLS", "true".to_owned()),
        ("REDIS_TLS_CACERT", path(&identity.ca)),
        ("REDIS_TLS_CLIENT_CERT", path(&identity.cert)),
        ("REDIS_TLS_CLIENT_KEY", path(&identity.key)),
    ]
}

#[tokio::test]
async fn tls_trusts_the_authority_that_is_named() {
    let authority = Authority::new();
    let server = with_tls(&authority, "DNS:localhost,IP:127.0.0.1", "no").start();
    let ca = authority.cacert();
    let ca = ("REDIS_TLS_CACERT", text(&ca));
    reach(&server, &[("REDIS_URL", &server.url()), ca]).await;
    reach(&server, &[("REDIS_URL", &server.address()), ("REDIS_TLS", "true"), ca]).await;
    reach(
        &server,
        &[
            ("REDIS_URL", &format!("redis://localhost:{}", server.port())),
            ("REDIS_TLS", "true"),
            ca,
        ],
    )
    .await;
    // Without it the system's authorities apply, and plain text gets no reply.
    connect_error(&[("REDIS_URL", &server.url())]).await;
    connect_error(&[("REDIS_URL", &server.address()), ca]).await;
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let one = Authority::new();
    let other = Authority::new();
    let server = with_tls(&one, "IP:127.0.0.1", "no").start();
    let ca = other.cacert();
    for skip in ["false", "true"] {
        let error = connect_error(&[
            ("REDIS_URL", &server.url()),
            ("REDIS_TLS_CACERT", text(&ca)),
            ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", skip),
        ])
        .await;
        assert!(error.contains("invalid peer certificate"), "{error}");
    }
}

#[tokio::test]
async fn a_self_signed_certificate_is_accepted_where_it_is_trusted_and_has_the_name() {
    let (_files, identity) = Authority::self_signed("DNS:localhost");
    let redis = RedisProcess::builder().with_tls(&identity, "no").start();
    let ca = ("REDIS_TLS_CACERT", text(&identity.cert));
    let named = format!("rediss://localhost:{}", redis.port());
    reach(&redis, &[("REDIS_URL", &named), ca]).await;
    // A start that gives up says why, with the address.
    let url = redis.url();
    let mut server = TestServer::with_rules(&limit_of(2))
        .with_envs(&[("REDIS_URL", &*url), ca, ("REDIS_STARTUP_MAX_ELAPSED_TIME", "2s")])
        .start();
    assert_eq!(server.exit_code().await, Some(1));
    let log = server.log_with("(REDIS_STARTUP_MAX_ELAPSED_TIME)");
    let last = log.lines().last().expect("there is one");
    for part in [
        &*format!("(REDIS_STARTUP_MAX_ELAPSED_TIME): {url}"),
        "invalid peer certificate",
        r#"DnsName("localhost")"#,
        "make it with -addext subjectAltName=DNS:HOST",
    ] {
        assert!(last.contains(part), "{part}: {log}");
    }
}

#[tokio::test]
async fn both_redises_are_reached_with_the_same_files_of_tls_and_these_are_watched_once() {
    let authority = Authority::new();
    let start = || with_tls(&authority, "IP:127.0.0.1", "yes").start();
    let main = start();
    let per_second = start();
    let Identity { cert, key, .. } = authority.sign("client", "DNS:tollgate", KeyForm::Pkcs8);
    let ca = authority.cacert();
    let main_url = main.url();
    let per_second_url = per_second.address();
    let resolved = connecting(&[
        ("REDIS_URL", &main_url),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", &per_second_url),
        ("REDIS_PERSECOND_TLS", "true"),
        ("REDIS_TLS_CACERT", text(&ca)),
        ("REDIS_TLS_CLIENT_CERT", text(&cert)),
        ("REDIS_TLS_CLIENT_KEY", text(&key)),
    ]);
    let Resolved { main: pool, per_second: other, files: secrets, .. } =
        resolved.expect("it is good");
    for (server, pool) in [(&main, pool), (&per_second, other.expect("it is set"))] {
        let Deployment::Single(address) = pool.deployment else {
            panic!("one server, not {}", pool.deployment)
        };
        assert!(
            info(&mut open(&address).await.expect("connected"))
                .await
                .contains(&format!("process_id:{}\r", server.pid()))
        );
    }
    assert_eq!(format!("{secrets:?}").matches(text(&cert)).count(), 1, "{secrets:?}");
}

/// Waits until what is missing has an effect.
fn logs_a_fault(server: &TestServer) {
    let faults = ["Redis unreachable", "Redis replies with errors"];
    look_until("a fault is logged", || faults.iter().any(|fault| server.log().contains(fault)));
}

/// Settings of a Redis, each of which is needed to reach it.
#[test]
fn redis_is_reached_only_with_what_it_asks_for() {
    let authority = Authority::new();
    let server_identity = authority.sign("server", "DNS:elsewhere.test", KeyForm::Pkcs8);
    let client = authority.sign("client", "DNS:client.test", KeyForm::Pkcs1);
    let redis =
        RedisProcess::builder().with_tls(&server_identity, "yes").with_password("s3cret").start();
    let text = |path: &Path| path.display().to_string();
    let address = redis.address();
    let settings = [
        ("REDIS_URL", address.trim_start_matches("rediss://").to_owned()),
        ("REDIS_AUTH", "s3cret".to_owned()),
        ("REDIS_TLS", "true".to_owned()),
        ("REDIS_TLS_CACERT", text(&authority.cacert())),
        ("REDIS_TLS_CLIENT_CERT", text(&client.cert)),
        ("REDIS_TLS_CLIENT_KEY", text(&client.key)),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true".to_owned()),
    ];
    let start = |without: &[&str]| {
        let set = settings.iter().filter(|(name, _)| !without.contains(name)).cloned();
        TestServer::with_rules(&limit_of(1))
            .with_env("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true")
            .with_envs(&set.collect::<Vec<_>>())
            .start()
    };
    let is_reached = |server: &TestServer| server.get("/healthcheck").status == 200;
    let server = start(&[]);
    look_until("it is reached", || is_reached(&server));
    assert_eq!(
        (
            server.json(TIGHT.replace("tight", "k").as_str()).status,
            redis.command::<usize>(&["DBSIZE"])
        ),
        (200, 1)
    );

    let groups = [
        &["REDIS_AUTH"][..],
        &["REDIS_TLS"],
        &["REDIS_TLS_CACERT"],
        &["REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"],
        &["REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"],
    ];
    for without in groups {
        let server = start(without);
        logs_a_fault(&server);
        assert!(!is_reached(&server), "without {without:?}");
    }
}

#[test]
fn a_client_certificate_is_exchanged_without_a_restart() {
    let authority = Authority::new();
    let redis = with_tls(&authority, "IP:127.0.0.1", "yes").start();
    let home = TempDir::new().expect("a temporary directory can be made");
    let [cert, key] = ["cert", "key"].map(|name| home.path().join(name));
    let exchange = |authority: &Authority, form: KeyForm| {
        // The server trusts clients of another authority.
        let ca = authority.cacert();
        redis.command::<()>(&["CONFIG", "SET", "tls-ca-cert-file", text(&ca)]);
        let identity = authority.sign("client", "DNS:tollgate", form);
        fs::copy(identity.cert, &cert).expect("a file can be copied");
        fs::copy(identity.key, &key).expect("a file can be copied");
    };
    let before = Authority::new();
    let after = Authority::new();
    exchange(&before, KeyForm::Pkcs8);
    let files = [
        ("REDIS_TLS_CACERT", authority.cacert()),
        ("REDIS_TLS_CLIENT_CERT", cert.clone()),
        ("REDIS_TLS_CLIENT_KEY", key.clone()),
    ];
    let server = counting(&redis).with_env("REDIS_TLS", "true");
    let server = files
        .iter()
        .fold(server, |server, (name, path)| server.with_env(name, &path.display().to_string()))
        .start();
    look_until("connected", || server.json(K).status == 200);
    exchange(&after, KeyForm::Sec1);
    counts_on_a_new_connection(&server, &redis);
}

/// Settings of a second Redis, each of which is needed to reach it.
#[test]
fn the_second_redis_is_reached_only_with_what_it_asks_for() {
    let authority = Authority::new();
    let main = RedisProcess::start();
    let second = with_tls(&authority, "IP:127.0.0.1", "no");
    let second = second.with_password("s3cret").start();
    let home = TempDir::new().expect("a temporary directory can be made");
    let path = home.path().join("password");
    write(&path, "s3cret\n");
    let ca = authority.cacert().display().to_string();
    let path = path.display().to_string();
    let url = main.url();
    let second_url = second.address();
    let start = |settings: &[(&str, &str)]| {
        let always = [
            ("REDIS_URL", url.as_str()),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", &second_url),
            ("REDIS_TLS_CACERT", &ca),
        ];
        with_both_periods(&[&always[..], settings].concat()).start()
    };
    let (auth, file, tls) = (
        ("REDIS_PERSECOND_AUTH", "s3cret"),
        ("REDIS_PERSECOND_AUTH_FILE", path.as_str()),
        ("REDIS_PERSECOND_TLS", "true"),
    );
    for settings in [[auth, tls], [file, tls]] {
        let server = start(&settings);
        look_until("it is reached", || server.json(K_AND_S).status == 200);
    }
    // What is said of the first Redis is not said to the second.
    for settings in [&[tls][..], &[auth], &[("REDIS_AUTH", "s3cret"), tls]] {
        let server = start(settings);
        logs_a_fault(&server);
        assert_eq!(server.json(S).status, 429, "{settings:?}");
    }
    let server = start(&[tls]);
    look_until("the first is reached", || server.json(K).status == 200);
    wait_until_ready_says(&server, "requires a password (NOAUTH); set REDIS_PERSECOND_AUTH");
}

#[tokio::test]
async fn a_cluster_is_reached_with_client_certificates_and_a_password() {
    let authority = Authority::new();
    let identity = authority.sign("redis", "IP:127.0.0.1", KeyForm::Pkcs8);
    let cluster = ClusterProcess::with(cluster::Options {
        node: RedisProcess::builder().with_tls(&identity, "yes").with_password("s3cret"),
        ..cluster::Options::default()
    });
    for server in cluster.living() {
        let user = ["app", "on", ">also-s3cret", "~*", "&*", "+@all"];
        server.command::<()>(&[&["ACL", "SETUSER"], &user[..]].concat());
    }
    for auth in ["s3cret", "app:also-s3cret"] {
        let mut settings = [cluster.settings(), client_settings(&identity)].concat();
        settings.push(("REDIS_AUTH", auth.to_owned()));
        let server = service(LIMIT, &settings);
        let mut counting = ready(&server).await;
        counting.admits_exactly(LIMIT, [auth]).await;
        // Where a slot goes, credentials go as well.
        let key = cluster.keys("*log*").pop().expect("logs were counted");
        let slot = cluster.slot_of(&key);
        cluster.migrate(slot);
        assert_eq!(counting.admitted("log", auth, 1).await, 0);
    }
}

#[tokio::test]
async fn sentinels_and_their_servers_are_reached_with_client_certificates() {
    let authority = Authority::new();
    let identity = authority.sign("redis", "IP:127.0.0.1", KeyForm::Pkcs8);
    let deployment = SentinelProcess::with(sentinel::Options {
        server: RedisProcess::builder().with_tls(&identity, "yes"),
        ..sentinel::Options::default()
    });
    let settings = [deployment.settings(), client_settings(&identity)].concat();
    let server = service(LIMIT, &settings);
    let mut counting = Counting::at(&server).await;
    counting.wait_for_verdicts(&[("token", "anything")]).await;
    counting.admits_exactly(LIMIT, ["v"]).await;
    deployment.fail_over();
    counting.wait_for_verdicts(&[("token", "anything")]).await;
    counting.admits_exactly(LIMIT, ["w"]).await;
}

#[tokio::test]
async fn closes_of_idle_connections_are_no_outage() {
    let authority = Authority::new();
    let server = with_tls(&authority, "DNS:localhost,IP:127.0.0.1", "no").start();
    let service = TestServer::with_rules(&limit_of(idle_closes::LIMIT)).with_envs(&[
        ("REDIS_URL", &*server.url()),
        ("REDIS_TLS_CACERT", text(&authority.cacert())),
    ]);
    idle_closes::closes_are_no_outage(service, &[&server], "main", idle_closes::LIMIT).await;
}
