//! A redis-server of one test, gone with it.
//!
//! It has a Unix socket in a directory of its own whatever else it listens on: by that the test talks to it, past TLS and ports.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use ::redis::{Client, Connection, ConnectionAddr, IntoConnectionInfo as _, RedisResult, Value};
use tempfile::TempDir;

use super::certificates::Identity;
use super::{PATIENCE, look_until};

/// A running server. Dropped, it is killed; in a test that fails, its log is shown.
pub(crate) struct RedisProcess {
    child: Child,
    home: Home,
    /// 0 if it has nothing but its socket.
    port: u16,
    scheme: &'static str,
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
        if self.port == 0 { self.socket().display().to_string() } else { format!("{}:{}", Ipv4Addr::LOCALHOST, self.port) }
    }

    /// The same with its scheme, and without credentials.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address())
    }

    /// 0 if it has nothing but its socket.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The path of the socket that it always has.
    pub(crate) fn socket(&self) -> PathBuf {
        self.home.socket()
    }

    /// The number of its process, such as for SIGSTOP.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A connection past every door, as a user who may do anything.
    pub(crate) fn connection(&self) -> Connection {
        self.home.connection().unwrap_or_else(|error| panic!("no connection: {error}"))
    }

    /// Whether it answers, and is not busy with a script that takes too long.
    pub(crate) fn answers(&self) -> bool {
        self.home.command(&["PING"]).is_ok()
    }

    /// The number behind that name in a section of INFO, if it is there.
    pub(crate) fn info(&self, section: &str, name: &str) -> Option<u64> {
        let info: String = ::redis::from_redis_value(self.command(&["INFO", section])).expect("it is text");
        let rest = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().expect("a number"))
    }

    /// Runs a command past every door, as a user who may do anything.
    pub(crate) fn command(&self, words: &[&str]) -> Value {
        self.home.command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
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
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there are free ports");
            let port = listener.local_addr().expect("it is bound").port();
            drop(listener);
            if let Some(child) = self.try_start(port) {
                let (port, scheme) = match self.door {
                    Door::Tcp => (port, "redis"),
                    Door::Tls => (port, "rediss"),
                    Door::Socket => (0, "unix"),
                };
                return RedisProcess { child, home: self.home, port, scheme };
            }
        }
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
            has_ended || self.home.command(&["PING"]).is_ok()
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

    fn command(&self, words: &[&str]) -> RedisResult<Value> {
        let (name, arguments) = words.split_first().expect("there is a command");
        ::redis::cmd(name).arg(arguments).query(&mut self.connection()?)
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        // Either fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("redis-server's log:\n{}", fs::read_to_string(self.home.log()).unwrap_or_default());
        }
    }
}
