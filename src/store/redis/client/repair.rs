//! Repairs of a key after INCR: a lifetime if it is new, another value if it had one that no
//! counter has, or fewer hits if some were dropped. No caller waits for it.

use bb8_redis::redis::{self, Arg, Cmd, Pipeline, Value};

use crate::limits::check::Key;
use crate::store::redis::topology::lifetimes::Lifetime;

/// Arguments of a command on a key, and bytes of them beside the key: names, and two numbers.
const ARGS_MAX: usize = 5;
const OTHER_BYTES_MAX: usize = 48;

/// The state of a key before INCR, by the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// The key existed and has a lifetime.
    Known,
    /// The key is new and has no lifetime.
    New,
    /// The value was negative, written by another client: treat as 0.
    Negative,
}

#[derive(Debug, Clone)]
pub(crate) enum Repair {
    /// Sets the lifetime of a key that INCR created.
    Expire(Lifetime),
    /// Replaces a value that no counter has.
    Reset { lifetime: Lifetime, hits: i64 },
    /// Gives back hits that were dropped, by the script. Not sent again if there is no reply.
    GiveBack {
        refund: Cmd,
        /// The text to send if the server does not know the script; `None` once it was sent.
        script: Option<&'static str>,
    },
}

impl Repair {
    /// Adds the commands of several repairs, one for each.
    pub(crate) fn add_all(repairs: &[Self], commands: &mut Pipeline) {
        for repair in repairs {
            commands.add_command(match repair {
                Self::Expire(lifetime) => Self::expire(lifetime),
                Self::Reset { lifetime, hits } => {
                    let mut set = key_cmd("SET", &lifetime.key);
                    set.arg(hits).arg("EX").arg(lifetime.secs);
                    set
                }
                Self::GiveBack { refund, .. } => refund.clone(),
            });
        }
    }

    /// Sets the lifetime of a key.
    pub(crate) fn expire(lifetime: &Lifetime) -> Cmd {
        let mut expire = key_cmd("EXPIRE", &lifetime.key);
        expire.arg(lifetime.secs);
        expire
    }

    /// Whether this reply to a repair means that it need not be sent again.
    pub(crate) fn is_confirmed(reply: &Value) -> bool {
        !matches!(reply, Value::ServerError(_))
    }

    /// The refund to send once more after an error reply: the server may not know the script.
    pub(crate) fn with_script(&self) -> Option<Self> {
        let Self::GiveBack { refund, script } = self else {
            return None;
        };
        let mut eval = redis::cmd("EVAL");
        eval.arg((*script)?);
        for argument in refund.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                eval.arg(bytes);
            }
        }
        Some(Self::GiveBack { refund: eval, script: None })
    }

    /// The lifetime to set again if this was not confirmed. A value is not replaced twice: it has
    /// changed meanwhile. Hits that were not given back stay charged until their window ends.
    pub(crate) fn into_lifetime(self) -> Option<Lifetime> {
        match self {
            Self::Expire(lifetime) => Some(lifetime),
            Self::Reset { .. } | Self::GiveBack { .. } => None,
        }
    }
}

/// The begin of a command on a key.
pub(crate) fn key_cmd(name: &str, key: &Key) -> Cmd {
    let mut command = Cmd::with_capacity(ARGS_MAX, key.len() + OTHER_BYTES_MAX);
    command.arg(name).arg(key.as_bytes());
    command
}
