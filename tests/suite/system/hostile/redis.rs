//! A Redis that sends too much, and a client of it that publishes too much.

use std::io;

use tokio::io::{AsyncWriteExt as _, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::eventually;
use crate::support::redis::RedisProcess;
use crate::support::scripted_redis::resp::read_command;
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

/// Accepts connections until the tasks are dropped.
async fn hostile_redis(reply: (&'static str, &'static str)) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let mut accepting = JoinSet::new();
    accepting.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            // It ends when the client closes the connection.
            connections.spawn(serve(BufStream::new(stream), reply));
        }
    });
    (format!("redis://{address}"), accepting)
}

/// Behaves until a command counts.
async fn serve(mut stream: BufStream<TcpStream>, (start, again): (&str, &str)) -> io::Result<()> {
    loop {
        let words = read_command(&mut stream).await?;
        let reply = match words[0].to_ascii_uppercase().as_slice() {
            b"PING" => "+PONG\r\n".to_owned(),
            b"CLIENT" | b"SELECT" | b"HELLO" => "+OK\r\n".to_owned(),
            b"TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".to_owned(),
            b"PUBLISH" => ":1\r\n".to_owned(),
            b"SUBSCRIBE" => {
                let channel = String::from_utf8_lossy(&words[1]);
                let bytes = channel.len();
                format!("*3\r\n$9\r\nsubscribe\r\n${bytes}\r\n{channel}\r\n:1\r\n")
            }
            _ => {
                stream.write_all(start.as_bytes()).await?;
                let block = again.repeat(MIB / again.len());
                for _ in 0..400 {
                    stream.write_all(block.as_bytes()).await?;
                }
                return stream.flush().await;
            }
        };
        stream.write_all(reply.as_bytes()).await?;
        stream.flush().await?;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_without_an_end_close_the_connection() {
    for (start, again, is_oversized) in REPLIES {
        let (redis, _tasks) = hostile_redis((start, again)).await;
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
