//! Ports of one test, which no other takes.
//!
//! Envoy's listeners share their ports (SO_REUSEPORT): two Envoys on one port would each get half
//! of the connections, and no test could tell what it measured. So a test has a block of ports, and
//! holds its first one open for as long as it runs: whoever else picks ports in this way, in this
//! process or in another run, goes on to the next block. The others it holds until they are used,
//! against those who pick in other ways.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use parking_lot::Mutex;

/// Ports from 10,500 on: below those that Linux gives to clients (from 32,768), so that none is
/// taken between its release and its use.
const BLOCKS: std::ops::Range<u16> = 1_500..2_300;
const BLOCK_SIZE: u16 = 7;

/// A block of ports.
#[derive(Debug)]
pub(crate) struct Ports {
    first: u16,
    held: Mutex<Vec<TcpListener>>,
}

impl Ports {
    /// The next block of which every port is free.
    pub(crate) fn take() -> Self {
        static TAKEN: AtomicU16 = AtomicU16::new(0);
        let blocks = BLOCKS.end - BLOCKS.start;
        // Runs side by side begin in different places.
        let begin = u16::try_from(process::id() % u32::from(blocks)).expect("it is below blocks");
        for _ in 0..blocks {
            let block = BLOCKS.start + (begin + TAKEN.fetch_add(1, Relaxed) % blocks) % blocks;
            let first = block * BLOCK_SIZE;
            let held = (first..first + BLOCK_SIZE)
                .map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
            if let Ok(held) = held.collect() {
                return Self { first, held: Mutex::new(held) };
            }
        }
        panic!("no {BLOCK_SIZE} free ports in a row from {} on", BLOCKS.start * BLOCK_SIZE);
    }

    /// Releases ports, to be bound by the process under test.
    pub(crate) fn release<const N: usize>(&self, ports: [SocketAddr; N]) {
        let mut held = self.held.lock();
        held.retain(|listener| {
            ports.iter().all(|port| listener.local_addr().is_ok_and(|held| held != *port))
        });
    }

    /// Where Envoy lets clients in.
    pub(crate) fn ingress(&self) -> SocketAddr {
        self.nth(1)
    }

    /// The sample backend.
    pub(crate) fn backend(&self) -> SocketAddr {
        self.nth(2)
    }

    /// Envoy's admin page.
    pub(crate) fn envoy_admin(&self) -> SocketAddr {
        self.nth(3)
    }

    /// Tollgate's gRPC.
    pub(crate) fn grpc(&self) -> SocketAddr {
        self.nth(4)
    }

    /// Tollgate's HTTP.
    pub(crate) fn http(&self) -> SocketAddr {
        self.nth(5)
    }

    /// Tollgate's admin page.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.nth(6)
    }

    fn nth(&self, number: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.first + number).into()
    }
}
