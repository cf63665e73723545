//! A redis-server of one test, gone with it. Meanwhile it can be stopped, killed, and started again
//! where it was.
//!
//! It has a Unix socket in a directory of its own whatever else it listens on: by that the test
//! talks to it, past TLS and ports. One of these may also be a sentinel (`support/sentinel.rs`), or
//! a node of a cluster (`support/cluster.rs`).

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use ::redis::{
    Client, Connection, ConnectionAddr, FromRedisValue, IntoConnectionInfo as _, RedisResult,
};
use tempfile::TempDir;

use super::certificates::Identity;
use super::faketime::FakeTime;
use super::process::{PATIENCE, Process, look_until};
use super::versions::{DEFAULT, ON_PATH, Version};

/// Below those that Linux gives to clients (from 32,768): none is taken by somebody's connection
/// while the server is away, and no client that tries again and again to reach a server that is
/// away is connected to itself.
const PORTS: Range<u16> = 22_000..32_000;
/// Of nodes of a cluster: so much higher up they talk to each other, which is below PORTS, too.
const CLUSTER_PORTS: Range<u16> = 10_000..12_000;
/// By Redis' own rule, which 6.2 leaves no choice about.
pub(crate) const BUS_PORT_OFFSET: u16 = 10_000;

/// Files in its directory.
const CONFIGURATION: &str = "redis.conf";
const USERS: &str = "users.acl";

/// A running server, by default without persistence. Dropped, it is killed; in a
/// test that fails, its log is shown.
#[derive(Debug)]
pub(crate) struct RedisProcess {
    /// `None` while it is killed.
    process: Option<Process>,
    /// As it was started, and will be again.
    options: Builder,
    home: Home,
    port: u16,
}

/// Options of a server, or of several that are alike; by default it listens on TCP.
#[derive(Debug, Clone)]
pub(crate) struct Builder {
    transport: Transport,
    version: Version,
    /// The configuration of a sentinel, which writes it again itself.
    sentinel: Option<String>,
    /// It is a node of a cluster, before it joins others, and has a second port.
    pub(crate) is_node: bool,
    /// Everybody needs it; replicas send it to their master.
    password: Option<String>,
    /// The file of its users.
    users: Option<String>,
    arguments: Vec<String>,
    /// The test stops it.
    is_in_own_group: bool,
    /// It has a clock that the test sets.
    has_own_clock: bool,
}

/// Its directory, and how the test itself is let in.
#[derive(Debug)]
struct Home {
    directory: TempDir,
    password: Option<String>,
    clock: Option<FakeTime>,
}

#[derive(Debug, Clone, Copy)]
enum Transport {
    Tcp,
    Tls,
}

impl RedisProcess {
    /// A server on a free port.
    pub(crate) fn start() -> Self {
        Self::builder().start()
    }

    /// A server with options.
    pub(crate) fn builder() -> Builder {
        Builder {
            transport: Transport::Tcp,
            version: DEFAULT,
            sentinel: None,
            is_node: false,
            password: None,
            users: None,
            arguments: Vec::new(),
            is_in_own_group: false,
            has_own_clock: false,
        }
    }

    /// As an operator writes it: `127.0.0.1:port`.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.port)
    }

    /// The same with its scheme, and without credentials.
    pub(crate) fn url(&self) -> String {
        let scheme = match self.options.transport {
            Transport::Tcp => "redis",
            Transport::Tls => "rediss",
        };
        format!("{scheme}://{}", self.address())
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The path of the socket that it always has.
    pub(crate) fn socket(&self) -> PathBuf {
        self.home.socket()
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").pid()
    }

    /// An administrative connection, as a user with all permissions.
    pub(crate) fn connection(&self) -> Connection {
        self.home.connection().unwrap_or_else(|error| panic!("no connection: {error}"))
    }

    /// Whether it answers, and is not busy with a script that takes too long.
    pub(crate) fn answers(&self) -> bool {
        self.tries(&["PING"])
    }

    /// A number of a section of INFO.
    pub(crate) fn info(&self, section: &str, name: &str) -> Option<u64> {
        let info = self.text(&["INFO", section]);
        let rest = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().expect("a number"))
    }

    /// Runs a command as a user with all permissions.
    pub(crate) fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.home.command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The same for what answers with a text, which some versions mark as such.
    pub(crate) fn text(&self, words: &[&str]) -> String {
        ::redis::from_redis_value(self.command(words)).expect("it is text")
    }

    /// Runs a command and returns whether it succeeded.
    pub(crate) fn tries(&self, words: &[&str]) -> bool {
        self.home.command::<::redis::Value>(words).is_ok()
    }

    /// Whether it is a master, or alone, and says so.
    pub(crate) fn is_master(&self) -> bool {
        self.says_of_its_part("role:master")
    }

    /// Whether it is a replica, and says so.
    pub(crate) fn is_replica(&self) -> bool {
        self.says_of_its_part("role:slave")
    }

    /// Whether it is a replica that has all that its master has.
    pub(crate) fn follows_its_master(&self) -> bool {
        self.says_of_its_part("master_link_status:up")
    }

    /// Who is given another part hangs up on everybody, also on whoever asks this.
    fn says_of_its_part(&self, what: &str) -> bool {
        let info = self
            .home
            .command(&["INFO", "replication"])
            .and_then(|info| Ok(::redis::from_redis_value::<String>(info)?));
        info.is_ok_and(|info| info.contains(what))
    }

    /// What lets everybody in.
    pub(crate) fn password(&self) -> Option<&str> {
        self.home.password.as_deref()
    }

    /// How many connections others than the test have, than nodes of its cluster, and than
    /// sentinels.
    pub(crate) fn clients(&self) -> usize {
        let list = self.text(&["CLIENT", "LIST", "TYPE", "normal"]);
        // Who moves keys keeps a connection for a while, and sentinels look after it for ever.
        list.lines()
            .filter(|line| !line.contains("cmd=restore") && !line.contains("name=sentinel-"))
            .count()
            - 1
    }

    /// Its clock, if it has one of its own.
    pub(crate) fn clock(&self) -> &FakeTime {
        self.home.clock.as_ref().expect("it was built with one")
    }

    /// Sends SIGSTOP: it stays connected, and says nothing.
    pub(crate) fn stop(&self) {
        self.signal("STOP");
    }

    /// Sends SIGCONT.
    pub(crate) fn cont(&self) {
        self.signal("CONT");
    }

    /// Sends SIGKILL, and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Has it keep what it knows, and end. It has it again when it is restarted.
    pub(crate) fn shut_down(&mut self) {
        // It hangs up instead of an answer.
        let _ = self.home.command::<()>(&["SHUTDOWN", "SAVE"]);
        self.process.take().expect("it runs").wait_until_ended();
    }

    /// Whether it runs, as far as the test has not killed it.
    pub(crate) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Kills it if it runs, starts it where it was, with what it kept, which is nothing unless it
    /// was shut down, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.process = self.options.try_start(&self.home, self.port);
        assert!(self.process.is_some(), "another process has taken port {}", self.port);
    }

    /// Starts it where it was, with what it kept, and does not wait until it answers.
    pub(crate) fn begin_restart(&mut self) {
        self.process = Some(self.options.spawn(&self.home, self.port));
    }

    fn signal(&self, name: &str) {
        self.process.as_ref().expect("it runs").signal(name);
    }
}

impl Builder {
    /// Another server than the default one.
    pub(crate) fn of(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// A clock that the test sets.
    pub(crate) fn with_own_clock(mut self) -> Self {
        self.has_own_clock = true;
        self
    }

    /// A sentinel, with these lines of configuration and a password of its own.
    pub(crate) fn for_sentinel(mut self, lines: String, password: Option<&str>) -> Self {
        self.sentinel = Some(lines);
        self.password = password.map(str::to_owned);
        self
    }

    /// A process group of its own, for a test that stops it.
    pub(crate) fn in_own_group(mut self) -> Self {
        self.is_in_own_group = true;
        self
    }

    /// TLS instead of plain text, and whether clients must show a certificate of the same
    /// authority. The server is the one on the PATH: those of `.tools` have no TLS.
    pub(crate) fn with_tls(mut self, identity: &Identity, auth_clients: &str) -> Self {
        self.version = ON_PATH;
        self.transport = Transport::Tls;
        let [cert, key, ca] = [&identity.cert, &identity.key, &identity.ca]
            .map(|path| path.to_str().expect("a plain name"));
        self.with_arguments(&["--tls-cert-file", cert, "--tls-key-file", key])
            .with_arguments(&["--tls-ca-cert-file", ca, "--tls-auth-clients", auth_clients])
            // What it connects to: its master, or the servers it monitors.
            .with_arguments(&["--tls-replication", "yes"])
    }

    /// The password for everybody.
    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// A password for everybody.
    pub(crate) fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// A user besides the default one, such as `user app on >s3cret ~* +@all`.
    pub(crate) fn with_user(mut self, line: &str) -> Self {
        self.users = Some(format!("user default on nopass ~* &* +@all\n{line}\n"));
        self
    }

    /// Any other options.
    pub(crate) fn with_arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Starts it on a free port, and waits until it answers.
    pub(crate) fn start(self) -> RedisProcess {
        loop {
            // Free now; if another process takes it, there are others.
            if let Some(server) = self.clone().start_at(self.free_port()) {
                return server;
            }
        }
    }

    /// The same on this port; `None` if it is taken.
    pub(crate) fn start_at(self, port: u16) -> Option<RedisProcess> {
        let home = self.home();
        let process = Some(self.try_start(&home, port)?);
        Some(RedisProcess { process, options: self, home, port })
    }

    /// A free port that no other test of this process gets.
    pub(crate) fn free_port(&self) -> u16 {
        if self.is_node { free_port(&CLUSTER_PORTS, &[0, BUS_PORT_OFFSET]) } else { server_port() }
    }

    /// A directory with the files that it reads.
    fn home(&self) -> Home {
        let directory = TempDir::new().expect("a temporary directory can be made");
        for (name, content) in [(CONFIGURATION, &self.sentinel), (USERS, &self.users)] {
            if let Some(content) = content {
                fs::write(directory.path().join(name), content).expect("a file can be written");
            }
        }
        let clock = self.has_own_clock.then(|| FakeTime::new(directory.path()));
        Home { directory, password: self.password.clone(), clock }
    }

    /// `None` if the port is taken.
    fn try_start(&self, home: &Home, port: u16) -> Option<Process> {
        let mut process = self.spawn(home, port);
        let mut has_ended = false;
        look_until("redis-server answers", || {
            has_ended = process.ended().is_some();
            has_ended || home.command::<String>(&["PING"]).is_ok()
        });
        let log = fs::read_to_string(home.log()).unwrap_or_default();
        assert!(!has_ended || log.contains("Address already in use"), "redis-server ended: {log}");
        (!has_ended).then_some(process)
    }

    fn spawn(&self, home: &Home, port: u16) -> Process {
        let mut command = Command::new(self.version.program());
        // Where it finds its files.
        command.current_dir(home.directory.path());
        if self.sentinel.is_some() {
            command.args([CONFIGURATION, "--sentinel"]);
        } else {
            // A sentinel has nothing to save.
            command.args(["--save", "", "--appendonly", "no"]);
        }
        let port = port.to_string();
        match self.transport {
            Transport::Tcp => command.args(["--port", &port]),
            Transport::Tls => command.args(["--port", "0", "--tls-port", &port]),
        };
        // The minus is for machines without IPv6.
        command.args(["--bind", "127.0.0.1", "-::1"]);
        command.arg("--unixsocket").arg(home.socket());
        if self.is_node {
            command.args(["--cluster-enabled", "yes"]);
            if let Transport::Tls = self.transport {
                command.args(["--tls-cluster", "yes"]);
            }
        }
        if let Some(password) = &self.password {
            command.args(["--requirepass", password, "--masterauth", password]);
        }
        if self.users.is_some() {
            command.args(["--aclfile", USERS]);
        }
        command.args(&self.arguments);
        command.envs(home.clock.iter().flat_map(FakeTime::environment));
        if self.is_in_own_group {
            command.process_group(0);
        }
        Process::start(self.version.name, command, home.log())
    }
}

impl Home {
    fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn connection(&self) -> RedisResult<Connection> {
        let info = ConnectionAddr::Unix(self.socket()).into_connection_info()?;
        let settings = info.redis_settings().clone();
        let settings = match &self.password {
            Some(password) => settings.set_password(password),
            None => settings,
        };
        let connection = Client::open(info.set_redis_settings(settings))?.get_connection()?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    fn command<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let (name, arguments) = words.split_first().expect("there is a command");
        ::redis::cmd(name).arg(arguments).query(&mut self.connection()?)
    }
}

/// A free port that no client's connection and no other server takes while its server is away.
pub(crate) fn server_port() -> u16 {
    free_port(&PORTS, &[0])
}

/// A port of these that nobody has, nor those so much higher up, and that no other test of this
/// process is given.
fn free_port(range: &Range<u16>, offsets: &[u16]) -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let ports = range.end - range.start;
    // Runs side by side begin in different places.
    let begin = u16::try_from(std::process::id().wrapping_mul(64) % u32::from(ports))
        .expect("it is below ports");
    let candidates =
        (0..ports).map(|_| range.start + (begin + TAKEN.fetch_add(1, Relaxed) % ports) % ports);
    let is_free = |port: &u16| {
        offsets.iter().all(|offset| TcpListener::bind((Ipv4Addr::LOCALHOST, port + offset)).is_ok())
    };
    candidates.into_iter().find(is_free).expect("some port is free")
}
