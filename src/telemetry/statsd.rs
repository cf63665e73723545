//! Sends metrics to statsd or DogStatsD, under the reference's names.
//!
//! One task of the main thread does all of it: no call waits for statsd, and nothing is queued.
//! While statsd is away the counters go on counting, and when it is back it is told all that was
//! added meanwhile (`deltas.rs`). What was written when a connection broke counts as told: statsd
//! may have it or not, and counting twice is worse.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::telemetry::deltas::{Delta, DeltaTracker};
use crate::telemetry::dogstatsd::{Tagged, Tagging};
use crate::telemetry::metric::{Counter, Metrics};
use crate::time::Span;

/// How much goes into one datagram: an Ethernet frame without the headers, as in the reference. A
/// longer line has one for itself.
pub const PACKET_BYTES_MAX: usize = 1_432;
/// How much is written to a connection at once.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// How long a line may be; longer ones are left out. Far above any name that a rule makes, far
/// below what a datagram can carry.
pub const LINE_BYTES_MAX: usize = 8 << 10;
/// As in the reference, and for writing a chunk, too.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Between tries to reach statsd, doubled with each that failed.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How long the end of the process waits for the last flush.
const LAST_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Where to send to, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// A name or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How.
    pub protocol: Protocol,
    /// How often.
    pub interval: Span,
    /// In which form.
    pub form: Form,
    /// Whether anybody asked for it.
    pub requested: Requested,
}

/// How lines travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// On a connection that is kept.
    Tcp,
    /// In datagrams that may be lost.
    Udp,
}

/// What a line looks like.
#[derive(Debug, Clone)]
pub enum Form {
    /// Tags are a part of the name: what stands behind each.
    Statsd(String),
    /// Tags stand at the end.
    DogStatsd(Tagging),
}

/// Why it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    /// Somebody set it.
    Explicitly,
    /// It is what the reference does if nobody says anything, and there may be no statsd at all.
    ByDefault,
}

/// Sends, once it is started.
#[derive(Debug)]
pub struct Exporter {
    options: Options,
    metrics: Metrics,
    told: DeltaTracker,
    connection: Option<Connection>,
    /// What the last try came to; nothing before the first.
    reached: Option<bool>,
    lines: Counter,
    lost: Counter,
    failed: Counter,
}

/// It sends until it is told to finish.
#[derive(Debug)]
pub struct StatsdTask {
    tasks: JoinSet<()>,
    end: oneshot::Sender<()>,
}

#[derive(Debug)]
enum Connection {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

/// Lines that go out together.
#[derive(Debug, Default)]
struct Packet {
    text: String,
    lines: u64,
}

/// Those that are full, and the one that is not yet.
#[derive(Debug)]
struct Packets {
    bytes_max: usize,
    full: VecDeque<Packet>,
    open: Packet,
}

impl Exporter {
    /// Ready to send what `metrics` has.
    pub fn new(options: Options, metrics: &Metrics) -> Self {
        Self {
            options,
            metrics: metrics.clone(),
            told: DeltaTracker::default(),
            connection: None,
            reached: None,
            lines: metrics.counter("tollgate_statsd_lines_total", "Lines sent to statsd."),
            lost: metrics.counter(
                "tollgate_statsd_lines_lost_total",
                "Lines for statsd of which nobody knows whether they arrived, because the connection broke, and those above 8 KiB (line_bytes_max).",
            ),
            failed: metrics.counter(
                "tollgate_statsd_flushes_failed_total",
                "Times that statsd could not be told what is new. Unless lines were lost it is told later.",
            ),
        }
    }

    /// Begins to send.
    pub fn start(self) -> StatsdTask {
        let mut tasks = JoinSet::new();
        let (end, ended) = oneshot::channel();
        tasks.spawn(self.run(ended));
        StatsdTask { tasks, end }
    }

    async fn run(mut self, ended: oneshot::Receiver<()>) {
        let mut ended = pin!(ended);
        let mut backoff = BACKOFF_MIN;
        loop {
            let interval = Duration::from(self.options.interval);
            let wait = if self.flush_and_note().await {
                backoff = BACKOFF_MIN;
                interval
            } else {
                let wait = backoff.max(interval);
                backoff = (backoff * 2).min(BACKOFF_MAX);
                wait
            };
            tokio::select! {
                _ = &mut ended => break,
                () = sleep(wait) => {}
            }
        }
        self.flush_and_note().await;
    }

    /// Flushes, and tells the log when statsd goes and when it comes.
    async fn flush_and_note(&mut self) -> bool {
        let flushed = self.flush().await;
        let (before, is_reached) = (self.reached, flushed.is_ok());
        // Datagrams to nobody fail every other time, which is no news.
        self.reached =
            Some(is_reached && (before != Some(false) || self.options.protocol == Protocol::Tcp));
        let Options {
            host,
            port,
            requested,
            ..
        } = &self.options;
        match flushed {
            Ok(()) if before == Some(false) && self.reached == Some(true) => {
                tracing::info!("statsd at {host}:{port} accepts metrics again")
            }
            Ok(()) => {}
            Err(error) => {
                self.connection = None;
                self.failed.inc();
                match requested {
                    _ if before == Some(false) => {}
                    Requested::Explicitly => {
                        tracing::warn!(%error, "statsd at {host}:{port} does not accept metrics; retrying, nothing is lost meanwhile")
                    }
                    Requested::ByDefault => {
                        tracing::info!(
                            "no statsd at {host}:{port}; set USE_STATSD=false, or another sink, to disable it"
                        );
                    }
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
        let readings = self.metrics.samples();
        self.told.keep_only(&readings);
        let mut packets = Packets::of(self.options.protocol);
        let mut line = String::new();
        for reading in readings {
            // DeltaTracker only now: what comes after a packet that failed is told by the next flush.
            for news in self.told.tell(&reading) {
                let times = self.options.form.write(&mut line, &reading.name, &news);
                if line.len() > LINE_BYTES_MAX {
                    self.lost.inc_by(times);
                    continue;
                }
                (0..times).for_each(|_| packets.add(&line));
            }
            self.send(&mut connection, &mut packets).await?;
        }
        packets.close();
        self.send(&mut connection, &mut packets).await?;
        self.connection = Some(connection);
        Ok(())
    }

    /// Sends those that are full, or counts as lost what was told and cannot be sent.
    async fn send(&self, connection: &mut Connection, packets: &mut Packets) -> io::Result<()> {
        while let Some(packet) = packets.full.pop_front() {
            let sent = timeout(WRITE_TIMEOUT, connection.send(packet.text.as_bytes())).await;
            if let Err(error) = sent.unwrap_or_else(|_| {
                Err(io::Error::new(io::ErrorKind::TimedOut, "it does not read"))
            }) {
                packets.close();
                self.lost.inc_by(
                    packet.lines + packets.full.iter().map(|packet| packet.lines).sum::<u64>(),
                );
                return Err(error);
            }
            self.lines.inc_by(packet.lines);
        }
        Ok(())
    }
}

impl StatsdTask {
    /// Sends what is new for the last time. It waits for that, but not long.
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
                    // Nobody says that a datagram went to the wrong one of two, and agents listen
                    // on IPv4.
                    let address = addresses
                        .iter()
                        .find(|address| address.is_ipv4())
                        .or(addresses.first());
                    let address = address.ok_or_else(|| {
                        io::Error::new(io::ErrorKind::NotFound, "the name has no address")
                    })?;
                    let any = if address.is_ipv4() {
                        "0.0.0.0:0"
                    } else {
                        "[::]:0"
                    };
                    let socket = UdpSocket::bind(any).await?;
                    socket.connect(address).await?;
                    Connection::Udp(socket)
                }
            })
        };
        timeout(CONNECT_TIMEOUT, connecting)
            .await
            .unwrap_or_else(|_| {
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "no connection in time",
                ))
            })
    }
}

impl Connection {
    /// Whether the other end is still there, as far as is known: without this the first chunk after
    /// a restart of statsd would be lost.
    fn is_open(&self) -> bool {
        match self {
            Self::Udp(_) => true,
            // Statsd says nothing. If it does, that is of no interest.
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

impl Packets {
    fn of(protocol: Protocol) -> Self {
        let bytes_max = match protocol {
            Protocol::Tcp => CHUNK_BYTES_MAX,
            Protocol::Udp => PACKET_BYTES_MAX,
        };
        Self {
            bytes_max,
            full: VecDeque::new(),
            open: Packet::default(),
        }
    }

    fn add(&mut self, line: &str) {
        if self.open.text.len() + line.len() > self.bytes_max {
            self.close();
        }
        self.open.text.push_str(line);
        self.open.lines += 1;
    }

    /// What is not full goes out as it is.
    fn close(&mut self) {
        let packet = std::mem::take(&mut self.open);
        if packet.lines > 0 {
            self.full.push_back(packet);
        }
    }
}

impl Form {
    /// Writes the line that tells this, and says how often it has to be told.
    fn write(&self, line: &mut String, name: &str, news: &Delta) -> u64 {
        line.clear();
        let tagged = match self {
            Self::Statsd(suffix) => Tagged {
                name: format!("{name}{suffix}"),
                tags: String::new(),
            },
            Self::DogStatsd(tagging) => tagging.tag(name),
        };
        // They would end the name, or the line. Rules have none in theirs; what a mogrifier or a
        // domain is called may.
        let name = tagged.name.replace([':', '|', '\n'], "_");
        let mut times = 1;
        // It cannot fail: a String takes everything.
        let _ = match news {
            Delta::Increment(count) => write!(line, "{name}:{count}|c"),
            Delta::Gauge(value) => write!(line, "{name}:{value}|g"),
            Delta::Timing {
                millis,
                lines,
                calls_per_line,
            } => {
                times = *lines;
                let rate = if *calls_per_line > 1.0 {
                    format!("|@{:.6}", 1.0 / calls_per_line)
                } else {
                    String::new()
                };
                write!(line, "{name}:{millis}|ms{rate}")
            }
        };
        let _ = writeln!(line, "{}", tagged.tags);
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::environment::Environment;
    use crate::telemetry::tags::Tags;

    #[test]
    fn lines_share_a_packet_as_long_as_they_fit_and_a_long_one_has_its_own() {
        let mut packets = Packets::of(Protocol::Udp);
        for length in [700, 700, 700, 2_000, 10] {
            packets.add(&"x".repeat(length));
        }
        packets.close();
        packets.close();
        let sizes: Vec<(usize, u64)> = packets
            .full
            .iter()
            .map(|packet| (packet.text.len(), packet.lines))
            .collect();
        assert_eq!(sizes, [(1_400, 2), (700, 1), (2_000, 1), (10, 1)]);
    }

    fn written(form: &Form, name: &str, news: &Delta) -> (u64, String) {
        let mut line = String::from("of before");
        (form.write(&mut line, name, news), line)
    }

    #[test]
    fn lines_are_what_statsd_reads() {
        let statsd = Form::Statsd(".__zone=eu_west".to_owned());
        let took = Delta::Timing {
            millis: 0.5,
            lines: 900,
            calls_per_line: 100.0,
        };
        assert_eq!(
            written(&statsd, "a.b", &Delta::Increment(3)),
            (1, "a.b.__zone=eu_west:3|c\n".to_owned())
        );
        assert_eq!(
            written(&statsd, "a:b|c", &Delta::Gauge(3)),
            (1, "a_b_c.__zone=eu_west:3|g\n".to_owned())
        );
        assert_eq!(
            written(&statsd, "t", &took),
            (900, "t.__zone=eu_west:0.5|ms|@0.010000\n".to_owned())
        );

        let tags = Tags::read("zone:eu.west").expect("a tag");
        let dog = Form::DogStatsd(
            Tagging::read(&tags, "", &Environment::default()).expect("no mogrifier"),
        );
        assert_eq!(
            written(&dog, "a.b", &Delta::Increment(3)),
            (1, "a.b:3|c|#zone:eu_west\n".to_owned())
        );
        assert_eq!(
            written(&dog, "t", &took),
            (900, "t:0.5|ms|@0.010000|#zone:eu_west\n".to_owned())
        );
    }
}
