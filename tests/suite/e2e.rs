//! A real Envoy, with the files of `deploy/envoy` that users copy, in front of the real binary:
//! what a client of a rate limited site sees.
//!
//! Every request must get its reply, and Envoy's own counters must say exactly what the replies
//! did, whether Tollgate counts in its memory or in a Redis; no test is skipped where Envoy or
//! Redis is missing, it fails and says how to get it. No test sleeps to let a window pass:
//! those that could be in its way are a day long.

mod env;

mod access_log;
mod concurrency;
mod connections;
mod console;
mod costs;
mod headers;
mod limits;
mod llm;
mod outages;
mod over_limit;
mod replay;
mod system;
mod trial;
