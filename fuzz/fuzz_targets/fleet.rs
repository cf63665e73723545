//! Any bytes as the answer of another replica: it is read or rejected, and never takes more memory than a bound of its size.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::admin::api::fleet::reply::{Reply as _, TopReply};

fuzz_target!(|bytes: &[u8]| {
    let _ = TopReply::read(bytes);
});
