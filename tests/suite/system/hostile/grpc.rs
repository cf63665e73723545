//! gRPC connections with too many streams, unfinished or large messages, resets, and without any
//! bytes.

use std::io::Write as _;
use std::net::SocketAddr;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::JoinSet;
use tonic::Code as Grpc;

use crate::support::{PATIENCE, TestServer, eventually, raw_grpc, request, resident_peak_kib};
use crate::system::hostile::{RESIDENT_MAX_KIB, WellBehaved, server};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";
const ENHANCE_YOUR_CALM: u32 = 11;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A client that sends any frames, and reads what comes back only to find GOAWAY.
pub(super) struct Attacker {
    stream: OwnedWriteHalf,
    next_stream: u32,
    path: &'static str,
    goaway: JoinSet<Option<u32>>,
}

/// What a stream of an attack consists of.
#[derive(Clone, Copy)]
pub(super) enum Call<'c> {
    /// A head, and nothing more.
    Head,
    /// A head and a reset.
    Reset,
    /// All of a call.
    Whole(&'c [u8]),
    /// All of a call, and a reset.
    GivenUp(&'c [u8]),
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A text as HPACK has it, without Huffman's code.
fn text(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("it is short");
    [&[length], text.as_bytes()].concat()
}

impl Attacker {
    /// Connects, with settings as (number, value).
    pub(super) async fn connect(
        addr: SocketAddr,
        path: &'static str,
        settings: &[(u16, u32)],
    ) -> Self {
        let (mut reading, mut stream) =
            TcpStream::connect(addr).await.expect("the port is open").into_split();
        let settings: Vec<u8> = settings
            .iter()
            .flat_map(|(number, value)| [&number.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        stream
            .write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat())
            .await
            .expect("the connection is open");
        let mut goaway = JoinSet::new();
        goaway.spawn(async move {
            loop {
                let mut head = [0; 9];
                reading.read_exact(&mut head).await.ok()?;
                let mut payload =
                    vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                reading.read_exact(&mut payload).await.ok()?;
                if head[3] == GOAWAY {
                    return Some(u32::from_be_bytes(
                        payload[4..8].try_into().expect("it has a code"),
                    ));
                }
            }
        });
        Self { stream, next_stream: 1, path, goaway }
    }

    /// Opens streams; `false` if the server has closed the connection.
    pub(super) async fn open(&mut self, streams: usize, call: Call<'_>) -> bool {
        let mut bytes = Vec::new();
        for _ in 0..streams {
            // The first head fills the server's table, and the others are indices into it.
            let head = match self.next_stream {
                1 => [
                    &[0x83, 0x86, 0x44][..],
                    &text(self.path),
                    &[0x41],
                    &text("a"),
                    &[0x5f],
                    &text("application/grpc"),
                    &[0x40],
                    &text("te"),
                    &text("trailers"),
                ]
                .concat(),
                _ => vec![0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe],
            };
            let stream = self.next_stream;
            self.next_stream += 2;
            bytes.extend(frame(HEADERS, END_HEADERS, stream, &head));
            if let Call::Whole(message) | Call::GivenUp(message) = call {
                bytes.extend(frame(DATA, END_STREAM, stream, &raw_grpc::frame_of(message)));
            }
            if let Call::Reset | Call::GivenUp(_) = call {
                bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            }
        }
        self.stream.write_all(&bytes).await.is_ok()
    }

    /// The code of GOAWAY; `None` if the connection ended without one.
    async fn goaway(mut self) -> Option<u32> {
        let ended = tokio::time::timeout(PATIENCE, self.goaway.join_next())
            .await
            .expect("the connection ends");
        ended.expect("it is read once").expect("nothing panics")
    }

    /// Whether the server has neither closed the connection nor sent a GOAWAY.
    fn is_open(&mut self) -> bool {
        self.goaway.try_join_next().is_none()
    }
}

pub(super) fn message() -> Vec<u8> {
    prost::Message::encode_to_vec(&request("d", &[&[("k", "")]]))
}

async fn assert_bounded(server: &TestServer, client: WellBehaved) {
    client.finish(server).await;
    let peak = resident_peak_kib(server.pid());
    println!("peak {peak} KiB");
    assert!(peak < RESIDENT_MAX_KIB, "{peak} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unlimited_streams_are_bounded_and_leave_others_served() {
    let message = message();
    let attacks = [
        ("heads", SHOULD_RATE_LIMIT, &[][..], Call::Head),
        ("watches", WATCH, &[], Call::Whole(&[])),
        // SETTINGS_INITIAL_WINDOW_SIZE: no response can be sent.
        ("calls without a window", SHOULD_RATE_LIMIT, &[(4, 0)], Call::Whole(&message)),
    ];
    for (attack, path, settings, call) in attacks {
        let server = server("2").start();
        let client = WellBehaved::start(&server);
        let mut attackers = Vec::new();
        for _ in 0..20 {
            let mut attacker = Attacker::connect(server.grpc, path, settings).await;
            for _ in 0..20 {
                attacker.open(500, call).await;
            }
            attackers.push(attacker);
        }
        eventually("the attack has arrived", async || {
            server.metric("tollgate_calls_rejected_total{cause=\"streams\"}") > Some(0.0)
        })
        .await;
        assert!(server.metric("tollgate_streams") <= Some(8_192.0));
        println!("{attack}: {:?} streams", server.metric("tollgate_streams"));
        assert_bounded(&server, client).await;
        drop(attackers);
        server.metric_becomes("tollgate_streams", 0.0).await;
    }
}

#[tokio::test]
async fn connection_has_1024_streams_and_the_next_is_reset() {
    let server = server("1").start();
    let mut attacker = Attacker::connect(server.grpc, WATCH, &[]).await;
    attacker.open(1_024, Call::Whole(&[])).await;
    server.metric_becomes("tollgate_streams", 1_024.0).await;
    server.assert_metric("tollgate_connection_streams_full_total", 1.0);
    attacker.open(1_000, Call::Whole(&[])).await;
    assert_eq!(server.client().await.ask("d", &[("k", "")]).await, crate::support::Code::Ok);
    server.assert_metric("tollgate_streams", 1_024.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_messages_are_bounded_and_time_out() {
    let server = server("2").start();
    let client = WellBehaved::start(&server);
    let unfinished = [&[0, 0, 0x40, 0, 0][..], &vec![0x0a; (4 << 20) - 1]].concat();
    let _open = unfinished_calls(&server, 8, &[], &unfinished).await;
    let rejected =
        |cause| server.metric(&format!("tollgate_calls_rejected_total{{cause=\"{cause}\"}}"));
    eventually("some are too much", async || rejected("message_bytes") > Some(0.0)).await;
    eventually("the others are late", async || rejected("message_timeout") > Some(0.0)).await;
    server.metric_becomes("tollgate_message_bytes", 0.0).await;
    assert_bounded(&server, client).await;
}

/// Calls on eight connections that were begun with these headers, each with these bytes of its body.
async fn unfinished_calls(
    server: &TestServer,
    calls: usize,
    headers: &[(&str, String)],
    bytes: &[u8],
) -> Vec<(raw_grpc::Connection, Vec<raw_grpc::Call>)> {
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut connection = raw_grpc::Connection::open(server.grpc).await;
        let mut begun = Vec::new();
        for _ in 0..calls {
            let mut call = connection.begin_with(headers).await;
            call.send(bytes);
            begun.push(call);
        }
        open.push((connection, begun));
    }
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_messages_are_charged_before_they_are_decompressed() {
    let server = server("2").start();
    let client = WellBehaved::start(&server);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    let message = prost::Message::encode_to_vec(&request("d", &[&[("k", &"v".repeat(4_000_000))]]));
    gzip.write_all(&message).expect("memory is writable");
    let mut compressed = raw_grpc::frame_of(&gzip.finish().expect("memory is writable"));
    assert!(compressed.len() < 5_000, "{} bytes", compressed.len());
    // The flag of a compressed message.
    compressed[0] = 1;
    let gzip = [("grpc-encoding", "gzip".to_owned())];
    let open = unfinished_calls(&server, 100, &gzip, &compressed).await;
    let rejected = "tollgate_calls_rejected_total{cause=\"message_bytes\"}";
    eventually("most are too much", async || server.metric(rejected) > Some(700.0)).await;
    drop(open);
    server.metric_becomes("tollgate_message_bytes", 0.0).await;
    assert_bounded(&server, client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_messages_take_no_memory() {
    let server = server("2").start();
    let client = WellBehaved::start(&server);
    let open = unfinished_calls(&server, 100, &[], &[0, 0, 0x40, 0, 0]).await;
    eventually("they have arrived", async || server.metric("tollgate_streams") >= Some(800.0))
        .await;
    drop(open);
    server.metric_becomes("tollgate_streams", 0.0).await;
    assert_bounded(&server, client).await;
}

#[tokio::test]
async fn call_that_does_not_arrive_times_out() {
    let server = server("1").start();
    let mut connection = raw_grpc::Connection::open(server.grpc).await;
    let mut call = connection.begin().await;
    call.send(&[0, 0, 0]);
    assert_eq!(call.ended().await.status, Grpc::DeadlineExceeded);
    server.assert_metric("tollgate_calls_rejected_total{cause=\"message_timeout\"}", 1.0);
    let ended = connection.begin().await.finish(&raw_grpc::frame_of(&message())).await;
    assert_eq!(ended.status, Grpc::Ok, "the connection goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_of_too_many_objects_is_rejected_before_it_is_decoded() {
    let server = server("2").start();
    let client = WellBehaved::start(&server);
    let domain = [0x0a, 1, b'd'];
    let descriptors = [&domain[..], &[0x12, 0].repeat(2_097_000)].concat();
    // One descriptor, with its length in four bytes.
    let entries = [0x0a, 0].repeat(2_097_000);
    let length = entries.len();
    let length = [0, 7, 14, 21].map(|shift| {
        u8::try_from((length >> shift) & 0x7f).expect("seven bits")
            | if shift < 21 { 0x80 } else { 0 }
    });
    let entries = [&domain[..], &[0x12], &length, &entries].concat();
    let mut connection = raw_grpc::Connection::open(server.grpc).await;
    for message in [descriptors, entries] {
        for _ in 0..4 {
            let ended = connection.begin().await.finish(&raw_grpc::frame_of(&message)).await;
            assert_eq!(ended.status, Grpc::InvalidArgument);
        }
    }
    server.assert_metric("tollgate_invalid_requests_total", 8.0);
    client.finish(&server).await;
    let peak = resident_peak_kib(server.pid());
    println!("peak {peak} KiB");
    assert!(peak < 64 << 10, "{peak} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_of_resets_gets_enhance_your_calm() {
    let server = server("1").start();
    let client = WellBehaved::start(&server);
    let mut attacker = Attacker::connect(server.grpc, SHOULD_RATE_LIMIT, &[]).await;
    let mut other = server.client().await;
    // One burst after another, none of them large.
    while attacker.open(3_500, Call::Reset).await && attacker.next_stream < 1_000_000 {
        assert_eq!(other.ask("d", &[("k", "")]).await, crate::support::Code::Ok);
    }
    assert_eq!(attacker.goaway().await, Some(ENHANCE_YOUR_CALM));
    assert_bounded(&server, client).await;
}

#[tokio::test]
async fn client_that_cancels_all_calls_stays_connected() {
    let server = server("1").in_own_group().start();
    let message = message();
    let mut client = Attacker::connect(server.grpc, SHOULD_RATE_LIMIT, &[]).await;
    // While nothing is read they pile up, as those of an Envoy do while a process is stopped.
    server.signal("STOP");
    let sending = async {
        for _ in 0..40 {
            assert!(client.open(500, Call::GivenUp(&message)).await);
        }
    };
    tokio::join!(sending, async {
        tokio::task::yield_now().await;
        server.signal("CONT");
    });
    server.metric_becomes("tollgate_streams", 0.0).await;
    assert!(client.is_open());
}

#[tokio::test]
async fn connection_without_a_preface_is_closed() {
    let server = server("1").start();
    let mut open = Vec::new();
    for sent in [0, 1, PREFACE.len() - 1] {
        let mut connection = TcpStream::connect(server.grpc).await.expect("the port is open");
        connection.write_all(&PREFACE[..sent]).await.expect("the connection is open");
        open.push(connection);
    }
    let mut complete = Attacker::connect(server.grpc, SHOULD_RATE_LIMIT, &[]).await;
    server.metric_becomes("tollgate_connections", 1.0).await;
    server.assert_metric("tollgate_preface_timeouts_total", 3.0);
    assert!(complete.open(1, Call::Head).await && complete.is_open());
}
