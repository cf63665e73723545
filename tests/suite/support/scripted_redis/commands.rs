//! What the scripted Redis does with commands: canned replies, redirections, fixed windows and buckets.

use std::collections::HashMap;

use tokio::sync::mpsc;
use tollgate::store::redis::cluster;
use tollgate::time::Time;

use super::resp::Reply;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";
/// Codes of the script's arguments: `Kind` plus one.
const WINDOW: u8 = 1;
const BUCKET: u8 = 2;

/// What the connections of a server share.
#[derive(Default)]
pub(super) struct Database {
    counters: HashMap<Vec<u8>, Counter>,
    foreign: Vec<Vec<u8>>,
    subscribers: Vec<(Vec<u8>, mpsc::UnboundedSender<Vec<u8>>)>,
    pub(super) knows_script: bool,
    /// Passwords that AUTH accepts; none if it is not needed.
    pub(super) passwords: Vec<String>,
    pub(super) canned: HashMap<String, Reply>,
    pub(super) redirects: HashMap<u16, Redirect>,
}

/// What one connection has said before.
pub(super) struct Session {
    publish: mpsc::UnboundedSender<Vec<u8>>,
    is_asking: bool,
    is_authenticated: bool,
}

/// Where a node sends clients that ask for keys of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Redirect {
    Moved(String),
    Ask(String),
    /// The slot is being imported: only commands after ASKING run, and others are sent there.
    Importing(String),
}

/// What has been spent, and for a bucket the tick as of which that is.
#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    spent: i64,
    at: i64,
}

/// The words that name a command: two for those with subcommands.
pub(super) fn name(command: &[Vec<u8>]) -> String {
    let word = |index: usize| String::from_utf8_lossy(&command[index]).to_uppercase();
    match word(0) {
        first if matches!(&*first, "CLUSTER" | "SENTINEL" | "CLIENT" | "SCRIPT") => format!("{first} {}", word(1)),
        first => first,
    }
}

impl Session {
    pub(super) fn new(publish: mpsc::UnboundedSender<Vec<u8>>) -> Self {
        Self { publish, is_asking: false, is_authenticated: false }
    }
}

impl Database {
    pub(super) fn set_foreign(&mut self, prefix: &str, is_there: bool) {
        self.foreign.retain(|known| known != prefix.as_bytes());
        if is_there {
            self.foreign.push(prefix.as_bytes().to_vec());
        }
    }

    pub(super) fn evict(&mut self, prefix: &str) {
        self.counters.retain(|key, _| !key.starts_with(prefix.as_bytes()));
    }

    pub(super) fn hits(&self, prefix: &str) -> i64 {
        self.counters.iter().filter(|(key, _)| key.starts_with(prefix.as_bytes())).map(|(_, counter)| counter.spent).sum()
    }

    /// Runs a command, unless it gets this error.
    pub(super) fn run(&mut self, name: &str, command: &[Vec<u8>], error: Option<&str>, session: &mut Session, now: Time) -> Reply {
        if let Some(error) = error.filter(|error| is_for_all(error) || matches!(name, "INCRBY" | "SET" | "EXPIRE")) {
            return Reply::error(error);
        }
        if name == "AUTH" {
            session.is_authenticated =
                command.last().is_some_and(|given| self.passwords.iter().any(|password| password.as_bytes() == given));
            return if session.is_authenticated { Reply::Status("OK") } else { Reply::error(WRONG_PASSWORD) };
        }
        if !session.is_authenticated && !self.passwords.is_empty() {
            return Reply::error("NOAUTH Authentication required.");
        }
        if let Some(reply) = self.canned.get(name) {
            return reply.clone();
        }
        let was_asking = std::mem::replace(&mut session.is_asking, name == "ASKING");
        if let Some(redirect) = self.redirect(name, command, was_asking) {
            return redirect;
        }
        match name {
            "PING" => Reply::Status("PONG"),
            "SELECT" | "CLIENT SETINFO" | "ASKING" | "EXPIRE" => Reply::Status("OK"),
            "TIME" => {
                let (seconds, micros) = (now.as_micros() / 1_000_000, now.as_micros() % 1_000_000);
                Reply::List(vec![Reply::Text(seconds.to_string()), Reply::Text(micros.to_string())])
            }
            "ROLE" => Reply::role("master"),
            "INCRBY" => self.add(&command[1], number(&command[2])).map_or_else(Reply::error, Reply::Int),
            "SET" => self.set(command),
            "EVALSHA" if !self.knows_script => Reply::error(NO_SCRIPT),
            "EVALSHA" | "EVAL" => {
                self.knows_script = true;
                self.run_script(&command[2..], error, now)
            }
            "SUBSCRIBE" => {
                self.subscribers.push((command[1].clone(), session.publish.clone()));
                Reply::List(vec![Reply::text("subscribe"), text(&command[1]), Reply::Int(1)])
            }
            "PUBLISH" => self.publish(&command[1], &command[2]),
            _ => Reply::Error(format!("ERR unknown command '{name}'")),
        }
    }

    fn redirect(&self, name: &str, command: &[Vec<u8>], was_asking: bool) -> Option<Reply> {
        let key = match name {
            "INCRBY" | "SET" | "EXPIRE" => &command[1],
            "EVAL" | "EVALSHA" => command.get(3)?,
            _ => return None,
        };
        let slot = cluster::slot(key);
        match self.redirects.get(&slot)? {
            Redirect::Moved(to) => Some(Reply::Error(format!("MOVED {slot} {to}"))),
            Redirect::Ask(to) => Some(Reply::Error(format!("ASK {slot} {to}"))),
            Redirect::Importing(from) => (!was_asking).then(|| Reply::Error(format!("MOVED {slot} {from}"))),
        }
    }

    fn set(&mut self, command: &[Vec<u8>]) -> Reply {
        if command.last().is_some_and(|word| word == b"NX") && self.counters.contains_key(&command[1]) {
            return Reply::Nil;
        }
        self.counters.insert(command[1].clone(), Counter { spent: number(&command[2]), at: 0 });
        Reply::Status("OK")
    }

    fn add(&mut self, key: &[u8], hits: i64) -> Result<i64, &'static str> {
        if self.foreign.iter().any(|prefix| key.starts_with(prefix)) {
            return Err(WRONG_TYPE);
        }
        let counter = self.counters.entry(key.to_vec()).or_default();
        counter.spent = counter.spent.saturating_add(hits);
        Ok(counter.spent)
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) -> Reply {
        let mut bytes = Vec::new();
        Reply::List(vec![Reply::text("message"), text(channel), text(message)]).write(&mut bytes);
        self.subscribers.retain(|(_, subscriber)| !subscriber.is_closed());
        let subscribers = self.subscribers.iter().filter(|(subscribed, _)| subscribed == channel);
        let heard = subscribers.filter(|(_, subscriber)| subscriber.send(bytes.clone()).is_ok()).count();
        Reply::Int(i64::try_from(heard).expect("few"))
    }

    /// As `driver.lua` does, without checks that are decided together. `words` begins with the number of keys.
    fn run_script(&mut self, words: &[Vec<u8>], error: Option<&str>, now: Time) -> Reply {
        let count = usize::try_from(number(&words[0])).expect("a number of keys");
        let (keys, arguments) = words[1..].split_at(count);
        let now = if arguments[0].is_empty() { now.as_micros().cast_signed() } else { number(&arguments[0]) };
        let mut replies = vec![Reply::Int(now)];
        let (mut keys, mut is_tried) = (keys.iter(), false);
        for argument in &arguments[1..] {
            match argument[0] {
                b'i' => {
                    let run = String::from_utf8_lossy(&argument[1..]).into_owned();
                    let [length, hits, _] = run.split(' ').map(|number| number.parse().expect("a number")).collect::<Vec<i64>>()[..] else {
                        panic!("{run} has three numbers");
                    };
                    for key in keys.by_ref().take(usize::try_from(length).expect("a length")) {
                        let counted = error.map_or_else(|| self.add(key, hits).map_err(str::to_owned), |error| Err(error.to_owned()));
                        replies.push(counted.map_or_else(Reply::Text, Reply::Int));
                    }
                }
                b'L' => is_tried = true,
                b'T' => return Reply::error("ERR the scripted Redis decides nothing together"),
                _ => {
                    let key = keys.next().expect("a key for each check");
                    let decided = self.decide(key, argument, std::mem::take(&mut is_tried), error, now);
                    replies.push(decided.map_or_else(Reply::Text, Reply::Int));
                }
            }
        }
        Reply::List(replies)
    }

    fn decide(&mut self, key: &[u8], argument: &[u8], is_tried: bool, error: Option<&str>, now: i64) -> Result<i64, String> {
        if self.foreign.iter().any(|prefix| key.starts_with(prefix)) {
            return Err(WRONG_TYPE.to_owned());
        }
        let [cost, full, deepest, tick, rate] = doubles(argument);
        let (code, drops) = (argument[0], argument[1] == 1);
        let before = self.counters.get(key).copied().unwrap_or_default();
        let at = if code == BUCKET { now / tick } else { 0 };
        let spent = match code {
            WINDOW => before.spent,
            BUCKET => (before.spent - (at - before.at).max(0) * rate).max(0),
            _ => return Err(format!("ERR the scripted Redis knows no algorithm {code}")),
        };
        let is_over = spent + cost > full;
        let after = if is_over && drops { spent } else { (spent + cost).min(deepest).max(0) };
        if !is_tried && after != spent {
            if let Some(error) = error {
                return Err(error.to_owned());
            }
            self.counters.insert(key.to_vec(), Counter { spent: after, at });
        }
        Ok(if is_over { -1 - after } else { after })
    }
}

/// Whether an error is the reply to every command. Others are for those that write.
fn is_for_all(error: &str) -> bool {
    !["OOM", "READONLY", "MASTERDOWN"].iter().any(|code| error.starts_with(code))
}

/// The five numbers of a check's argument, behind three bytes.
fn doubles(argument: &[u8]) -> [i64; 5] {
    let (doubles, _) = argument[3..].as_chunks::<8>();
    #[expect(clippy::cast_possible_truncation, reason = "whole numbers below 2^53")]
    std::array::from_fn(|index| f64::from_le_bytes(doubles[index]) as i64)
}

fn number(word: &[u8]) -> i64 {
    str::from_utf8(word).ok().and_then(|word| word.parse().ok()).expect("a number")
}

fn text(word: &[u8]) -> Reply {
    Reply::Text(String::from_utf8_lossy(word).into_owned())
}
