//! Peers that send nothing for longer than a minute, while their connections stay open.

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::{TestServer, eventually, limit_of, raw_grpc, request};

/// The preface of HTTP/2 and an empty SETTINGS frame.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_gone_and_an_idle_one_stays() {
    let server = TestServer::with_rules(&limit_of(1_000_000)).start();
    let mut idle = raw_grpc::Connection::open(server.grpc).await;
    let mut gone = TcpStream::connect(server.grpc).await.expect("the port is open");
    gone.write_all(HTTP2).await.expect("the connection is open");
    eventually("both are open", async || server.metric("tollgate_connections") == Some(2.0)).await;
    eventually("one is closed", async || server.metric("tollgate_connections") == Some(1.0)).await;
    let call = raw_grpc::frame(&request("d", &[&[("k", "")]]));
    assert_eq!(idle.begin().await.finish(&call).await.status, tonic::Code::Ok);
}
