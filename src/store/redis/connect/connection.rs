//! Connections to Redis: made and mended by bb8, which needs to be told four things that its
//! manager for Redis does not know: when a connection is broken, that it need not be asked before
//! each use, how long a reply may take, and to give up quickly.

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
use crate::store::redis::relocation::ConnectionId;
use crate::telemetry::metric::{Counter, Gauge, Metrics};

/// Makes connections.
#[derive(Debug, Clone)]
pub struct Connector {
    address: Address,
    /// It knows how to ask whether a connection lives. Connecting is left to the client: this has
    /// time-outs of its own for that.
    redis: RedisConnectionManager,
    timeouts: Timeouts,
    dialer: Dialer,
    /// Starts attempts to connect again.
    restart: Arc<Notify>,
    /// None for servers that count nothing.
    connections: Option<ConnectionMetrics>,
}

/// How long to wait.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Duration,
    /// For a reply.
    pub reply: Duration,
}

/// How many connections there are, were made and were closed, also as the reference tells it of its
/// pool.
#[derive(Debug, Clone)]
pub struct ConnectionMetrics {
    made: Counter,
    open: Gauge,
    closed: Counter,
}

/// How long an attempt for something that no caller waits for hangs before a fresh one is made
/// beside it, and how often that one is replaced. The first packet of the older one may have been
/// lost in an outage: TCP sends it again after 1 s, 3 s, 7 s and so on.
const FRESH_ATTEMPT_AFTER: Duration = Duration::from_millis(900);
/// The same by TLS, where an attempt may hang because Redis' one core has the handshakes of a whole
/// fleet to do, and attempts that are replaced cost it more of them. TCP sends the first packet
/// twice in this time.
const FRESH_TLS_ATTEMPT_AFTER: Duration = Duration::from_secs(3);

const OPEN: &str = "Connections to Redis.";
const MADE: &str =
    "Connections to Redis that were made, but for those that only look up where its servers are.";
const CLOSED: &str = "Connections to Redis that were closed, by either side.";

/// An attempt to connect.
type Attempt<'a, T> = BoxFuture<'a, Result<T, RedisError>>;

/// Counts as a connection for as long as it lives.
#[derive(Debug)]
struct ConnectionGuard(ConnectionMetrics);

/// A connection, and whether it still is one.
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    connection: MultiplexedConnection,
    broken: bool,
    _counted: Option<ConnectionGuard>,
}

/// The one connection of a runtime. Its calls go one after the other.
#[derive(Debug, Clone)]
pub struct WorkerConnection {
    pool: Pool<Connector>,
    /// What the last try to connect failed for. bb8 alone would let whoever waits for a connection
    /// wait on.
    failures: watch::Receiver<String>,
}

/// Where bb8 says what became of its tries.
#[derive(Debug, Clone)]
struct ConnectErrors {
    address: Address,
    told: watch::Sender<String>,
}

impl ConnectionMetrics {
    /// Of the Redis that everybody has.
    pub fn new(metrics: &Metrics) -> Self {
        let made = metrics.counter_with(
            "tollgate_store_connections_total",
            MADE,
            &[("pool", "main")],
        );
        Self {
            open: metrics.reference_gauge(
                "ratelimit.redis_pool.cx_active",
                "ratelimit_redis_pool_cx_active",
                OPEN,
            ),
            closed: metrics.reference_counter(
                "ratelimit.redis_pool.cx_local_close",
                "ratelimit_redis_pool_cx_local_close",
                CLOSED,
                &[],
            ),
            made: metrics.reference_counter_of(
                made,
                "ratelimit.redis_pool.cx_total",
                "ratelimit_redis_pool_cx_total",
                MADE,
            ),
        }
    }

    /// Of the one for limits of a second.
    pub fn per_second(metrics: &Metrics) -> Self {
        let made = metrics.counter_with(
            "tollgate_store_connections_total",
            MADE,
            &[("pool", "per_second")],
        );
        Self {
            open: metrics.reference_gauge(
                "ratelimit.redis_per_second_pool.cx_active",
                "ratelimit_redis_per_second_pool_cx_active",
                OPEN,
            ),
            closed: metrics.reference_counter(
                "ratelimit.redis_per_second_pool.cx_local_close",
                "ratelimit_redis_per_second_pool_cx_local_close",
                CLOSED,
                &[],
            ),
            made: metrics.reference_counter_of(
                made,
                "ratelimit.redis_per_second_pool.cx_total",
                "ratelimit_redis_per_second_pool_cx_total",
                MADE,
            ),
        }
    }
}

impl ConnectionGuard {
    fn new(connections: &ConnectionMetrics) -> Self {
        connections.made.inc();
        connections.open.inc();
        Self(connections.clone())
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.open.dec();
        self.0.closed.inc();
    }
}

impl Connector {
    /// For that server.
    ///
    /// # Errors
    /// An address that the client cannot use.
    pub fn new(
        address: Address,
        timeouts: Timeouts,
        dialer: Dialer,
        connections: Option<ConnectionMetrics>,
    ) -> Result<Self, RedisError> {
        let redis = RedisConnectionManager::new(address.connection_info())?;
        Ok(Self {
            address,
            redis,
            timeouts,
            dialer,
            restart: Arc::default(),
            connections,
        })
    }

    /// Where it connects to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The same for look-ups, which are not counted.
    #[must_use]
    pub fn uncounted(&self) -> Self {
        Self {
            connections: None,
            ..self.clone()
        }
    }

    /// Makes a fresh attempt beside each one that is under way, because the server is known to be
    /// reachable now.
    ///
    /// An attempt whose first packet was lost in an outage may hang for seconds longer. It would
    /// keep the one connection of a runtime from being made.
    pub fn restart_connecting(&self) {
        self.restart.notify_waiters();
    }

    /// Whether the server answers: a connection of its own, and a PING on it.
    ///
    /// # Errors
    /// It does not, or not in time.
    pub async fn probe(&self) -> Result<(), RedisError> {
        let mut connection = self.connect_background().await?;
        tokio::time::timeout(self.timeouts.reply, self.is_valid(&mut connection))
            .await
            .unwrap_or_else(|_| Err(late("no reply")))
    }

    /// What is published on a channel from now on.
    ///
    /// # Errors
    /// It cannot be listened to, or not in time.
    pub async fn listen(&self, channel: &str) -> Result<PubSubStream, RedisError> {
        let listening = || {
            async {
                let mut connection = self.dialer.connect_to_subscribe(&self.address).await?;
                connection.subscribe(channel).await?;
                Ok(connection.into_on_message())
            }
            .boxed()
        };
        let listening = self.attempt(Some(self.fresh_attempt_after()), listening);
        tokio::time::timeout(self.timeouts.connect, listening)
            .await
            .unwrap_or_else(|_| Err(late("no connection to listen on")))
    }

    /// A connection of its own, for something that no caller waits for.
    ///
    /// # Errors
    /// It could not be made, or not in time.
    pub async fn connect_background(&self) -> Result<Connection, RedisError> {
        self.connect_with(Some(self.fresh_attempt_after())).await
    }

    async fn connect_with(&self, fresh_after: Option<Duration>) -> Result<Connection, RedisError> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        let Timeouts { connect, reply } = self.timeouts;
        let dial = || self.dialer.connect(&self.address, connect).boxed();
        let mut connection = self.attempt(fresh_after, dial).await?;
        connection.set_response_timeout(reply);
        let id = ConnectionId(CONNECTIONS.fetch_add(1, Relaxed));
        Ok(Connection {
            id,
            connection,
            broken: false,
            _counted: self.connections.as_ref().map(ConnectionGuard::new),
        })
    }

    /// One attempt, which runs to its end. Beside it there is at most one fresh attempt: from the
    /// next restart on, and, if it is said after how long, whenever that time has passed. What
    /// becomes of the first attempt is what becomes of all, unless a fresh one succeeds.
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
        // Probes find out when the server is back, and restart this.
        self.connect_with(None).await
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), RedisError> {
        self.redis.is_valid(&mut connection.connection).await
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.broken
    }
}

impl Connection {
    /// Which connection it is.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Sends commands in one go, and waits for their replies, of which some may be errors of Redis'
    /// own.
    ///
    /// # Errors
    /// Whatever breaks the connection.
    pub async fn call(&mut self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        // Until there are replies nobody knows what comes next on this connection.
        self.broken = true;
        let values = self
            .connection
            .send_packed_commands(commands, 0, commands.len())
            .await?;
        self.broken = false;
        Ok(values)
    }

    /// Closes the connection once it is given back: its next reply may make no sense, or the wrong
    /// server sends it.
    pub fn mark_broken(&mut self) {
        self.broken = true;
    }
}

impl WorkerConnection {
    /// A connection for the runtime that this is called on. It is made in the background.
    pub fn open(connector: Connector, patience: Duration) -> Self {
        let (told, failures) = watch::channel(String::new());
        let sink = ConnectErrors {
            address: connector.address.clone(),
            told,
        };
        let pool = Pool::builder()
            .max_size(1)
            .min_idle(Some(1))
            .test_on_check_out(false)
            .retry_connection(false)
            .connection_timeout(patience)
            .idle_timeout(None)
            .max_lifetime(None)
            .error_sink(Box::new(sink))
            .build_unchecked(connector);
        Self { pool, failures }
    }

    /// The connection, once it is there.
    ///
    /// # Errors
    /// It could not be made, or not in time.
    pub async fn get(&self) -> Result<PooledConnection<'_, Connector>, String> {
        let mut failures = self.failures.clone();
        failures.mark_unchanged();
        tokio::select! {
            biased;
            connection = self.pool.get() => connection.map_err(|error| match error {
                bb8::RunError::User(error) => error.to_string(),
                bb8::RunError::TimedOut => "no connection in time".to_owned(),
            }),
            Ok(()) = failures.changed() => Err(failures.borrow().clone()),
        }
    }
}

impl ErrorSink<RedisError> for ConnectErrors {
    fn sink(&self, error: RedisError) {
        // Nobody may be waiting.
        let _ = self.told.send(self.address.explain(&error));
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}

fn late(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Io, what, "timed out".to_owned()))
}
