//! Answers of processes that claim to be replicas.

use std::thread;

use crate::hostile::UnderAttack;
use crate::hostile::fleet::{FLEET, Peer, answer_with, replica};
use crate::support::http;
use crate::support::redis::RedisProcess;

/// Bytes of a hostile answer.
const ANSWER_BYTES: usize = 4 << 20;

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
