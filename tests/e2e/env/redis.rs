//! Redis: where Tollgate counts, if not in its memory. It can be killed, stopped, and started again
//! where it was.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use redis::{Client, FromRedisValue, RedisResult};

use crate::env::ports::Ports;
use crate::env::process::Process;
use crate::suite::versions::DEFAULT;

/// It answers at once, or it is stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A Redis, without persistence by default.
#[derive(Debug)]
pub(crate) struct RedisServer {
    process: Mutex<Option<Process>>,
    addr: SocketAddr,
    home: PathBuf,
}

impl RedisServer {
    /// Starts it, and waits until it answers.
    pub(crate) fn start(ports: &Ports, home: &Path) -> Self {
        ports.release([ports.redis()]);
        Self::start_at(ports.redis(), home)
    }

    /// The same, where a test says.
    pub(crate) fn start_at(addr: SocketAddr, home: &Path) -> Self {
        let redis = Self {
            process: Mutex::new(None),
            addr,
            home: home.to_owned(),
        };
        redis.start_again();
        redis
    }

    /// As REDIS_URL has it.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Starts it where it was, with what was saved there or else empty, and waits until it answers.
    pub(crate) fn start_again(&self) {
        let mut command = Command::new(DEFAULT.program());
        command.args([
            "--port",
            &self.addr.port().to_string(),
            "--bind",
            &self.addr.ip().to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.current_dir(&self.home);
        let mut slot = self.slot();
        let process = slot.insert(Process::start(
            "redis-server",
            command,
            self.home.join("redis.log"),
        ));
        process.wait_until_ready(|| self.command::<String>(&["PING"]).is_ok());
    }

    /// Writes what it knows to where it starts again.
    pub(crate) fn save(&self) {
        self.command::<String>(&["SAVE"])
            .expect("the directory exists");
    }

    /// Sends SIGKILL, and waits until it has ended.
    pub(crate) fn kill(&self) {
        // Dropped, it is killed.
        self.slot().take().expect("it was started");
    }

    /// Sends SIGSTOP: it stays connected, and says nothing.
    pub(crate) fn stop(&self) {
        self.slot().as_ref().expect("it was started").signal("STOP");
    }

    /// Sends SIGCONT.
    pub(crate) fn cont(&self) {
        self.slot().as_ref().expect("it was started").signal("CONT");
    }

    /// How many hits it has counted in all windows that it knows.
    pub(crate) fn hits(&self) -> u64 {
        let keys: Vec<String> = self.command(&["KEYS", "*"]).expect("Redis answers");
        let hits = keys.iter().map(|key| {
            self.command::<Option<u64>>(&["GET", key])
                .expect("every key is a window")
                .unwrap_or(0)
        });
        hits.sum()
    }

    fn command<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut connection =
            Client::open(self.url())?.get_connection_with_timeout(ANSWER_TIMEOUT)?;
        connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock()
    }
}
