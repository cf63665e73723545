//! Any messages on the channel of heartbeats: they are ignored or name peers, and no share is larger than the whole.
//!
//! Messages are separated by line feeds, and come 0.1 s after each other.

#![no_main]

use std::num::NonZeroU32;

use libfuzzer_sys::fuzz_target;
use tollgate::base::time::{Span, Time};
use tollgate::limits::Share;
use tollgate::store::redis::fallback::peers::Peers;

const START: Time = Time::from_micros(1_700_000_000_000_000);
const OWN: &str = "5000000000000000";
const LIMIT: u64 = 10;

fuzz_target!(|text: &str| {
    let configured = Share::one_of(NonZeroU32::MIN);
    let mut peers = Peers::default();
    peers.subscribed_at = Some(START);
    let mut now = START;
    for message in text.split('\n') {
        now = now.plus(Span::from_micros(100_000));
        peers.on_message(message, OWN, now);
        if let Some(share) = peers.update(OWN, configured, now) {
            assert!(share.of_allowed(LIMIT) <= LIMIT);
        }
    }
});
