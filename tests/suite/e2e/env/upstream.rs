//! A backend that the test controls: when it responds, and how many requests are
//! inside.
//!
//! The sample backend of `deploy/envoy` answers everything at once, so nothing is ever in flight
//! there.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use axum::body::{Body, Bytes};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;

/// A running backend on a port of its own. Dropped, it ends, whatever it has not answered yet.
#[derive(Debug)]
pub(crate) struct Upstream {
    addr: SocketAddr,
    state: Arc<BackendState>,
    _runtime: Runtime,
}

/// What it does with a request, step by step; it is inside until the last one is done or its client
/// has gone.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    headers: Vec<(&'static str, &'static str)>,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Waits for its release.
    Wait,
    /// Sends a piece of the body, and before the first one the headers.
    Send(&'static str),
}

/// What its connections share.
#[derive(Debug)]
struct BackendState {
    answers: Mutex<HashMap<&'static str, Answer>>,
    /// The headers of every request, the latest at the end.
    requests: Mutex<Vec<http::HeaderMap>>,
    /// A permit lets one request take one step.
    gate: Semaphore,
    inside: AtomicUsize,
    inside_max: AtomicUsize,
}

/// A request that is inside.
struct InFlight(Arc<BackendState>);

impl Upstream {
    /// Starts it. To what it knows no other answer to it says "ok".
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .build()
            .expect("a runtime can be built");
        let listener =
            runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("there is a port");
        let addr = listener.local_addr().expect("it is bound");
        let state = Arc::new(BackendState {
            answers: Mutex::default(),
            requests: Mutex::default(),
            gate: Semaphore::new(0),
            inside: AtomicUsize::new(0),
            inside_max: AtomicUsize::new(0),
        });
        runtime.spawn(serve(listener, state.clone()));
        Self { addr, state, _runtime: runtime }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on it answers so to requests of this path.
    pub(crate) fn answers(&self, path: &'static str, answer: Answer) {
        self.state.answers.lock().insert(path, answer);
    }

    /// Releases this many requests that wait, now or later.
    pub(crate) fn release(&self, requests: usize) {
        self.state.gate.add_permits(requests);
    }

    /// How many requests are inside.
    pub(crate) fn inside(&self) -> usize {
        self.state.inside.load(SeqCst)
    }

    /// How many were inside at once, at most.
    pub(crate) fn inside_max(&self) -> usize {
        self.state.inside_max.load(SeqCst)
    }

    /// What a header of the latest request said.
    pub(crate) fn was_told(&self, header: &str) -> Option<String> {
        let requests = self.state.requests.lock();
        let value = requests.last().expect("there was a request").get(header)?;
        Some(value.to_str().expect("tests send text").to_owned())
    }
}

impl Answer {
    /// Says so.
    pub(crate) fn of(headers: &[(&'static str, &'static str)], body: &'static str) -> Self {
        Self { headers: headers.to_vec(), steps: vec![Step::Send(body)] }
    }

    /// Waits at the gate before anything is said, even the headers.
    pub(crate) fn later(mut self) -> Self {
        self.steps.insert(0, Step::Wait);
        self
    }

    /// Then waits at the gate, and says more.
    pub(crate) fn then(mut self, body: &'static str) -> Self {
        self.steps.extend([Step::Wait, Step::Send(body)]);
        self
    }

    async fn give(self, in_flight: InFlight) -> Response<Body> {
        // Headers go out when this returns, so what comes before the first piece is waited for
        // here.
        let waits = self.steps.iter().take_while(|step| matches!(step, Step::Wait)).count();
        for _ in 0..waits {
            in_flight.wait().await;
        }
        let in_flight = Arc::new(in_flight);
        let pieces = tokio_stream::iter(self.steps.into_iter().skip(waits)).then(move |step| {
            let in_flight = in_flight.clone();
            async move {
                match step {
                    Step::Wait => {
                        in_flight.wait().await;
                        None
                    }
                    Step::Send(text) => Some(Bytes::from(text)),
                }
            }
        });
        let body = Body::from_stream(pieces.filter_map(|piece| piece.map(Ok::<_, Infallible>)));
        let response = self
            .headers
            .iter()
            .fold(Response::builder(), |response, (name, value)| response.header(*name, *value));
        response.body(body).expect("tests send headers that are ones")
    }
}

impl BackendState {
    fn answer(&self, request: Request<Incoming>) -> Answer {
        let (head, _) = request.into_parts();
        let answer = self.answers.lock().get(head.uri.path()).cloned();
        self.requests.lock().push(head.headers);
        answer.unwrap_or_else(|| Answer::of(&[], "ok\n"))
    }
}

impl InFlight {
    fn enter(state: Arc<BackendState>) -> Self {
        let inside = state.inside.fetch_add(1, SeqCst) + 1;
        state.inside_max.fetch_max(inside, SeqCst);
        Self(state)
    }

    /// Waits for its release.
    async fn wait(&self) {
        self.0.gate.acquire().await.expect("the gate is never closed").forget();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

/// Serves every connection, for ever.
async fn serve(listener: TcpListener, state: Arc<BackendState>) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => {
                let (stream, _) = accepted.expect("a test has few connections");
                let state = state.clone();
                let service = service_fn(move |request| {
                    let answer = state.answer(request);
                    let in_flight = InFlight::enter(state.clone());
                    async move { Ok::<_, Infallible>(answer.give(in_flight).await) }
                });
                // That Envoy hangs up when its client does is what tests want to see.
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        }
    }
}
