//! What the scripted Redis does with commands: canned replies, redirections, counters and their
//! expiry.

use std::collections::HashMap;

use tokio::sync::mpsc;
use tollgate::base::time::{Span, Time};
use tollgate::limits::Limit;
use tollgate::limits::algorithm::Counter;
use tollgate::store::redis::topology::cluster;

use super::resp::Reply;
use super::script::{self, Ahead, Marks, State};

pub(super) const WRONG_TYPE: &str =
    "WRONGTYPE Operation against a key holding the wrong kind of value";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// The counters of a server: what a Redis replica has a copy of.
pub(super) type Counters = HashMap<Vec<u8>, Kept>;

/// What stands at a key.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) state: State,
    pub(super) expires: Option<Time>,
}

/// What the connections of a server share.
#[derive(Default)]
pub(super) struct Database {
    pub(super) counters: Counters,
    /// Prefixes of keys that hold something else.
    pub(super) foreign: Vec<Vec<u8>>,
    subscribers: Vec<(Vec<u8>, mpsc::UnboundedSender<Vec<u8>>)>,
    pub(super) knows_script: bool,
    /// Passwords that AUTH accepts; none if it is not needed.
    pub(super) passwords: Vec<String>,
    pub(super) canned: HashMap<String, Reply>,
    pub(super) redirects: HashMap<u16, Redirect>,
    /// How many checks were decided so far.
    pub(super) decided: usize,
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

/// The words that name a command: two for those with subcommands.
pub(super) fn name(command: &[Vec<u8>]) -> String {
    let word = |index: usize| String::from_utf8_lossy(&command[index]).to_uppercase();
    match word(0) {
        first if matches!(&*first, "CLUSTER" | "SENTINEL" | "CLIENT" | "SCRIPT") => {
            format!("{first} {}", word(1))
        }
        first => first,
    }
}

impl Session {
    pub(super) fn new(publish: mpsc::UnboundedSender<Vec<u8>>) -> Self {
        Self { publish, is_asking: false, is_authenticated: false }
    }
}

impl Database {
    /// What is spent at a key, in the units of its algorithm.
    pub(super) fn spent(&mut self, key: &str, now: Time) -> u64 {
        self.live(key.as_bytes(), now).map_or(0, |kept| kept.state.spent_at(now))
    }

    /// What stands at a key, as the algorithm of this limit counts.
    pub(super) fn counter(&mut self, key: &str, limit: &Limit, now: Time) -> Counter {
        let Some(kept) = self.live(key.as_bytes(), now) else {
            return Counter::new(limit);
        };
        match &kept.state {
            State::Number(_) | State::Bucket { .. } => {
                Counter::of(limit, now, kept.state.spent_at(now))
            }
            State::Counter(_, counter) => counter.clone(),
        }
    }

    /// What the script finds at a key.
    pub(super) fn find(&mut self, key: &[u8], now: Time) -> Result<Option<State>, String> {
        if self.is_foreign(key) {
            return Err(WRONG_TYPE.to_owned());
        }
        Ok(self.live(key, now).map(|kept| kept.state.clone()))
    }

    /// Keeps what the script has changed. Only what is new of a fixed window gets a life, in
    /// seconds; of all others nothing is left by the time that they expire.
    pub(super) fn keep(&mut self, key: &[u8], state: State, life: u64, now: Time) {
        let expires = match (&state, self.live(key, now)) {
            (State::Number(_), None) => Some(now.plus(Span::from_secs(life))),
            (State::Number(_), Some(kept)) => kept.expires,
            _ => Some(Time::from_micros(u64::MAX)),
        };
        self.counters.insert(key.to_vec(), Kept { state, expires });
    }

    /// What stands at a key, unless it has expired.
    fn live(&mut self, key: &[u8], now: Time) -> Option<&mut Kept> {
        if self
            .counters
            .get(key)
            .is_some_and(|kept| kept.expires.is_some_and(|expires| expires <= now))
        {
            self.counters.remove(key);
        }
        self.counters.get_mut(key)
    }

    fn is_foreign(&self, key: &[u8]) -> bool {
        self.foreign.iter().any(|prefix| key.starts_with(prefix))
    }

    /// Runs a command, unless it gets this error.
    pub(super) fn run(
        &mut self,
        name: &str,
        command: &[Vec<u8>],
        error: Option<&str>,
        session: &mut Session,
        now: Time,
    ) -> Reply {
        if let Some(error) = error.filter(|error| {
            is_for_all(error) || matches!(name, "INCR" | "INCRBY" | "SET" | "EXPIRE")
        }) {
            return Reply::error(error);
        }
        if name == "AUTH" {
            session.is_authenticated = command.last().is_some_and(|given| {
                self.passwords.iter().any(|password| password.as_bytes() == given)
            });
            return if session.is_authenticated {
                Reply::Status("OK")
            } else {
                Reply::error(WRONG_PASSWORD)
            };
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
            "SELECT" | "CLIENT SETINFO" | "ASKING" => Reply::Status("OK"),
            "TIME" => {
                let seconds = now.as_micros() / 1_000_000;
                let micros = now.as_micros() % 1_000_000;
                Reply::List(vec![Reply::Text(seconds.to_string()), Reply::Text(micros.to_string())])
            }
            "ROLE" => Reply::role("master"),
            "INCR" | "INCRBY" => self
                .add(&command[1], command.get(2).map_or(1, |hits| number(hits)), now)
                .map_or_else(Reply::error, Reply::Int),
            "SET" => self.set(command, now),
            "EXPIRE" => self.expire(&command[1], number(&command[2]), now),
            "TTL" => self.life(&command[1], now),
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
            "INCR" | "INCRBY" | "SET" | "EXPIRE" => &command[1],
            "EVAL" | "EVALSHA" => command.get(3)?,
            _ => return None,
        };
        let slot = cluster::slot(key);
        match self.redirects.get(&slot)? {
            Redirect::Moved(to) => Some(Reply::Error(format!("MOVED {slot} {to}"))),
            Redirect::Ask(to) => Some(Reply::Error(format!("ASK {slot} {to}"))),
            Redirect::Importing(from) => {
                (!was_asking).then(|| Reply::Error(format!("MOVED {slot} {from}")))
            }
        }
    }

    /// SET with a number, and EX.
    fn set(&mut self, command: &[Vec<u8>], now: Time) -> Reply {
        let [_, key, value, ex, life] = command else {
            return Reply::error("ERR syntax error");
        };
        assert_eq!(ex, b"EX");
        let expires = now.plus(Span::from_secs(number(life).unsigned_abs()));
        self.put(key, number(value), Some(expires));
        Reply::Status("OK")
    }

    fn add(&mut self, key: &[u8], hits: i64, now: Time) -> Result<i64, &'static str> {
        if self.is_foreign(key) {
            return Err(WRONG_TYPE);
        }
        self.decided += 1;
        let (used, expires) = match self.live(key, now) {
            None => (0, None),
            Some(Kept { state, expires }) => match state {
                State::Number(used) => (*used, *expires),
                _ => return Err(WRONG_TYPE),
            },
        };
        let used = used.saturating_add(hits);
        self.put(key, used, expires);
        Ok(used)
    }

    fn put(&mut self, key: &[u8], number: i64, expires: Option<Time>) {
        let state = State::Number(number);
        self.counters.insert(key.to_vec(), Kept { state, expires });
    }

    fn expire(&mut self, key: &[u8], life: i64, now: Time) -> Reply {
        let found = self.live(key, now);
        Reply::Int(i64::from(found.is_some_and(|kept| {
            kept.expires = Some(now.plus(Span::from_secs(life.unsigned_abs())));
            true
        })))
    }

    fn life(&mut self, key: &[u8], now: Time) -> Reply {
        let life = |kept: &mut Kept| {
            kept.expires.map_or(-1, |expires| expires.since(now).ceil_secs().cast_signed())
        };
        Reply::Int(self.live(key, now).map_or(-2, life))
    }

    pub(super) fn publish(&mut self, channel: &[u8], message: &[u8]) -> Reply {
        let mut bytes = Vec::new();
        Reply::List(vec![Reply::text("message"), text(channel), text(message)]).write(&mut bytes);
        self.subscribers.retain(|(_, subscriber)| !subscriber.is_closed());
        let subscribers = self.subscribers.iter().filter(|(subscribed, _)| subscribed == channel);
        let heard =
            subscribers.filter(|(_, subscriber)| subscriber.send(bytes.clone()).is_ok()).count();
        Reply::Int(i64::try_from(heard).expect("few"))
    }

    /// As `driver.lua` does. `words` begins with the number of keys.
    fn run_script(&mut self, words: &[Vec<u8>], error: Option<&str>, now: Time) -> Reply {
        let count = usize::try_from(number(&words[0])).expect("a number of keys");
        let (keys, arguments) = words[1..].split_at(count);
        let told = arguments[0].is_empty().then_some(now);
        let now = told.unwrap_or_else(|| Time::from_micros(number(&arguments[0]).unsigned_abs()));
        let mut replies = vec![Reply::Int(now.as_micros().cast_signed())];
        let mut keys = keys.iter();
        let mut arguments = arguments[1..].iter();
        let mut marks = Marks::default();
        while let Some(argument) = arguments.next() {
            match argument[0] {
                b'L' => marks.is_tried = true,
                b'U' => {
                    let until = str::from_utf8(&argument[1..]).map(str::parse);
                    let until = until.expect("text").expect("a time");
                    marks.is_tried = now >= Time::from_micros(until);
                }
                b'A' => marks.ahead = Some(Ahead::read(&argument[1..])),
                b'T' => {
                    let length = usize::try_from(number(&argument[1..])).expect("a length");
                    let next = |_| {
                        (
                            keys.next().expect("a key").as_slice(),
                            arguments.next().expect("an argument").as_slice(),
                        )
                    };
                    let checks: Vec<_> = (0..length).map(next).collect();
                    self.decided += length;
                    let decided = script::decide_all_or_nothing(self, &checks, error, now);
                    replies
                        .extend(decided.unwrap_or_else(|error| vec![Reply::Text(error); length]));
                }
                _ => {
                    let key = keys.next().expect("a key for each check");
                    self.decided += 1;
                    let marks = std::mem::take(&mut marks);
                    let decided = script::decide(self, key, argument, marks, error, now);
                    replies.push(decided.unwrap_or_else(Reply::Text));
                }
            }
        }
        Reply::List(replies)
    }
}

/// Whether an error is the reply to every command. Others are for those that write.
fn is_for_all(error: &str) -> bool {
    !["OOM", "READONLY", "MASTERDOWN"].iter().any(|code| error.starts_with(code))
}

fn number(word: &[u8]) -> i64 {
    str::from_utf8(word).ok().and_then(|word| word.parse().ok()).expect("a number")
}

fn text(word: &[u8]) -> Reply {
    Reply::Text(String::from_utf8_lossy(word).into_owned())
}
