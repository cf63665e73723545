//! A rate limit service for trials, whose every response is set by the test: any bytes, headers and
//! trailers, an error or a reset.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use prost::bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What the service does with a call.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Reply {
        headers: HeaderMap,
        body: Vec<u8>,
        trailers: Option<HeaderMap>,
    },
    /// Before any byte of a response.
    Reset(Reason),
    /// These bytes, and never an end.
    Unfinished(Bytes),
    /// After the headers and these bytes.
    ResetDuring(Vec<u8>),
}

/// A call as it was received.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct RawUpstream {
    pub(crate) addr: SocketAddr,
    state: Arc<Mutex<State>>,
    _accepting: JoinSet<()>,
}

struct State {
    answer: Answer,
    received: Vec<Received>,
}

impl RawUpstream {
    pub(crate) async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let state = Arc::new(Mutex::new(State { answer, received: Vec::new() }));
        let mut accepting = JoinSet::new();
        let shared = state.clone();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, shared.clone()));
            }
        });
        Self { addr, state, _accepting: accepting }
    }

    pub(crate) fn set(&self, answer: Answer) {
        self.state.lock().expect("no panic").answer = answer;
    }

    /// All calls so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.state.lock().expect("no panic").received.clone()
    }
}

/// Headers of names and values.
pub(crate) fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pairs = pairs.iter().map(|(name, value)| {
        let name = http::HeaderName::from_static(name);
        (name, http::HeaderValue::from_static(value))
    });
    pairs.collect()
}

async fn serve(stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
    let mut calls = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        calls.spawn(answer(request, respond, state.clone()));
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    state: Arc<Mutex<State>>,
) {
    let (head, mut body) = request.into_parts();
    let mut bytes = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        bytes.extend_from_slice(&data);
    }
    let answer = {
        let mut state = state.lock().expect("no panic");
        state.received.push(Received {
            path: head.uri.path().to_owned(),
            headers: head.headers,
            body: bytes,
        });
        state.answer.clone()
    };
    let start = |headers: HeaderMap| {
        let mut response = Response::new(());
        *response.headers_mut() = headers;
        response
    };
    // A caller may be gone.
    match answer {
        Answer::Reply { headers, body, trailers } => {
            let is_empty = body.is_empty() && trailers.is_none();
            let Ok(mut stream) = respond.send_response(start(headers), is_empty) else {
                return;
            };
            if !is_empty {
                let _ = stream.send_data(body.into(), trailers.is_none());
            }
            if let Some(trailers) = trailers {
                let _ = stream.send_trailers(trailers);
            }
        }
        Answer::Unfinished(body) => {
            let headers = headers(&[("content-type", "application/grpc")]);
            if let Ok(mut stream) = respond.send_response(start(headers), false) {
                let _ = stream.send_data(body, false);
                let _ = poll_fn(|context| stream.poll_reset(context)).await;
            }
        }
        Answer::Reset(reason) => respond.send_reset(reason),
        Answer::ResetDuring(body) => {
            let headers = headers(&[("content-type", "application/grpc")]);
            if let Ok(mut stream) = respond.send_response(start(headers), false) {
                let _ = stream.send_data(body.into(), false);
                // After the bytes were written.
                tokio::task::yield_now().await;
                stream.send_reset(Reason::INTERNAL_ERROR);
            }
        }
    }
}
