//! Control planes for tests: the real one that Envoy Gateway is made of, and one that says whatever
//! a test has it say.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};

use prost::Message as _;
use prost_types::Any;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tollgate::base::proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use tollgate::base::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use tollgate::base::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

use super::certificates::Identity;
use super::tools::tool;
use super::{PATIENCE, http};

/// What rules are.
pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
/// How the real one knows who asks, as Envoy Gateway has it.
pub(crate) const NODE: &str = "envoy-ratelimit";
/// Responses of a test that wait for the service to read them.
const RESPONSES_MAX: usize = 2_000;

/// go-control-plane in a process of its own. Dropped, it is gone.
pub(crate) struct ControlPlane {
    child: Child,
    // When it is closed, the process ends, also if the test was killed.
    _stdin: ChildStdin,
    pub(crate) addr: SocketAddr,
    control: SocketAddr,
}

/// A control plane of which a test writes every word.
pub(crate) struct Puppet {
    pub(crate) addr: SocketAddr,
    streams: mpsc::Receiver<Stream>,
    _serving: JoinSet<()>,
}

/// One stream of the service. Dropped, it ends without an error.
pub(crate) struct Stream {
    pub(crate) headers: MetadataMap,
    requests: Streaming<DiscoveryRequest>,
    responses: mpsc::Sender<Result<DiscoveryResponse, Status>>,
}

/// Hands out streams.
struct Ads(mpsc::Sender<Stream>);

impl ControlPlane {
    /// In plain text, on a port of the kernel's choosing.
    pub(crate) fn start() -> Self {
        Self::run(&["-listen", "127.0.0.1:0"])
    }

    /// Where another one was.
    pub(crate) fn start_at(addr: SocketAddr) -> Self {
        Self::run(&["-listen", &addr.to_string()])
    }

    /// By TLS, for clients that have a certificate, too.
    pub(crate) fn start_with_tls(identity: &Identity) -> Self {
        Self::start_with_tls_at(SocketAddr::from(([127, 0, 0, 1], 0)), identity)
    }

    /// The same, where another one was.
    pub(crate) fn start_with_tls_at(addr: SocketAddr, identity: &Identity) -> Self {
        let [cert, key, ca] = [&identity.cert, &identity.key, &identity.ca]
            .map(|path| path.to_str().expect("a plain name"));
        Self::run(&["-listen", &addr.to_string(), "-cert", cert, "-key", key, "-ca", ca])
    }

    fn run(arguments: &[&str]) -> Self {
        let mut command = Command::new(tool("xds-server"));
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it is a program");
        let stdin = child.stdin.take().expect("it is a pipe");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is a pipe"))
            .read_line(&mut line)
            .expect("it says that it is ready");
        let addresses: Vec<SocketAddr> =
            line.split_whitespace().skip(1).map(|text| text.parse().expect("an address")).collect();
        let [addr, control] = addresses[..] else { panic!("it did not start: {line}") };
        Self { child, _stdin: stdin, addr, control }
    }

    /// Serves these resources from now on, as JSON says them.
    pub(crate) fn serve(&self, version: &str, resources: &Value) {
        let reply = http::post(
            self.control,
            &format!("/snapshot?node={NODE}&version={version}"),
            &resources.to_string(),
        );
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// Every request that came.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let reply = http::get(self.control, "/requests");
        match serde_json::from_str(&reply.body).expect("it is JSON") {
            Value::Array(requests) => requests,
            _ => Vec::new(),
        }
    }

    /// The newest request.
    pub(crate) fn newest(&self) -> Value {
        self.requests().pop().unwrap_or_default()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // Either fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Puppet {
    /// On a port of the kernel's choosing.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let addr = listener.local_addr().expect("it is bound");
        Self { addr, ..Self::start_on(TcpListenerStream::new(listener)) }
    }

    /// On any listener. Its address is not known.
    pub(crate) fn start_on<L, C>(listener: L) -> Self
    where
        L: tokio_stream::Stream<Item = std::io::Result<C>> + Send + 'static,
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        C::ConnectInfo: Clone + Send + Sync + 'static,
    {
        let (opened, streams) = mpsc::channel(RESPONSES_MAX);
        let mut serving = JoinSet::new();
        let served =
            Server::builder().add_service(AggregatedDiscoveryServiceServer::new(Ads(opened)));
        serving.spawn(async move {
            served.serve_with_incoming(listener).await.expect("it can serve");
        });
        Self { addr: SocketAddr::from(([127, 0, 0, 1], 0)), streams, _serving: serving }
    }

    /// The next stream that the service opens.
    pub(crate) async fn stream(&mut self) -> Stream {
        let opened = tokio::time::timeout(PATIENCE, self.streams.recv()).await;
        opened.expect("the service opens a stream").expect("it is being served")
    }
}

impl Stream {
    /// The next request on it.
    pub(crate) async fn request(&mut self) -> DiscoveryRequest {
        let came = tokio::time::timeout(PATIENCE, self.requests.message()).await;
        came.expect("the service says something")
            .expect("the stream is whole")
            .expect("the stream is open")
    }

    /// Answers.
    pub(crate) async fn send(&self, response: DiscoveryResponse) {
        self.responses.send(Ok(response)).await.expect("the stream is open");
    }

    /// Answers, and gives what the service says to it.
    pub(crate) async fn ask(&mut self, response: DiscoveryResponse) -> DiscoveryRequest {
        self.send(response).await;
        self.request().await
    }

    /// Ends with an error.
    pub(crate) async fn fail(self, status: Status) {
        self.responses.send(Err(status)).await.expect("the stream is open");
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Ads {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (responses, outgoing) = mpsc::channel(RESPONSES_MAX);
        let headers = request.metadata().clone();
        let stream = Stream { headers, requests: request.into_inner(), responses };
        self.0.send(stream).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// A response with these rules.
pub(crate) fn response(version: &str, nonce: &str, rules: &[RateLimitConfig]) -> DiscoveryResponse {
    DiscoveryResponse {
        version_info: version.into(),
        resources: rules.iter().map(|rules| resource_of(TYPE_URL, rules.encode_to_vec())).collect(),
        type_url: TYPE_URL.into(),
        nonce: nonce.into(),
    }
}

/// A resource of a response.
pub(crate) fn resource_of(type_url: &str, value: Vec<u8>) -> Vec<u8> {
    Any { type_url: type_url.to_owned(), value }.encode_to_vec()
}

/// Rules of domain `d` with one limit, for `key: k`.
pub(crate) fn rules_of(requests: u32) -> RateLimitConfig {
    let policy = RateLimitPolicy {
        unit: RateLimitUnit::Year.into(),
        requests_per_unit: requests,
        ..RateLimitPolicy::default()
    };
    let descriptor = RateLimitDescriptor {
        key: "k".into(),
        rate_limit: Some(policy),
        ..RateLimitDescriptor::default()
    };
    RateLimitConfig { name: "d".into(), domain: "d".into(), descriptors: vec![descriptor] }
}
