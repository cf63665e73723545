//! A Redis in memory that behaves as a test says: it answers, is late, returns errors, or breaks
//! connections.
//!
//! Clients connect through [`Network::dialer`] over in-memory streams. Nothing here uses a socket,
//! a thread or the real time, so under tokio's paused clock every test is deterministic and its
//! times are exact. It counts by the Rust code of all algorithms; `parity.rs` compares
//! that with the script on a real Redis.

mod commands;
pub(crate) mod resp;
mod script;

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::base::time::{Clock, Time};
use tollgate::limits::Limit;
use tollgate::limits::algorithm::Counter;
use tollgate::store::redis::connect::dialer::Dialer;

use commands::{Counters, Database, Session};
use script::State;

pub(crate) use commands::Redirect;
pub(crate) use resp::Reply;

/// More than the longest pipeline of a test, the text of the script included.
const STREAM_BYTES_MAX: usize = 1 << 18;
/// When a lost packet that opens a TCP connection is sent again; the wait doubles each time.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Error replies.
pub(crate) const LOADING: &str = "LOADING Redis is loading the dataset in memory";
pub(crate) const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
pub(crate) const READ_ONLY: &str = "READONLY You can't write against a read only replica.";
pub(crate) const MASTER_DOWN: &str = "MASTERDOWN Link with MASTER is down";

/// Servers by their address. Clones are the same network.
#[derive(Clone)]
pub(crate) struct Network {
    servers: Arc<Mutex<BTreeMap<String, Arc<ScriptedRedis>>>>,
    pub(crate) clock: Clock,
}

/// One server.
pub(crate) struct ScriptedRedis {
    clock: Clock,
    clock_ahead: AtomicI64,
    database: Mutex<Database>,
    plan: watch::Sender<Plan>,
    /// What arrived, by command, and when.
    received: Mutex<BTreeMap<String, Vec<Time>>>,
    opened: AtomicUsize,
    /// Connections with a number below this are half open: nothing that they send is read.
    half_open: AtomicUsize,
    /// Connections with a number below this are closed.
    closed: watch::Sender<usize>,
    accepting: Mutex<Accepting>,
    connections: Mutex<JoinSet<()>>,
    /// The only commands that pass; empty for all.
    passing: Mutex<&'static [&'static str]>,
}

/// How long connecting takes.
#[derive(Debug, Clone, Copy, Default)]
struct Accepting {
    /// For each connection by itself.
    latency: Duration,
    /// For each after the others, as TLS handshakes do that one core computes. Connections that
    /// are given up take it, too.
    work: Duration,
    /// When the work that has arrived so far is done.
    busy_until: Option<Instant>,
    /// How many attempts there were.
    attempts: usize,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Connections are refused, and open ones are closed.
    RefuseConnections,
    /// Packets are lost: connecting takes until a packet arrives after the fault, and nothing is
    /// read from open connections.
    Unreachable,
    /// The process is stopped: it accepts connections, and reads what they send when the fault is
    /// over.
    Stopped,
    /// Runs commands and never replies.
    NoReply,
    /// Runs commands and replies this much later.
    Delay(Duration),
    /// Closes the connection when commands arrive, and runs none of them.
    CloseBeforeRunning,
    /// Runs commands, sends half of the replies and closes the connection.
    CloseInReply,
    /// Runs commands, sends half of the replies and nothing more.
    HalfReply,
    /// Replies with this error instead of running commands: `LOADING`, `NOAUTH` and the like to all
    /// of them, `OOM`, `READONLY` and `MASTERDOWN` to those that write.
    Error(&'static str),
}

/// The counters of a server at some moment; none by default.
#[derive(Clone, Default)]
pub(crate) struct Snapshot(Counters);

/// Which fault there is, and where.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    fault: Option<Fault>,
    /// Only for connections whose number leaves this remainder when it is divided by two.
    half: Option<usize>,
    /// Only for so many more batches that count hits.
    batches: Option<u32>,
}

impl Network {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { servers: Arc::default(), clock }
    }

    /// The server at `host:port`, which exists from now on.
    pub(crate) fn server(&self, address: &str) -> Arc<ScriptedRedis> {
        let mut servers = self.servers.lock();
        servers
            .entry(address.to_owned())
            .or_insert_with(|| Arc::new(ScriptedRedis::new(self.clock.clone())))
            .clone()
    }

    /// From now on connections to this address reach another server, as after a failover behind a
    /// name. Open ones stay where they are.
    pub(crate) fn repoint(&self, address: &str, server: &Arc<ScriptedRedis>) {
        self.servers.lock().insert(address.to_owned(), server.clone());
    }

    /// Connects to these servers, and to none at any other address.
    pub(crate) fn dialer(&self) -> Dialer {
        let servers = self.servers.clone();
        Dialer::Streams(Arc::new(move |address| {
            let (host, port) = address.endpoint().expect("tests use no sockets");
            let server = servers.lock().get(&format!("{host}:{port}")).cloned();
            Box::pin(async move {
                let server = server.ok_or(io::ErrorKind::ConnectionRefused)?;
                Ok(Box::pin(server.accept().await?) as _)
            })
        }))
    }
}

impl ScriptedRedis {
    fn new(clock: Clock) -> Self {
        Self {
            clock,
            clock_ahead: AtomicI64::new(0),
            database: Mutex::default(),
            plan: watch::Sender::new(Plan::default()),
            received: Mutex::default(),
            opened: AtomicUsize::new(0),
            half_open: AtomicUsize::new(0),
            closed: watch::Sender::new(0),
            accepting: Mutex::default(),
            connections: Mutex::default(),
            passing: Mutex::default(),
        }
    }

    /// From now on there is this fault.
    pub(crate) fn fail(&self, fault: Fault) {
        self.follow(Some(fault), None, None);
    }

    /// The same for every other connection: those whose number leaves this remainder when it is
    /// divided by two.
    pub(crate) fn fail_half(&self, remainder: usize, fault: Fault) {
        self.follow(Some(fault), Some(remainder), None);
    }

    /// The same for so many batches of commands that count hits.
    pub(crate) fn fail_next(&self, batches: u32, fault: Fault) {
        self.follow(Some(fault), None, Some(batches));
    }

    /// From now on there is no fault.
    pub(crate) fn recover(&self) {
        self.follow(None, None, None);
    }

    fn follow(&self, fault: Option<Fault>, half: Option<usize>, batches: Option<u32>) {
        self.plan.send_replace(Plan { fault, half, batches });
    }

    /// Replies this to a command, such as `CLUSTER SLOTS`.
    pub(crate) fn reply(&self, command: &str, reply: Reply) {
        self.database().canned.insert(command.to_owned(), reply);
    }

    /// Closes connections on which another command arrives, as a proxy does that knows no others.
    pub(crate) fn pass_only(&self, commands: &'static [&'static str]) {
        *self.passing.lock() = commands;
    }

    fn passes(&self, command: &[Vec<u8>]) -> bool {
        let passing = self.passing.lock();
        passing.is_empty() || passing.contains(&&*commands::name(command))
    }

    /// Serves a command again after [`Self::reply`].
    pub(crate) fn serve(&self, command: &str) {
        self.database().canned.remove(command);
    }

    /// Says that these are the masters of the slots of a cluster, which is well.
    pub(crate) fn serve_slots(&self, ranges: &[(u16, u16, &str)]) {
        self.reply("CLUSTER SLOTS", Reply::cluster_slots(ranges));
        self.reply("CLUSTER INFO", Reply::text("cluster_state:ok\r\n"));
    }

    /// Accepts only connections that authenticate with one of these. Open connections stay
    /// authenticated.
    pub(crate) fn set_passwords(&self, passwords: &[&str]) {
        self.database().passwords = passwords.iter().map(|&password| password.to_owned()).collect();
    }

    /// Redirects commands on keys of this slot.
    pub(crate) fn redirect(&self, slot: u16, redirect: Option<Redirect>) {
        let redirects = &mut self.database().redirects;
        match redirect {
            Some(redirect) => redirects.insert(slot, redirect),
            None => redirects.remove(&slot),
        };
    }

    /// Forgets the script, as SCRIPT FLUSH or a restart does.
    pub(crate) fn forget_script(&self) {
        self.database().knows_script = false;
    }

    /// Puts something at every key with this prefix, or at this key, that is no counter. `false`
    /// removes it.
    pub(crate) fn set_foreign(&self, prefix: &str, is_there: bool) {
        let foreign = &mut self.database().foreign;
        foreign.retain(|known| known != prefix.as_bytes());
        foreign.extend(is_there.then(|| prefix.as_bytes().to_vec()));
    }

    /// Evicts keys with this prefix, or lets them expire.
    pub(crate) fn evict(&self, prefix: &str) {
        let counters = &mut self.database().counters;
        counters.retain(|key, _| !key.starts_with(prefix.as_bytes()));
    }

    /// How many hits are counted at keys with this prefix. Only for fixed windows.
    pub(crate) fn hits(&self, prefix: &str) -> i64 {
        let database = self.database();
        let kept = database.counters.iter().filter(|(key, _)| key.starts_with(prefix.as_bytes()));
        kept.map(|(_, kept)| match kept.state {
            State::Number(used) => used,
            _ => 0,
        })
        .sum()
    }

    /// What is spent at a key, in the units of its algorithm.
    pub(crate) fn spent(&self, key: &str) -> u64 {
        self.database().spent(key, self.now())
    }

    /// What stands at a key, as the algorithm of this limit counts.
    pub(crate) fn counter(&self, key: &str, limit: &Limit) -> Counter {
        self.database().counter(key, limit, self.now())
    }

    /// Keys that never expire.
    pub(crate) fn immortal_keys(&self) -> Vec<String> {
        let database = self.database();
        let keys = database.counters.iter().filter(|(_, kept)| kept.expires.is_none());
        keys.map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// How many checks were decided so far.
    pub(crate) fn decided(&self) -> usize {
        self.database().decided
    }

    /// What a Redis replica would have at this moment.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.database().counters.clone())
    }

    /// Another server takes this one's place, with these counters and without the script:
    /// connections are closed.
    pub(crate) fn fail_over(&self, snapshot: Snapshot) {
        {
            let mut database = self.database();
            database.counters = snapshot.0;
            database.knows_script = false;
        }
        self.close_connections();
    }

    /// Closes all connections, as after an idle time. New ones are accepted. As of TCP, a client that
    /// has not read the close can write, and nothing becomes of it.
    pub(crate) fn close_connections(&self) {
        self.closed.send_replace(self.opened());
    }

    /// Loses all connections without closing them, as a firewall that forgets them does. New ones are
    /// accepted.
    pub(crate) fn lose_connections(&self) {
        self.half_open.store(self.opened(), Relaxed);
    }

    /// How many of a command have arrived. Commands with subcommands have both words: `CLUSTER
    /// SLOTS`.
    pub(crate) fn received(&self, command: &str) -> usize {
        self.received_at(command).len()
    }

    /// When they arrived.
    pub(crate) fn received_at(&self, command: &str) -> Vec<Time> {
        self.received.lock().get(command).cloned().unwrap_or_default()
    }

    /// Forgets what has arrived so far.
    pub(crate) fn forget_received(&self) {
        self.received.lock().clear();
    }

    /// From now on connecting takes this long, and as much work after that of earlier connections.
    pub(crate) fn slow_connecting(&self, latency: Duration, work: Duration) {
        let mut accepting = self.accepting.lock();
        *accepting = Accepting { latency, work, ..*accepting };
    }

    /// How often connecting was attempted.
    pub(crate) fn attempts(&self) -> usize {
        self.accepting.lock().attempts
    }

    /// How many connections were ever opened.
    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Relaxed)
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        let mut connections = self.connections.lock();
        while connections.try_join_next().is_some() {}
        connections.len()
    }

    /// From now on its clock is this much ahead of that of its clients, in µs.
    pub(crate) fn set_clock_ahead(&self, micros: i64) {
        self.clock_ahead.store(micros, Relaxed);
    }

    /// Its own time.
    pub(crate) fn now(&self) -> Time {
        let here = self.clock.now().as_micros();
        Time::from_micros(here.saturating_add_signed(self.clock_ahead.load(Relaxed)))
    }

    /// Sends this to all subscribers of a channel.
    pub(crate) fn publish(&self, channel: &str, message: &str) {
        let _ = self.database().publish(channel.as_bytes(), message.as_bytes());
    }

    async fn accept(self: Arc<Self>) -> io::Result<DuplexStream> {
        let accepted_at = self.accepting.lock().attempt();
        if accepted_at > Instant::now() {
            tokio::time::sleep_until(accepted_at).await;
        }
        let mut wait = RECONNECT_AFTER;
        while self.fault(self.opened()) == Some(Fault::Unreachable) {
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        if self.fault(self.opened()) == Some(Fault::RefuseConnections) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let number = self.opened.fetch_add(1, Relaxed);
        let (client, stream) = tokio::io::duplex(STREAM_BYTES_MAX);
        let mut connection = Connection::new(self.clone(), stream, number);
        let mut closed = self.closed.subscribe();
        self.connections.lock().spawn(async move {
            // It ends when either side closes it.
            let is_closed = async { closed.wait_for(|&closed| number < closed).await.is_ok() };
            tokio::select! {
                _ = connection.serve() => return,
                _ = is_closed => {}
            }
            let _ = connection.close().await;
        });
        Ok(client)
    }

    fn fault(&self, connection: usize) -> Option<Fault> {
        self.plan.borrow().fault(connection)
    }

    /// The fault that these commands meet.
    fn fault_of(&self, connection: usize, commands: &[Vec<Vec<u8>>]) -> Option<Fault> {
        let counts = commands.iter().any(|command| {
            matches!(command[0].as_slice(), b"EVALSHA" | b"EVAL" | b"INCR" | b"INCRBY")
        });
        let mut fault = self.fault(connection);
        self.plan.send_if_modified(|plan| {
            match &mut plan.batches {
                None => {}
                Some(batches) if counts && *batches > 0 => *batches -= 1,
                Some(_) => fault = None,
            }
            false
        });
        fault
    }

    fn database(&self) -> MutexGuard<'_, Database> {
        self.database.lock()
    }

    fn record(&self, command: &[Vec<u8>]) -> String {
        let name = commands::name(command);
        self.received.lock().entry(name.clone()).or_default().push(self.clock.now());
        name
    }
}

impl Accepting {
    /// When a connection is accepted that is attempted now.
    fn attempt(&mut self) -> Instant {
        self.attempts += 1;
        let arrived = Instant::now() + self.latency;
        let accepted = self.busy_until.map_or(arrived, |busy| busy.max(arrived)) + self.work;
        self.busy_until = Some(accepted);
        accepted
    }
}

impl Plan {
    fn fault(&self, connection: usize) -> Option<Fault> {
        self.fault.filter(|_| self.half.is_none_or(|half| connection % 2 == half))
    }
}

/// One connection of a client.
struct Connection {
    server: Arc<ScriptedRedis>,
    number: usize,
    reader: BufReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
    session: Session,
    /// What is published on the channels that the client subscribes to.
    published: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Connection {
    fn new(server: Arc<ScriptedRedis>, stream: DuplexStream, number: usize) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let (publish, published) = mpsc::unbounded_channel();
        let reader = BufReader::new(reader);
        Self { server, number, reader, writer, session: Session::new(publish), published }
    }

    /// Closes its side, and reads until the client closes the other.
    async fn close(&mut self) -> io::Result<()> {
        self.writer.shutdown().await?;
        tokio::io::copy(&mut self.reader, &mut tokio::io::sink()).await?;
        Ok(())
    }

    async fn serve(&mut self) -> io::Result<()> {
        let mut plan = self.server.plan.subscribe();
        let number = self.number;
        loop {
            tokio::select! {
                data = self.reader.fill_buf() => if data?.is_empty() { return Ok(()) },
                Some(message) = self.published.recv() => {
                    self.writer.write_all(&message).await?;
                    continue;
                }
                () = until(&mut plan, |plan| plan.fault(number) == Some(Fault::RefuseConnections)) => return Ok(()),
            }
            until(&mut plan, |plan| {
                !matches!(plan.fault(number), Some(Fault::Stopped | Fault::Unreachable))
            })
            .await;
            let commands = self.read_commands().await?;
            if number < self.server.half_open.load(Relaxed) {
                return pending().await;
            }
            let fault = self.server.fault_of(number, &commands);
            let passes = commands.iter().all(|command| self.server.passes(command));
            if fault == Some(Fault::CloseBeforeRunning) || !passes {
                return Ok(());
            }
            let replies = self.run(&commands, fault);
            match fault {
                Some(Fault::NoReply) => {}
                Some(Fault::CloseInReply) => {
                    return self.writer.write_all(&replies[..replies.len() / 2]).await;
                }
                Some(Fault::HalfReply) => {
                    self.writer.write_all(&replies[..replies.len() / 2]).await?;
                    // The rest never comes. The client closes the connection.
                    return pending().await;
                }
                Some(Fault::Delay(delay)) => {
                    tokio::time::sleep(delay).await;
                    self.writer.write_all(&replies).await?;
                }
                _ => self.writer.write_all(&replies).await?,
            }
        }
    }

    /// What has arrived: at least one command.
    async fn read_commands(&mut self) -> io::Result<Vec<Vec<Vec<u8>>>> {
        let mut commands = Vec::new();
        while commands.is_empty() || !self.reader.buffer().is_empty() {
            commands.push(resp::read_command(&mut self.reader).await?);
        }
        Ok(commands)
    }

    fn run(&mut self, commands: &[Vec<Vec<u8>>], fault: Option<Fault>) -> Vec<u8> {
        let error = if let Some(Fault::Error(error)) = fault { Some(error) } else { None };
        let mut bytes = Vec::new();
        for command in commands {
            let name = self.server.record(command);
            let now = self.server.now();
            self.server
                .database()
                .run(&name, command, error, &mut self.session, now)
                .write(&mut bytes);
        }
        bytes
    }
}

/// Waits until the plan is so. The server, and so the sender, outlives its connections.
async fn until(plan: &mut watch::Receiver<Plan>, is_so: impl Fn(&Plan) -> bool) {
    plan.wait_for(is_so).await.map(drop).expect("the server is there");
}
