//! Clients that keep calling while something happens to the service.
//!
//! Every call is awaited and recorded, so none can get lost. How long an answer takes is not looked
//! at here: that depends on the machine, and is asserted in process under a paused clock.

use std::net::SocketAddr;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use prost::Message as _;
use tokio::runtime;
use tollgate::base::proto::envoy::service::ratelimit::v3::RateLimitResponse;

use super::raw_grpc::{Connection, Ended, frame};
use super::{Code, TestServer, look_until, request};

/// Clients for each set of calls, each on a connection of its own.
pub(crate) const CLIENTS: usize = 2;
/// Between two calls of a client, so that the machine has time for everything else.
const PAUSE: Duration = Duration::from_millis(5);

/// Running clients, a thread each. They stop when this is dropped.
pub(crate) struct Traffic<const N: usize> {
    stopped: Arc<AtomicBool>,
    /// By group.
    clients: [Vec<Client>; N],
}

struct Client {
    /// Calls answered so far.
    answered: Arc<AtomicUsize>,
    thread: JoinHandle<Answers>,
}

/// What a group of clients asks for, in domain `d`.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    pub(crate) key: &'static str,
    /// Number of distinct values, `0`, `1`, … The first client asks for all of them in turn, the
    /// others for the first half.
    pub(crate) values: usize,
    /// Sent as grpc-timeout.
    pub(crate) deadline: Option<Duration>,
}

/// The answers to one group of clients.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answers {
    pub(crate) values: Vec<ValueAnswers>,
    /// The status of each call that failed.
    pub(crate) errors: Vec<tonic::Code>,
    /// By client: the limit in its first verdict, and each other one that followed.
    pub(crate) limits: Vec<Vec<u32>>,
}

/// The answers for one value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ValueAnswers {
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    pub(crate) errors: u64,
}

impl<const N: usize> Traffic<N> {
    /// Starts [`CLIENTS`] clients for each group.
    pub(crate) fn start(server: &TestServer, groups: [Calls; N]) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let client = |calls: &Calls, number| {
            let addr = server.grpc;
            let calls = calls.clone();
            let stopped = stopped.clone();
            let answered = Arc::new(AtomicUsize::new(0));
            let counted = answered.clone();
            let thread = thread::spawn(move || {
                let runtime = runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime can be built");
                runtime.block_on(run_client(addr, &calls, number, &stopped, &counted))
            });
            Client { answered, thread }
        };
        let clients =
            groups.map(|calls| (0..CLIENTS).map(|number| client(&calls, number)).collect());
        Self { stopped, clients }
    }

    /// Waits until every client has received this many more responses.
    pub(crate) fn wait_for_answers(&self, each: usize) {
        let clients: Vec<&Client> = self.clients.iter().flatten().collect();
        let answered = |client: &&Client| client.answered.load(Relaxed);
        let before: Vec<usize> = clients.iter().map(answered).collect();
        look_until("every client has its answers", || {
            let has_failed = clients.iter().any(|client| client.thread.is_finished());
            assert!(!has_failed, "a client failed, see above");
            let mut now = clients.iter().map(answered).zip(&before);
            now.all(|(now, before)| now - before >= each)
        });
    }

    /// Stops all clients after their current call.
    pub(crate) fn finish(mut self) -> [Answers; N] {
        self.stopped.store(true, Relaxed);
        self.clients.each_mut().map(|group| {
            let ended = group.drain(..).map(|client| client.thread.join());
            let answers =
                ended.map(|ended| ended.unwrap_or_else(|panic| panic::resume_unwind(panic)));
            answers.reduce(Answers::plus).expect("there are clients")
        })
    }
}

impl<const N: usize> Drop for Traffic<N> {
    fn drop(&mut self) {
        // Also when a test fails: its clients would go on forever.
        self.stopped.store(true, Relaxed);
    }
}

impl Answers {
    /// Calls with a verdict of OK.
    pub(crate) fn ok(&self) -> u64 {
        self.values.iter().map(|value| value.ok).sum()
    }

    /// Calls with a verdict of OVER_LIMIT.
    pub(crate) fn over_limit(&self) -> u64 {
        self.values.iter().map(|value| value.over_limit).sum()
    }

    fn record(&mut self, value: usize, ended: &Ended) {
        let counts = &mut self.values[value];
        if ended.status != tonic::Code::Ok {
            counts.errors += 1;
            self.errors.push(ended.status);
            return;
        }
        let message = ended.message.clone().expect("a call that succeeds has a message");
        let response = RateLimitResponse::decode(message).expect("the message is a response");
        let limit = response.statuses[0].current_limit.as_ref();
        let limits = &mut self.limits[0];
        limits.extend(limit.map(|limit| limit.requests_per_unit));
        limits.dedup();
        match response.overall_code() {
            Code::Ok => counts.ok += 1,
            Code::OverLimit => counts.over_limit += 1,
            Code::Unknown => panic!("a response without a code"),
        }
    }

    fn plus(mut self, other: Self) -> Self {
        for (sum, value) in self.values.iter_mut().zip(other.values) {
            sum.ok += value.ok;
            sum.over_limit += value.over_limit;
            sum.errors += value.errors;
        }
        self.errors.extend(other.errors);
        self.limits.extend(other.limits);
        self
    }
}

/// Calls on one connection, which must stay open.
async fn run_client(
    addr: SocketAddr,
    calls: &Calls,
    number: usize,
    stopped: &AtomicBool,
    answered: &AtomicUsize,
) -> Answers {
    let mut connection = Connection::open(addr).await;
    let mut answers = Answers {
        values: vec![ValueAnswers::default(); calls.values],
        limits: vec![Vec::new()],
        ..Answers::default()
    };
    let timeout = calls.deadline.map(|time| ("grpc-timeout", format!("{}m", time.as_millis())));
    let values = if number == 0 { calls.values } else { calls.values.div_ceil(2) };
    for value in (0..values).cycle() {
        if stopped.load(Relaxed) {
            break;
        }
        let message = frame(&request("d", &[&[(calls.key, &value.to_string())]]));
        let call = connection.begin_with(timeout.as_slice()).await;
        answers.record(value, &call.finish(&message).await);
        answered.fetch_add(1, Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
    answers
}

#[test]
fn a_lost_connection_fails_the_test() {
    let server = TestServer::with_rules(&super::limit_of(3)).start();
    let calls = Calls { key: "k", values: 4, deadline: None };
    let traffic = Traffic::start(&server, [calls]);
    traffic.wait_for_answers(1);
    drop(server);
    let [clients] = &traffic.clients;
    look_until("the clients notice", || clients.iter().all(|client| client.thread.is_finished()));
    assert!(panic::catch_unwind(panic::AssertUnwindSafe(|| traffic.finish())).is_err());
}
