//! A TCP proxy that closes connections on which a client has sent nothing for a while, as HAProxy
//! does with `timeout client`.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use std::{io, thread};

const TIMEOUT: Duration = Duration::from_millis(200);

/// Runs until the test ends.
pub(crate) struct IdleProxy {
    pub(crate) addr: SocketAddr,
    closed: Arc<AtomicUsize>,
}

impl IdleProxy {
    /// In front of a local port, on a port of its own.
    pub(crate) fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let addr = listener.local_addr().expect("it is bound");
        let closed = Arc::<AtomicUsize>::default();
        let counter = closed.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let counter = counter.clone();
                thread::spawn(move || {
                    let _ = pass_until_idle(client, port);
                    counter.fetch_add(1, SeqCst);
                });
            }
        });
        Self { addr, closed }
    }

    /// How many connections it has closed.
    pub(crate) fn closed(&self) -> usize {
        self.closed.load(SeqCst)
    }
}

fn pass_until_idle(mut client: TcpStream, port: u16) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    let mut replies = server.try_clone()?;
    let mut to_client = client.try_clone()?;
    thread::spawn(move || io::copy(&mut replies, &mut to_client));
    client.set_read_timeout(Some(TIMEOUT))?;
    // Ends with an error at the timeout.
    let _ = io::copy(&mut client, &mut server);
    client.shutdown(Shutdown::Both)?;
    server.shutdown(Shutdown::Both)
}
