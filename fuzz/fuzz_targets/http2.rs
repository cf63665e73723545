//! Any bytes on a gRPC connection, with and without the preface of HTTP/2: the connection ends, and the process goes on.
//!
//! The first byte chooses: an even one is left out and the preface sent in its place, so that frames are reached.

#![no_main]

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;

use libfuzzer_sys::fuzz_target;
use tokio::sync::mpsc;
use tollgate::api::Api;
use tollgate::api::connection::{ConnectionLimits, Connections};
use tollgate::api::socket::{Accepted, OpenGuard};
use tollgate::base::http::budget::HttpMetrics;
use tollgate::base::shutdown::Lifecycle;
use tollgate::telemetry::metric::{Gauge, Metrics};
use tollgate::telemetry::traces::Traces;

#[path = "../service.rs"]
mod service;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A worker on a thread of its own, as in the process.
struct Worker {
    connections: mpsc::Sender<Accepted>,
    open: Gauge,
}

thread_local! {
    static WORKER: Worker = worker();
}

fn worker() -> Worker {
    let metrics = Metrics::new();
    let (connections, incoming) = mpsc::channel(16);
    let open = metrics.gauge("open", "Open connections.");
    thread::spawn(move || {
        let (_http, http_incoming) = mpsc::channel(1);
        let common =
            Connections::new(None, ConnectionLimits { max_age: None, grace: None }, &metrics);
        let (limiter, _) = service::limiter(false, &metrics);
        let api = Api::new(
            limiter,
            common,
            Lifecycle::default(),
            HttpMetrics::new(&metrics),
            Traces::default(),
            &metrics,
        );
        service::runtime().block_on(api.serve(incoming, http_incoming));
    });
    Worker { connections, open }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    WORKER.with(|worker| {
        let (mut here, there) = UnixStream::pair().expect("there are sockets");
        there.set_nonblocking(true).expect("it is a socket");
        let accepted = Accepted {
            socket: there.into(),
            peer: None,
            open: OpenGuard::new(Default::default(), worker.open.clone()),
        };
        worker.connections.blocking_send(accepted).expect("the worker serves");
        let sent = if first % 2 == 0 { [PREFACE, rest].concat() } else { bytes.to_vec() };
        // It fails where the server has closed the connection meanwhile.
        let _ = here.write_all(&sent).and_then(|()| here.shutdown(Shutdown::Write));
        let mut answer = Vec::new();
        let _ = here.read_to_end(&mut answer);
    });
});
