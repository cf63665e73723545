//! A Redis that counts, at the other end of a socket pair.
//!
//! The one of the tests knows faults and all algorithms, and takes part in the runtime of the
//! service; this one runs when it is called.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use tollgate::base::time::MICROS_PER_SECOND;
use tollgate::store::redis::connect::dialer::Dialer;

use crate::service::START;
use crate::socket::Socket;

/// One connection, and the counters.
pub(crate) struct ScriptedRedis {
    pub(crate) socket: Socket,
    /// How often it was asked to count.
    pub(crate) pipelines: usize,
    counters: HashMap<Vec<u8>, i64>,
    /// The worker's end until it connects, and forever with the memory store.
    _worker: Arc<Mutex<Option<UnixStream>>>,
}

impl ScriptedRedis {
    /// A server, and a dialer that connects to it once.
    pub(crate) fn new() -> (Self, Dialer) {
        let (socket, there) = Socket::pair();
        let worker = Arc::new(Mutex::new(Some(there)));
        let there = worker.clone();
        let dialer = Dialer::Streams(Arc::new(move |_| {
            let there = there.lock().expect("one thread").take();
            Box::pin(async {
                let there = there.expect("a worker has one connection");
                Ok(Box::pin(tokio::net::UnixStream::from_std(there)?) as _)
            })
        }));
        let redis = Self { socket, pipelines: 0, counters: HashMap::new(), _worker: worker };
        (redis, dialer)
    }

    /// Replies to the commands that have arrived, in one write.
    pub(crate) fn reply(&mut self) {
        let bytes = self.socket.read();
        let mut unread = &*bytes;
        let mut replies = Vec::new();
        let mut counted = 0;
        while let Some(command) = next_command(&mut unread) {
            counted += self.run(&command, &mut replies);
        }
        self.pipelines += usize::from(counted > 0);
        if !replies.is_empty() {
            self.socket.write(&replies);
        }
    }

    /// Appends the reply to a command, and returns how many hits it counted.
    fn run(&mut self, command: &[&[u8]], replies: &mut Vec<u8>) -> usize {
        match command {
            [b"INCR", key] => self.add(key, 1, replies),
            [b"INCRBY", key, hits] => self.add(key, number(hits), replies),
            // Of the script only the hits of new fixed windows.
            [b"EVALSHA" | b"EVAL", _, keys, words @ ..] => {
                let keys = &words[..usize::try_from(number(keys)).expect("a number of keys")];
                let now = START.as_micros();
                replies.extend(format!("*{}\r\n:{now}\r\n", 1 + keys.len()).into_bytes());
                keys.iter().map(|key| self.add(key, 1, replies)).sum()
            }
            [b"EXPIRE", ..] => reply(replies, ":1"),
            [b"TIME"] => {
                let seconds = START.as_micros() / MICROS_PER_SECOND;
                reply(replies, &format!("*2\r\n$10\r\n{seconds}\r\n$1\r\n0"))
            }
            [b"PING"] => reply(replies, "+PONG"),
            [b"CLIENT" | b"SELECT", ..] => reply(replies, "+OK"),
            _ => panic!("unknown: {}", command.join(&b' ').escape_ascii()),
        }
    }

    fn add(&mut self, key: &[u8], hits: i64, replies: &mut Vec<u8>) -> usize {
        let counter = self.counters.entry(key.to_vec()).or_default();
        *counter += hits;
        reply(replies, &format!(":{counter}"));
        1
    }
}

fn reply(replies: &mut Vec<u8>, text: &str) -> usize {
    replies.extend_from_slice(text.as_bytes());
    replies.extend_from_slice(b"\r\n");
    0
}

/// The words of the next command, which is complete: a pipeline arrives in one write.
fn next_command<'a>(unread: &mut &'a [u8]) -> Option<Vec<&'a [u8]>> {
    if unread.is_empty() {
        return None;
    }
    let words = length(unread, b'*');
    let word = |_| {
        let length = length(unread, b'$');
        let (word, rest) = unread.split_at(length);
        *unread = &rest[2..];
        word
    };
    Some((0..words).map(word).collect())
}

/// The number behind a mark.
fn length(unread: &mut &[u8], mark: u8) -> usize {
    let end = unread.iter().position(|&byte| byte == b'\r');
    let (line, rest) = unread.split_at(end.expect("a complete command"));
    *unread = &rest[2..];
    assert_eq!(line[0], mark);
    usize::try_from(number(&line[1..])).expect("a length")
}

fn number(digits: &[u8]) -> i64 {
    str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).expect("a number")
}
