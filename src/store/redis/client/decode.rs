//! Decodes what Redis replied to a check, and makes the verdict of it.

use std::cmp::Ordering;

use bb8_redis::redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::base::time::Time;
use crate::limits::LOG_ENTRIES_MAX;
use crate::limits::algorithm::Counter;
use crate::limits::algorithm::counter::Kind;
use crate::limits::check::{Call, Check, CheckError, Hits, StoreError, Verdict};
use crate::store::redis::client::encode::EncodedCheck;
use crate::store::redis::client::repair::KeyState;
use crate::store::redis::connect::address::short;
use crate::store::redis::topology::cluster::Endpoint;
use crate::store::redis::topology::pool::NodePool;

/// The reply to one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReply {
    /// The spent units of the counter after the check; `-1 - spent` if it was over limit.
    number: i64,
    /// Values that the algorithm needs for the verdict.
    extra: Vec<u64>,
}

/// An error reply to one check, which the server has not executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyError {
    /// MOVED: another node has the slot.
    Moved(Endpoint),
    /// ASK: the slot is migrating, and the key is on the new node or on none.
    Ask(Endpoint),
    /// TRYAGAIN: the slot is migrating and its keys are split between nodes. Send each check on its
    /// own.
    Again,
    /// Any other error: the start of it, in Redis' words.
    Rejected(String),
}

/// The reply to one call of the script.
#[derive(Debug)]
pub struct ScriptReply {
    /// The server's time.
    pub now: Time,
    /// A reply for each check, in order.
    pub replies: Vec<Result<CheckReply, ReplyError>>,
}

impl CheckReply {
    /// Adds the number of hits that were taken ahead.
    pub(crate) fn add_granted(&mut self, hits: u64) {
        self.extra.push(hits);
    }

    /// The verdict of the check at the server's time `now`.
    pub fn verdict(&self, encoded: &EncodedCheck, check: &Check, now: Time) -> Verdict {
        // INCRBY does not compare with the limit.
        let is_over_window = encoded.window.is_some() && self.spent() > check.limit.requests;
        let over = self.is_over() || is_over_window;
        self.verdict_of(encoded, check, check.call(), over, now)
    }

    /// The verdict of another call of the same counter.
    pub(crate) fn verdict_of(
        &self,
        encoded: &EncodedCheck,
        check: &Check,
        call: Call<'_>,
        over: bool,
        now: Time,
    ) -> Verdict {
        let at = encoded.charged_at(check, now);
        let extra = self.extra(encoded);
        Counter::verdict_of_reply(&check.limit, at, now, call, over, self.spent(), extra)
    }

    /// The counter after the check at the server's time `now`, with the hits that were taken ahead.
    pub(crate) fn counter(&self, encoded: &EncodedCheck, check: &Check, now: Time) -> Counter {
        let at = encoded.charged_at(check, now);
        let mut counter = Counter::of_reply(&check.limit, at, self.spent(), self.extra(encoded));
        counter.change(&check.limit, at, Hits::Add(self.granted(encoded)));
        counter
    }

    /// Values that the algorithm needs.
    fn extra(&self, encoded: &EncodedCheck) -> &[u64] {
        let granted = usize::from(encoded.ahead().is_some());
        &self.extra[..self.extra.len().saturating_sub(granted)]
    }

    /// Hits that were taken ahead after the check.
    pub fn granted(&self, encoded: &EncodedCheck) -> u64 {
        let granted = encoded.ahead().and(self.extra.last());
        granted.copied().unwrap_or(0)
    }

    /// Hits in use after the check, with those taken ahead.
    pub(crate) fn used(&self, encoded: &EncodedCheck) -> u64 {
        self.spent().div_ceil(encoded.price) + self.granted(encoded)
    }

    /// Whether its sliding log has as many entries as it may have.
    pub fn is_of_full_log(&self, check: &Check) -> bool {
        let entries = self.extra.get(3).copied().unwrap_or(0);
        Kind::of(&check.limit) == Kind::SlidingLog && entries >= LOG_ENTRIES_MAX.into()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.number < 0
    }

    /// Units in use after the check.
    pub(crate) fn spent(&self) -> u64 {
        if self.is_over() { (-1 - self.number).unsigned_abs() } else { self.number.unsigned_abs() }
    }

    /// Reads the script's reply to one check.
    fn read(value: Value) -> Result<Result<Self, ReplyError>, RedisError> {
        match value {
            Value::Int(number) => Ok(Ok(Self::from(number))),
            Value::BulkString(text) => {
                let text = String::from_utf8_lossy(&text);
                Ok(Err(ReplyError::Rejected(short(&text).to_owned())))
            }
            Value::Array(numbers) => {
                let mut numbers = numbers.into_iter().map(|number| match number {
                    Value::Int(number) => Ok(number),
                    _ => Err(unexpected()),
                });
                let number = numbers.next().ok_or_else(unexpected)??;
                let extra = numbers
                    .map(|number| Ok(u64::try_from(number?).unwrap_or(0)))
                    .collect::<Result<_, RedisError>>()?;
                Ok(Ok(Self { number, extra }))
            }
            _ => Err(unexpected()),
        }
    }
}

impl From<i64> for CheckReply {
    fn from(number: i64) -> Self {
        Self { number, extra: Vec::new() }
    }
}

impl ScriptReply {
    /// Reads the reply to `count` checks.
    ///
    /// # Errors
    /// Redis' own, and a reply that the script never makes.
    pub fn read(value: Value, count: usize) -> Result<Self, RedisError> {
        let Value::Array(items) = value else {
            return Err(unexpected());
        };
        let mut items = items.into_iter();
        let Some(Value::Int(now)) = items.next() else {
            return Err(unexpected());
        };
        if items.len() != count {
            return Err(unexpected());
        }
        let mut replies = Vec::with_capacity(count);
        for item in items {
            replies.push(CheckReply::read(item)?);
        }
        Ok(Self { now: Time::from_micros(now.unsigned_abs()), replies })
    }
}

impl ReplyError {
    /// The outcome of a check that is not sent again, at a server of this pool, which may no longer
    /// be the right one.
    pub(crate) fn give_up(&self, pool: &NodePool) -> CheckError {
        if !matches!(self, Self::Rejected(_)) {
            pool.request_refresh();
        }
        StoreError::Rejected.not_counted()
    }
}

impl From<RedisError> for ReplyError {
    fn from(error: RedisError) -> Self {
        let endpoint = || Endpoint::read(error.redirect_node()?.0);
        let redirection = match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => endpoint().map(Self::Moved),
            ErrorKind::Server(ServerErrorKind::Ask) => endpoint().map(Self::Ask),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Self::Again),
            _ => None,
        };
        // The client library renames errors, such as CLUSTERDOWN to ClusterDown. Operators and
        // `health.rs` look for Redis' names.
        redirection.unwrap_or_else(|| {
            let text = match error.code() {
                Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
                None => error.to_string(),
            };
            Self::Rejected(short(&text).to_owned())
        })
    }
}

/// Hits that were spent before INCR, and the state of the key, by its reply.
///
/// # Errors
/// Redis' own.
pub(crate) fn spent_before(reply: Value, hits: u64) -> Result<(u64, KeyState), ReplyError> {
    let used = match reply {
        Value::Int(used) => used,
        Value::ServerError(error) => {
            let text = error.details();
            if !text.is_some_and(|text| text.contains("overflow")) {
                return Err(RedisError::from(error).into());
            }
            i64::MAX
        }
        _ => return Err(unexpected().into()),
    };
    let hits = i64::try_from(hits).unwrap_or(i64::MAX);
    let state = match used.cmp(&hits) {
        Ordering::Greater => KeyState::Known,
        Ordering::Equal => KeyState::New,
        Ordering::Less => KeyState::Negative,
    };
    Ok((u64::try_from(used.saturating_sub(hits)).unwrap_or(0), state))
}

fn unexpected() -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "unexpected reply of the rate limit script"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_the_names_of_redis() {
        let text = |kind, detail: &str| {
            let error = RedisError::from((ErrorKind::Server(kind), "", detail.to_owned()));
            match ReplyError::from(error) {
                ReplyError::Rejected(text) => text,
                redirection => panic!("{redirection:?}"),
            }
        };
        for (kind, detail, expected) in [
            (
                ServerErrorKind::ClusterDown,
                "The cluster is down",
                "CLUSTERDOWN The cluster is down",
            ),
            (ServerErrorKind::ReadOnly, "You can't write", "READONLY You can't write"),
            (
                ServerErrorKind::ResponseError,
                "value is not an integer",
                "ERR value is not an integer",
            ),
        ] {
            assert_eq!(text(kind, detail), expected);
        }
    }
}
