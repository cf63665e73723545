//! `/api/v1/over-limit`: responses of OVER_LIMIT as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use http::{StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use tokio::time::timeout;

use crate::admin::api::answer::Rejected;
use crate::admin::api::fleet::Fleet;
use crate::admin::api::fleet_events::{FleetEvents, KEEP_ALIVE_INTERVAL};
use crate::admin::api::top::{Scope, one_of};
use crate::admin::query_string::Pairs;
use crate::base::shutdown::Lifecycle;
use crate::base::text::Text;
use crate::http::response_budget::RETRY_AFTER_SECS;
use crate::observe::feed::{Filter, OverLimitFeed, Reader};
use crate::report::answer::Replica;

/// A comment.
const KEEP_ALIVE: &str = ":\n\n";

/// Where events come from.
pub(crate) struct Sources<'a> {
    pub(crate) feed: &'a OverLimitFeed,
    pub(crate) fleet: &'a Arc<Fleet>,
    pub(crate) replica: Replica,
    pub(crate) lifecycle: &'a Lifecycle,
}

/// The events that a client reads.
enum Events {
    OfReplica(Reader),
    OfFleet(Box<FleetEvents>),
}

impl Events {
    async fn next(&mut self) -> Option<Arc<str>> {
        match self {
            Self::OfReplica(reader) => reader.next().await,
            Self::OfFleet(events) => events.next().await,
        }
    }
}

/// Events from now on, until the client leaves or the process stops.
pub(crate) fn events(sources: Sources<'_>, query: &str) -> Result<Response, Rejected> {
    let pairs = Pairs::new(query);
    let filter = filter(&pairs);
    let scope =
        (!pairs.first("scope").is_empty()).then(|| Text(pairs.first("scope")).shown().into_owned());
    let path = path(&filter);
    let reader = sources
        .feed
        .read(filter)
        .ok_or_else(|| full("event_filters_max"))?;
    let events = match one_of("scope", scope, Scope::Replica)? {
        Scope::Replica => Events::OfReplica(reader),
        Scope::Fleet => {
            let fleet = sources.fleet.clone();
            let events = FleetEvents::new(fleet, sources.replica, reader, path);
            Events::OfFleet(Box::new(events.ok_or_else(|| full("fleet_streams_max"))?))
        }
    };
    let state = (events, sources.lifecycle.stopping().clone());
    let events = stream::unfold(state, |(mut events, stopping)| async move {
        let next = timeout(KEEP_ALIVE_INTERVAL, events.next());
        let text = match stopping.run_until_cancelled(next).await? {
            Ok(event) => format!("data: {}\n\n", event?),
            Err(_) => KEEP_ALIVE.to_owned(),
        };
        Some((Ok::<_, Infallible>(text), (events, stopping)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

fn filter(pairs: &Pairs) -> Filter {
    let wanted = |name: &str| Some(pairs.first(name)).filter(|value| !value.is_empty());
    Filter {
        domain: wanted("domain").map(<[u8]>::to_vec),
        rule: wanted("rule").map(|path| Text(path).shown().into_owned()),
        entry: wanted("key").map(<[u8]>::to_vec),
    }
}

/// The same of one replica.
fn path(filter: &Filter) -> String {
    let Filter {
        domain,
        rule,
        entry,
    } = filter;
    let rule = rule.as_ref().map(String::as_bytes);
    let mut path = "/api/v1/over-limit?".to_owned();
    for (name, value) in [
        ("domain", domain.as_deref()),
        ("rule", rule),
        ("key", entry.as_deref()),
    ] {
        if let Some(value) = value {
            path += &format!("&{name}={}", percent_encode(value, NON_ALPHANUMERIC));
        }
    }
    path
}

fn full(bound: &str) -> Rejected {
    let reason = format!("too many other clients follow responses of OVER_LIMIT ({bound})");
    Rejected::new(StatusCode::SERVICE_UNAVAILABLE, reason).retry_after(RETRY_AFTER_SECS)
}
