//! A statsd for one test: it adds up what it receives over TCP and UDP on one port, and can go away
//! and come back.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::iter;
use std::net::{Ipv4Addr, Shutdown, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::redis;

/// How often a thread that waits for datagrams looks whether it is over.
const TICK: Duration = Duration::from_millis(20);

/// What was received, and the sockets while they are open.
pub(crate) struct Statsd {
    port: u16,
    received: Arc<Mutex<Received>>,
    open: Option<Open>,
}

/// What was received since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Received {
    /// Counters by name and tags, added up.
    pub(crate) counters: BTreeMap<String, u64>,
    /// The last values of gauges.
    pub(crate) gauges: BTreeMap<String, u64>,
    /// For how many calls there was a time.
    pub(crate) times: BTreeMap<String, f64>,
    /// Every line.
    pub(crate) lines: Vec<String>,
    /// How many connections there were.
    pub(crate) connections: usize,
}

struct Open {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Statsd {
    /// Listening on both sockets.
    pub(crate) fn start() -> Self {
        let mut statsd = Self::away();
        statsd.come();
        statsd
    }

    /// Not listening yet.
    pub(crate) fn away() -> Self {
        let is_free = |port: &u16| UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        // That one is free for TCP.
        let port = iter::repeat_with(redis::server_port).find(is_free).expect("one is free");
        Self { port, received: Arc::default(), open: None }
    }

    /// Starts to listen.
    pub(crate) fn come(&mut self) {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).expect("the port is still free");
        let datagrams =
            UdpSocket::bind((Ipv4Addr::LOCALHOST, self.port)).expect("the port is still free");
        datagrams.set_read_timeout(Some(TICK)).expect("it is a socket");
        listener.set_nonblocking(true).expect("it is a socket");
        let over = Arc::<AtomicBool>::default();
        let [shared, also_shared] = [0; 2].map(|_| (self.received.clone(), over.clone()));
        let threads = vec![
            thread::spawn(move || accept(listener, &shared.0, &shared.1)),
            thread::spawn(move || receive(&datagrams, &also_shared.0, &also_shared.1)),
        ];
        self.open = Some(Open { over, threads });
    }

    /// Closes the sockets, and their connections, after reading what was sent.
    pub(crate) fn go(&mut self) {
        let Some(Open { over, threads }) = self.open.take() else {
            return;
        };
        over.store(true, SeqCst);
        for thread in threads {
            thread.join().expect("it does not panic");
        }
    }

    /// Its port, as a setting.
    pub(crate) fn port(&self) -> String {
        self.port.to_string()
    }

    /// What was received so far.
    pub(crate) fn received(&self) -> Received {
        self.received.lock().clone()
    }

    /// What a counter adds up to.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.received.lock().counters.get(name).copied().unwrap_or(0)
    }
}

impl Drop for Statsd {
    fn drop(&mut self) {
        self.go();
    }
}

fn accept(listener: TcpListener, received: &Arc<Mutex<Received>>, over: &AtomicBool) {
    let mut connections = Vec::new();
    let mut readers = Vec::new();
    loop {
        match (listener.accept(), over.load(SeqCst)) {
            (Ok((connection, _)), _) => {
                connection.set_nonblocking(false).expect("it is a socket");
                connections.push(connection.try_clone().expect("it is a socket"));
                received.lock().connections += 1;
                let received = received.clone();
                readers.push(thread::spawn(move || {
                    for line in BufReader::new(connection).lines().map_while(Result::ok) {
                        received.lock().record(&line);
                    }
                }));
            }
            (Err(error), true) if error.kind() == ErrorKind::WouldBlock => break,
            (Err(error), false) if error.kind() == ErrorKind::WouldBlock => thread::sleep(TICK),
            (Err(error), _) => panic!("accept: {error}"),
        }
    }
    // First, so that no client reconnects to a closing socket.
    drop(listener);
    for connection in connections {
        // It fails only if the other end was faster.
        let _ = connection.shutdown(Shutdown::Write);
    }
    for reader in readers {
        reader.join().expect("it does not panic");
    }
}

fn receive(datagrams: &UdpSocket, received: &Mutex<Received>, over: &AtomicBool) {
    let mut packet = vec![0; 1 << 16];
    loop {
        // It fails when nothing came for a while.
        let Ok(length) = datagrams.recv(&mut packet) else {
            if over.load(SeqCst) {
                return;
            }
            continue;
        };
        let mut received = received.lock();
        for line in std::str::from_utf8(&packet[..length]).expect("metrics are text").lines() {
            received.record(line);
        }
    }
}

impl Received {
    /// `name:value|kind`, then perhaps `|@rate` and `|#tags`.
    fn record(&mut self, line: &str) {
        self.lines.push(line.to_owned());
        let (name, rest) = line.split_once(':').unwrap_or_else(|| panic!("no metric: {line}"));
        let mut parts = rest.split('|');
        let (Some(value), Some(kind)) = (parts.next(), parts.next()) else {
            panic!("no kind: {line}")
        };
        let mut rate = 1.0;
        let mut tags = "";
        for part in parts {
            match part.split_at(1) {
                ("@", given) => rate = given.parse().expect("a rate is a number"),
                ("#", given) => tags = given,
                _ => panic!("neither a rate nor tags: {line}"),
            }
        }
        let name = if tags.is_empty() { name.to_owned() } else { format!("{name}|#{tags}") };
        match (kind, value.parse::<u64>(), value.parse::<f64>()) {
            ("c", Ok(hits), _) => *self.counters.entry(name).or_default() += hits,
            ("g", Ok(value), _) => _ = self.gauges.insert(name, value),
            ("ms", _, Ok(_)) => *self.times.entry(name).or_default() += 1.0 / rate,
            _ => panic!("no metric: {line}"),
        }
    }
}
