//! A Redis that sends too much, and a client of it that publishes too much.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::support::eventually;
use crate::support::redis::RedisProcess;
use crate::system::hostile::{UnderAttack, server};

const OVERSIZED: &str = "tollgate_store_replies_oversized_total";
const CLOSED: &str = "ratelimit_redis_pool_cx_local_close";
const MIB: usize = 1 << 20;

/// What is sent in reply to a call: a start, and then this again and again, 400 MiB in all; and whether
/// it is the bound that ends it. Arrays in more than 100 others are no valid reply.
const REPLIES: [(&str, &str, bool); 7] = [
    ("$419430400\r\n", "x", true),
    ("$419430400\r\n", "x\n", true),
    ("+", "x", true),
    ("-ERR ", "x", true),
    ("", "*1\r\n", false),
    ("*2147483648\r\n", "*4096\r\n", false),
    ("*2147483648\r\n", "*1\r\n_\r\n", true),
];

/// Accepts connections until the test process ends.
fn hostile_redis(reply: (&'static str, &'static str)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // It ends when the client closes the connection.
            thread::spawn(move || serve(stream, reply));
        }
    });
    format!("redis://{address}")
}

/// Behaves until a command counts.
fn serve(mut stream: TcpStream, (start, again): (&str, &str)) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let words = command(&mut reader)?;
        let reply = match words[0].to_uppercase().as_str() {
            "PING" => "+PONG\r\n".to_owned(),
            "CLIENT" | "SELECT" | "HELLO" => "+OK\r\n".to_owned(),
            "TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".to_owned(),
            "PUBLISH" => ":1\r\n".to_owned(),
            "SUBSCRIBE" => {
                let channel = &words[1];
                let bytes = channel.len();
                format!("*3\r\n$9\r\nsubscribe\r\n${bytes}\r\n{channel}\r\n:1\r\n")
            }
            _ => {
                stream.write_all(start.as_bytes()).ok()?;
                let block = again.repeat(MIB / again.len());
                for _ in 0..400 {
                    stream.write_all(block.as_bytes()).ok()?;
                }
                return Some(());
            }
        };
        stream.write_all(reply.as_bytes()).ok()?;
    }
}

/// The words of the next command.
fn command(reader: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let words = number(reader)?;
    let word = |_| {
        let mut word = vec![0; number(reader)? + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        Some(String::from_utf8_lossy(&word).into_owned())
    };
    (0..words).map(word).collect()
}

fn number(reader: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

#[tokio::test]
async fn replies_without_an_end_close_the_connection() {
    for (start, again, is_oversized) in REPLIES {
        let redis = hostile_redis((start, again));
        let builder = server("2").with_env("REDIS_URL", &redis).with_env("STORE_TIMEOUT", "2s");
        let attack = UnderAttack::start(builder);
        eventually("connections are closed", async || attack.server.metric(CLOSED) >= Some(8.0))
            .await;
        let oversized = attack.server.metric(OVERSIZED);
        assert_eq!(oversized > Some(0.0), is_oversized, "{start:?} {again:?}");
        attack.finish().await;
    }
}

#[tokio::test]
async fn a_long_message_on_the_channel_of_heartbeats_ends_the_subscription() {
    let redis = RedisProcess::start();
    redis.command::<()>(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 0 0"]);
    let builder = server("2").with_env("REDIS_URL", &redis.url());
    let attack = UnderAttack::start(builder);
    redis.command::<i64>(&["PUBLISH", "tg:replicas:0", &"a".repeat(300 * MIB)]);
    eventually("the subscription ends", async || attack.server.metric(OVERSIZED) >= Some(1.0))
        .await;
    assert_eq!(
        attack.server.metric("tollgate_store_breaker_opened_total"),
        Some(0.0),
        "calls are not affected"
    );
    attack.finish().await;
}
