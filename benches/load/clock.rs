//! The one place of the generator that asks what time it is.

use std::time::Instant;

/// Now, on the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the library's clock is for decisions; a stopwatch needs the real one"
)]
pub fn now() -> Instant {
    Instant::now()
}
