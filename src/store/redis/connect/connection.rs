//! Connections to Redis servers, with bounds on connecting and on replies.
//!
//! A worker has one connection per server, in a bb8 pool of one that reconnects in the background.
//! bb8's manager for Redis is extended by what it lacks: whether a connection is broken is known
//! from its calls instead of a PING before each use, replies have a time-out (that of a worker's calls
//! is in `client/waiting.rs`), and callers learn at once why connecting failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bb8::{ErrorSink, ManageConnection, Pool, PooledConnection};
use bb8_redis::RedisConnectionManager;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, OptionFuture};
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{ErrorKind, Pipeline, RedisError, Value};
use tokio::sync::{Notify, watch};

use crate::backoff::jittered;
use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::dialer::Dialer;
use crate::store::redis::connect::relocation::ConnectionId;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// After how long a background attempt gets a second one beside it, and how often that one is
/// replaced. The first packet may have been lost in an outage: TCP sends it again after 1 s, 3 s,
/// 7 s and so on.
const FRESH_ATTEMPT_AFTER: Duration = Duration::from_millis(900);
/// The same for TLS, where an attempt may be slow because one core of Redis computes the handshakes
/// of a whole fleet, and replaced attempts cost it more of them. TCP sends the first packet twice in
/// this time.
const FRESH_TLS_ATTEMPT_AFTER: Duration = Duration::from_secs(3);

/// Connects to one server.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    address: Address,
    timeouts: Timeouts,
    dialer: Dialer,
    /// Starts fresh attempts.
    restart: Arc<Notify>,
    /// `None` for connections that are not counted.
    metrics: Option<ConnectionMetrics>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) reply: Duration,
}

/// Counts of connections, also under the names of envoyproxy/ratelimit.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionMetrics {
    made: Counter,
    open: Gauge,
    closed: Counter,
}

/// Counts as an open connection until it is dropped.
#[derive(Debug)]
struct ConnectionGuard(ConnectionMetrics);

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    multiplexed: MultiplexedConnection,
    broken: bool,
    _guard: Option<ConnectionGuard>,
}

/// The one connection of a worker to a server. Its calls go one after the other.
#[derive(Debug, Clone)]
pub(crate) struct WorkerConnection {
    pool: Pool<Connector>,
    /// Why the last attempt failed. bb8 alone would let its callers wait.
    errors: watch::Receiver<String>,
}

/// Receives the errors of attempts from bb8.
#[derive(Debug, Clone)]
struct ConnectErrors {
    address: Address,
    errors: watch::Sender<String>,
}

type Attempt<'a, T> = BoxFuture<'a, Result<T, RedisError>>;

impl ConnectionMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let names = [
            "ratelimit_redis_pool_cx_active",
            "ratelimit_redis_pool_cx_local_close",
            "ratelimit_redis_pool_cx_total",
        ];
        Self::named("main", "ratelimit.redis_pool", names, metrics)
    }

    /// For the Redis of REDIS_PERSECOND.
    pub(crate) fn per_second(metrics: &Metrics) -> Self {
        let names = [
            "ratelimit_redis_per_second_pool_cx_active",
            "ratelimit_redis_per_second_pool_cx_local_close",
            "ratelimit_redis_per_second_pool_cx_total",
        ];
        Self::named(
            "per_second",
            "ratelimit.redis_per_second_pool",
            names,
            metrics,
        )
    }

    /// `statsd` precedes the names in statsd.
    fn named(pool: &str, statsd: &str, names: [&'static str; 3], metrics: &Metrics) -> Self {
        let help = "Connections made to Redis, except for discovery.";
        let closed = "Connections to Redis closed by either side.";
        let made =
            metrics.counter_with("tollgate_store_connections_total", help, &[("pool", pool)]);
        let [active, local_close, total] =
            ["cx_active", "cx_local_close", "cx_total"].map(|name| format!("{statsd}.{name}"));
        Self {
            open: metrics.reference_gauge(&active, names[0], "Open connections to Redis."),
            closed: metrics.reference_counter(&local_close, names[1], closed, &[]),
            made: metrics.reference_counter_of(made, &total, names[2], help),
        }
    }
}

impl ConnectionGuard {
    fn new(metrics: &ConnectionMetrics) -> Self {
        metrics.made.inc();
        metrics.open.inc();
        Self(metrics.clone())
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.open.dec();
        self.0.closed.inc();
    }
}

impl Connector {
    pub(crate) fn new(
        address: Address,
        timeouts: Timeouts,
        dialer: Dialer,
        metrics: Option<ConnectionMetrics>,
    ) -> Self {
        Self {
            address,
            timeouts,
            dialer,
            restart: Arc::default(),
            metrics,
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// For discovery, whose connections are not counted.
    #[must_use]
    pub(crate) fn uncounted(&self) -> Self {
        Self {
            metrics: None,
            ..self.clone()
        }
    }

    /// Starts a fresh attempt beside each pending one, because the server is reachable now. An
    /// attempt whose first packet was lost in an outage may hang for seconds, and with it the
    /// connection of a worker.
    pub(crate) fn restart_connecting(&self) {
        self.restart.notify_waiters();
    }

    /// Connects and sends a PING.
    ///
    /// # Errors
    /// One of them failed or timed out.
    pub(crate) async fn probe(&self) -> Result<(), RedisError> {
        let mut connection = self.connect_background().await?;
        self.is_valid(&mut connection).await
    }

    /// Subscribes to a channel.
    ///
    /// # Errors
    /// It failed or timed out.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<PubSubStream, RedisError> {
        let subscribe = || {
            async {
                let mut connection = self.dialer.connect_to_subscribe(&self.address).await?;
                connection.subscribe(channel).await?;
                Ok(connection.into_on_message())
            }
            .boxed()
        };
        let subscribing = self.attempt(Some(self.fresh_attempt_after()), subscribe);
        tokio::time::timeout(self.timeouts.connect, subscribing)
            .await
            .unwrap_or_else(|_| Err(timed_out("no connection to subscribe")))
    }

    /// A connection that no caller waits for.
    ///
    /// # Errors
    /// Connecting failed or timed out.
    pub(crate) async fn connect_background(&self) -> Result<Connection, RedisError> {
        let fresh_after = Some(self.fresh_attempt_after());
        let mut connection = self.connect_with(fresh_after).await?;
        connection
            .multiplexed
            .set_response_timeout(self.timeouts.reply);
        Ok(connection)
    }

    async fn connect_with(&self, fresh_after: Option<Duration>) -> Result<Connection, RedisError> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        let within = self.timeouts.connect;
        let dial = || self.dialer.connect(&self.address, within).boxed();
        let multiplexed = self.attempt(fresh_after, dial).await?;
        Ok(Connection {
            id: ConnectionId(CONNECTIONS.fetch_add(1, Relaxed)),
            multiplexed,
            broken: false,
            _guard: self.metrics.as_ref().map(ConnectionGuard::new),
        })
    }

    /// Runs an attempt to its end. Beside it there is at most one fresh attempt: after each restart
    /// and, if given, each `fresh_after`. The first attempt's result counts unless a fresh one
    /// succeeds earlier.
    async fn attempt<'a, T>(
        &self,
        fresh_after: Option<Duration>,
        dial: impl Fn() -> Attempt<'a, T>,
    ) -> Result<T, RedisError> {
        let (mut first, mut fresh) = (dial(), None);
        loop {
            let restart = self.restart.notified();
            let wait =
                OptionFuture::from(fresh_after.map(|after| tokio::time::sleep(jittered(after))));
            tokio::select! {
                biased;
                connected = &mut first => return connected,
                Some(connected) = OptionFuture::from(fresh.as_mut()) => match connected {
                    Ok(connected) => return Ok(connected),
                    Err(_) => fresh = None,
                },
                () = restart => fresh = Some(dial()),
                Some(()) = wait => fresh = Some(dial()),
            }
        }
    }

    fn fresh_attempt_after(&self) -> Duration {
        if self.address.is_tls() {
            FRESH_TLS_ATTEMPT_AFTER
        } else {
            FRESH_ATTEMPT_AFTER
        }
    }
}

impl ManageConnection for Connector {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        // No fresh attempts by time: probes notice that the server is back, and restart this.
        self.connect_with(None).await
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), RedisError> {
        let redis = RedisConnectionManager::new(self.address.connection_info())?;
        redis.is_valid(&mut connection.multiplexed).await
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.broken
    }
}

impl Connection {
    /// Sends commands in one write and waits for their replies; error replies are among the values.
    ///
    /// # Errors
    /// The connection is broken.
    pub(crate) async fn call(&mut self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        // A cancelled call leaves replies unread.
        let was_broken = std::mem::replace(&mut self.broken, true);
        let values = self
            .multiplexed
            .send_packed_commands(commands, 0, commands.len())
            .await?;
        self.broken = was_broken;
        Ok(values)
    }

    /// Closes the connection once it is returned: its replies make no sense, or its server has no
    /// keys any more.
    pub(crate) fn mark_broken(&mut self) {
        self.broken = true;
    }
}

impl WorkerConnection {
    /// Starts to connect in the background, on the current runtime.
    pub(crate) fn open(connector: Connector, timeout: Duration) -> Self {
        let (sender, errors) = watch::channel(String::new());
        let sink = ConnectErrors {
            address: connector.address.clone(),
            errors: sender,
        };
        let pool = Pool::builder()
            .max_size(1)
            .min_idle(Some(1))
            .test_on_check_out(false)
            .retry_connection(false)
            .connection_timeout(timeout)
            .idle_timeout(None)
            .max_lifetime(None)
            .error_sink(Box::new(sink))
            .build_unchecked(connector);
        Self { pool, errors }
    }

    /// Waits for the connection.
    ///
    /// # Errors
    /// Connecting failed or timed out.
    pub(crate) async fn get(&self) -> Result<PooledConnection<'_, Connector>, String> {
        let mut errors = self.errors.clone();
        errors.mark_unchanged();
        tokio::select! {
            biased;
            connection = self.pool.get() => connection.map_err(|error| match error {
                bb8::RunError::User(error) => error.to_string(),
                bb8::RunError::TimedOut => "no connection in time".to_owned(),
            }),
            Ok(()) = errors.changed() => Err(errors.borrow().clone()),
        }
    }
}

impl ErrorSink<RedisError> for ConnectErrors {
    fn sink(&self, error: RedisError) {
        // No caller may be waiting.
        let _ = self.errors.send(self.address.explain(&error));
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}

fn timed_out(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Io, what, "timed out".to_owned()))
}
