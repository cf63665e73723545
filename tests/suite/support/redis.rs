//! A redis-server of one test, gone with it. Meanwhile it can be stopped, killed, and started again where it was.
//!
//! It has a Unix socket in a directory of its own whatever else it listens on: by that the test talks to it, past TLS and ports.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::thread;

use ::redis::{Client, Connection, ConnectionAddr, FromRedisValue, IntoConnectionInfo as _, RedisResult};
use tempfile::TempDir;

use super::certificates::Identity;
use super::{PATIENCE, look_until};

/// Below those that Linux gives to clients (from 32,768): none is taken by somebody's connection while the server is away, and no client
/// that tries again and again to reach a server that is away is connected to itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A running server, which keeps nothing on disk unless it is told to. Dropped, it is killed; in a test that fails, its log is shown.
pub(crate) struct RedisProcess {
    /// `None` while it is killed.
    child: Option<Child>,
    /// As it was started, and will be again.
    options: Builder,
    port: u16,
}

/// A server that is not started yet. It listens on TCP unless it is told otherwise.
pub(crate) struct Builder {
    home: Home,
    door: Door,
    arguments: Vec<String>,
}

/// Its directory, and how the test itself is let in.
struct Home {
    directory: TempDir,
    password: Option<String>,
}

#[derive(PartialEq)]
enum Door {
    Tcp,
    Tls,
    Socket,
}

impl RedisProcess {
    /// A server on a free port.
    pub(crate) fn start() -> Self {
        Self::builder().start()
    }

    /// A server with options.
    pub(crate) fn builder() -> Builder {
        let directory = TempDir::new().expect("a temporary directory can be made");
        Builder { home: Home { directory, password: None }, door: Door::Tcp, arguments: Vec::new() }
    }

    /// As an operator writes it: `127.0.0.1:port`, or the path of its socket.
    pub(crate) fn address(&self) -> String {
        match self.options.door {
            Door::Socket => self.socket().display().to_string(),
            Door::Tcp | Door::Tls => format!("{}:{}", Ipv4Addr::LOCALHOST, self.port),
        }
    }

    /// The same with its scheme, and without credentials.
    pub(crate) fn url(&self) -> String {
        let scheme = match self.options.door {
            Door::Tcp => "redis",
            Door::Tls => "rediss",
            Door::Socket => "unix",
        };
        format!("{scheme}://{}", self.address())
    }

    /// Where it listens, unless it has nothing but its socket.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The path of the socket that it always has.
    pub(crate) fn socket(&self) -> PathBuf {
        self.options.home.socket()
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// A connection past every door, as a user who may do anything.
    pub(crate) fn connection(&self) -> Connection {
        self.options.home.connection().unwrap_or_else(|error| panic!("no connection: {error}"))
    }

    /// Whether it answers, and is not busy with a script that takes too long.
    pub(crate) fn answers(&self) -> bool {
        self.options.home.command::<::redis::Value>(&["PING"]).is_ok()
    }

    /// The number behind that name in a section of INFO, if it is there.
    pub(crate) fn info(&self, section: &str, name: &str) -> Option<u64> {
        let info: String = ::redis::from_redis_value(self.command(&["INFO", section])).expect("it is text");
        let rest = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().expect("a number"))
    }

    /// Runs a command past every door, as a user who may do anything.
    pub(crate) fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.options.home.command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Its counters: all keys but the one at which replicas meet.
    pub(crate) fn counters(&self) -> Vec<String> {
        let keys: Vec<String> = self.command(&["KEYS", "*"]);
        keys.into_iter().filter(|key| !key.ends_with("tg:replicas")).collect()
    }

    /// How many connections others than the test have.
    pub(crate) fn clients(&self) -> usize {
        self.command::<String>(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() - 1
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
        if let Some(mut child) = self.child.take() {
            // Either fails only if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills it if it runs, starts it where it was, with what it has kept, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = self.options.try_start(self.port);
        assert!(self.child.is_some(), "somebody has taken port {}", self.port);
    }

    fn signal(&self, name: &str) {
        // It was not waited for, so its number is nobody else's.
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status();
        assert!(sent.expect("there is a shell").success(), "send SIG{name}");
    }
}

impl Builder {
    /// Nothing but a Unix socket.
    pub(crate) fn with_nothing_but_a_socket(mut self) -> Self {
        self.door = Door::Socket;
        self
    }

    /// TLS instead of plain text, and whether clients must show a certificate of the same authority.
    pub(crate) fn with_tls(mut self, identity: &Identity, auth_clients: &str) -> Self {
        self.door = Door::Tls;
        let path = |path: &Path| path.display().to_string();
        self.with_arguments(&["--tls-cert-file", &path(&identity.cert), "--tls-key-file", &path(&identity.key)]).with_arguments(&[
            "--tls-ca-cert-file",
            &path(&identity.ca),
            "--tls-auth-clients",
            auth_clients,
        ])
    }

    /// A password for everybody.
    pub(crate) fn with_password(mut self, password: &str) -> Self {
        self.home.password = Some(password.to_owned());
        self.with_arguments(&["--requirepass", password])
    }

    /// A user besides the default one, such as `user app on >s3cret ~* +@all`.
    pub(crate) fn with_user(self, line: &str) -> Self {
        let path = self.home.directory.path().join("users.acl");
        fs::write(&path, format!("user default on nopass ~* &* +@all\n{line}\n")).expect("a file can be written");
        self.with_arguments(&["--aclfile", &path.display().to_string()])
    }

    /// Any other options.
    pub(crate) fn with_arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Starts it on a free port, and waits until it answers.
    pub(crate) fn start(self) -> RedisProcess {
        loop {
            // Free now; if somebody is faster, there are others.
            let port = free_port();
            if let Some(child) = self.try_start(port) {
                return self.started(child, port);
            }
        }
    }

    /// The same on this port; `None` if it is taken.
    pub(crate) fn start_at(self, port: u16) -> Option<RedisProcess> {
        let child = self.try_start(port)?;
        Some(self.started(child, port))
    }

    fn started(self, child: Child, port: u16) -> RedisProcess {
        RedisProcess { child: Some(child), options: self, port }
    }

    /// `None` if the port is taken.
    fn try_start(&self, port: u16) -> Option<Child> {
        let (tcp, tls) = match self.door {
            Door::Tcp => (port, 0),
            Door::Tls => (0, port),
            Door::Socket => (0, 0),
        };
        let mut command = Command::new("redis-server");
        command.args(["--port", &tcp.to_string(), "--tls-port", &tls.to_string()]);
        // The minus is for machines without IPv6.
        command.args(["--bind", "127.0.0.1", "-::1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(self.home.directory.path()).arg("--logfile").arg(self.home.log());
        command.arg("--unixsocket").arg(self.home.socket()).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("redis-server: {error}; get it by `apt-get install redis-server`"));
        let mut has_ended = false;
        look_until("redis-server answers", || {
            has_ended = child.try_wait().expect("it is our child").is_some();
            has_ended || self.home.command::<String>(&["PING"]).is_ok()
        });
        let log = fs::read_to_string(self.home.log()).unwrap_or_default();
        assert!(!has_ended || log.contains("Address already in use"), "redis-server ended: {log}");
        (!has_ended).then_some(child)
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

impl Drop for RedisProcess {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("redis-server's log:\n{}", fs::read_to_string(self.options.home.log()).unwrap_or_default());
        }
    }
}

/// A port that nobody has, and that no other test of this process is given.
fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let ports = PORTS.end - PORTS.start;
    // Runs side by side begin in different places.
    let begin = u16::try_from(process::id().wrapping_mul(64) % u32::from(ports)).expect("it is below ports");
    let candidates = (0..ports).map(|_| PORTS.start + (begin + TAKEN.fetch_add(1, Relaxed) % ports) % ports);
    let mut free = candidates.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.next().expect("some port is free")
}
