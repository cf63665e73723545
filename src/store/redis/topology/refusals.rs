//! The commands that a server does not allow: its user may not, or a proxy knows no others.
//!
//! Fixed windows are then counted with the commands of envoyproxy/ratelimit alone: INCRBY and EXPIRE.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bb8_redis::redis::{Pipeline, RedisError};
use parking_lot::Mutex;

use crate::base::time;
use crate::store::redis::topology::node::Node;
use crate::store::redis::topology::pool::NodePool;

/// How often a refused command is tried again: its user may be allowed it by now.
const AGAIN_INTERVAL: Duration = Duration::from_secs(60);

pub(super) const TIME: &str = "TIME";
const EVALSHA: &str = "EVALSHA";
const INCR: &str = "INCR";

/// The refused commands of one server.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// Why commands that only some limits need are refused.
    causes: Mutex<BTreeMap<&'static str, String>>,
    /// Whether any command was ever refused: INCRBY, which does the same, is sent for INCR.
    any: AtomicBool,
}

impl Refusals {
    pub(super) fn record(&self, command: &'static str, cause: &str) {
        self.any.store(true, Relaxed);
        if command != INCR {
            self.causes.lock().insert(command, cause.to_owned());
        }
    }

    /// Whether the server gets the commands of envoyproxy/ratelimit where they do.
    pub(crate) fn has_any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Why commands that only some limits need are refused, if they are.
    pub(super) fn causes(&self) -> Option<String> {
        let causes: Vec<String> = self.causes.lock().values().cloned().collect();
        (!causes.is_empty()).then(|| causes.join(", "))
    }

    fn commands(&self) -> Vec<&'static str> {
        self.causes.lock().keys().copied().collect()
    }
}

/// The command that an error reply refuses. Not one inside of the script.
pub(super) fn refused_by(error: &str) -> Option<&'static str> {
    let error = error.to_ascii_lowercase();
    let names = |names: &[&str]| names.iter().any(|name| error.contains(name));
    match error.starts_with("noperm") || error.contains("unknown command") {
        true if names(&["'eval", "`eval"]) => Some(EVALSHA),
        true if names(&["'incr'", "`incr`"]) => Some(INCR),
        _ => None,
    }
}

/// Whether a server that replies to other commands does not allow this one.
pub(super) fn is_refused(error: &RedisError) -> bool {
    let is_dropped = error.is_connection_dropped() && !error.is_timeout();
    matches!(error.code(), Some("NOPERM" | "ERR")) || is_dropped
}

/// Tries refused commands again, for as long as the process lives.
pub(super) async fn run(pool: &NodePool) {
    let mut again = time::ticks(AGAIN_INTERVAL);
    loop {
        again.tick().await;
        let nodes = pool.topology().nodes.clone();
        for node in &nodes {
            for command in node.health.refusals.commands() {
                if is_allowed(node, command).await {
                    node.health.refusals.causes.lock().remove(command);
                    if command == TIME {
                        node.clock.use_servers();
                    }
                }
            }
        }
    }
}

async fn is_allowed(node: &Node, command: &str) -> bool {
    let mut commands = Pipeline::with_capacity(1);
    match command {
        TIME => commands.cmd(TIME),
        // No script has this hash.
        _ => commands.cmd(EVALSHA).arg("0".repeat(40)).arg(0),
    };
    let asked = async {
        let mut connection = node.connector.connect_background().await?;
        connection.ask(&commands).await
    };
    match asked.await {
        Ok(_) => true,
        Err(error) => error.code() == Some("NOSCRIPT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_commands_are_no_refused_commands_of_scripts() {
        for (error, expected) in [
            (
                "NOPERM User rls has no permissions to run the 'evalsha' command",
                Some(EVALSHA),
            ),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: 'x'",
                Some(EVALSHA),
            ),
            (
                "ERR unknown command `EVALSHA`, with args beginning with: `x`",
                Some(EVALSHA),
            ),
            (
                "NOPERM User rls has no permissions to run the 'incr' command",
                Some(INCR),
            ),
            (
                "NOPERM User rls has no permissions to run the 'incrby' command",
                None,
            ),
            ("NOSCRIPT No matching script. Please use EVAL.", None),
        ] {
            assert_eq!(refused_by(error), expected, "{error}");
        }
    }
}
