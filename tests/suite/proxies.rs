//! The proxy that tests break connections with does what they rely on.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use tollgate::time::Clock;

use crate::support::proxy::{Fault, Proxy};
use crate::support::{PATIENCE, look_until};

const DELAY: Duration = Duration::from_millis(60);

/// Answers whatever it reads with the same, on any number of connections.
fn echo_server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("the proxy connects");
            thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(length @ 1..) = client.read(&mut bytes) {
                    if client.write_all(&bytes[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

fn connect(proxy: &Proxy) -> TcpStream {
    let opened = proxy.opened();
    let stream = TcpStream::connect(proxy.addr()).expect("the proxy listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("it is a socket");
    // So that connections are numbered as a test opens them.
    look_until("it is accepted", || proxy.opened() > opened);
    stream
}

fn ask(stream: &mut TcpStream) -> std::io::Result<[u8; 4]> {
    let mut reply = [0; 4];
    stream.write_all(b"ping")?;
    stream.read_exact(&mut reply).map(|()| reply)
}

fn is_answered(stream: &mut TcpStream) -> bool {
    ask(stream).is_ok_and(|reply| reply == *b"ping")
}

/// How long an answer takes.
fn lateness(stream: &mut TcpStream) -> Duration {
    let clock = Clock::system();
    let sent_at = clock.now();
    assert!(is_answered(stream));
    clock.now().since(sent_at).into()
}

/// What comes after a request, and how it ends.
fn ending(stream: &mut TcpStream) -> (Vec<u8>, Option<ErrorKind>) {
    let mut reply = Vec::new();
    let _ = stream.write_all(b"ping");
    let end = stream
        .read_to_end(&mut reply)
        .err()
        .map(|error| error.kind());
    (reply, end)
}

#[test]
fn what_nothing_happens_to_passes_and_is_counted() {
    let proxy = Proxy::before(echo_server());
    let mut streams: Vec<_> = (0..3).map(|_| connect(&proxy)).collect();
    assert!(streams.iter_mut().all(is_answered));
    assert_eq!((proxy.opened(), proxy.open()), (3, 3));
    streams.truncate(1);
    look_until("two are closed", || proxy.open() == 1);
    assert!(is_answered(&mut streams[0]));
    drop(proxy);
    assert_eq!(ending(&mut streams[0]).0, b"");
}

#[test]
fn late_replies_are_late_and_in_order() {
    let proxy = Proxy::before(echo_server());
    let mut stream = connect(&proxy);
    proxy.set(Fault::Delay(DELAY));
    assert!(lateness(&mut stream) >= DELAY);
    proxy.set(Fault::None);
    assert!(is_answered(&mut stream));
    proxy.set(Fault::Delay(DELAY));
    let clock = Clock::system();
    let sent_at = clock.now();
    stream.write_all(b"ping").expect("it is open");
    thread::sleep(DELAY / 2);
    stream.write_all(b"pong").expect("it is open");
    let mut replies = [0; 8];
    stream.read_exact(&mut replies).expect("both are answered");
    assert_eq!(&replies, b"pingpong");
    let took = Duration::from(clock.now().since(sent_at));
    assert!(took >= DELAY * 3 / 2, "{took:?}");
}

#[test]
fn every_second_connection_is_reset_in_mid_reply() {
    let proxy = Proxy::before(echo_server());
    let mut streams: Vec<_> = (0..4).map(|_| connect(&proxy)).collect();
    proxy.set(Fault::ResetHalf(1));
    for (number, stream) in streams.iter_mut().enumerate() {
        if number % 2 == 0 {
            assert!(is_answered(stream));
        } else {
            assert_eq!(ending(stream).1, Some(ErrorKind::ConnectionReset));
        }
    }
    look_until("half are closed", || proxy.open() == 2);
}

#[test]
fn a_reply_is_cut_in_half_and_only_that_one() {
    let proxy = Proxy::before(echo_server());
    let mut streams: Vec<_> = (0..2).map(|_| connect(&proxy)).collect();
    proxy.cut_next(1);
    assert_eq!(ending(&mut streams[0]), (b"pi".to_vec(), None));
    assert_eq!(proxy.cuts_left(), 0);
    assert!(is_answered(&mut streams[1]));
}

#[test]
fn where_connections_are_refused_none_stays_and_none_opens() {
    let proxy = Proxy::before(echo_server());
    let mut stream = connect(&proxy);
    assert!(is_answered(&mut stream));
    proxy.set(Fault::RefuseConnections);
    assert!(!is_answered(&mut stream) && !is_answered(&mut connect(&proxy)));
    proxy.set(Fault::None);
    assert!(is_answered(&mut connect(&proxy)));
}

#[test]
fn a_stall_holds_everything_back_and_loses_nothing() {
    let proxy = Proxy::before(echo_server());
    let mut stream = connect(&proxy);
    proxy.set(Fault::Stall);
    for stream in [&mut stream, &mut connect(&proxy)] {
        stream
            .set_read_timeout(Some(DELAY))
            .expect("it is a socket");
        assert_eq!(
            ask(stream).expect_err("nothing comes").kind(),
            ErrorKind::WouldBlock
        );
    }
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("it is a socket");
    proxy.set(Fault::None);
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).expect("it comes now");
    assert_eq!(&reply, b"ping");
}

#[test]
fn where_half_of_the_connections_stall_the_others_do_not() {
    let proxy = Proxy::before(echo_server());
    let mut streams: Vec<_> = (0..4).map(|_| connect(&proxy)).collect();
    proxy.set(Fault::StallHalf(0));
    for (number, stream) in streams.iter_mut().enumerate() {
        if number % 2 == 1 {
            assert!(is_answered(stream));
        } else {
            stream
                .set_read_timeout(Some(DELAY))
                .expect("it is a socket");
            assert_eq!(
                ask(stream).expect_err("nothing comes").kind(),
                ErrorKind::WouldBlock
            );
        }
    }
    proxy.set(Fault::None);
    let mut reply = [0; 4];
    streams[0]
        .set_read_timeout(Some(PATIENCE))
        .expect("it is a socket");
    streams[0].read_exact(&mut reply).expect("it comes now");
    assert_eq!(&reply, b"ping");
}

#[test]
fn where_packets_are_lost_everything_comes_late_some_much_later_and_in_order() {
    let proxy = Proxy::before(echo_server());
    let mut stream = connect(&proxy);
    proxy.set(Fault::Lossy(DELAY));
    let first: Vec<Duration> = (0..8).map(|_| lateness(&mut stream)).collect();
    assert!(first.iter().all(|late| *late >= DELAY), "{first:?}");
    assert!(
        first.iter().any(|late| *late >= DELAY * 3),
        "none was lost: {first:?}"
    );
    proxy.set(Fault::None);
    assert!(is_answered(&mut stream), "what was sent before has come");
}

#[test]
fn a_server_that_is_not_there_looks_as_if_it_hung_up() {
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("there is a free port");
    let proxy = Proxy::before(unused.port());
    assert!(!is_answered(&mut connect(&proxy)));
    look_until("it is closed", || proxy.open() == 0);
}
