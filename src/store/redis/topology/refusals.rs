//! The commands that a server does not allow: its user may not, or a proxy knows no others.
//!
//! Fixed windows are then counted with INCRBY and EXPIRE alone, as by envoyproxy/ratelimit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bb8_redis::redis::RedisError;
use parking_lot::Mutex;

pub(super) const TIME: &str = "TIME";
pub(super) const EVALSHA: &str = "EVALSHA";
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
    pub(crate) fn causes(&self) -> Option<String> {
        let causes: Vec<String> = self.causes.lock().values().cloned().collect();
        (!causes.is_empty()).then(|| causes.join(", "))
    }

    /// Which commands these are.
    pub(super) fn commands(&self) -> Vec<&'static str> {
        self.causes.lock().keys().copied().collect()
    }

    /// The command is allowed again.
    pub(super) fn forget(&self, command: &str) {
        self.causes.lock().remove(command);
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
    matches!(error.code(), Some("NOPERM" | "ERR")) || is_dropped(error)
}

/// Whether the server closed the connection, or refused it.
pub(super) fn is_dropped(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_timeout()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_commands_are_no_refused_commands_of_scripts() {
        for (error, expected) in [
            ("NOPERM User rls has no permissions to run the 'evalsha' command", Some(EVALSHA)),
            ("ERR unknown command 'EVALSHA', with args beginning with: 'x'", Some(EVALSHA)),
            ("ERR unknown command `EVALSHA`, with args beginning with: `x`", Some(EVALSHA)),
            ("NOPERM User rls has no permissions to run the 'incr' command", Some(INCR)),
            ("NOPERM User rls has no permissions to run the 'incrby' command", None),
            ("NOSCRIPT No matching script. Please use EVAL.", None),
        ] {
            assert_eq!(refused_by(error), expected, "{error}");
        }
    }
}
