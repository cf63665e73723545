//! A round trip: a pipeline with the checks of a batch, and its replies.
//!
//! Hits on windows are commands; all other checks are in calls of the script. The keys of one call
//! must share a slot on a cluster, so there is a call for each slot. Repairs of keys that earlier
//! replies have shown come first.

use bb8_redis::redis::{Pipeline, RedisError, Value};
use smallvec::SmallVec;

use crate::base::time::Time;
use crate::limits::check::runs;
use crate::store::redis::client::decode::{CheckReply, ReplyError, ScriptReply};
use crate::store::redis::client::encode::{EncodedCheck, Mode, Route};
use crate::store::redis::client::increments::Increments;
use crate::store::redis::client::repair::Repair;
use crate::store::redis::client::script::{Form, Script};
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::relocation::is_unwritable;
use crate::store::redis::topology::{clock, cluster};

/// Retries after NOSCRIPT: there may be a flush in between, but not again and again.
// bound noscript_retries_max: fallback, cause `refused`; tollgate_store_fallbacks_total
const NOSCRIPT_RETRIES_MAX: usize = 2;

/// Checks of a batch that the script decides, in most batches.
const SCRIPTED: usize = 64;

/// The pipeline of a batch.
#[derive(Debug)]
pub(crate) struct BatchRequest<'b> {
    /// All checks, in order.
    checks: Vec<&'b EncodedCheck>,
    /// The first commands.
    repairs: &'b [Repair],
    increments: Increments<'b>,
    calls: Vec<ScriptCall>,
    /// The index of the reply to TIME.
    time: Option<usize>,
    commands: Pipeline,
    /// Replaces the server's clock.
    now: Option<Time>,
}

/// Indices of the checks of a request that are decided by one call of the script.
type Group = SmallVec<[usize; 2]>;

/// A call of the script.
#[derive(Debug)]
struct ScriptCall {
    /// Indices of checks, by how they are decided.
    groups: Vec<(Mode, Group)>,
    /// On a cluster, the slot of its checks and the route to it.
    affinity: Option<(u16, Route)>,
    /// The index of its reply.
    reply: usize,
}

/// The replies to a batch.
#[derive(Debug)]
pub(crate) struct BatchReply {
    /// The server's time, if the script or TIME has read it.
    pub(crate) now: Option<Time>,
    /// Why TIME has not.
    pub(crate) no_time: Option<RedisError>,
    /// A reply for each check, in order.
    pub(crate) replies: Vec<Result<CheckReply, ReplyError>>,
    /// Repairs of keys that were not as expected.
    pub(crate) repairs: Vec<Repair>,
    pub(crate) unconfirmed: Vec<Repair>,
}

impl<'b> BatchRequest<'b> {
    /// A pipeline for groups of checks. `by_slot` is for a cluster.
    pub(crate) fn new(
        groups: impl Iterator<Item = (Mode, &'b [EncodedCheck])> + Clone,
        repairs: &'b [Repair],
        by_slot: bool,
        now: Option<Time>,
    ) -> Self {
        let size = groups.clone().map(|(_, checks)| checks.len()).sum();
        let mut request = Self {
            checks: Vec::with_capacity(size),
            repairs,
            increments: Increments::with_capacity(size),
            calls: Vec::new(),
            time: None,
            commands: Pipeline::with_capacity(repairs.len() + size + 1),
            now,
        };
        Repair::add_all(repairs, &mut request.commands);
        for (mode, checks) in groups {
            let first = request.checks.len();
            request.checks.extend(checks);
            let mut scripted = Group::new();
            for (index, check) in (first..).zip(checks) {
                if check.is_direct() {
                    request.increments.push(index, check);
                } else {
                    scripted.push(index);
                }
            }
            if by_slot {
                let group_of = |&at: &usize| checks[at - first].group;
                for group in runs(&scripted, group_of) {
                    request.add_to_call(mode, group.into(), by_slot);
                }
            } else {
                request.add_to_call(mode, scripted, by_slot);
            }
        }
        request.increments.add_to(&mut request.commands);
        // After the commands.
        for call in &mut request.calls {
            call.reply = call.add(&request.checks, now, Form::Hash, &mut request.commands);
        }
        request
    }

    /// Reads the server's clock unless the script does, or another time replaces it.
    pub(crate) fn read_clock(&mut self) {
        if self.calls.is_empty() && self.now.is_none() {
            self.time = Some(self.commands.len());
            self.commands.cmd("TIME");
        }
    }

    /// Adds checks that must not be split to the call that they can share, or to a new one.
    fn add_to_call(&mut self, mode: Mode, group: Group, by_slot: bool) {
        let Some(&first) = group.first() else { return };
        let check = self.checks[first];
        let affinity = by_slot.then(|| (cluster::slot(check.key.as_bytes()), check.route));
        let is_isolated = by_slot && check.route.is_isolated();
        let mut calls = self.calls.iter_mut();
        match calls.find(|call| !is_isolated && call.affinity == affinity) {
            Some(call) => call.groups.push((mode, group)),
            None => self.calls.push(ScriptCall { groups: vec![(mode, group)], affinity, reply: 0 }),
        }
    }

    /// The number of checks.
    pub(crate) fn len(&self) -> usize {
        self.checks.len()
    }

    /// Sends the pipeline, and again what was answered by NOSCRIPT: that is normal after a restart,
    /// a failover or a flush. `on_noscript` is called each time.
    ///
    /// # Errors
    /// Whatever breaks the connection.
    pub(crate) async fn send(
        &self,
        connection: &mut Connection,
        on_noscript: impl Fn(),
    ) -> Result<Vec<Value>, RedisError> {
        let mut values = connection.call(&self.commands).await?;
        for _ in 0..NOSCRIPT_RETRIES_MAX {
            let is_unknown = |call: &&ScriptCall| values.get(call.reply).is_some_and(is_noscript);
            let unknown: Vec<&ScriptCall> = self.calls.iter().filter(is_unknown).collect();
            if unknown.is_empty() {
                break;
            }
            on_noscript();
            let mut commands = Pipeline::new();
            let mut replies = Vec::new();
            let mut form = Form::Text;
            for call in &unknown {
                replies.push(call.add(&self.checks, self.now, form, &mut commands));
                // The first one brings the text of the script.
                form = Form::Hash;
            }
            let mut again = connection.call(&commands).await?;
            for (call, reply) in unknown.iter().zip(replies) {
                if let Some(reply) = again.get_mut(reply) {
                    std::mem::swap(&mut values[call.reply], reply);
                }
            }
        }
        Ok(values)
    }

    /// Whether the server has changed a counter. A Redis replica cannot.
    pub(crate) fn has_written(&self, reply: &BatchReply) -> bool {
        let mut checks = self.checks.iter().zip(&reply.replies);
        checks.any(|(check, reply)| {
            let over = reply.as_ref().map(CheckReply::is_over);
            over.is_ok_and(|over| check.is_written(over))
        })
    }

    /// Decodes the replies.
    ///
    /// # Errors
    /// A reply that the script never makes.
    pub(crate) fn read(&self, mut values: Vec<Value>) -> Result<BatchReply, RedisError> {
        let mut take = |index: usize| {
            values.get_mut(index).map_or(Value::Nil, |value| std::mem::replace(value, Value::Nil))
        };
        // Each of them is replaced.
        let missing = || Err(ReplyError::Rejected(String::new()));
        let mut batch = BatchReply {
            now: self.now,
            no_time: None,
            replies: self.checks.iter().map(|_| missing()).collect(),
            repairs: Vec::new(),
            unconfirmed: Vec::new(),
        };
        for (index, repair) in self.repairs.iter().enumerate() {
            if !Repair::is_confirmed(&take(index)) {
                batch.unconfirmed.push(repair.clone());
            }
        }
        batch.repairs = self.increments.read(&mut take, &mut batch.replies);
        for call in &self.calls {
            let groups = call.groups.iter();
            let indices = || groups.clone().flat_map(|(_, group)| group).copied();
            let count = indices().count();
            match take(call.reply).extract_error() {
                Ok(value) => {
                    let script = ScriptReply::read(value, count)?;
                    batch.now = Some(script.now);
                    for (index, reply) in indices().zip(script.replies) {
                        batch.replies[index] = reply;
                    }
                }
                Err(error) => {
                    let error = match ReplyError::from(error) {
                        // Redis 6.2 replies so as soon as one key of a call has moved, later
                        // versions when all have; so each of several keys is sent again on its own,
                        // to the same node.
                        ReplyError::Ask(_) if count > 1 => ReplyError::Again,
                        error => error,
                    };
                    for index in indices() {
                        batch.replies[index] = Err(error.clone());
                    }
                }
            }
        }
        if let Some(reply) = self.time {
            match take(reply).extract_error() {
                Ok(reply) => batch.now = clock::time(&reply),
                Err(error) => batch.no_time = Some(error),
            }
        }
        Ok(batch)
    }
}

impl ScriptCall {
    /// Adds the call of the script. Returns the index of its reply.
    fn add(
        &self,
        checks: &[&EncodedCheck],
        now: Option<Time>,
        form: Form,
        commands: &mut Pipeline,
    ) -> usize {
        if self.affinity.is_some_and(|(_, route)| route == Route::Asking) {
            commands.cmd("ASKING");
        }
        let groups = self
            .groups
            .iter()
            .map(|(mode, group)| (*mode, group.iter().map(|&index| checks[index])));
        commands.add_command(Script::serving().command(groups, now, form));
        commands.len() - 1
    }
}

impl BatchReply {
    /// Whether the server takes no writes, so that another one may have its name.
    pub(crate) fn is_unwritable(&self) -> bool {
        let mut replies = self.replies.iter();
        replies.any(|reply| matches!(reply, Err(ReplyError::Rejected(text)) if is_unwritable(text)))
    }
}

fn is_noscript(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Commands are executed before the script. A check of a counter that an earlier check needs the
/// script for is moved into the script.
pub(crate) fn keep_order(groups: &mut [(Mode, Vec<EncodedCheck>)]) {
    let mut scripted: SmallVec<[u64; SCRIPTED]> = SmallVec::new();
    for check in groups.iter_mut().flat_map(|(_, checks)| checks) {
        if check.is_direct() && scripted.contains(&check.hash) {
            check.use_script();
        }
        if !check.is_direct() {
            scripted.push(check.hash);
        }
    }
}
