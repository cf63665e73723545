//! The script that decides many checks of any algorithm in one call.
//!
//! The script consists of `driver.lua`, which walks the checks, and the Lua twins of all
//! algorithms. One call for each check would cost Redis three times as much.

use std::sync::LazyLock;

use bb8_redis::redis::{self, Cmd};
use smallvec::SmallVec;

use crate::base::time::Time;
use crate::limits::algorithm::counter;
use crate::limits::check::runs;
use crate::store::redis::client::encode::{EncodedCheck, Mode};

const DRIVER: &str = include_str!("driver.lua");
/// The line of the driver that the twins replace.
const TWINS: &str = "--@ the twins of all algorithms\n";

/// A script and its hash.
#[derive(Debug)]
pub struct Script {
    text: String,
    hash: String,
}

/// How a call names the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// EVALSHA. Redis may have forgotten it: after a restart, a failover or a flush.
    Hash,
    /// EVAL, which makes Redis cache it.
    Text,
}

impl Script {
    /// A script of this text.
    pub fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// The script in use.
    pub fn serving() -> &'static Self {
        static SERVING: LazyLock<Script> = LazyLock::new(|| Script::new(assemble()));
        &SERVING
    }

    /// The text of the script.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A call for the checks of requests, each with its mode. `now` replaces the server's clock.
    pub fn command<'c, C>(
        &self,
        groups: impl Iterator<Item = (Mode, C)> + Clone,
        now: Option<Time>,
        form: Form,
    ) -> Cmd
    where
        C: IntoIterator<Item = &'c EncodedCheck>,
    {
        let all = || groups.clone().flat_map(|(_, checks)| checks);
        let (name, script) = match form {
            Form::Hash => ("EVALSHA", &self.hash),
            Form::Text => ("EVAL", &self.text),
        };
        let mut command = redis::cmd(name);
        command.arg(script).arg(all().count());
        for check in all() {
            command.arg(check.key.as_bytes());
        }
        match now {
            Some(now) => command.arg(now.as_micros()),
            None => command.arg(""),
        };
        for (mode, checks) in groups {
            let checks: SmallVec<[&EncodedCheck; 4]> = checks.into_iter().collect();
            for group in runs(&checks, |check| check.group) {
                if group.len() > 1 {
                    command.arg(format!("T{}", group.len()));
                }
                for check in group {
                    add(check, mode, &mut command);
                }
            }
        }
        command
    }
}

/// Adds the argument of a check, after its marks.
fn add(check: &EncodedCheck, mode: Mode, command: &mut Cmd) {
    match mode {
        Mode::DryRun => drop(command.arg("L")),
        Mode::Reset => drop(command.arg("D")),
        Mode::Independent | Mode::Grant => {}
    }
    if let Some(until) = check.end() {
        command.arg(format!("U{}", until.as_micros()));
    }
    if let Some(ahead) = check.ahead() {
        command.arg(ahead.argument(check.price));
    }
    command.arg(check.argument.as_slice());
}

/// The driver, with a maker for each twin, so that a call makes only the twins that it needs.
fn assemble() -> String {
    let makers = counter::LUA.map(|(name, text)| {
        format!("makers[#makers + 1] = function()\n{text}return {name}\nend\n")
    });
    let twins = [counter::LUA_SHARED, &makers.concat()].concat();
    counter::without_comments(&DRIVER.replace(TWINS, &twins))
}
