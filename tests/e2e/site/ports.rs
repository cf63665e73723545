//! Ports of one test, which no other takes.
//!
//! Envoy's listeners share their ports (SO_REUSEPORT): two Envoys on one port would each get half of the connections, and no test could
//! tell what it measured. So a test has a block of ports, and holds its first one open for as long as it runs: whoever else picks ports
//! in this way, in this process or in another run, goes on to the next block.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Below the ports that Linux gives to clients (from 32,768), so that none of them is taken between the look and the use.
const BLOCKS: std::ops::Range<u16> = 2_500..4_000;
const BLOCK_SIZE: u16 = 8;

/// A block of ports.
#[derive(Debug)]
pub(crate) struct Ports {
    _held: TcpListener,
    first: u16,
}

impl Ports {
    /// The next block of which every port is free.
    pub(crate) fn take() -> Self {
        static TAKEN: AtomicU16 = AtomicU16::new(0);
        let blocks = BLOCKS.len().try_into().expect("there are 1,500");
        // Runs side by side begin in different places.
        let begin = u16::try_from(process::id() % u32::from(blocks)).expect("it is below blocks");
        for _ in 0..blocks {
            let block = BLOCKS.start + (begin + TAKEN.fetch_add(1, Relaxed) % blocks) % blocks;
            let first = block * BLOCK_SIZE;
            let Ok(held) = TcpListener::bind((Ipv4Addr::LOCALHOST, first)) else { continue };
            if (first + 1..first + BLOCK_SIZE).all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()) {
                return Self { _held: held, first };
            }
        }
        panic!("no {BLOCK_SIZE} free ports in a row from {} on", BLOCKS.start * BLOCK_SIZE);
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
