//! Which keys of a batch get their lifetimes with it.

use crate::store::redis::client::encode::{EncodedCheck, Mode};
use crate::store::redis::shared::Redis;
use crate::store::redis::topology::node::Node;

/// Checks of a batch whose keys get their lifetimes in its own pipeline. With more checks the next
/// batch follows soon, and a lifetime for each key that may be new would cost Redis more.
const EXPIRE_AT_ONCE_MAX: usize = 8;

/// Sets the lifetimes of keys that may be new in a small batch. Usage that Redis has replied in
/// the same window shows that a key is not.
pub(super) fn expire_at_once(
    groups: &mut [(Mode, Vec<EncodedCheck>)],
    shared: &Redis,
    node: &Node,
) {
    let count: usize = groups.iter().map(|(_, checks)| checks.len()).sum();
    if count > EXPIRE_AT_ONCE_MAX {
        return;
    }
    for check in groups.iter_mut().flat_map(|(_, checks)| checks) {
        let Some(window) = check.window else { continue };
        let known = shared.usage.get(check.hash);
        let is_known =
            known.is_some_and(|(used, at)| used > 0 && node.clock.at(at) >= window.start);
        if !is_known {
            check.expire_at_once();
        }
    }
}
