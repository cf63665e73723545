//! Clients of the admin listener, of PROMETHEUS_ADDR and of the HTTP port that hold connections, do
//! not read, or ask for much.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use socket2::{Domain, Socket, Type};
use tokio::time::Instant;
use tollgate::rules::stats::METRIC_SERIES_MAX;

use crate::support::http::{self, Connection};
use crate::support::redis::RedisProcess;
use crate::support::{
    Builder, Code, TestServer, eventually, limit_of, look_until, resident_peak_kib,
};
use crate::system::hostile::RESIDENT_MAX_KIB;

/// More than any listener serves at once with one worker.
const CLIENTS: usize = 1_100;
/// Each would wait for the one before.
const CALLS_IN_FLIGHT: usize = 64;
/// A kubelet waits for a second by default. A busy machine takes longer; a listener that is blocked
/// never answers.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// A listener that cannot accept a connection tries again after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What an attacker sends on each connection, and never anything more. Nothing is read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attack {
    Nothing,
    PartOfAHead,
    /// A request, repeated.
    Pipelined(&'static str, usize),
    /// The head of a POST without its body.
    WithoutBody(&'static str),
}

impl Attack {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Nothing => Vec::new(),
            Self::PartOfAHead => b"GET / HTTP/1.1\r\nhost: te".to_vec(),
            Self::Pipelined(path, times) => {
                format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").repeat(times).into_bytes()
            }
            Self::WithoutBody(path) => {
                format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n")
                    .into_bytes()
            }
        }
    }

    /// Holds connections from this many addresses of 127.0.0.0/8 in turn.
    pub(super) fn start(self, addr: SocketAddr, addresses: u8) -> Vec<TcpStream> {
        self.start_few(addr, CLIENTS, addresses)
    }

    /// The same with this number of connections.
    pub(super) fn start_few(
        self,
        addr: SocketAddr,
        connections: usize,
        addresses: u8,
    ) -> Vec<TcpStream> {
        let bytes = self.bytes();
        let connect = |source: u8| {
            let mut stream = connect_from(source, addr);
            // The server may have closed it already.
            let _ = stream.write_all(&bytes);
            stream
        };
        (1..=addresses).cycle().take(connections).map(connect).collect()
    }
}

/// A connection from an address of 127.0.0.0/8.
pub(super) fn connect_from(last: u8, addr: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket can be made");
    // So that little of what is sent fits on the way.
    socket.set_recv_buffer_size(4 << 10).expect("the option is valid");
    let source = SocketAddr::from((Ipv4Addr::new(127, 0, 1, last), 0));
    socket.bind(&source.into()).expect("every address is local");
    socket.connect(&addr.into()).expect("the port is open");
    TcpStream::from(socket)
}

/// Asks once, as a kubelet does; `None` without an answer in time.
pub(super) fn probe(addr: SocketAddr, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect_timeout(&addr, PROBE_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT)).expect("it is no zero");
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    response.split(' ').nth(1)?.parse().ok()
}

pub(super) fn assert_live(server: &TestServer, when: &str) {
    assert_eq!(probe(server.admin, "/live"), Some(200), "{when}");
}

/// Liveness and readiness: whether a client that asks once gets an answer.
pub(super) fn assert_probes(server: &TestServer, when: &str) {
    for (addr, paths) in
        [(server.admin, &["/", "/live", "/ready"][..]), (server.http, &["/healthcheck", "/ready"])]
    {
        for path in paths {
            assert_eq!(probe(addr, path), Some(200), "{path}, {when}");
        }
    }
    let resident = resident_peak_kib(server.pid());
    assert!(resident < RESIDENT_MAX_KIB, "{resident} KiB, {when}");
}

/// One worker, so that all HTTP connections share one bound.
fn server() -> Builder {
    TestServer::with_rules(&limit_of(1_000_000))
        .with_env("WORKERS", "1")
        .with_env("DRAIN_PERIOD", "0s")
}

/// As many unknown domains as are kept apart, of about 1,000 bytes each.
async fn name_unknown_domains(server: &TestServer) {
    let client = server.client().await;
    let name = async |index| {
        let mut client = client.clone();
        assert_eq!(client.ask(&format!("{index:x>1000}"), &[("k", "")]).await, Code::Ok);
    };
    stream::iter(0..METRIC_SERIES_MAX).for_each_concurrent(CALLS_IN_FLIGHT, name).await;
}

/// Clients that do nothing but GET a page, until this is dropped.
pub(super) struct Pollers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pollers {
    fn start(addr: SocketAddr, path: &'static str, count: usize) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let poll = |stop: Arc<AtomicBool>| {
            move || {
                while !stop.load(Relaxed) {
                    assert_eq!(http::get(addr, path).status, 200);
                }
            }
        };
        let threads = (0..count).map(|_| thread::spawn(poll(stop.clone()))).collect();
        Self { stop, threads }
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "a client got no page");
        }
    }
}

#[test]
fn idle_clients_do_not_block_probes() {
    let server = server().start();
    for (listener, addr) in [("admin", server.admin), ("HTTP", server.http)] {
        for (attack, addresses) in [
            (Attack::Nothing, 1),
            (Attack::Nothing, 250),
            (Attack::PartOfAHead, 1),
            (Attack::PartOfAHead, 250),
            (Attack::WithoutBody("/json"), 250),
        ] {
            let _attackers = attack.start(addr, addresses);
            let when = format!("{attack:?} at {listener} from {addresses} addresses");
            assert_probes(&server, &when);
        }
    }
    assert!(
        server.metric("tollgate_http_connections_full_total").is_some_and(|closed| closed > 0.0)
    );
}

#[tokio::test]
async fn clients_that_do_not_read_block_no_probe_and_use_little_memory() {
    let server = server().start();
    name_unknown_domains(&server).await;
    let page = server.admin("/metrics");
    assert!(page.len() < 4 << 20, "a page of {} bytes", page.len());
    for path in ["/metrics", "/stats"] {
        for addresses in [1, 250] {
            let _attackers = Attack::Pipelined(path, 100).start(server.admin, addresses);
            for _ in 0..3 {
                assert_probes(&server, &format!("{path} from {addresses} addresses"));
            }
        }
    }
    let _attackers = Attack::Pipelined("/ready", 10).start(server.http, 250);
    assert_probes(&server, "/ready");
}

#[tokio::test]
async fn redis_recovers_while_large_pages_are_polled() {
    let mut redis = RedisProcess::start();
    let server = server().with_env("REDIS_URL", &redis.address()).with_the_default_store_timeout();
    let server = server.with_env("ON_STORE_ERROR", "deny").start();
    name_unknown_domains(&server).await;
    let mut client = server.client().await;
    eventually("Redis counts", async || client.ask("d", &[("k", "")]).await == Code::Ok).await;

    let _pollers = Pollers::start(server.admin, "/metrics", 8);
    redis.kill();
    eventually("Redis is missed", async || client.ask("d", &[("k", "")]).await == Code::OverLimit)
        .await;
    redis.restart();
    // With the store's tasks on the admin listener's thread it does after 13 s or never.
    eventually("Redis counts again", async || client.ask("d", &[("k", "")]).await == Code::Ok)
        .await;
}

/// Leaves a process no file descriptor.
fn take_descriptors(pid: u32) {
    let open =
        std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").count() as u64;
    let pid = Pid::from_raw(i32::try_from(pid).expect("numbers of processes are small"));
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(open), maximum })
        .expect("it is our child");
}

#[test]
fn shortage_of_file_descriptors_pauses_accept_and_keeps_rules() {
    let server = server().with_env("USE_PROMETHEUS", "true").start();
    // Metrics are read on a connection that is open already; a first page opens what the page
    // itself needs.
    let mut operator = Connection::open(server.admin);
    let mut page = |path| operator.send("GET", path, "").expect("the connection is open").body;
    page("/metrics");
    take_descriptors(server.pid());
    let prometheus = server.prometheus.expect("it is bound");
    let waiting = [server.admin, prometheus, server.grpc]
        .map(|addr| TcpStream::connect(addr).expect("the kernel accepts"));
    look_until("it is logged", || server.log().contains("cannot accept connections"));
    // SIGHUP has the rules read, as the look every five seconds does.
    server.signal("HUP");
    look_until("the rules are missed", || {
        server.log().contains("cannot read rules; keeping the previous content")
    });

    let mut attempts = || {
        let page = page("/metrics");
        let mut lines = page.lines();
        let count = lines.find_map(|line| line.strip_prefix("tollgate_accept_errors_total "));
        let count = count.expect("there is a counter");
        count.parse::<u32>().expect("a whole number")
    };
    let began = Instant::now();
    let before = attempts();
    look_until("they try again", || attempts() >= before + 30);
    let made = attempts() - before;
    let pauses = began.elapsed().as_millis() / ACCEPT_PAUSE.as_millis();
    let most = (pauses + 1) * waiting.len() as u128;
    assert!(u128::from(made) <= most, "{made} attempts, {most} at most");
    let stats = page("/stats");
    assert!(stats.contains("ratelimit.service.config_load_error: 0\n"), "{stats}");
    assert!(!server.log().contains("Error loading new configuration"), "{}", server.log());
    let lines = server.log().matches("cannot accept connections").count();
    assert!(lines <= 3, "{lines} lines for three listeners: {}", server.log());
}
