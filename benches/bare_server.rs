//! A bare default tonic server that answers every `ShouldRateLimit` with the same message: what
//! gRPC alone costs here.
//!
//! It is the measure for Tollgate's own cost, so it does what most Rust services do: tokio's
//! default multi-threaded runtime, tonic's default server, no tuning. The answer has the size of
//! Tollgate's ordinary one, so that both write as many bytes.

use std::net::SocketAddr;
use std::process;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser};
use prost_types::Duration;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tollgate::base::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// A bare default tonic server with a constant answer, to compare Tollgate with.
#[derive(Parser)]
#[command(name = "bare_server")]
struct Args {
    /// Where to listen; port 0 takes a free one. Without it this help is printed, so that a plain
    /// `cargo bench` does not hang here.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<SocketAddr>,

    /// `cargo bench` adds it to every program it starts.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Answers without looking at the question.
struct Constant;

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(constant_answer()))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Args { listen: Some(listen), bench: _ } = Args::parse() else {
        return Args::command().print_help().context("print the help");
    };
    // What `serve(listen)` does, in two steps, because it does not say which port it got.
    let incoming = TcpIncoming::bind(listen)
        .with_context(|| format!("listen on {listen}"))?
        .with_nodelay(Some(true));
    let bound = incoming.local_addr().context("ask for the bound address")?;
    println!("listening on {bound}, pid {}", process::id());

    Server::builder()
        .add_service(RateLimitServiceServer::new(Constant))
        .serve_with_incoming(incoming)
        .await
        .context("serve")
}

/// One descriptor's status, as Tollgate gives it for a rule of a million an hour that has been used
/// a little.
fn constant_answer() -> RateLimitResponse {
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 1_000_000,
                unit: rate_limit::Unit::Hour.into(),
                ..RateLimit::default()
            }),
            limit_remaining: 999_000,
            duration_until_reset: Some(Duration { seconds: 1_800, nanos: 0 }),
            ..DescriptorStatus::default()
        }],
        ..RateLimitResponse::default()
    }
}
