//! The body of an action: a domain, one descriptor, and hits to grant.

use std::net::IpAddr;

use serde::Deserialize;

use crate::base::named_enum::named_enum;
use crate::operator::admin::api::answer::Rejected;
use crate::report::counter::{Entries, Grant, Reset};

const USAGE: &str =
    r#"write {"domain": "shop", "descriptor": [["user", "42"]]}, and "hits" to grant"#;

named_enum! {
    /// A kind of change of a counter.
    pub enum Action {
        /// The counter is deleted.
        Reset = "reset",
        /// The counter gets hits back.
        Grant = "grant",
    }
}

/// An action on one counter.
#[derive(Debug, Clone)]
pub(crate) struct CounterAction {
    pub(crate) action: Action,
    pub(crate) remote: Option<IpAddr>,
    pub(crate) domain: String,
    pub(crate) entries: Entries,
    /// The name of a limit of the rule, if it is not its own.
    pub(crate) limit: Option<String>,
    /// To grant; 0 for a reset.
    pub(crate) hits: u64,
}

impl CounterAction {
    /// # Errors
    /// 400.
    pub(crate) fn read(
        action: Action,
        body: &[u8],
        remote: Option<IpAddr>,
    ) -> Result<Self, Rejected> {
        let (domain, entries, limit, hits) = match action {
            Action::Reset => {
                let Reset { domain, descriptor, limit } = read(body)?;
                (domain, descriptor, limit, 0)
            }
            Action::Grant => {
                let Grant { domain, descriptor, limit, hits } = read(body)?;
                (domain, descriptor, limit, hits.get())
            }
        };
        if domain.is_empty() || entries.is_empty() || entries.iter().any(|[key, _]| key.is_empty())
        {
            return Err(invalid("a domain and a descriptor are needed"));
        }
        Ok(Self { action, remote, domain, entries, limit, hits })
    }

    /// As `key=value,key=value`.
    pub(crate) fn descriptor(&self) -> String {
        let entries = self.entries.iter().map(|[key, value]| format!("{key}={value}"));
        entries.collect::<Vec<_>>().join(",")
    }
}

fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, Rejected> {
    serde_json::from_slice(body).map_err(|error| invalid(&error.to_string()))
}

fn invalid(reason: &str) -> Rejected {
    Rejected::bad_request(format!("{reason}; {USAGE}"))
}
