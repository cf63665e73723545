//! A TCP proxy in front of a server of the test's, which loses, delays and breaks what passes through it, as it is told.
//!
//! It has a thread of its own, so that it breaks things on time while a test waits. What it calls a reply is what came from the server
//! in one read: for a request at a time, with a reply that is not large, that is the reply.
//!
//! The soak of benches/ uses it, too, which is why it knows nothing of this suite, and its own tests are in another file.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// More than any reply of a test has.
const READ_BYTES_MAX: usize = 64 * 1024;

/// A running proxy. Dropped, it ends, and all its connections with it.
pub(crate) struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    /// Its thread ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What happens to those who pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// Every reply comes so much later, and in its order.
    Delay(Duration),
    /// Half of the connections, those whose number leaves this remainder when it is divided by two, are reset (RST) when half of a reply
    /// has been sent.
    ResetHalf(usize),
    /// All connections are reset, and new ones as soon as they are opened.
    Refuse,
    /// Connections stay open, and new ones are accepted, but nothing passes in either direction. It does when the fault has ended.
    Stall,
    /// The same for half of the connections, those whose number leaves this remainder when it is divided by two.
    StallHalf(usize),
}

/// What the test and the proxy's thread share.
struct Shared {
    fault: watch::Sender<Fault>,
    /// How many replies are still to be cut in half.
    cuts: AtomicU32,
    opened: AtomicUsize,
    open: AtomicUsize,
}

/// Counts a connection for as long as it is open.
struct Counted(Arc<Shared>);

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Somebody closed it.
    Closed,
    /// It is to be reset.
    Reset,
}

impl Proxy {
    /// In front of a local port, on a port of its own.
    pub(crate) fn before(port: u16) -> Self {
        let shared = Arc::new(Shared {
            fault: watch::Sender::new(Fault::None),
            cuts: AtomicU32::new(0),
            opened: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let (listening, addr) = std::sync::mpsc::channel();
        let serving = shared.clone();
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
            runtime.block_on(async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("there is a free port");
                listening.send(listener.local_addr().expect("it is bound")).expect("the test waits");
                tokio::select! {
                    () = serve(&listener, port, &serving) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { addr: addr.recv().expect("the proxy starts"), shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Does this from now on, to the connections that are open and to those that will be.
    pub(crate) fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    /// Of so many of the next replies sends only the first half, and then closes that connection.
    pub(crate) fn cut_next(&self, replies: u32) {
        self.shared.cuts.store(replies, SeqCst);
    }

    /// How many replies are still to be cut.
    pub(crate) fn cuts_left(&self) -> u32 {
        self.shared.cuts.load(SeqCst)
    }

    /// How many connections were ever opened to it.
    pub(crate) fn opened(&self) -> usize {
        self.shared.opened.load(SeqCst)
    }

    /// How many are open.
    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(thread::JoinHandle::join);
        if !thread::panicking() {
            ended.expect("it was started").expect("the proxy does not panic");
        }
    }
}

impl Shared {
    fn now(&self) -> Fault {
        *self.fault.borrow()
    }

    async fn wait_out_a_stall(&self, number: usize) {
        let stalls = |fault: &Fault| *fault == Fault::Stall || *fault == Fault::StallHalf(number % 2);
        // The sender lives in what is borrowed here.
        let _ = self.fault.subscribe().wait_for(|fault| !stalls(fault)).await;
    }

    /// Whether the reply that is to be sent now is one of those to be cut.
    fn takes_a_cut(&self) -> bool {
        self.cuts.fetch_update(SeqCst, SeqCst, |cuts| cuts.checked_sub(1)).is_ok()
    }
}

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.opened.fetch_add(1, SeqCst);
        shared.open.fetch_add(1, SeqCst);
        Self(shared.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}

/// Accepts for ever.
async fn serve(listener: &TcpListener, port: u16, shared: &Arc<Shared>) {
    let mut connections = JoinSet::new();
    for number in 0_usize.. {
        let Ok((client, _)) = listener.accept().await else { continue };
        let counted = Counted::new(shared);
        connections.spawn(async move {
            // A server that is not there looks like one that hangs up.
            if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                pass(client, server, number, &counted.0).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Lets pass what passes, until either side has closed or the connection is to be broken.
async fn pass(mut client: TcpStream, mut server: TcpStream, number: usize, shared: &Shared) {
    // It fails where somebody has gone already, which is found out soon enough.
    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
    let mut fault = shared.fault.subscribe();
    let end = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::select! {
            () = pass_requests(from_client, to_server, number, shared) => End::Closed,
            end = pass_replies(from_server, to_client, number, shared) => end,
            _ = fault.wait_for(|fault| *fault == Fault::Refuse) => End::Reset,
        }
    };
    if end == End::Reset {
        // RST instead of FIN. It fails where the client has gone.
        let _ = client.set_zero_linger();
    }
}

async fn pass_requests(mut client: ReadHalf<'_>, mut server: WriteHalf<'_>, number: usize, shared: &Shared) {
    while let Some(bytes) = read(&mut client).await {
        shared.wait_out_a_stall(number).await;
        if server.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn pass_replies(mut server: ReadHalf<'_>, mut client: WriteHalf<'_>, number: usize, shared: &Shared) -> End {
    let (queue, mut queued) = mpsc::unbounded_channel();
    // Apart, so that a reply that is delayed holds up only those behind it.
    let reading = async move {
        while let Some(bytes) = read(&mut server).await {
            let delay = if let Fault::Delay(delay) = shared.now() { delay } else { Duration::ZERO };
            if queue.send((Instant::now() + delay, bytes)).is_err() {
                return;
            }
        }
    };
    let writing = async {
        while let Some((due_at, bytes)) = queued.recv().await {
            sleep_until(due_at).await;
            shared.wait_out_a_stall(number).await;
            let end =
                if shared.now() == Fault::ResetHalf(number % 2) { Some(End::Reset) } else { shared.takes_a_cut().then_some(End::Closed) };
            let sent = if end.is_some() { &bytes[..bytes.len() / 2] } else { &bytes };
            if client.write_all(sent).await.is_err() {
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

/// What came in one piece; `None` at the end.
async fn read(from: &mut ReadHalf<'_>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; READ_BYTES_MAX];
    let length = from.read(&mut bytes).await.ok().filter(|length| *length > 0)?;
    bytes.truncate(length);
    Some(bytes)
}
