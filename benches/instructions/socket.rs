//! The end of a socket pair that client and Redis hold: read and written without a runtime, watched
//! by that of the worker.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::task::{Context, Poll};

use tokio::io::Interest;

pub(crate) struct Socket {
    stream: UnixStream,
    /// The same socket.
    watched: tokio::net::UnixStream,
}

impl Socket {
    /// One end, and the worker's.
    pub(crate) fn pair() -> (Self, UnixStream) {
        let (stream, worker) = UnixStream::pair().expect("a pair of sockets");
        for socket in [&stream, &worker] {
            socket.set_nonblocking(true).expect("a socket");
        }
        let watched = stream.try_clone().expect("a socket");
        let watched = tokio::net::UnixStream::from_std(watched).expect("a runtime");
        (Self { stream, watched }, worker)
    }

    /// Whether something has arrived since the last time.
    pub(crate) fn is_readable(&self, context: &mut Context<'_>) -> bool {
        let is_ready = matches!(self.watched.poll_read_ready(context), Poll::Ready(Ok(())));
        if is_ready {
            // Makes it pending until something else arrives.
            let drained = || Err::<(), _>(ErrorKind::WouldBlock.into());
            drop(self.watched.try_io(Interest::READABLE, drained));
        }
        is_ready
    }

    /// Everything that has arrived.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match (&self.stream).read_to_end(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => bytes,
            ended => panic!("the worker closed the socket: {ended:?}"),
        }
    }

    /// Writes at once, so that the worker receives everything in one turn.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let written = (&self.stream).write(bytes).expect("a buffer with space");
        assert_eq!(written, bytes.len());
    }
}
