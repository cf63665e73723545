//! Resolves host names of Redis: one look-up per name at a time, on few threads per process.
//!
//! `getaddrinfo` blocks its thread for as long as the system waits for a DNS server (10 s and more)
//! and cannot be cancelled. Concurrent callers of a name share its look-up. The threads are
//! detached: neither a runtime nor the end of the process waits for them.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::thread;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// Threads that resolve names of Redis, one per name.
// bound look_up_threads_max: other names wait, attempts fail after REDIS_TIMEOUT;
// tollgate_store_probes_failed_total
const LOOK_UP_THREADS_MAX: usize = 8;

/// Clones share their look-ups.
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    look_up: Box<LookUp>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_flight: HashMap<Arc<str>, Answer>,
    /// Names that wait for a thread; bounded by the number of servers.
    queue: VecDeque<(Arc<str>, oneshot::Sender<Addresses>)>,
    threads: usize,
}

/// A blocking look-up.
type LookUp = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;
/// With port 0.
type Addresses = Result<Arc<[SocketAddr]>, Arc<io::Error>>;
type Answer = Shared<BoxFuture<'static, Addresses>>;

impl Resolver {
    fn with(look_up: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            look_up: Box::new(look_up),
            state: Mutex::default(),
        }))
    }

    /// The addresses of a host, with port 0. The caller bounds the time.
    ///
    /// # Errors
    /// The system's.
    pub async fn addresses(&self, host: &str) -> io::Result<Arc<[SocketAddr]>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Arc::new([SocketAddr::new(address, 0)]));
        }
        self.answer(host)?
            .await
            .map_err(|error| io::Error::new(error.kind(), error))
    }

    /// The pending look-up of a host, or a new one.
    fn answer(&self, host: &str) -> io::Result<Answer> {
        let mut state = self.0.state();
        if let Some(answer) = state.in_flight.get(host) {
            return Ok(answer.clone());
        }
        if state.threads < LOOK_UP_THREADS_MAX {
            let inner = self.0.clone();
            thread::Builder::new()
                .name("resolver".to_owned())
                .spawn(move || inner.run())?;
            state.threads += 1;
        }
        let (host, (sender, receiver)) = (Arc::<str>::from(host), oneshot::channel());
        let ended = |_| {
            Err(Arc::new(io::Error::other(
                "the look-up of the name ended without an answer",
            )))
        };
        let answer = receiver
            .map(move |addresses| addresses.unwrap_or_else(ended))
            .boxed()
            .shared();
        state.in_flight.insert(host.clone(), answer.clone());
        state.queue.push_back((host, sender));
        Ok(answer)
    }
}

impl Default for Resolver {
    /// With the resolver of the system.
    fn default() -> Self {
        Self::with(|host| Ok((host, 0).to_socket_addrs()?.collect()))
    }
}

impl Inner {
    /// Serves the queue.
    fn run(&self) {
        loop {
            let mut state = self.state();
            let Some((host, sender)) = state.queue.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            let addresses = (self.look_up)(&host).map(Arc::from).map_err(Arc::new);
            self.state().in_flight.remove(&host);
            // All callers may have stopped waiting.
            let _ = sender.send(addresses);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Resolver")
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::future::join_all;

    use super::*;

    const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 0);

    /// A resolver whose look-ups each wait for a message, and the number of look-ups begun.
    fn unresponsive() -> (Resolver, mpsc::Sender<()>, Arc<AtomicUsize>) {
        let (respond, responses) = mpsc::channel();
        let (responses, begun) = (Mutex::new(responses), Arc::new(AtomicUsize::new(0)));
        let counter = begun.clone();
        let resolver = Resolver::with(move |_| {
            counter.fetch_add(1, SeqCst);
            // An error ends the test.
            let _ = responses.lock().recv();
            Ok(vec![ADDRESS])
        });
        (resolver, respond, begun)
    }

    async fn give_up(resolver: &Resolver, host: &str) {
        tokio::time::timeout(Duration::from_millis(1), resolver.addresses(host))
            .await
            .expect_err("there is no answer");
    }

    #[tokio::test]
    async fn concurrent_callers_share_a_look_up() {
        let (resolver, respond, begun) = unresponsive();
        for _ in 0..100 {
            give_up(&resolver, "redis").await;
        }
        assert_eq!(resolver.0.state().threads, 1);
        let answer = resolver.answer("redis").expect("the look-up in flight");
        respond.send(()).expect("a look-up waits");
        assert_eq!(*answer.await.expect("an answer"), [ADDRESS]);
        assert_eq!(begun.load(SeqCst), 1);
        respond.send(()).expect("the resolver is there");
        resolver.addresses("redis").await.expect("an answer");
        assert_eq!(begun.load(SeqCst), 2, "answers are not kept");
    }

    #[tokio::test]
    async fn threads_are_bounded() {
        let (resolver, respond, begun) = unresponsive();
        let names: Vec<String> = (0..100).map(|number| format!("redis-{number}")).collect();
        for name in &names {
            give_up(&resolver, name).await;
        }
        assert_eq!(resolver.0.state().threads, LOOK_UP_THREADS_MAX);
        assert!(begun.load(SeqCst) <= LOOK_UP_THREADS_MAX);
        let answers: Vec<_> = names
            .iter()
            .map(|name| resolver.answer(name).expect("a look-up"))
            .collect();
        for _ in &names {
            respond.send(()).expect("the resolver is there");
        }
        let answers = join_all(answers).await;
        assert!(answers.iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn ip_addresses_are_not_looked_up() {
        let (resolver, _respond, begun) = unresponsive();
        for host in ["10.0.0.1", "::1"] {
            resolver
                .addresses(host)
                .await
                .expect("it is its own answer");
        }
        assert_eq!(begun.load(SeqCst), 0);
    }

    #[tokio::test]
    async fn errors_of_the_system_are_returned() {
        let resolver = Resolver::with(|_| Err(io::Error::other("no such name")));
        let error = resolver
            .addresses("redis")
            .await
            .expect_err("there is no address");
        assert!(error.to_string().contains("no such name"), "{error}");
    }
}
