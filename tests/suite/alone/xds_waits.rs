//! How long the process waits before it asks a control plane again that sends it away.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::{TestServer, alone, look_until};

/// The times between connections to a server that closes each of them at once.
fn waits(settings: &[(&str, &str)], count: usize) -> Vec<Duration> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.set_nonblocking(true).expect("it can be asked");
    let server = TestServer::with_xds(&listener.local_addr().expect("it is bound").to_string());
    let _server = settings.iter().fold(server, |server, (name, value)| server.with_env(name, value)).start();
    let mut came = Vec::new();
    while came.len() <= count {
        look_until("it tries again", || listener.accept().is_ok());
        came.push(Instant::now());
    }
    came.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn waits_between_tries_grow_up_to_the_longest() {
    let _alone = alone();
    let initial = ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms");
    let steady = ("XDS_CLIENT_BACKOFF_JITTER", "false");
    let seen = waits(&[initial, steady, ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "400ms")], 5);
    // A connection is seen later than it is made, which shortens the wait after it.
    for (wait, expected) in seen.iter().zip([100, 200, 400, 400, 400]) {
        assert!(*wait >= Duration::from_millis(expected - 50), "{seen:?}");
    }

    // By default it is 200 ms, doubled, and at least half of that.
    let seen = waits(&[], 3);
    assert!(seen[1] >= Duration::from_millis(150) && seen[2] >= Duration::from_millis(350), "{seen:?}");

    // Without a longest wait, the third would be longer than anybody lives.
    let longest = [("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1ms"), ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "50ms")];
    waits(&[&longest[..], &[("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "1e30")]].concat(), 4);

    // Doubled, the 14th would be longer than a minute.
    let first = ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "20ms");
    waits(&[first, ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5"), ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "1h")], 14);
}

#[test]
fn waits_are_shortened_by_chance_unless_that_is_switched_off() {
    let _alone = alone();
    let constant = [("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "200ms"), ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "1")];
    let seen = waits(&constant, 11);
    // All eleven in the longer part of their range: not once in ten thousand times.
    assert!(seen.iter().any(|wait| *wait < Duration::from_millis(160)), "{seen:?}");
    let seen = waits(&[&constant[..], &[("XDS_CLIENT_BACKOFF_JITTER", "false")]].concat(), 3);
    assert!(seen.iter().all(|wait| *wait >= Duration::from_millis(170)), "{seen:?}");
}
