//! The real binary, started for one test and gone with it, and the clients that ask it.
//!
//! Every port is chosen by the kernel and read from the block that the server prints, so tests run
//! side by side. Nothing here sleeps to let a time pass: [`eventually`] looks until something is
//! so, and fails when it took too long.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Seek as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::OFlags;
use serde_json::Value;
use tempfile::TempDir;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate::base::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::telemetry::metric::Metrics;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

pub(crate) use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

pub(crate) mod binary;
pub(crate) mod browser;
pub(crate) mod certificates;
pub(crate) mod cgroup;
pub(crate) mod cluster;
pub(crate) mod counting;
pub(crate) mod faketime;
pub(crate) mod fault;
pub(crate) mod fault_log;
pub(crate) mod folder;
pub(crate) mod html;
pub(crate) mod http;
pub(crate) mod in_process;
pub(crate) mod kept;
pub(crate) mod otlp;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod raw_grpc;
pub(crate) mod raw_upstream;
pub(crate) mod redis;
pub(crate) mod reference;
pub(crate) mod remote;
pub(crate) mod repository;
pub(crate) mod scripted_redis;
pub(crate) mod sentinel;
pub(crate) mod statsd;
pub(crate) mod terminal;
pub(crate) mod tools;
pub(crate) mod traffic;
pub(crate) mod twins;
pub(crate) mod versions;
pub(crate) mod volume;
pub(crate) mod xds;

use binary::{command, value_on};
use cgroup::MemoryCgroup;
use process::{LOOK_INTERVAL, Process, look_for};
pub(crate) use process::{PATIENCE, look_until};

const STORE_TIMEOUT: &str = "STORE_TIMEOUT";
/// The files in a process' home with what it printed and logged.
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";

/// A running server. Dropped, it is killed; in a test that fails, its log is shown.
#[derive(Debug)]
pub(crate) struct TestServer {
    process: Process,
    /// Removed after the process has ended.
    _cgroup: Option<MemoryCgroup>,
    home: TempDir,
    announcement: String,
    rules: PathBuf,
    /// Port 0 where gRPC is on a Unix socket.
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Of PROMETHEUS_ADDR; `None` unless USE_PROMETHEUS is set.
    pub(crate) prometheus: Option<SocketAddr>,
}

/// A server that is not started yet.
pub(crate) struct Builder {
    home: TempDir,
    rules: PathBuf,
    command: Command,
    /// `None` for a file.
    stdout: Option<Stdio>,
    log: Stdio,
    cgroup: Option<MemoryCgroup>,
}

/// A server of which nothing is read.
pub(crate) struct Unread {
    pub(crate) process: Process,
    _pipe: PipeReader,
    _home: TempDir,
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// What it printed, which is JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// It ended with this code, and printed these texts.
    #[track_caller]
    pub(crate) fn assert_printed(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_has(&self.stdout, texts);
    }

    /// It ended with this code, and an error with these texts.
    #[track_caller]
    pub(crate) fn assert_failed(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_has(&self.stderr, texts);
    }
}

/// A text has each of these parts.
#[track_caller]
pub(crate) fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

/// A gRPC client on one connection.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) channel: Channel,
    rls: RateLimitServiceClient<Channel>,
    health: HealthClient<Channel>,
}

impl TestServer {
    /// With one rules file.
    pub(crate) fn with_rules(yaml: &str) -> Builder {
        Self::with_files([("rules.yaml", yaml)])
    }

    /// With these rules files, of which there may be none; names may have directories in them.
    pub(crate) fn with_files<'f>(files: impl IntoIterator<Item = (&'f str, &'f str)>) -> Builder {
        let home = TempDir::new().expect("a temporary directory can be made");
        let rules = home.path().join("rules");
        fs::create_dir(&rules).expect("it is empty");
        for (name, text) in files {
            write(&rules.join(name), text);
        }
        Builder::new(home, rules)
    }

    /// With the rules of an existing directory.
    pub(crate) fn with_directory(rules: &Path) -> Builder {
        Builder::new(TempDir::new().expect("a temporary directory can be made"), rules.to_owned())
    }

    /// As a deployment of the reference starts it: RUNTIME_ROOT has the path of its rules, and
    /// nothing else.
    pub(crate) fn with_runtime_root(root: &Path) -> Builder {
        let mut builder = Builder::new(
            TempDir::new().expect("a temporary directory can be made"),
            root.join("config"),
        );
        builder.command = command(&[]);
        builder.with_env("RUNTIME_ROOT", &root.display().to_string())
    }

    /// As README starts it: on all addresses, with the rules of `./config`.
    pub(crate) fn first_try() -> Builder {
        let home = TempDir::new().expect("a temporary directory can be made");
        let rules = home.path().join("config");
        symlink(sample("config"), &rules).expect("it is empty");
        let mut builder = Builder::new(home, rules);
        builder.command = command(&[]);
        let addresses = ["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|name| (name, "0.0.0.0"));
        builder.with_envs(&addresses).with_env("PROMETHEUS_ADDR", "").with_env("WORKERS", "1")
    }

    /// With the rules of a control plane.
    pub(crate) fn with_xds(address: &str) -> Builder {
        let mut builder = Self::with_files([]);
        builder.command = command(&[]);
        builder
            .with_env("CONFIG_TYPE", "GRPC_XDS_SOTW")
            .with_env("CONFIG_GRPC_XDS_SERVER_URL", address)
    }

    /// A client on a connection of its own.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.grpc).await
    }

    /// GET from the HTTP port.
    pub(crate) fn get(&self, path: &str) -> http::Reply {
        http::get(self.http, path)
    }

    /// POST to /json.
    pub(crate) fn json(&self, body: &str) -> http::Reply {
        http::post(self.http, "/json", body)
    }

    /// GET from the admin listener.
    pub(crate) fn admin(&self, path: &str) -> String {
        http::get(self.admin, path).body
    }

    /// GET of JSON from the admin listener.
    #[track_caller]
    pub(crate) fn admin_json(&self, path: &str) -> Value {
        let reply = http::get(self.admin, path);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.json()
    }

    /// The line of /metrics that begins with this name and labels, without them: its value. `None`
    /// if there is no such line.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let page = self.admin("/metrics");
        let value = value_on(&page, series)?;
        Some(value.parse().expect("a metric is a number"))
    }

    #[track_caller]
    pub(crate) fn assert_metric(&self, series: &str, expected: f64) {
        assert_eq!(self.metric(series), Some(expected), "{series}");
    }

    pub(crate) async fn metric_becomes(&self, series: &str, value: f64) {
        eventually(&format!("{series} is {value}"), async || self.metric(series) == Some(value))
            .await;
    }

    /// Waits until it is logged: a thread of its own writes the log.
    #[track_caller]
    pub(crate) fn assert_logged(&self, text: &str) {
        self.log_with(text);
    }

    #[track_caller]
    pub(crate) fn assert_logged_once(&self, text: &str) {
        let log = self.log_with(text);
        assert_eq!(log.matches(text).count(), 1, "{text}: {log}");
    }

    /// What was logged so far, once this text is part of it.
    #[track_caller]
    pub(crate) fn log_with(&self, text: &str) -> String {
        look_for(&format!("the log has: {text}"), || {
            Some(self.log()).filter(|log| log.contains(text))
        })
    }

    #[track_caller]
    pub(crate) fn assert_not_logged(&self, text: &str) {
        assert!(!self.log().contains(text), "{text}: {}", self.log());
    }

    #[track_caller]
    pub(crate) fn assert_announced(&self, text: &str) {
        let said = self.announcement();
        assert!(said.contains(text), "{text}: {said}");
    }

    /// What was printed at the start.
    pub(crate) fn announcement(&self) -> &str {
        &self.announcement
    }

    /// What was logged so far.
    pub(crate) fn log(&self) -> String {
        read(&self.home, STDERR)
    }

    /// Where a rules file is, or would be.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.rules.join(name)
    }

    /// Writes a rules file as most editors do: a new one beside it, which then takes its place.
    pub(crate) fn write(&self, name: &str, text: &str) {
        write(&self.path(name), text);
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether it is still there.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Waits until it has ended.
    pub(crate) fn wait_until_ended(&mut self) -> ExitStatus {
        self.process.wait_until_ended()
    }

    /// Waits until it has ended, and gives its exit code; `None` if a signal ended it.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        eventually("the server ends", async || !self.is_running()).await;
        self.wait_until_ended().code()
    }
}

impl Builder {
    fn new(home: TempDir, rules: PathBuf) -> Self {
        let command =
            command(&["serve", rules.to_str().expect("temporary directories have plain names")]);
        let log = create(&home, STDERR);
        Self { home, rules, command, stdout: None, log, cgroup: None }
    }

    /// Where its rules are going to be read from.
    pub(crate) fn rules(&self) -> &Path {
        &self.rules
    }

    /// Sets an environment variable.
    pub(crate) fn with_env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets environment variables.
    pub(crate) fn with_envs(mut self, variables: &[(&str, impl AsRef<OsStr>)]) -> Self {
        self.command.envs(variables.iter().map(|(name, value)| (name, value)));
        self
    }

    /// A process group of its own, for a test that stops it.
    pub(crate) fn in_own_group(mut self) -> Self {
        self.command.process_group(0);
        self
    }

    /// Waits for Redis no longer than it does in production, for tests that look at what is late.
    pub(crate) fn with_the_default_store_timeout(self) -> Self {
        self.with_env(STORE_TIMEOUT, "")
    }

    /// Has another program run it, by a command line that ends where that of the binary begins.
    pub(crate) fn run_by(mut self, words: &[&str]) -> Self {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg(self.command.get_program())
            .args(self.command.get_args())
            .stdin(Stdio::null())
            .env_clear();
        command.envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        self.command = command;
        self
    }

    /// Bounds its memory by a cgroup, where this machine permits one: above, the kernel kills it.
    pub(crate) fn with_memory_max(mut self, bytes: u64) -> Self {
        self.cgroup = MemoryCgroup::new(bytes);
        let Some(cgroup) = &self.cgroup else {
            return self;
        };
        let enter = format!(r#"echo $$ > {} && exec "$0" "$@""#, cgroup.processes());
        self.run_by(&["sh", "-c", &enter])
    }

    /// Closes the reading end of its log.
    pub(crate) fn with_nobody_to_read_its_log(mut self) -> Self {
        let (_, log) = std::io::pipe().expect("a pipe can be made");
        self.log = log.into();
        self
    }

    /// Its log is a pipe that is full. It is read by what is returned, if at all.
    pub(crate) fn with_full_log(mut self) -> (Self, PipeReader) {
        let (reader, writer) = full_pipe();
        self.log = writer.into();
        (self, reader)
    }

    /// Its stdout is a terminal.
    pub(crate) fn with_a_terminal(mut self) -> Self {
        self.stdout = Some(terminal::copied_to(&self.home.path().join(STDOUT)).0);
        self
    }

    /// Starts it, and waits until its ports are bound and its rules were looked at.
    pub(crate) fn start(mut self) -> TestServer {
        self.set_defaults();
        let home = self.home;
        let mut process = spawn(self.command, &home, self.stdout, self.log);
        process.wait_until_ready(|| read(&home, STDOUT).ends_with("\n\n"));
        let announcement = read(&home, STDOUT);
        let address = |name: &str| {
            let line =
                announcement.lines().find_map(|line| line.trim_start().strip_prefix(name))?;
            let text = line.split_whitespace().next()?;
            text.trim_start_matches("http://").parse().ok()
        };
        let bound = |name: &str| {
            address(name).unwrap_or_else(|| panic!("no address of {name} in {announcement}"))
        };
        let grpc = if announcement.contains("gRPC     unix:") {
            ([127, 0, 0, 1], 0).into()
        } else {
            bound("gRPC ")
        };
        let http = bound("HTTP ");
        let admin = bound("admin ");
        let prometheus = address("metrics ");
        TestServer {
            process,
            _cgroup: self.cgroup,
            home,
            rules: self.rules,
            grpc,
            http,
            admin,
            prometheus,
            announcement,
        }
    }

    /// Starts it with stdout and stderr on a pipe that is full and never read, so it cannot say which
    /// ports it has.
    pub(crate) fn start_unread(mut self) -> Unread {
        self.set_defaults();
        let (pipe, writer) = full_pipe();
        let stdout = writer.try_clone().expect("a pipe can be had twice").into();
        Unread {
            process: spawn(self.command, &self.home, Some(stdout), writer.into()),
            _pipe: pipe,
            _home: self.home,
        }
    }

    /// Starts what is not going to serve, and waits for its end.
    pub(crate) fn start_and_fail(mut self) -> Ran {
        self.set_defaults();
        finish(self.command, &self.home, self.log)
    }

    fn set_defaults(&mut self) {
        // Where a busy machine runs nobody for a while, whatever is counted exactly is still
        // counted by Redis.
        self.default_env(STORE_TIMEOUT, "10s");
        // On any machine.
        self.default_env("WORKERS", "2");
        for name in ["HOST", "GRPC_HOST", "DEBUG_HOST"] {
            self.default_env(name, "127.0.0.1");
        }
        for name in ["PORT", "GRPC_PORT", "DEBUG_PORT"] {
            self.default_env(name, "0");
        }
        self.default_env("PROMETHEUS_ADDR", "127.0.0.1:0");
        self.default_env("LOG_LEVEL", "info");
    }

    fn default_env(&mut self, name: &str, value: &str) {
        if self.command.get_envs().all(|(set, _)| set != name) {
            self.command.env(name, value);
        }
    }
}

/// Starts a process in a directory of its own, which has its output.
fn spawn(mut command: Command, home: &TempDir, stdout: Option<Stdio>, stderr: Stdio) -> Process {
    let stdout = stdout.unwrap_or_else(|| create(home, STDOUT));
    command.stdout(stdout).stderr(stderr);
    // Elsewhere than the repository, whose ./config would be found.
    let child = command.current_dir(home.path()).spawn().expect("cargo has built it");
    Process::of("tollgate", child, home.path().join(STDERR))
}

/// A pipe to which nothing can be written before it is read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    // Opened again, because the flag belongs to what is opened and the process must not inherit it.
    let mut filler = File::options()
        .write(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(format!("/proc/self/fd/{}", writer.as_raw_fd()))
        .expect("Linux opens pipes by this name");
    for bytes in [4096, 1] {
        while filler.write(&[b'\n'; 4096][..bytes]).is_ok() {}
    }
    (reader, writer)
}

fn create(home: &TempDir, file: &str) -> Stdio {
    let file = File::create(home.path().join(file));
    file.expect("a file can be made").into()
}

fn read(home: &TempDir, file: &str) -> String {
    fs::read_to_string(home.path().join(file)).expect("what it prints is text")
}

/// Asserts of each line, such as `PORT=http; HOST=x => a text`, that the process exits with 78 and
/// writes the text to stderr. `NAME` alone is a variable set to nothing.
pub(crate) fn assert_settings_rejected(start: impl Fn() -> Builder, lines: &str) {
    for line in lines.trim().lines() {
        let (settings, expected) = line.split_once(" => ").expect("settings => a text");
        let settings: Vec<(&str, &str)> = settings
            .split("; ")
            .map(|setting| setting.trim().split_once('=').unwrap_or((setting, "")))
            .collect();
        let ran = start().with_envs(&settings).start_and_fail();
        assert_eq!(ran.code, Some(78), "{line}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{line}: {ran:?}");
        assert!(!ran.stdout.contains("gRPC"), "{line}: it serves");
        assert!(!ran.stderr.contains("s3cret"), "{line}: {ran:?}");
    }
}

/// Runs `tollgate` with arguments until it ends.
pub(crate) fn tollgate(arguments: &[&str]) -> Ran {
    tollgate_with_env(arguments, &[])
}

/// The same, with environment variables.
pub(crate) fn tollgate_with_env(arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = command(arguments);
    command.envs(variables.iter().copied());
    run(command)
}

/// What `tollgate` prints on a terminal.
pub(crate) fn tollgate_on_a_terminal(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = command(arguments);
    command.envs(variables.iter().copied());
    let home = TempDir::new().expect("a temporary directory can be made");
    let (terminal, copying) = terminal::copied_to(&home.path().join(STDOUT));
    let stderr = create(&home, STDERR);
    spawn(command, &home, Some(terminal), stderr).wait_until_ended();
    copying.join().expect("everything is copied");
    read(&home, STDOUT)
}

/// A path of this repository.
pub(crate) fn sample(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file of this repository.
pub(crate) fn read_sample(path: &str) -> String {
    fs::read_to_string(sample(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs `tollgate` with a text on stdin until it ends.
pub(crate) fn tollgate_with_stdin(arguments: &[&str], text: &str) -> Ran {
    let mut stdin = tempfile::tempfile().expect("a temporary file can be made");
    stdin.write_all(text.as_bytes()).and_then(|()| stdin.rewind()).expect("it is ours");
    let mut command = command(arguments);
    command.stdin(stdin);
    run(command)
}

fn run(command: Command) -> Ran {
    let home = TempDir::new().expect("a temporary directory can be made");
    let stderr = create(&home, STDERR);
    finish(command, &home, stderr)
}

fn finish(command: Command, home: &TempDir, stderr: Stdio) -> Ran {
    let code = spawn(command, home, None, stderr).wait_until_ended().code();
    Ran { code, stdout: read(home, STDOUT), stderr: read(home, STDERR) }
}

impl Client {
    /// Connects.
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("it is an address");
        Self::on(endpoint.timeout(PATIENCE).connect().await.expect("the port is open"))
    }

    /// On a connection that was made already.
    pub(crate) fn on(channel: Channel) -> Self {
        Self {
            rls: RateLimitServiceClient::new(channel.clone()),
            health: HealthClient::new(channel.clone()),
            channel,
        }
    }

    /// Calls ShouldRateLimit.
    pub(crate) async fn call(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        self.rls.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// The response, which is no error.
    pub(crate) async fn answer(&mut self, request: RateLimitRequest) -> RateLimitResponse {
        self.call(request).await.expect("there is an answer")
    }

    /// Asks about one descriptor, and gets an answer.
    pub(crate) async fn ask(&mut self, domain: &str, entries: &[(&str, &str)]) -> Code {
        self.call(request(domain, &[entries])).await.expect("there is an answer").overall_code()
    }

    /// gRPC health.
    pub(crate) async fn health(&mut self, service: &str) -> Result<ServingStatus, Status> {
        let request = HealthCheckRequest { service: service.to_owned() };
        self.health.check(request).await.map(|response| response.into_inner().status())
    }

    /// gRPC health, as it changes.
    pub(crate) async fn watch(&mut self, service: &str) -> tonic::Streaming<HealthCheckResponse> {
        let request = HealthCheckRequest { service: service.to_owned() };
        self.health.watch(request).await.expect("anything can be watched").into_inner()
    }
}

/// The next status of a health watch.
pub(crate) async fn next_status(
    stream: &mut tonic::Streaming<HealthCheckResponse>,
) -> ServingStatus {
    let status = stream.message().await.expect("the stream is open");
    status.expect("a status").status()
}

/// The counter of that name and labels.
pub(crate) fn counted(metrics: &Metrics, series: &str) -> u64 {
    let page = metrics.page();
    let value = value_on(&page, series).unwrap_or_else(|| panic!("{series} is not on the page"));
    value.parse().expect("a counter is a number")
}

/// A request without hits_addend: one hit.
pub(crate) fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
    RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 }
}

/// A descriptor without anything but its entries.
pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = entries
        .iter()
        .map(|&(key, value)| Entry { key: key.into(), value: value.into() })
        .collect();
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

/// Rules of domain `d` with one limit, for `key: k`.
pub(crate) fn limit_of(requests: u32) -> String {
    format!(
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{unit: year, requests_per_unit: {requests}}}\n"
    )
}

/// Writes a file, and the directories above it. A service that watches it finds the old content or
/// the new, and no part of it.
pub(crate) fn write(path: &Path, content: &(impl AsRef<[u8]> + ?Sized)) {
    let directory = path.parent().expect("a file is in a directory");
    fs::create_dir_all(directory).expect("directories can be made");
    // Directories of rules are read without files whose names begin with a dot.
    let new = directory.join(".new");
    fs::write(&new, content).expect("a file can be written");
    fs::rename(new, path).expect("both are in one directory");
}

/// Copies a file in the same way.
pub(crate) fn copy(from: &Path, to: &Path) {
    write(to, &fs::read(from).expect("the file can be read"));
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, looking).await.is_ok(),
        "in {PATIENCE:?} it did not happen that {what}"
    );
}

/// The text of a file with tests, as `docs/compatibility.md` names it: `src/…`, or a path below
/// `tests/suite/`.
pub(crate) fn read_test_file(file: &str) -> String {
    let folder = if file.starts_with("src/") { "" } else { "tests/suite/" };
    read_sample(&format!("{folder}{file}"))
}

/// The most resident memory that a process ever had.
pub(crate) fn resident_peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let words =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says how much");
    words.trim().trim_end_matches(" kB").parse().expect("it is a number")
}

/// Resets [`resident_peak_kib`] to the memory in use.
pub(crate) fn forget_resident_peak(pid: u32) {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("it is our child");
}
