//! Sends metrics to statsd or DogStatsD, under the names of envoyproxy/ratelimit.
//!
//! A task of the main thread sends, so no request waits for statsd, and nothing is queued: after
//! an outage statsd receives what was added meanwhile (`statsd/deltas.rs`). Lines that were being
//! written when a connection broke are not sent again: they may have arrived, and counting twice is
//! worse.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::base::backoff::Backoff;
use crate::base::time::Span;
use crate::telemetry::dogstatsd::Tagging;
use crate::telemetry::metric::{Counter, Metrics};
use crate::telemetry::statsd::deltas::DeltaTracker;

mod deltas;

/// Bytes of a datagram to statsd: an Ethernet frame without headers, as in envoyproxy/ratelimit.
const PACKET_BYTES_MAX: usize = 1_432;
/// Bytes of a write to a connection to statsd.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Bytes of a line for statsd. Far above any name that a rule makes, and below a datagram's limit.
// bound line_bytes_max: the line is dropped; tollgate_statsd_lines_lost_total
const LINE_BYTES_MAX: usize = 8 << 10;
/// Time to connect to statsd, as in envoyproxy/ratelimit.
// bound statsd_connect_timeout: the flush fails; tollgate_statsd_flushes_failed_total
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Time to send one chunk to statsd.
// bound statsd_write_timeout: the flush fails; tollgate_statsd_flushes_failed_total
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Between attempts to reach statsd; doubled after each failure.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Pause between attempts to connect to statsd.
// bound statsd_backoff_max: tried again; tollgate_statsd_flushes_failed_total
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Time for the last flush to statsd at shutdown.
const LAST_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Where and how metrics are sent.
#[derive(Debug, Clone)]
pub struct Options {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Between flushes.
    pub interval: Span,
    /// The names and tags of lines.
    pub tagging: Tagging,
    /// Whether the operator configured statsd. It is the default of envoyproxy/ratelimit, so there
    /// may be none.
    pub is_requested: bool,
}

/// Transport of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// On one connection.
    Tcp,
    /// In datagrams, which may be lost.
    Udp,
}

/// Sends metrics once it is started.
#[derive(Debug)]
pub struct Exporter {
    options: Options,
    metrics: Metrics,
    deltas: DeltaTracker,
    connection: Option<Connection>,
    /// The result of the last attempt; `None` before the first.
    reached: Option<bool>,
    lines: Counter,
    lost: Counter,
    failed: Counter,
}

/// The running exporter.
#[derive(Debug)]
pub struct StatsdTask {
    tasks: JoinSet<()>,
    end: oneshot::Sender<()>,
}

/// Lines that are sent together.
#[derive(Debug, Default)]
struct Packet {
    text: String,
    lines: u64,
}

#[derive(Debug)]
enum Connection {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Exporter {
    /// Sends what `metrics` has.
    pub fn new(options: Options, metrics: &Metrics) -> Self {
        Self {
            options,
            metrics: metrics.clone(),
            deltas: DeltaTracker::default(),
            connection: None,
            reached: None,
            lines: metrics.counter("tollgate_statsd_lines_total", "Lines sent to statsd."),
            lost: metrics.counter(
                "tollgate_statsd_lines_lost_total",
                "Lines for statsd that may not have arrived: the connection broke while they were sent, or they were longer than 8 KiB (line_bytes_max).",
            ),
            failed: metrics.counter(
                "tollgate_statsd_flushes_failed_total",
                "Failed flushes to statsd. What was not sent is part of the next flush.",
            ),
        }
    }

    /// Starts the task on the current runtime.
    pub fn start(self) -> StatsdTask {
        let mut tasks = JoinSet::new();
        let (end, ended) = oneshot::channel();
        tasks.spawn(self.run(ended));
        StatsdTask { tasks, end }
    }

    async fn run(mut self, ended: oneshot::Receiver<()>) {
        let mut ended = pin!(ended);
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX, 2.0, 0.0);
        loop {
            let interval = Duration::from(self.options.interval);
            let wait = if self.flush_and_log().await {
                backoff.reset();
                interval
            } else {
                backoff.pause().max(interval)
            };
            tokio::select! {
                _ = &mut ended => break,
                () = sleep(wait) => {}
            }
        }
        self.flush_and_log().await;
    }

    /// Flushes, and logs when statsd becomes unreachable or reachable. Returns whether it is
    /// reachable.
    async fn flush_and_log(&mut self) -> bool {
        let flushed = self.flush().await;
        let before = self.reached;
        let is_reached = flushed.is_ok();
        // Without a receiver every other datagram fails: only TCP shows that statsd is back.
        self.reached =
            Some(is_reached && (before != Some(false) || self.options.protocol == Protocol::Tcp));
        let host = &self.options.host;
        let port = self.options.port;
        match flushed {
            Ok(()) if before == Some(false) && self.reached == Some(true) => {
                tracing::info!("statsd at {host}:{port} accepts metrics again");
            }
            Ok(()) => {}
            Err(error) => {
                self.connection = None;
                self.failed.inc();
                if before != Some(false) && self.options.is_requested {
                    tracing::warn!(%error, "statsd at {host}:{port} does not accept metrics; retrying, nothing is lost meanwhile");
                }
            }
        }
        is_reached
    }

    async fn flush(&mut self) -> io::Result<()> {
        let mut connection = match self.connection.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => self.options.connect().await?,
        };
        let bytes_max = match self.options.protocol {
            Protocol::Tcp => CHUNK_BYTES_MAX,
            Protocol::Udp => PACKET_BYTES_MAX,
        };
        let samples = self.metrics.samples();
        self.deltas.keep_only(&samples);
        let mut packet = Packet::default();
        for (name, value) in samples {
            // Updated only now: what follows a failed packet is part of the next flush.
            let deltas = self.deltas.update(&name, &value);
            let mut following: u64 = deltas.iter().map(|delta| delta.lines).sum();
            let (name, tags) = self.options.tagging.tag(&name);
            for delta in deltas {
                let line = format!("{name}:{}{tags}\n", delta.value);
                if line.len() > LINE_BYTES_MAX {
                    self.lost.inc_by(delta.lines);
                    following -= delta.lines;
                    continue;
                }
                for _ in 0..delta.lines {
                    if packet.lines > 0 && packet.text.len() + line.len() > bytes_max {
                        self.send(&mut connection, &mut packet, following).await?;
                    }
                    packet.text += &line;
                    packet.lines += 1;
                    following -= 1;
                }
            }
        }
        if packet.lines > 0 {
            self.send(&mut connection, &mut packet, 0).await?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Sends the packet and empties it. If that fails, its lines and those `following`, whose
    /// deltas are updated already, count as lost.
    async fn send(
        &self,
        connection: &mut Connection,
        packet: &mut Packet,
        following: u64,
    ) -> io::Result<()> {
        let Packet { text, lines } = std::mem::take(packet);
        let sent = timeout(WRITE_TIMEOUT, connection.send(text.as_bytes())).await;
        let sent = sent.unwrap_or_else(|_| Err(timed_out("statsd does not read")));
        match sent {
            Ok(()) => self.lines.inc_by(lines),
            Err(_) => self.lost.inc_by(lines + following),
        }
        sent
    }
}

impl StatsdTask {
    /// Flushes for the last time, within [`LAST_FLUSH_TIMEOUT`].
    pub async fn finish(mut self) {
        drop(self.end);
        let finished = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(LAST_FLUSH_TIMEOUT, finished).await.is_err() {
            tracing::warn!("statsd did not accept the last metrics in time");
        }
    }
}

impl Options {
    async fn connect(&self) -> io::Result<Connection> {
        let connecting = async {
            let address = (&*self.host, self.port);
            Ok(match self.protocol {
                Protocol::Tcp => Connection::Tcp(TcpStream::connect(address).await?),
                Protocol::Udp => {
                    let addresses: Vec<_> = lookup_host(address).await?.collect();
                    // A datagram to the wrong one of two addresses is lost silently, and agents
                    // listen on IPv4.
                    let address =
                        addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
                    let address = address.ok_or_else(|| {
                        io::Error::new(io::ErrorKind::NotFound, "the name has no address")
                    })?;
                    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                    let socket = UdpSocket::bind(any).await?;
                    socket.connect(address).await?;
                    Connection::Udp(socket)
                }
            })
        };
        timeout(CONNECT_TIMEOUT, connecting)
            .await
            .unwrap_or_else(|_| Err(timed_out("no connection in time")))
    }
}

impl Connection {
    /// Whether the connection is open, as far as is known: otherwise the first chunk after a
    /// restart of statsd would be lost.
    fn is_open(&self) -> bool {
        match self {
            Self::Udp(_) => true,
            // Whatever statsd may send is ignored.
            Self::Tcp(stream) => match stream.try_read(&mut [0; 256]) {
                Ok(0) => false,
                Ok(_) => true,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            },
        }
    }

    async fn send(&mut self, text: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(text).await,
            Self::Udp(socket) => socket.send(text).await.map(|_| ()),
        }
    }
}

fn timed_out(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn datagrams_fit_a_frame_and_long_lines_are_dropped() {
        let statsd = UdpSocket::bind("127.0.0.1:0").await.expect("a port is free");
        let metrics = Metrics::new();
        for number in 0..100 {
            let name = format!("ratelimit.counter_{number}");
            metrics.reference_counter(&name, &format!("c{number}"), "C.", &[]).inc();
        }
        metrics.reference_counter(&"k".repeat(9_000), "long", "L.", &[]).inc();
        // STATSD_PROTOCOL=udp
        let options = Options {
            host: "127.0.0.1".to_owned(),
            port: statsd.local_addr().expect("it is bound").port(),
            protocol: Protocol::Udp,
            interval: Span::from_secs(10),
            tagging: Tagging::default(),
            is_requested: true,
        };
        let mut exporter = Exporter::new(options, &metrics);
        assert!(exporter.flush_and_log().await);
        let (mut lines, mut longest) = (0, 0);
        while lines < 100 {
            let mut packet = [0; 2 * PACKET_BYTES_MAX];
            let received = timeout(CONNECT_TIMEOUT, statsd.recv(&mut packet)).await;
            let bytes = received.expect("more lines").expect("a datagram");
            longest = longest.max(bytes);
            lines += str::from_utf8(&packet[..bytes]).expect("it is text").lines().count();
        }
        // Several lines, which are shorter than this, and no more than a frame takes.
        assert!((200..=1_432).contains(&longest), "{longest}");
        assert_eq!((lines, exporter.lines.get(), exporter.lost.get()), (100, 100, 1));
    }
}
