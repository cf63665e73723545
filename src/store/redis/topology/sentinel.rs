//! Asks sentinels where the master is.
//!
//! All of them are asked: one that was cut off from the others still names the old master. Whoever
//! most of them name is the one, if it says itself that it is a master, as clients are told to make sure: <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::pin::pin;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, RedisError, Value};

use crate::store::redis::connect::address::Address;
use crate::store::redis::connect::connection::Connector;
use crate::store::redis::connect::lookup::{ANSWER_TIMEOUT, LookupConnection};
use crate::store::redis::topology::cluster::Endpoint;

/// Those who know.
#[derive(Debug)]
pub struct Sentinels {
    master: String,
    each: Vec<LookupConnection>,
}

impl Sentinels {
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// An address that the client cannot use.
    pub fn new(
        master: String,
        addresses: &[Address],
        connector: impl Fn(&Address) -> Result<Connector, RedisError>,
    ) -> Result<Self, RedisError> {
        let sentinel = |address| Ok(LookupConnection::new(&connector(address)?));
        Ok(Self {
            master,
            each: addresses
                .iter()
                .map(sentinel)
                .collect::<Result<_, RedisError>>()?,
        })
    }

    /// Whom they name, most often named first.
    ///
    /// # Errors
    /// Nobody names anybody; what each said.
    pub async fn masters(&self) -> Result<Vec<Endpoint>, String> {
        let mut named: Vec<(usize, Endpoint)> = Vec::new();
        let mut failures = Vec::new();
        let mut answers: FuturesUnordered<_> = self
            .each
            .iter()
            .map(|sentinel| master(sentinel, &self.master))
            .collect();
        let mut timeout = pin!(tokio::time::sleep(ANSWER_TIMEOUT));
        loop {
            let answer = tokio::select! {
                biased;
                answer = answers.next() => answer,
                () = &mut timeout, if !named.is_empty() => break,
            };
            match answer {
                None => break,
                Some(Ok(endpoint)) => {
                    match named.iter_mut().find(|(_, known)| *known == endpoint) {
                        Some((votes, _)) => *votes += 1,
                        None => named.push((1, endpoint)),
                    }
                }
                Some(Err(failure)) => failures.push(failure),
            }
        }
        if named.is_empty() {
            return Err(failures.join("; "));
        }
        named.sort_by_key(|(votes, _)| std::cmp::Reverse(*votes));
        Ok(named.into_iter().map(|(_, endpoint)| endpoint).collect())
    }
}

/// The master of this name, as one sentinel has it.
async fn master(sentinel: &LookupConnection, name: &str) -> Result<Endpoint, String> {
    let address = sentinel.address();
    let mut question = Pipeline::with_capacity(1);
    question
        .cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(name);
    let values = sentinel
        .call(&question)
        .await
        .map_err(|error| address.explain(&error))?;
    let said = values
        .into_iter()
        .next()
        .unwrap_or(Value::Nil)
        .extract_error()
        .map_err(|error| address.explain(&error))?;
    let Some((host, port)) = redis::from_redis_value::<Option<(String, u16)>>(said)
        .map_err(|error| format!("{address}: {error}"))?
    else {
        return Err(format!(
            "{address} knows no master named {name}; see the first part of {}",
            address.url_setting()
        ));
    };
    Ok(Endpoint { host, port })
}

/// Whether a server says of itself that it is a master.
///
/// # Errors
/// It cannot be asked.
pub async fn is_master(server: &LookupConnection) -> Result<bool, RedisError> {
    let mut question = Pipeline::with_capacity(1);
    question.cmd("ROLE");
    let said = server
        .call(&question)
        .await?
        .into_iter()
        .next()
        .unwrap_or(Value::Nil)
        .extract_error()?;
    let Value::Array(parts) = said else {
        return Ok(false);
    };
    Ok(matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master"))
}
