//! Any bytes as a reply of the upstream of a trial: it is compared with the request, or it is not comparable.
//!
//! The first byte is the number of descriptors of the request. The others are the message, with and without a right prefix.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::api::trial::differences_of;

fuzz_target!(|bytes: &[u8]| {
    let Some((&descriptors, message)) = bytes.split_first() else {
        return;
    };
    let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
    let framed = [&[0], &length[..], message].concat();
    for reply in [&framed[..], message] {
        let differences = differences_of(reply, descriptors.into());
        // One for each descriptor, or one for the response.
        assert!(
            differences.is_none_or(|differences| differences <= usize::from(descriptors).max(1))
        );
    }
});
