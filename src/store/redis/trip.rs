//! One trip to a server with the checks of a batch: commands for each window that needs no script,
//! and the script for all others. On a cluster the script is called once for each slot, since the
//! keys of one call have to share one.

use redis::{Pipeline, RedisError, Value};

use crate::store::redis::connect::connection::Connection;
use crate::store::redis::relocation::is_misplaced;
use crate::store::redis::script::{
    self, CheckReply, EncodedCheck, Form, Mode, Repair, Route, Script,
};
use crate::store::redis::topology::cluster;
use crate::store::redis::topology::redirect::Redirect;
use crate::time::Time;

/// How often the script is sent retry because Redis says that it has forgotten it: a flush may come
/// in between, but not for ever.
const FORGOTTEN_MAX: usize = 2;

/// What goes out.
#[derive(Debug)]
pub struct BatchRequest<'b> {
    /// What is asked, in order.
    lines: Vec<&'b EncodedCheck>,
    /// Those among them that go by commands of their own, each with the place of the reply that
    /// counts.
    direct: Vec<(usize, usize)>,
    calls: Vec<Call>,
    commands: Pipeline,
    /// What Redis is told the time is, instead of being asked.
    now: Option<Time>,
}

/// One call of the script.
#[derive(Debug)]
struct Call {
    /// Lines, and how they are decided.
    groups: Vec<(Mode, Vec<usize>)>,
    /// On a cluster, what others need to have in common with it to travel along.
    affinity: Option<Affinity>,
    /// The place of its reply.
    reply: usize,
}

/// What the keys of one call of the script have in common on a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Affinity {
    slot: u16,
    route: Route,
}

/// Calls of the script that are made once more.
#[derive(Debug)]
struct Retry {
    /// What goes out.
    commands: Pipeline,
    /// For each of those calls, the place of its reply among the new ones and among the first.
    replies: Vec<(usize, usize)>,
}

/// What came back.
#[derive(Debug)]
pub struct BatchReply {
    /// What time it is there, if it says so.
    pub now: Option<Time>,
    /// For each line in order what is said of it, or why nothing is.
    pub told: Vec<Result<CheckReply, ReplyError>>,
    /// What else is to be done: keys that were not as expected.
    pub repairs: Vec<Repair>,
}

/// Why nothing is said of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyError {
    /// It is not here.
    Elsewhere(Redirect),
    /// What is wrong with it, in Redis' words.
    Wrong(String),
}

impl<'b> BatchRequest<'b> {
    /// A trip with these groups of lines. `by_slot` is for a cluster.
    pub fn new(
        groups: impl Iterator<Item = (Mode, &'b [EncodedCheck])>,
        by_slot: bool,
        now: Option<Time>,
    ) -> Self {
        let mut trip = Self {
            lines: Vec::new(),
            direct: Vec::new(),
            calls: Vec::new(),
            commands: Pipeline::new(),
            now,
        };
        for (mode, lines) in groups {
            let first = trip.lines.len();
            trip.lines.extend(lines);
            let (direct, scripted): (Vec<usize>, Vec<usize>) =
                (first..trip.lines.len()).partition(|&index| trip.lines[index].is_direct());
            for index in direct {
                trip.lines[index].increment(&mut trip.commands);
                trip.direct.push((index, trip.commands.len() - 1));
            }
            if !by_slot || mode == Mode::Atomic {
                trip.plan(mode, scripted, by_slot);
            } else {
                for index in scripted {
                    trip.plan(mode, vec![index], by_slot);
                }
            }
        }
        trip.finish();
        trip
    }

    /// Finds the call that these lines, which are not to be parted, travel with.
    fn plan(&mut self, mode: Mode, group: Vec<usize>, by_slot: bool) {
        let Some(&first) = group.first() else { return };
        let line = self.lines[first];
        let affinity = by_slot.then(|| Affinity {
            slot: cluster::slot(line.key().as_bytes()),
            route: line.route(),
        });
        let travels_alone = by_slot && line.route().is_isolated();
        match self
            .calls
            .iter_mut()
            .find(|call| !travels_alone && call.affinity == affinity)
        {
            Some(call) => call.groups.push((mode, group)),
            None => self.calls.push(Call {
                groups: vec![(mode, group)],
                affinity,
                reply: 0,
            }),
        }
    }

    /// Commands come first, then the script. What is last tells the time.
    fn finish(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        for index in 0..self.calls.len() {
            self.call(index, Form::Hash, &mut commands);
            self.calls[index].reply = commands.len() - 1;
        }
        if self.calls.is_empty() {
            commands.cmd("TIME");
        }
        self.commands = commands;
    }

    fn call(&self, index: usize, form: Form, commands: &mut Pipeline) {
        let call = &self.calls[index];
        if call
            .affinity
            .is_some_and(|affinity| affinity.route.is_asking())
        {
            commands.cmd("ASKING");
        }
        let groups = call
            .groups
            .iter()
            .map(|(mode, group)| (*mode, group.iter().map(|&index| self.lines[index])));
        commands.add_command(Script::serving().command(groups, self.now, form));
    }

    /// How many checks.
    pub fn checks(&self) -> usize {
        self.lines.len()
    }

    /// Sends everything, and what Redis has forgotten of the script once more: that is normal life
    /// after a restart, a failover or a flush. The text runs and is remembered in one trip.
    /// `forgotten` is called each time.
    ///
    /// # Errors
    /// Whatever breaks the connection.
    pub async fn send(
        &self,
        connection: &mut Connection,
        forgotten: impl Fn(),
    ) -> Result<Vec<Value>, RedisError> {
        let mut values = connection.call(&self.commands).await?;
        for _ in 0..FORGOTTEN_MAX {
            let Some(retry) = self.retry(&values) else {
                break;
            };
            forgotten();
            retry.replace(&mut values, connection.call(&retry.commands).await?);
        }
        Ok(values)
    }

    /// The calls of which Redis says that it has forgotten the script, if there are any: the first
    /// one brings its text.
    fn retry(&self, values: &[Value]) -> Option<Retry> {
        let mut retry = Retry {
            commands: Pipeline::new(),
            replies: Vec::new(),
        };
        for (index, call) in self.calls.iter().enumerate() {
            if values.get(call.reply).is_some_and(is_forgotten) {
                let form = if retry.replies.is_empty() {
                    Form::Text
                } else {
                    Form::Hash
                };
                self.call(index, form, &mut retry.commands);
                retry.replies.push((retry.commands.len() - 1, call.reply));
            }
        }
        (!retry.replies.is_empty()).then_some(retry)
    }

    /// Whether the server has counted any of it: a replica cannot.
    pub fn has_written(&self, back: &BatchReply) -> bool {
        self.lines
            .iter()
            .zip(&back.told)
            .any(|(line, told)| told.as_ref().is_ok_and(|said| line.is_written(said)))
    }

    /// Reads what came back.
    ///
    /// # Errors
    /// A reply that the script never makes.
    pub fn read(&self, mut values: Vec<Value>) -> Result<BatchReply, RedisError> {
        let mut take = |reply: usize| {
            values
                .get_mut(reply)
                .map_or(Value::Nil, |value| std::mem::replace(value, Value::Nil))
        };
        let mut back = BatchReply {
            now: self.now,
            told: vec![Err(ReplyError::Wrong("no reply".to_owned())); self.checks()],
            repairs: Vec::new(),
        };
        for &(index, reply) in &self.direct {
            let line = self.lines[index];
            let created = line
                .reply_to_set(reply)
                .is_some_and(|reply| take(reply) == Value::Okay);
            back.told[index] = line
                .told(take(reply), created)
                .map_err(ReplyError::from)
                .map(|(said, repair)| {
                    back.repairs.extend(repair);
                    said
                });
        }
        for call in &self.calls {
            let lines: Vec<usize> = call
                .groups
                .iter()
                .flat_map(|(_, group)| group)
                .copied()
                .collect();
            match take(call.reply).extract_error() {
                Ok(value) => {
                    let replies = script::replies(value, lines.len())?;
                    back.now = Some(replies.now);
                    for (index, told) in lines.into_iter().zip(replies.told) {
                        back.told[index] = told.map_err(ReplyError::Wrong);
                    }
                }
                Err(error) => {
                    let untold = ReplyError::from(error).of_a_call(lines.len());
                    for index in lines {
                        back.told[index] = Err(untold.clone());
                    }
                }
            }
        }
        if self.calls.is_empty() {
            back.now = self.now.or(script::time(&take(self.commands.len() - 1)));
        }
        Ok(back)
    }
}

impl BatchReply {
    /// Whether the server says that another one should be asked.
    pub fn is_misplaced(&self) -> bool {
        self.told
            .iter()
            .any(|told| matches!(told, Err(ReplyError::Wrong(text)) if is_misplaced(text)))
    }
}

impl Retry {
    /// Puts the new replies in the place of the first ones.
    fn replace(&self, values: &mut [Value], mut replies: Vec<Value>) {
        for &(new, first) in &self.replies {
            if let (Some(new), Some(first)) = (replies.get_mut(new), values.get_mut(first)) {
                std::mem::swap(first, new);
            }
        }
    }
}

impl ReplyError {
    /// The same for each of so many checks that one call asked for. Redis 6.2 answers ASK as soon
    /// as one key of a call has moved, later versions when all have; so of several keys each is
    /// asked for alone, where it was.
    fn of_a_call(self, checks: usize) -> Self {
        match self {
            Self::Elsewhere(Redirect::Ask(_)) if checks > 1 => Self::Elsewhere(Redirect::Again),
            untold => untold,
        }
    }
}

impl From<RedisError> for ReplyError {
    fn from(error: RedisError) -> Self {
        // The library has words of its own, such as ClusterDown for CLUSTERDOWN; Redis' are what
        // people and the rest of this look for.
        let words = || match error.code() {
            Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
            None => error.to_string(),
        };
        Redirect::read(&error).map_or_else(|| Self::Wrong(words()), Self::Elsewhere)
    }
}

fn is_forgotten(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, ServerErrorKind};

    use super::*;

    #[test]
    fn what_is_wrong_is_told_in_the_words_of_redis() {
        let words = |kind, detail: &str| match ReplyError::from(RedisError::from((
            ErrorKind::Server(kind),
            "",
            detail.to_owned(),
        ))) {
            ReplyError::Wrong(text) => text,
            ReplyError::Elsewhere(redirect) => panic!("{redirect:?}"),
        };
        assert_eq!(
            words(ServerErrorKind::ClusterDown, "The cluster is down"),
            "CLUSTERDOWN The cluster is down"
        );
        assert_eq!(
            words(ServerErrorKind::ReadOnly, "You can't write"),
            "READONLY You can't write"
        );
        assert_eq!(
            words(ServerErrorKind::ResponseError, "value is not an integer"),
            "ERR value is not an integer"
        );
    }
}
