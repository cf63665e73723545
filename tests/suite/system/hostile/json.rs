//! Bodies of `/json` that are large, unfinished or invalid.

use std::time::Duration;

use crate::support::http::Connection;
use crate::support::resident_peak_kib;
use crate::system::hostile::{RESIDENT_MAX_KIB, WellBehaved, server};

/// A body of the largest size, full of empty objects.
fn full_of(head: &str) -> String {
    head.to_owned() + &"{},".repeat(((4 << 20) - head.len() - 16) / 3)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_of_too_many_objects_is_rejected_before_it_is_decoded() {
    let server = server("2").start();
    let client = WellBehaved::start(&server);
    let descriptors = full_of(r#"{"domain":"d","descriptors":["#) + "{}]}";
    let entries = full_of(r#"{"domain":"d","descriptors":[{"entries":["#) + "{}]}]}";
    for (body, bound) in [(&descriptors, "descriptors_max"), (&entries, "entries_max")] {
        for _ in 0..4 {
            let reply = server.json(body);
            assert_eq!(reply.status, 400);
            assert!(reply.body.contains(bound), "{}", reply.body);
        }
    }
    server.assert_metric("tollgate_invalid_requests_total", 8.0);
    client.finish(&server).await;
    let peak = resident_peak_kib(server.pid());
    assert!(peak < 64 << 10, "{peak} KiB");
}

#[tokio::test]
async fn only_bodies_over_4_mib_count_as_oversized() {
    let server = server("1").start();
    let head = "POST /json HTTP/1.1\r\nhost: test\r\n";
    for body in ["content-length: 200\r\n\r\n{", "transfer-encoding: chunked\r\n\r\n5\r\n{\"dom"] {
        let mut gone = Connection::open(server.http);
        gone.write(format!("{head}{body}").as_bytes()).expect("the connection is open");
        server.metric_becomes("tollgate_streams", 1.0).await;
        drop(gone);
        server.metric_becomes("tollgate_streams", 0.0).await;
    }
    let mut malformed = Connection::open(server.http);
    malformed
        .write(format!("{head}transfer-encoding: chunked\r\n\r\nno number\r\n").as_bytes())
        .expect("the connection is open");
    let answer = malformed.read_to_end().expect("it is closed");
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    server.assert_metric("tollgate_oversized_requests_total", 0.0);

    assert_eq!(server.json(&" ".repeat((4 << 20) + 1)).status, 413);
    server.assert_metric("tollgate_oversized_requests_total", 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_bodies_are_bounded_by_bytes_in_flight() {
    let server = server("1").start();
    let client = WellBehaved::start(&server);
    let head = format!("POST /json HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", 4 << 20);
    let mut open = Vec::new();
    for _ in 0..100 {
        let mut connection = Connection::open(server.http);
        connection.write(head.as_bytes()).expect("the connection is open");
        // It fails where the call was rejected meanwhile.
        let _ = connection.write(&vec![b' '; (4 << 20) - 1]);
        open.push(connection);
    }
    assert!(server.metric("tollgate_calls_rejected_total{cause=\"message_bytes\"}") > Some(0.0));
    server.metric_becomes("tollgate_message_bytes", 0.0).await;
    tokio::time::timeout(Duration::from_secs(60), client.finish(&server))
        .await
        .expect("it is served");
    let peak = resident_peak_kib(server.pid());
    assert!(peak < RESIDENT_MAX_KIB, "{peak} KiB");
}
