//! What error replies of Redis mean, and what to do about them.

use crate::base::time::Span;

/// What to do, by what an error contains.
const CURES: [(&str, &str); 10] = [
    ("MOVED", "a node of a cluster, set REDIS_TYPE=cluster"),
    ("READONLY", ON_A_REPLICA),
    ("MASTERDOWN", ON_A_REPLICA),
    ("OOM", "raise its maxmemory"),
    ("NOAUTH", "set REDIS_AUTH (REDIS_PERSECOND_AUTH)"),
    ("NOPERM", "allow its user the command, see ACL LOG"),
    ("BUSY", "a script runs too long, SCRIPT KILL ends it"),
    ("LOADING", "it reads its data after a restart, wait"),
    ("NOREPLICAS", "it has fewer replicas than its min-replicas-to-write"),
    ("CLUSTERDOWN", "a node is down, see CLUSTER INFO"),
];
const ON_A_REPLICA: &str = "the address leads to a Redis replica, set that of the master";

/// A fault that was not recorded for this long has ended; an error only if a command was served.
pub(super) const QUIET: Span = Span::from_secs(1);
/// [`QUIET`] of errors that only some keys or commands get, while others are served.
const QUIET_IN_PART: Span = Span::from_secs(60);

/// An error and its cure. Some have one of their own.
pub(crate) fn with_cure(error: &str) -> String {
    let mut cures = CURES.iter().filter(|(code, _)| error.contains(code));
    match cures.next() {
        Some((_, cure)) if !error.contains("; ") => format!("{error}; {cure}"),
        _ => error.to_owned(),
    }
}

/// How long there must be no new error for this one to have ended.
pub(crate) fn quiet(error: &str) -> Span {
    let is_in_part = ["MOVED", "NOPERM"].iter().any(|code| error.contains(code));
    if is_in_part { QUIET_IN_PART } else { QUIET }
}
