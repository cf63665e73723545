//! One connection to the service, opened again whenever it ends.
//!
//! A GOAWAY ends a link's use of a connection at once, but the connection lives on until the
//! answers it owes have come: that is what lets a server be restarted without losing a request, and
//! what a test of that wants to see.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use h2::client::{self, Connection, SendRequest};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time;

use crate::load::schedule::now;

/// So that a server that is away, or that hangs up at once, is not asked in a tight loop.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
/// A link that cannot connect in this time tries again: a lost SYN is otherwise resent after one
/// second, then two.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Wide enough that a WINDOW_UPDATE goes out every few thousand answers, not every few hundred.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// A place for a connection.
pub struct Link {
    target: String,
    current: RefCell<Option<Sender>>,
    /// Counts this link's connections, so that a worker can tell an old one from the one that
    /// replaced it.
    generation: Cell<u64>,
    opened: Notify,
    ended: Notify,
    connections: Rc<Connections>,
}

/// A worker's handle on a link's connection.
#[derive(Clone)]
pub struct Sender {
    pub generation: u64,
    pub requests: SendRequest<Bytes>,
}

/// What became of all connections of a run.
#[derive(Default)]
pub struct Connections {
    pub opened: Cell<u64>,
    /// The server asked to go elsewhere.
    pub goaways: Cell<u64>,
    /// Ended without saying so.
    pub lost: Cell<u64>,
    /// Attempts that led to none.
    pub failed: Cell<u64>,
}

/// A connection that nothing drives yet.
type Opened = (SendRequest<Bytes>, Connection<TcpStream, Bytes>);

impl Link {
    pub fn new(target: &str, connections: &Rc<Connections>) -> Rc<Self> {
        Rc::new(Self {
            target: target.to_owned(),
            current: RefCell::default(),
            generation: Cell::default(),
            opened: Notify::new(),
            ended: Notify::new(),
            connections: Rc::clone(connections),
        })
    }

    /// Connects, once.
    pub async fn open(&self) -> anyhow::Result<Opened> {
        let opening = async {
            let stream = TcpStream::connect(&self.target).await?;
            stream.set_nodelay(true)?;
            let mut builder = client::Builder::new();
            builder.enable_push(false).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
            anyhow::Ok(builder.handshake(stream).await?)
        };
        let opened = time::timeout(CONNECT_TIMEOUT, opening).await.context("wait for it").flatten();
        opened.with_context(|| format!("connect to {}", self.target))
    }

    /// Drives the connection, and those that come after it. Never ends.
    pub async fn keep(self: Rc<Self>, mut opened: Opened) {
        // The connections that still owe answers, the current one among them.
        let mut driven = JoinSet::new();
        loop {
            let (requests, connection) = opened;
            let began = now();
            let generation = self.publish(requests);
            let link = Rc::clone(&self);
            driven.spawn_local(async move {
                // Its result says nothing about a GOAWAY that found no request under way; `end`
                // asks for that.
                _ = connection.await;
                link.end(generation);
            });
            while self.current.borrow().is_some() {
                self.ended.notified().await;
            }
            while driven.try_join_next().is_some() {}
            opened = self.reopen(began).await;
        }
    }

    /// A handle on the current connection; waits while there is none.
    pub async fn sender(&self) -> Sender {
        loop {
            // Asked for before looking, so that an opening in between is not missed.
            let opened = self.opened.notified();
            if let Some(sender) = &*self.current.borrow() {
                return sender.clone();
            }
            opened.await;
        }
    }

    /// Whether this handle is on the current connection.
    pub fn is_current(&self, sender: &Sender) -> bool {
        self.current
            .borrow()
            .as_ref()
            .is_some_and(|current| current.generation == sender.generation)
    }

    /// Takes a connection that takes no more requests out of use, if that has not been done
    /// already.
    pub fn end(&self, generation: u64) {
        let ended = self.current.borrow_mut().take_if(|current| current.generation == generation);
        let Some(mut sender) = ended else { return };
        let by_goaway = match sender.requests.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => error.is_go_away() && error.is_remote(),
            _ => false,
        };
        increment(if by_goaway { &self.connections.goaways } else { &self.connections.lost });
        self.ended.notify_one();
    }

    fn publish(&self, requests: SendRequest<Bytes>) -> u64 {
        let generation = self.generation.get() + 1;
        self.generation.set(generation);
        increment(&self.connections.opened);
        self.current.replace(Some(Sender { generation, requests }));
        self.opened.notify_waiters();
        generation
    }

    async fn reopen(&self, began: Instant) -> Opened {
        if now() - began < RECONNECT_PAUSE {
            time::sleep(RECONNECT_PAUSE).await;
        }
        loop {
            match self.open().await {
                Ok(opened) => return opened,
                // Counted, not shown: while a server is away every attempt of every link says the
                // same.
                Err(_) => increment(&self.connections.failed),
            }
            time::sleep(RECONNECT_PAUSE).await;
        }
    }
}

fn increment(count: &Cell<u64>) {
    count.set(count.get() + 1);
}
