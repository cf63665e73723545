//! A TCP proxy in front of a server of the test's, which loses, delays and breaks what passes
//! through it, as it is told.
//!
//! It has a thread of its own, so that it breaks things on time while a test waits. What it calls a
//! reply is what came from the server in one read: for a request at a time, with a reply that is
//! not large, that is the reply.
//!
//! The soak of benches/ uses it, too, which is why it knows nothing of this suite, and its own
//! tests are in another file.

use std::net::{self, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{self, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// More than any reply of a test has.
const READ_BYTES_MAX: usize = 64 * 1024;
/// How often TCP sends a packet again before this fault lets it through: by then it has waited 63
/// times as long as at first.
const LOSSES_MAX: u32 = 5;
/// Of [`Proxy::closing_idle`].
const IDLE_MAX: Duration = Duration::from_millis(200);

/// A running proxy. Dropped, it ends, and all its connections with it.
pub(crate) struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    /// Its thread; `None` when it is dropped.
    runtime: Option<Runtime>,
}

/// What happens to those who pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Every reply comes so much later, and in its order.
    Delay(Duration),
    /// Half of the connections, those whose number leaves this remainder when it is divided by two,
    /// are reset (RST) when half of a reply has been sent.
    ResetHalf(usize),
    /// All connections are reset, and new ones as soon as they are opened.
    RefuseConnections,
    /// Connections stay open, and new ones are accepted, but nothing passes in either direction. It
    /// does when the fault has ended.
    Stall,
    /// The same for half of the connections, those whose number leaves this remainder when it is
    /// divided by two.
    StallHalf(usize),
    /// Half of the packets are lost, and the others take so long to and fro: what TCP makes of
    /// that, which sends again what was lost, after ever longer, and hands out nothing before
    /// what was sent earlier.
    Lossy(Duration),
}

/// A way through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

/// When pieces arrive that are sent one after the other.
struct Flight {
    direction: Direction,
    /// Draws, by the state of a generator of its own for each connection and way: a test sees the
    /// same each time.
    draws: u64,
    last: Instant,
}

/// What the test and the proxy's thread share.
struct Shared {
    /// Where connections go.
    port: u16,
    fault: watch::Sender<Fault>,
    /// How many replies are still to be cut in half.
    cuts: AtomicU32,
    /// What a request contains whose reply is dropped, and how many such requests come before it.
    marked: Mutex<Option<(Vec<u8>, u32)>>,
    /// How long a client may send nothing before its connection is closed.
    idle_max: Option<Duration>,
    opened: AtomicUsize,
    closed: AtomicUsize,
}

/// Counts a connection when it is opened and when it is closed.
struct Counted(Arc<Shared>);

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Closed by a peer.
    Closed,
    /// It is to be reset.
    Reset,
}

impl Proxy {
    /// In front of a local port, on a port of its own.
    pub(crate) fn before(port: u16) -> Self {
        Self::with(port, None)
    }

    /// One that closes connections on which a client has sent nothing for a while, as HAProxy does
    /// with `timeout client`.
    pub(crate) fn closing_idle(port: u16) -> Self {
        Self::with(port, Some(IDLE_MAX))
    }

    fn with(port: u16, idle_max: Option<Duration>) -> Self {
        let shared = Arc::new(Shared {
            port,
            fault: watch::Sender::new(Fault::None),
            cuts: AtomicU32::new(0),
            marked: Mutex::default(),
            idle_max,
            opened: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
        });
        let listener =
            net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let addr = listener.local_addr().expect("it is bound");
        listener.set_nonblocking(true).expect("the option is valid");
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be built");
        let serving = shared.clone();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("it listens");
            serve(&listener, &serving).await;
        });
        Self { addr, shared, runtime: Some(runtime) }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Does this from now on, to the connections that are open and to those that will be.
    pub(crate) fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    /// Sends only the first half of this many of the next replies, and closes the connection.
    pub(crate) fn cut_next(&self, replies: u32) {
        self.shared.cuts.store(replies, SeqCst);
    }

    /// Lets this many requests pass that contain these bytes. To the next one it sends no reply, and closes
    /// the connection.
    pub(crate) fn drop_reply_to(&self, bytes: &[u8], after: u32) {
        *self.shared.marked.lock().expect("no thread panics") = Some((bytes.to_vec(), after));
    }

    /// Ends [`Self::drop_reply_to`]. Returns whether there was such a request.
    pub(crate) fn has_dropped_reply(&self) -> bool {
        let mut marked = self.shared.marked.lock().expect("no thread panics");
        marked.take().is_none()
    }

    /// How many replies are still to be cut.
    pub(crate) fn cuts_left(&self) -> u32 {
        self.shared.cuts.load(SeqCst)
    }

    /// How many connections were ever opened to it.
    pub(crate) fn opened(&self) -> usize {
        self.shared.opened.load(SeqCst)
    }

    /// How many of them are closed.
    pub(crate) fn closed(&self) -> usize {
        self.shared.closed.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Without waiting, which a test with a runtime of its own must not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn now(&self) -> Fault {
        *self.fault.borrow()
    }

    async fn wait_out_a_stall(&self, number: usize) {
        let stalls =
            |fault: &Fault| *fault == Fault::Stall || *fault == Fault::StallHalf(number % 2);
        // The sender lives in what is borrowed here.
        let _ = self.fault.subscribe().wait_for(|fault| !stalls(fault)).await;
    }

    /// How a connection ends in the middle of the reply that is to be sent now, if it does.
    fn end_of_a_reply(&self, number: usize) -> Option<End> {
        if self.now() == Fault::ResetHalf(number % 2) {
            Some(End::Reset)
        } else {
            self.takes_a_cut().then_some(End::Closed)
        }
    }

    /// Whether the reply to this request is to be dropped.
    fn is_marked(&self, request: &[u8]) -> bool {
        let mut marked = self.marked.lock().expect("no thread panics");
        let Some((bytes, after)) = &mut *marked else {
            return false;
        };
        if !request.windows(bytes.len()).any(|part| part == bytes) {
            return false;
        }
        let Some(left) = after.checked_sub(1) else {
            *marked = None;
            return true;
        };
        *after = left;
        false
    }

    /// Whether the reply that is to be sent now is one of those to be cut.
    fn takes_a_cut(&self) -> bool {
        self.cuts.fetch_update(SeqCst, SeqCst, |cuts| cuts.checked_sub(1)).is_ok()
    }
}

impl Flight {
    fn new(number: usize, direction: Direction) -> Self {
        Self {
            direction,
            draws: 2 * number as u64 + u64::from(direction == Direction::Reply),
            last: Instant::now(),
        }
    }

    /// When the next piece arrives that is sent now.
    fn arrival(&mut self, fault: Fault) -> Instant {
        let late = match fault {
            Fault::Delay(delay) if self.direction == Direction::Reply => delay,
            // Each way is half of it. TCP sends again after twice what it takes to and fro, and
            // then after twice as long each time.
            Fault::Lossy(round_trip) => {
                let losses = self.draw().trailing_ones().min(LOSSES_MAX);
                round_trip / 2 + round_trip * 2 * ((1 << losses) - 1)
            }
            _ => Duration::ZERO,
        };
        self.last = self.last.max(Instant::now() + late);
        self.last
    }

    /// The next number of SplitMix64.
    fn draw(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.draws ^ (self.draws >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.opened.fetch_add(1, SeqCst);
        Self(shared.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, SeqCst);
    }
}

/// Accepts for ever.
async fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut connections = JoinSet::new();
    for number in 0_usize.. {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let counted = Counted::new(shared);
        connections.spawn(async move {
            // Who connects sends a packet first, too.
            sleep_until(Flight::new(number, Direction::Request).arrival(counted.0.now())).await;
            // A server that is not there looks like one that hangs up.
            if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, counted.0.port)).await {
                pass(client, server, number, &counted.0).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Lets pass what passes, until either side has closed or the connection is to be broken.
async fn pass(mut client: TcpStream, mut server: TcpStream, number: usize, shared: &Shared) {
    // Fails if a peer has closed the connection.
    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
    let mut fault = shared.fault.subscribe();
    let is_marked = AtomicBool::new(false);
    let end = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::select! {
            end = pass_pieces(from_client, to_server, number, Direction::Request, (shared, &is_marked)) => end,
            end = pass_pieces(from_server, to_client, number, Direction::Reply, (shared, &is_marked)) => end,
            _ = fault.wait_for(|fault| *fault == Fault::RefuseConnections) => End::Reset,
        }
    };
    if end == End::Reset {
        // RST instead of FIN. It fails where the client has gone.
        let _ = client.set_zero_linger();
    }
}

async fn pass_pieces(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    number: usize,
    direction: Direction,
    (shared, is_marked): (&Shared, &AtomicBool),
) -> End {
    let (queue, mut queued) = mpsc::unbounded_channel();
    // Apart, so that a piece that is late holds up only those behind it.
    let reading = async move {
        let mut flight = Flight::new(number, direction);
        let idle_max = shared.idle_max.filter(|_| direction == Direction::Request);
        while let Some(bytes) = read(&mut from, idle_max).await {
            if queue.send((flight.arrival(shared.now()), bytes)).is_err() {
                return;
            }
        }
    };
    let writing = async {
        while let Some((due_at, bytes)) = queued.recv().await {
            sleep_until(due_at).await;
            shared.wait_out_a_stall(number).await;
            match direction {
                Direction::Request if shared.is_marked(&bytes) => is_marked.store(true, SeqCst),
                Direction::Reply if is_marked.load(SeqCst) => return End::Closed,
                Direction::Request | Direction::Reply => {}
            }
            let end =
                (direction == Direction::Reply).then(|| shared.end_of_a_reply(number)).flatten();
            let sent = if end.is_some() { &bytes[..bytes.len() / 2] } else { &bytes };
            if to.write_all(sent).await.is_err() {
                return End::Closed;
            }
            if let Some(end) = end {
                return end;
            }
        }
        End::Closed
    };
    let mut writing = pin!(writing);
    tokio::select! {
        end = &mut writing => end,
        // What it has said before it closed is still sent.
        () = reading => writing.await,
    }
}

/// What came in one piece; `None` at the end, or if nothing comes for this long.
async fn read(from: &mut ReadHalf<'_>, idle_max: Option<Duration>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; READ_BYTES_MAX];
    let reading = from.read(&mut bytes);
    let read = match idle_max {
        Some(idle_max) => timeout(idle_max, reading).await.ok()?,
        None => reading.await,
    };
    let length = read.ok().filter(|length| *length > 0)?;
    bytes.truncate(length);
    Some(bytes)
}
