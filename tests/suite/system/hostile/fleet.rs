//! Processes that publish heartbeats of replicas, and answer as no replica does.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::support::http;
use crate::support::redis::RedisProcess;
use crate::support::{Builder, TestServer, look_until};
use crate::system::hostile::{UnderAttack, server};

const FLEET: &str = "/api/v1/top?scope=fleet&by=hits&domain=d&rule=secret";
const NAME_PATH: &str = "/api/v1/replica";
/// Bytes of a hostile answer.
const ANSWER_BYTES: usize = 4 << 20;

/// A process that answers every connection. It ends with the test process.
struct Peer {
    name: String,
    address: SocketAddr,
    /// The paths that were asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Peer {
    /// Says that its name is `says`, and answers other paths with `answer`.
    fn start(number: u64, says: Option<&str>, answer: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let name = format!("{number:016x}");
        let address = listener.local_addr().expect("it is bound");
        let named = json!({"replica": says.unwrap_or(&name)}).to_string();
        let answer: Arc<str> = answer.replace("NAME", &name).into();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let asking = asked.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let (asked, named, answer) = (asking.clone(), named.clone(), answer.clone());
                thread::spawn(move || serve(&connection, &asked, &named, &answer));
            }
        });
        Self {
            name,
            address,
            asked,
        }
    }

    /// Sends a heartbeat.
    fn publish(&self, redis: &RedisProcess) {
        let Self { name, address, .. } = self;
        for message in [name.clone(), format!("{name} {address}")] {
            let _: u64 = redis.command(&["PUBLISH", "tg:replicas:0", &message]);
        }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no one panics").clone()
    }
}

fn serve(mut connection: &TcpStream, asked: &Mutex<Vec<String>>, named: &str, answer: &str) {
    let mut lines = BufReader::new(connection).lines();
    while let Some(Ok(line)) = lines.next() {
        let Some(path) = line
            .strip_prefix("GET ")
            .and_then(|line| line.split(' ').next())
        else {
            continue;
        };
        asked.lock().expect("no one panics").push(path.to_owned());
        let body = if path == NAME_PATH { named } else { answer };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        if connection
            .write_all(format!("{head}{body}").as_bytes())
            .is_err()
        {
            return;
        }
    }
}

fn replica(redis: &RedisProcess, host: &str) -> Builder {
    server("1").with_envs(&[("REDIS_URL", &redis.url()), ("DEBUG_HOST", host)])
}

fn get(server: &TestServer, path: &str) -> Value {
    let reply = http::get(server.admin, path);
    assert_eq!(reply.status, 200, "{reply:?}");
    serde_json::from_str(&reply.body).expect("it is JSON")
}

/// [`answer_of`] [`FLEET`].
fn answer_with(server: &TestServer, redis: &RedisProcess, peers: &[Peer], list: &str) -> Value {
    answer_of(server, FLEET, redis, peers, list)
}

/// Publishes heartbeats until the answer has this number of replicas in a list.
fn answer_of(
    server: &TestServer,
    path: &str,
    redis: &RedisProcess,
    peers: &[Peer],
    list: &str,
) -> Value {
    let expected = peers.len() + usize::from(list == "replicas");
    let mut answer = Value::Null;
    look_until("the peers are known", || {
        for peer in peers {
            peer.publish(redis);
        }
        answer = get(server, path);
        answer[list]
            .as_array()
            .is_some_and(|names| names.len() == expected)
    });
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_answers_of_replicas_use_little_memory() {
    let redis = RedisProcess::start();
    let attacked = UnderAttack::start(replica(&redis, "127.0.0.1"));
    let key = r#"{"key":[["",""]],"hits":1,"over_limit":0}"#;
    let keys = vec![key; 100].join(",");
    let keys = format!(r#"{{"domain":"","rule":"","keys":[{keys}]}},"#);
    let entries = r#"["",""],"#;
    for (begin, repeated, end) in [
        ("", r#""","#, "0"),
        ("", "0,", "0"),
        ("", "[],", "0"),
        ("", r#"{"a":0},"#, "0"),
        ("", keys.as_str(), "0"),
        (
            r#"{"domain":"","rule":"","keys":[{"hits":1,"over_limit":0,"key":["#,
            entries,
            r#"["",""]]}]}"#,
        ),
    ] {
        let answer = |bytes: usize| {
            let rules = repeated.repeat(bytes / repeated.len());
            format!(r#"{{"replica":"NAME","rules":[{begin}{rules}{end}]}}"#)
        };
        // As large as is read, and larger.
        for bytes in [2_000_000, ANSWER_BYTES] {
            let answer = answer(bytes);
            let peers: Vec<_> = (1..=7)
                .map(|number| Peer::start(number, None, &answer))
                .collect();
            answer_with(&attacked.server, &redis, &peers, "missing");
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let status = http::get(attacked.server.admin, FLEET).status;
                        assert!(matches!(status, 200 | 503), "{status}");
                    });
                }
            });
        }
    }
    attacked.finish().await;
}

#[tokio::test]
async fn hits_of_replicas_saturate() {
    let redis = RedisProcess::start();
    let server = replica(&redis, "127.0.0.1").start();
    let key = format!(
        r#"{{"key":[["k","v"]],"hits":{},"over_limit":1}}"#,
        u64::MAX
    );
    let answer =
        format!(r#"{{"replica":"NAME","rules":[{{"domain":"d","rule":"r","keys":[{key}]}}]}}"#);
    let peers = [1, 2, 3].map(|number| Peer::start(number, None, &answer));
    let answer = answer_with(&server, &redis, &peers, "replicas");
    let key = &answer["rules"][0]["keys"][0];
    assert_eq!(
        (&key["hits"], &key["over_limit"]),
        (&json!(u64::MAX), &json!(3))
    );
}

/// Hits that other replicas hold of a counter; a peer gets hashes of its values only.
#[tokio::test]
async fn leased_hits_of_replicas_are_added_up() {
    const COUNTER: &str = "/api/v1/counters?scope=fleet&domain=d&e=k%3Dann%40example";
    let redis = RedisProcess::start();
    let most = u64::MAX.to_string();
    for (redact, leased, expected) in [
        ("none", ["7", "null", "30"], 37),
        ("hash", ["7", "0", "1"], 8),
        ("none", [&most, &most, "1"], u64::MAX),
    ] {
        let server = replica(&redis, "127.0.0.1").with_env("ADMIN_REDACT", redact);
        let server = server.start();
        let peers: Vec<_> = (1..)
            .zip(leased)
            .map(|(number, leased)| {
                let answer = format!(r#"{{"replica":"NAME","leased":{leased},"used":9}}"#);
                Peer::start(number, None, &answer)
            })
            .collect();
        let counter = answer_of(&server, COUNTER, &redis, &peers, "replicas");
        assert_eq!(counter["leased"], expected, "{counter}");
        assert_eq!(
            (&counter["missing"], &counter["used"]),
            (&json!([]), &json!(0))
        );
        let asked = peers[0].asked();
        let shown = asked.iter().any(|path| path.contains("ann"));
        assert_eq!(shown, redact == "none", "{asked:?}");
        let own = get(&server, &COUNTER.replace("fleet", "replica"));
        assert_eq!(
            (&own["leased"], &own["replicas"]),
            (&json!(0), &Value::Null)
        );
    }
}

#[tokio::test]
async fn hostile_counters_of_replicas_are_missing() {
    const COUNTER: &str = "/api/v1/counters?scope=fleet&domain=d&e=k%3Dann";
    let redis = RedisProcess::start();
    let server = replica(&redis, "127.0.0.1").start();
    for answer in [
        "-1",
        "1.5",
        r#""1""#,
        "18446744073709551616",
        "[1]",
        r#"1,"leased":1"#,
    ] {
        let answer = format!(r#"{{"replica":"NAME","leased":{answer}}}"#);
        let peers = [Peer::start(1, None, &answer)];
        let counter = answer_of(&server, COUNTER, &redis, &peers, "missing");
        assert_eq!(
            (&counter["leased"], &counter["over_limit"]),
            (&json!(0), &json!(false))
        );
    }
    // The other one would be missing as well.
    drop(server);
    // No caller may see the values, so no replica can be asked.
    let server = replica(&redis, "127.0.0.1")
        .with_env("ADMIN_REDACT", "drop")
        .start();
    let peers = [Peer::start(2, None, r#"{"replica":"NAME","leased":1}"#)];
    let counter = answer_of(&server, COUNTER, &redis, &peers, "missing");
    assert_eq!(counter["missing"], json!([peers[0].name]));
    assert_eq!(peers[0].asked(), [""; 0]);
}

/// Figures, lists and names as no status has them.
#[tokio::test]
async fn hostile_statuses_of_replicas_are_missing_or_shown_as_text() {
    let redis = RedisProcess::start();
    let server = replica(&redis, "127.0.0.1").start();
    let counts = |hits: u64| format!(r#"{{"hits":{hits},"over_limit":{hits}}}"#);
    let status = |pod: &str, bars: usize| {
        let (most, bars) = (counts(u64::MAX), vec![counts(u64::MAX); bars].join(","));
        format!(
            r#"{{"replica":"NAME","pod":"{pod}","store":"<b>","store_faults":1,"rules":1,"rules_hash":1,
"hits_per_second":1e308,"last_minute":{most},"seconds":[{bars}],"minutes":[{bars}],"last_hour":[]}}"#
        )
    };
    for (peer, answered) in [
        (status("<script>", 60), true),
        (status("a", 0), true),
        (status("a", 61), false),
        (status("a", 2).replace("1e308", "1e999"), false),
        ("[]".to_owned(), false),
        (status("a", 2).replace("NAME", "b"), false),
    ] {
        let peers = [Peer::start(1, None, &peer)];
        let expected = if answered {
            "2 replicas, last minute".to_owned()
        } else {
            format!(
                "1 of 2 replicas, last minute; {} did not answer",
                peers[0].name
            )
        };
        look_until(&expected, || {
            peers[0].publish(&redis);
            let page = http::get(server.admin, "/?scope=fleet");
            assert_eq!(page.status, 200);
            assert!(!page.body.contains("<script>") && !page.body.contains("<b>"));
            page.body.contains(&expected)
        });
    }
}

#[tokio::test]
async fn process_with_another_name_is_asked_for_nothing_else() {
    let redis = RedisProcess::start();
    let server = replica(&redis, "127.0.0.1").start();
    let peers = [Peer::start(1, Some("0000000000000002"), "{}")];
    let answer = answer_with(&server, &redis, &peers, "missing");
    assert_eq!(answer["missing"], json!([peers[0].name]));
    look_until("it was asked for its name", || {
        // A busy machine may not connect within the time for a reply.
        answer_with(&server, &redis, &peers, "missing");
        !peers[0].asked().is_empty()
    });
    assert!(
        peers[0].asked().iter().all(|path| path == NAME_PATH),
        "{:?}",
        peers[0].asked()
    );
}

/// An address of the machine itself, which no replica elsewhere has.
#[tokio::test]
async fn implausible_addresses_are_not_connected_to() {
    let redis = RedisProcess::start();
    let server = replica(&redis, "0.0.0.0").start();
    let peers = [Peer::start(1, None, "{}")];
    answer_with(&server, &redis, &peers, "missing");
    assert_eq!(peers[0].asked(), [""; 0]);
}
