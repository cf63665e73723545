//! Connections to Redis servers, with bounds on connecting and on replies.
//!
//! A worker has one connection per server, in a pool of bb8-redis of one that reconnects in the
//! background. [`Connector`] is the pool's manager instead of `RedisConnectionManager`, which never
//! reports a connection as broken, and has neither reloaded credentials nor these bounds.
//!
//! Whether a connection is broken is known from its calls, replies have a time-out (that of a
//! worker's calls is in `client/waiting.rs`) and a bound, and callers learn at once why connecting
//! failed.
//!
//! A peer may close a connection that is idle. The task that reads the connection ends then, so a
//! connection is replaced before its next call. That task reads before it writes: a call that meets
//! the close is not sent.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bb8_redis::bb8::{ErrorSink, ManageConnection, Pool, PooledConnection, RunError};
use bb8_redis::redis::aio::{MultiplexedConnection, PubSub};
use bb8_redis::redis::{AsyncConnectionConfig, ErrorKind, Pipeline, RedisError, Value};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, OptionFuture};
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::base::backoff::jittered;
use crate::base::time::Time;
use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::connection_metrics::{ConnectionGuard, ConnectionMetrics};
use crate::store::redis::connect::dialer::Dialer;
use crate::store::redis::connect::relocation::ConnectionId;
use crate::store::redis::connect::reply_bound::{
    BoundedStream, DISCOVERY_BYTES_MAX, OversizedReplies, Transferred,
};
use crate::store::redis::connect::subscription::Subscription;

/// After how long a background attempt gets a second one beside it, and how often that one is
/// replaced. The first packet may have been lost in an outage: TCP sends it again after 1 s, 3 s,
/// 7 s and so on.
const FRESH_ATTEMPT_AFTER: Duration = Duration::from_millis(900);
/// [`FRESH_ATTEMPT_AFTER`] for TLS, where an attempt may be slow because one core of Redis computes
/// the handshakes of a whole fleet, and replaced attempts cost it more of them. TCP sends the first
/// packet twice in this time.
const FRESH_TLS_ATTEMPT_AFTER: Duration = Duration::from_secs(3);

/// Connects to one server.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    pub(crate) address: Address,
    pub(crate) timeouts: Timeouts,
    pub(crate) dialer: Dialer,
    /// Starts fresh attempts.
    pub(crate) restart: Arc<Notify>,
    /// Bytes of the replies to one call.
    pub(crate) reply_bytes_max: usize,
    pub(crate) oversized: OversizedReplies,
    /// `None` for connections that are not counted.
    pub(crate) metrics: Option<ConnectionMetrics>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) reply: Duration,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    multiplexed: MultiplexedConnection,
    transferred: Transferred,
    broken: bool,
    /// When the last reply of a worker's call arrived.
    pub(crate) used_at: Time,
    /// Reads and writes until the connection is dropped or closed by its peer.
    driver: AbortOnDropHandle<()>,
    _guard: Option<ConnectionGuard>,
}

/// The one connection of a worker to a server. Its calls go one after the other.
#[derive(Debug, Clone)]
pub(crate) struct WorkerConnection {
    pool: Pool<Connector>,
    /// Why the last attempt failed; `None` before. bb8 alone would let its callers wait.
    errors: watch::Receiver<Option<RedisError>>,
}

/// Receives the errors of attempts from bb8.
#[derive(Debug, Clone)]
struct ConnectErrors(watch::Sender<Option<RedisError>>);

type Attempt<'a, T> = BoxFuture<'a, Result<T, RedisError>>;

impl Connector {
    /// A connector to this server that counts no connections.
    #[must_use]
    pub(crate) fn uncounted(&self) -> Self {
        Self { metrics: None, ..self.clone() }
    }

    /// For discovery, which gets longer replies.
    #[must_use]
    pub(crate) fn for_discovery(&self) -> Self {
        Self { reply_bytes_max: DISCOVERY_BYTES_MAX, ..self.uncounted() }
    }

    /// Starts a fresh attempt beside each pending one, because the server is reachable now. An
    /// attempt whose first packet was lost in an outage may hang for seconds, and with it the
    /// connection of a worker.
    pub(crate) fn restart_connecting(&self) {
        self.restart.notify_waiters();
    }

    /// Subscribes to a channel.
    ///
    /// # Errors
    /// The subscription failed or timed out.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<Subscription, RedisError> {
        let subscribe = || {
            async {
                let (stream, transferred) = self.open().await?;
                let mut connection = PubSub::new(&self.address.session(), stream).await?;
                connection.subscribe(channel).await?;
                Ok(Subscription::new(connection, transferred))
            }
            .boxed()
        };
        let subscribing = self.attempt(Some(self.fresh_attempt_after()), subscribe);
        tokio::time::timeout(self.timeouts.connect, subscribing).await.unwrap_or_else(|_| {
            let what = "no connection to subscribe";
            Err(RedisError::from((ErrorKind::Io, what, "timed out".to_owned())))
        })
    }

    /// A connection that no caller waits for.
    ///
    /// # Errors
    /// Connecting failed or timed out.
    pub(crate) async fn connect_background(&self) -> Result<Connection, RedisError> {
        let fresh_after = Some(self.fresh_attempt_after());
        let mut connection = self.connect_with(fresh_after).await?;
        connection.multiplexed.set_response_timeout(self.timeouts.reply);
        Ok(connection)
    }

    async fn connect_with(&self, fresh_after: Option<Duration>) -> Result<Connection, RedisError> {
        let connection = self.attempt(fresh_after, || self.dial().boxed()).await?;
        Ok(Connection { _guard: self.metrics.as_ref().map(ConnectionGuard::new), ..connection })
    }

    /// Opens a connection within the time for it, with the current credentials and certificates.
    /// A connection whose calls have no timeout yet.
    async fn dial(&self) -> Result<Connection, RedisError> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        let connecting = async {
            let (stream, transferred) = self.open().await?;
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let (mut multiplexed, driver) =
                MultiplexedConnection::new_with_config(&self.address.session(), stream, config)
                    .await?;
            #[expect(clippy::disallowed_methods, reason = "ends with its connection")]
            let driver = AbortOnDropHandle::new(tokio::spawn(driver));
            // No caller is the first to find out that this connection is broken.
            let replied = multiplexed.send_packed_command(&redis::cmd("PING")).await;
            replied.or_else(|error| error.code().map(|_| Value::Nil).ok_or(error))?;
            transferred.mark_replied();
            Ok(Connection {
                id: ConnectionId(CONNECTIONS.fetch_add(1, Relaxed)),
                multiplexed,
                transferred,
                broken: false,
                used_at: Time::from_micros(0),
                driver,
                _guard: None,
            })
        };
        tokio::time::timeout(self.timeouts.connect, connecting)
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    async fn open(&self) -> Result<(BoundedStream, Transferred), RedisError> {
        let transferred = Transferred::default();
        let stream = BoundedStream {
            stream: self.dialer.open(&self.address).await?,
            transferred: transferred.clone(),
            bytes_max: self.reply_bytes_max,
            oversized: self.oversized.clone(),
            closed_idle: self.metrics.as_ref().map(|metrics| metrics.closed_idle.clone()),
        };
        Ok((stream, transferred))
    }

    /// Runs an attempt to its end. Beside it there is at most one fresh attempt: after each restart
    /// and, if given, each `fresh_after`. The first attempt's result counts unless a fresh one
    /// succeeds earlier.
    async fn attempt<'a, T>(
        &self,
        fresh_after: Option<Duration>,
        dial: impl Fn() -> Attempt<'a, T>,
    ) -> Result<T, RedisError> {
        let mut first = dial();
        let mut fresh = None;
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
        if self.address.is_tls() { FRESH_TLS_ATTEMPT_AFTER } else { FRESH_ATTEMPT_AFTER }
    }
}

impl ManageConnection for Connector {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        // No fresh attempts by time: probes notice that the server is back, and restart this.
        self.connect_with(None).await
    }

    /// Not used: calls find out about a broken connection.
    async fn is_valid(&self, _: &mut Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.broken || connection.is_closed()
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
        self.transferred.reset();
        let values = self.multiplexed.send_packed_commands(commands, 0, commands.len()).await?;
        self.broken = was_broken;
        self.transferred.mark_replied();
        Ok(values)
    }

    /// Bytes sent so far. A call that failed without a change of it was certainly not executed.
    pub(crate) fn sent(&self) -> u64 {
        self.transferred.sent()
    }

    fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    /// Returns the replies, or the first that is an error.
    pub(crate) async fn ask(&mut self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let replies = self.call(commands).await?;
        replies.into_iter().map(Value::extract_error).collect()
    }

    /// Sends a command without arguments. A server that loads its file rejects PING.
    ///
    /// # Errors
    /// The connection is broken, or the command was rejected.
    pub(crate) async fn ask_one(&mut self, command: &str) -> Result<Value, RedisError> {
        let mut commands = Pipeline::with_capacity(1);
        commands.cmd(command);
        Ok(self.ask(&commands).await?.pop().unwrap_or(Value::Nil))
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
        let (sender, errors) = watch::channel(None);
        let pool = Pool::builder()
            .max_size(1)
            .min_idle(Some(1))
            .test_on_check_out(false)
            .retry_connection(false)
            .connection_timeout(timeout)
            .idle_timeout(None)
            .max_lifetime(None)
            .error_sink(Box::new(ConnectErrors(sender)))
            .build_unchecked(connector);
        Self { pool, errors }
    }

    /// Waits for the connection. One that its peer has closed is replaced.
    ///
    /// # Errors
    /// Connecting failed or timed out.
    pub(crate) async fn get(&self) -> Result<PooledConnection<'_, Connector>, RedisError> {
        loop {
            let connection = self.take().await?;
            if !connection.is_closed() {
                return Ok(connection);
            }
        }
    }

    async fn take(&self) -> Result<PooledConnection<'_, Connector>, RedisError> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time").into();
        let mut errors = self.errors.clone();
        errors.mark_unchanged();
        tokio::select! {
            biased;
            connection = self.pool.get() => connection.map_err(|error| match error {
                RunError::User(error) => error,
                RunError::TimedOut => late(),
            }),
            Ok(()) = errors.changed() => Err(errors.borrow().clone().unwrap_or_else(late)),
        }
    }
}

impl ErrorSink<RedisError> for ConnectErrors {
    fn sink(&self, error: RedisError) {
        // No caller may be waiting.
        let _ = self.0.send(Some(error));
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}
