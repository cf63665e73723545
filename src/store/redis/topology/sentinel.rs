//! Asks all sentinels for the master: one that is partitioned still names the old one.
//!
//! The endpoint that most of them name is used if it reports the role of a master itself, as
//! <https://redis.io/docs/latest/develop/reference/sentinel-clients/> requires.

use std::cmp::Reverse;
use std::pin::pin;

use bb8_redis::redis::{self, Pipeline, RedisError, Value};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use crate::store::redis::connect::lookup::{LOOKUP_TIMEOUT, LookupConnection};
use crate::store::redis::topology::cluster::Endpoint;

/// The endpoints that sentinels report for a master, most votes first.
///
/// # Errors
/// No sentinel names one; the error of each.
pub(crate) async fn masters(
    sentinels: &[LookupConnection],
    master: &str,
) -> Result<Vec<Endpoint>, String> {
    let (mut votes, mut failures) = (Vec::<(usize, Endpoint)>::new(), Vec::new());
    let replies = sentinels.iter().map(|sentinel| ask_master(sentinel, master));
    let mut replies: FuturesUnordered<_> = replies.collect();
    let mut timeout = pin!(tokio::time::sleep(LOOKUP_TIMEOUT));
    loop {
        let reply = tokio::select! {
            biased;
            reply = replies.next() => reply,
            () = &mut timeout, if !votes.is_empty() => break,
        };
        match reply {
            None => break,
            Some(Ok(master)) => match votes.iter_mut().find(|(_, known)| *known == master) {
                Some((count, _)) => *count += 1,
                None => votes.push((1, master)),
            },
            Some(Err(failure)) => failures.push(failure),
        }
    }
    if votes.is_empty() {
        return Err(failures.join("; "));
    }
    votes.sort_by_key(|(count, _)| Reverse(*count));
    Ok(votes.into_iter().map(|(_, master)| master).collect())
}

async fn ask_master(sentinel: &LookupConnection, name: &str) -> Result<Endpoint, String> {
    let address = sentinel.address();
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let reply = ask(sentinel, command).await.map_err(|error| address.explain(&error))?;
    let master: Option<(String, u16)> =
        redis::from_redis_value(reply).map_err(|error| format!("{address}: {error}"))?;
    let unknown = || {
        let url = &address.url_setting;
        format!("{address} knows no master named {name}; check the first part of {url}")
    };
    let (host, port) = master.ok_or_else(unknown)?;
    Ok(Endpoint { host, port })
}

/// Whether a server reports the role of a master.
///
/// # Errors
/// The server does not reply.
pub(crate) async fn is_master(server: &LookupConnection) -> Result<bool, RedisError> {
    let Value::Array(parts) = ask(server, redis::cmd("ROLE")).await? else {
        return Ok(false);
    };
    Ok(matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master"))
}

async fn ask(server: &LookupConnection, command: redis::Cmd) -> Result<Value, RedisError> {
    let mut pipeline = Pipeline::with_capacity(1);
    pipeline.add_command(command);
    let replies = server.call(&pipeline).await?;
    replies.into_iter().next().unwrap_or(Value::Nil).extract_error()
}
