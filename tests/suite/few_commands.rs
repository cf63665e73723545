//! A Redis that has the commands of envoyproxy/ratelimit only: INCRBY, EXPIRE, GET and PING.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::{io, thread};

use crate::support::redis::RedisProcess;
use crate::support::{Code, TestServer, eventually, look_until};

const USER: &str = "user rls on >secret ~* &* -@all +ping +incrby +expire +get";
const COMMANDS: [&str; 4] = ["PING", "INCRBY", "EXPIRE", "GET"];

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: bucket, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: token_bucket}}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {tollgate: {algorithm: sliding_log}}}
";

fn start(url: &str, auth: &str) -> TestServer {
    TestServer::with_rules(RULES).with_env("REDIS_URL", url).with_env("REDIS_AUTH", auth).start()
}

/// Two replicas share a counter, which has an expiry; the log and `/ready` name the commands and
/// the rules that need them.
async fn assert_counts_windows(servers: &[TestServer; 2], redis: &RedisProcess) {
    for server in servers {
        look_until("it has found out", || server.log().contains("Redis refuses commands"));
    }
    let mut clients = [servers[0].client().await, servers[1].client().await];
    let mut codes = Vec::new();
    for call in 0..8 {
        codes.push(clients[call % 2].ask("d", &[("k", "v")]).await);
    }
    let expected = [&[Code::Ok; 2][..], &[Code::OverLimit; 6]].concat();
    assert_eq!(codes, expected);
    let keys = redis.command::<Vec<String>>(&["KEYS", "*"]);
    assert!(keys.len() == 1 && keys[0].starts_with("d_k_v_"), "{keys:?}");
    assert!(redis.command::<i64>(&["TTL", &keys[0]]) > 0);
    assert_eq!(redis.text(&["GET", &keys[0]]), "8");
    for server in servers {
        server.assert_logged_once("Redis refuses commands");
        look_until("/ready has it", || {
            server.get("/ready").body.contains("Redis refuses commands")
        });
        let ready = server.get("/ready").body;
        for text in [&server.log_with("Redis refuses commands"), &ready] {
            for part in ["TIME: ", "EVALSHA is needed by 2 rules: d.bucket, d.log;", "REPLICAS"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        assert!(!ready.contains("unreachable"), "{ready}");
        server.assert_not_logged("unreachable");
        server.assert_not_logged("heartbeats rejected");
        assert_eq!(server.get("/healthcheck").status, 200);
    }
}

#[tokio::test]
async fn a_user_of_the_reference_counts_fixed_windows() {
    let redis = RedisProcess::builder().with_user(USER).start();
    let servers = [(); 2].map(|()| start(&redis.address(), "rls:secret"));
    assert_counts_windows(&servers, &redis).await;
    let [server, _] = &servers;
    server.assert_logged("'time' command");
    // Each replica by itself.
    let mut client = server.client().await;
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(client.ask("d", &[("bucket", "v")]).await, expected);
    }
    look_until("the refused command is reported", || server.log().contains("'evalsha' command"));
    eventually("/ready has it", async || {
        client.ask("d", &[("bucket", "v")]).await;
        server.get("/ready").body.contains("'evalsha' command")
    })
    .await;
    server.assert_not_logged("Redis replies with errors");
    server.assert_not_logged("unreachable");
}

#[tokio::test]
async fn hits_of_an_outage_are_written_back_without_scripts() {
    let mut redis = RedisProcess::builder().with_user(USER).start();
    let server = start(&redis.address(), "rls:secret");
    let mut client = server.client().await;
    look_until("it has found out", || server.log().contains("Redis refuses commands"));
    redis.kill();
    eventually("Redis is found unreachable", async || {
        client.ask("d", &[("k", "first")]).await;
        server.log().contains("Redis unreachable")
    })
    .await;
    assert_eq!(client.ask("d", &[("k", "v")]).await, Code::Ok);
    redis.restart();
    let hits = || -> Option<(String, i64)> {
        let keys = redis.command::<Vec<String>>(&["KEYS", "d_k_v_*"]);
        let key = keys.first()?;
        Some((redis.text(&["GET", key]), redis.command(&["TTL", key])))
    };
    look_until("the hit is in Redis", || {
        hits().is_some_and(|(hits, life)| hits == "1" && life > 0)
    });
}

/// As twemproxy does: the connection of another command is closed.
#[tokio::test]
async fn a_proxy_that_closes_connections_of_other_commands_counts_fixed_windows() {
    let redis = RedisProcess::start();
    let proxy = proxy_of_few_commands(redis.port()).to_string();
    let servers = [(); 2].map(|()| start(&proxy, ""));
    assert_counts_windows(&servers, &redis).await;
}

/// Runs until the test ends.
fn proxy_of_few_commands(port: u16) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || pass_few_commands(&client, port));
        }
    });
    address
}

fn pass_few_commands(client: &TcpStream, port: u16) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    let mut replies = server.try_clone()?;
    let mut to_client = client.try_clone()?;
    thread::spawn(move || io::copy(&mut replies, &mut to_client));
    let mut commands = BufReader::new(client);
    while let Some((name, bytes)) = read_command(&mut commands)? {
        if !COMMANDS.contains(&&*name) {
            break;
        }
        server.write_all(&bytes)?;
    }
    client.shutdown(std::net::Shutdown::Both)?;
    server.shutdown(std::net::Shutdown::Both)
}

/// The name of a command, and all of its bytes.
fn read_command(commands: &mut impl BufRead) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    if commands.read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    let number = |line: &[u8]| -> usize {
        let text = String::from_utf8_lossy(&line[1..]);
        text.trim_end().parse().expect("a number")
    };
    let mut name = String::new();
    let count = number(&bytes);
    for index in 0..count {
        let at = bytes.len();
        commands.read_until(b'\n', &mut bytes)?;
        let mut argument = vec![0; number(&bytes[at..]) + 2];
        commands.read_exact(&mut argument)?;
        if index == 0 {
            String::from_utf8_lossy(&argument).trim_end().clone_into(&mut name);
        }
        bytes.extend(argument);
    }
    Ok(Some((name, bytes)))
}
