//! Calls under way while something happens to the service: generators of the project's load (benches/load), each on a thread of its own.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::panic;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser as _;
use tokio::runtime::{Builder, LocalOptions};

use super::TestServer;
use super::starvation::{Looks, Watch};
use crate::load::args::Args;
use crate::load::clock::now;
use crate::load::run;

/// Generators that run.
pub(crate) struct Traffic<const N: usize> {
    began: Instant,
    generators: [JoinHandle<Unjudged>; N],
    watch: Watch<Instant>,
}

/// What the clients of one generator saw.
#[derive(Debug)]
#[expect(dead_code, reason = "shown where a test fails")]
pub(crate) struct Seen {
    pub(crate) sent: u64,
    pub(crate) ok: u64,
    pub(crate) over_limit: u64,
    /// By name of the gRPC status.
    pub(crate) errors: BTreeMap<String, u64>,
    /// By reason.
    pub(crate) unanswered: BTreeMap<String, u64>,
    pub(crate) unsent: u64,
    /// How long those answers took that took longer than --deadline, without those that the machine held up.
    pub(crate) overdue: Vec<Duration>,
    /// Answers that took longer because a thread of the clients or of the service was ready to run, and was not run.
    pub(crate) starved: usize,
    latency_max: Duration,
    pub(crate) connections_lost: u64,
    /// With --check-limit: how many values were let through for more.
    pub(crate) over_granted: u64,
    /// For how much of the time threads of clients and service, taken together, were ready to run, and were not run.
    pub(crate) waited_percent: u128,
    /// Times are not to be looked at, therefore.
    pub(crate) is_excused: bool,
}

/// What gRPC answers by itself when the time of a call is over.
const LATE: &str = "CANCELLED";
/// From here on a machine has so much else to do that times may say nothing of anybody. With nothing else it is 1 to 3.
const BUSY_PERCENT_MIN: u128 = 10;

/// What a generator saw, before it is known what the machine did meanwhile.
struct Unjudged {
    seen: Seen,
    deadline: Option<Duration>,
    overdue: Vec<Range<Instant>>,
}

impl<const N: usize> Traffic<N> {
    /// Sends calls to a server without a warm-up, from a generator for each of these options.
    pub(crate) fn to(server: &TestServer, options: &[Vec<String>; N]) -> Self {
        let (own_thread, threads) = mpsc::channel();
        let generators = options.each_ref().map(|options| {
            let target = format!("--target={}", server.grpc);
            let words = ["load", &target, "--warmup=0s"].into_iter().chain(options.iter().map(String::as_str));
            let args = Args::try_parse_from(words).expect("the options are in order");
            args.validate().expect("the options are in order");
            let own_thread = own_thread.clone();
            thread::spawn(move || {
                own_thread.send(fs::canonicalize("/proc/thread-self")).expect("the test waits");
                generate(&args)
            })
        });
        let threads = threads.iter().take(N).flatten().collect();
        Self { began: now(), generators, watch: Watch::start(&[server.pid()], threads, now) }
    }

    /// Waits for its end.
    pub(crate) fn finish(self) -> [Seen; N] {
        let ended = self.generators.map(JoinHandle::join);
        let looks = self.watch.stop();
        let waited_percent = looks.waited_in_all().as_millis() * 100 / (now() - self.began).as_millis();
        ended.map(|ended| {
            let seen = ended.unwrap_or_else(|panic| panic::resume_unwind(panic)).judge(&looks);
            Seen { waited_percent, ..seen }
        })
    }
}

impl Unjudged {
    /// Tells apart what was late by itself, and what the machine held up.
    fn judge(self, looks: &Looks<Instant>) -> Seen {
        let mut seen = self.seen;
        for under_way in self.overdue {
            let took = under_way.end - under_way.start;
            let late = took.saturating_sub(self.deadline.expect("nothing is overdue without a deadline"));
            // Had it been run whenever it was ready, it would have been in time.
            if looks.waited(under_way.start, under_way.end) >= late {
                seen.starved += 1;
            } else {
                seen.overdue.push(took);
            }
        }
        seen
    }
}

impl Seen {
    /// Fails unless every call that fell due was sent and answered, and in time.
    pub(crate) fn is_complete(&self) {
        let errors: u64 = self.errors.values().sum();
        assert!(self.sent > 0 && self.unsent == 0 && self.unanswered.is_empty() && self.connections_lost == 0, "{self:?}");
        assert_eq!(self.sent, self.ok + self.over_limit + errors, "calls sent, and answers received: {self:?}");
        assert!(self.overdue.is_empty() || self.is_excused, "answers after the deadline: {self:?}");
    }

    /// Whether answers came after their deadline: by themselves, or because the whole machine stood still for a moment, which a second try
    /// tells apart.
    pub(crate) fn is_overdue(&self) -> bool {
        !self.overdue.is_empty()
    }

    /// Whether the machine was busy with other things.
    pub(crate) fn was_held_up(&self) -> bool {
        self.waited_percent >= BUSY_PERCENT_MIN
    }

    /// Fails if an answer was another error than these, or none of OK and OVER_LIMIT.
    pub(crate) fn has_no_error_but(&self, names: &[&str]) {
        let is_expected = |error: &String| names.contains(&&**error) || (error == LATE && (self.starved > 0 || self.is_excused));
        assert!(self.errors.keys().all(is_expected), "{self:?}");
    }
}

/// Runs a generator on this thread.
fn generate(args: &Args) -> Unjudged {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime can be built");
    let outcome = runtime.block_on(run::run(args)).expect("the server is there, and every call is accounted for");
    let tally = outcome.measured;
    let seen = Seen {
        sent: tally.sent,
        ok: tally.ok,
        over_limit: tally.over_limit,
        errors: tally.errors.iter().map(|(error, count)| (error.to_string(), *count)).collect(),
        unanswered: tally.unanswered.iter().map(|(loss, count)| (loss.to_string(), *count)).collect(),
        unsent: tally.unsent,
        overdue: Vec::new(),
        starved: 0,
        latency_max: Duration::from_nanos(tally.latency.max()),
        connections_lost: outcome.connections.lost.get(),
        over_granted: outcome.limit_check.map_or(0, |check| check.over_granted),
        waited_percent: 0,
        is_excused: false,
    };
    Unjudged { seen, deadline: args.deadline, overdue: tally.overdue }
}

/// That it tells good from bad, which the tests of other things rely on.
mod tests {
    use super::*;
    use crate::support::limit_of;

    const PAUSE: Duration = Duration::from_millis(200);

    fn options(length: Duration) -> Vec<String> {
        let length = format!("--duration={length:?}");
        ["--domain=d", "--key=k", "--pick=one", "--rate=100", "--connections=2", "--deadline=50ms", &length].map(str::to_owned).to_vec()
    }

    #[test]
    fn what_goes_well_is_called_so() {
        let server = TestServer::with_rules(&limit_of(1_000)).start();
        for seen in Traffic::to(&server, &[options(Duration::from_secs(1)), options(Duration::from_secs(1))]).finish() {
            seen.is_complete();
            seen.has_no_error_but(&[]);
            assert_eq!((seen.sent, seen.ok), (100, 100), "{seen:?}");
        }
    }

    #[test]
    fn a_service_that_stands_still_is_late_or_silent() {
        let server = TestServer::with_rules(&limit_of(1_000)).start();
        let patient = options(PAUSE * 4);
        let impatient = [&patient[..], &["--timeout=100ms".to_owned()]].concat();
        let traffic = Traffic::to(&server, &[patient, impatient]);
        server.signal("STOP");
        thread::sleep(PAUSE);
        server.signal("CONT");
        let [patient, impatient] = traffic.finish();
        assert!(patient.overdue.len() + patient.starved > 5 && patient.unanswered.is_empty(), "{patient:?}");
        assert!(impatient.unanswered["timeout"] > 5, "{impatient:?}");
    }
}
