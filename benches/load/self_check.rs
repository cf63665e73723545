//! Checks the parts of the generator that could lie without anyone noticing: what it writes, what
//! it reads and what it picks.
//!
//! A bench target without a harness has no `#[test]`, so this runs when the program is started
//! without arguments.

use std::time::Duration;

use clap::Parser as _;
use prost::Message as _;

use tollgate::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use tollgate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use crate::load::answer::{self, Answer};
use crate::load::args::Args;
use crate::load::clock::now;
use crate::load::draw::{Draw, Random};
use crate::load::limit_check::{LimitCheck, Told};
use crate::load::request::{Bodies, FRAME_HEADER_LEN, Head};
use crate::load::tally::{Fate, Loss, Tally, Timeline};

/// Panics at the first thing that is wrong.
pub fn run() {
    requests_say_what_was_asked_for();
    several_keys_take_turns();
    a_second_has_the_answers_that_came_in_it();
    answers_are_read_as_prost_reads_them();
    broken_answers_are_called_so();
    zipf_follows_its_law();
    uniform_reaches_every_value();
    limit_check_sees_one_hit_too_many_and_one_too_few();
    a_deadline_is_sent_and_late_answers_are_counted();
}

fn requests_say_what_was_asked_for() {
    let args = args(&[
        "--keys=200",
        "--descriptors=3",
        "--hits=7",
        "--domain=d",
        "--key=k",
        "--value-prefix=v-",
    ]);
    let mut bodies = Bodies::new(&args).expect("the arguments are in order");
    for _ in 0..1_000 {
        let body = bodies.next();
        let (header, message) = body.bytes.split_at(FRAME_HEADER_LEN);
        assert_eq!(header[1..], (message.len() as u32).to_be_bytes());
        let request = RateLimitRequest::decode(message).expect("a request is protobuf");
        assert_eq!(
            (
                &*request.domain,
                request.hits_addend,
                request.descriptors.len()
            ),
            (&b"d"[..], 7, 3)
        );
        let numbers: Vec<u32> = request
            .descriptors
            .iter()
            .map(|descriptor| {
                let [entry] = &descriptor.entries[..] else {
                    panic!("one entry per descriptor: {descriptor:?}")
                };
                assert_eq!((&*entry.key, entry.value.len()), (&b"k"[..], "v-199".len()));
                str::from_utf8(&entry.value)
                    .ok()
                    .and_then(|value| value.strip_prefix("v-")?.parse().ok())
                    .expect("the prefix and digits")
            })
            .collect();
        assert!(
            numbers.iter().all(|&number| number < 200) && numbers[0] == body.value,
            "{numbers:?}"
        );
    }
}

fn several_keys_take_turns() {
    let args = args(&["--key=a,b", "--descriptors=3"]);
    let body = Bodies::new(&args)
        .expect("the arguments are in order")
        .next();
    let request =
        RateLimitRequest::decode(&body.bytes[FRAME_HEADER_LEN..]).expect("a request is protobuf");
    let keys: Vec<&[u8]> = request
        .descriptors
        .iter()
        .map(|descriptor| &*descriptor.entries[0].key)
        .collect();
    assert_eq!(keys, [b"a", b"b", b"a"]);
}

fn a_second_has_the_answers_that_came_in_it() {
    let (origin, ms) = (now(), Duration::from_millis);
    let mut timeline = Timeline::new(origin);
    // From the beginning: due, sent, ended.
    for (fate, due, sent, ended) in [
        (Fate::Answered(Answer::Ok), 0, 1, 3),
        (Fate::Answered(Answer::OverLimit), 900, 905, 999),
        (Fate::Answered(Answer::Grpc(14)), 950, 950, 2_100),
        (Fate::Unanswered(Loss::Timeout), 2_000, 2_000, 3_000),
    ] {
        timeline.record(
            &fate,
            origin + ms(due),
            origin + ms(sent),
            origin + ms(ended),
        );
    }
    let shown: Vec<_> = timeline
        .seconds()
        .iter()
        .map(|second| (second.answered, second.failed, second.late_max))
        .collect();
    assert_eq!(shown, [(2, 0, 5_000_000), (0, 0, 0), (0, 1, 0)]);
    let [first, _, third] = timeline.seconds() else {
        panic!("three are over")
    };
    assert!(
        (94_000_000..94_100_000).contains(&first.max)
            && (1_149_000_000..1_152_000_000).contains(&third.max)
    );
}

fn answers_are_read_as_prost_reads_them() {
    for (code, answer) in [(Code::Ok, Answer::Ok), (Code::OverLimit, Answer::OverLimit)] {
        for descriptors in [1, 2, 40] {
            let status = DescriptorStatus {
                code: code.into(),
                current_limit: Some(RateLimit {
                    requests_per_unit: u32::MAX,
                    name: "a name".into(),
                    unit: 3,
                }),
                limit_remaining: 300,
                ..DescriptorStatus::default()
            };
            let response = RateLimitResponse {
                overall_code: code.into(),
                statuses: vec![status; descriptors],
                raw_body: vec![b'x'; 200].into(),
                ..RateLimitResponse::default()
            };
            assert_eq!(
                answer::read(&frame(&response.encode_to_vec()), descriptors),
                answer
            );
        }
    }
}

fn broken_answers_are_called_so() {
    let ok = RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![DescriptorStatus {
            limit_remaining: 300,
            ..DescriptorStatus::default()
        }],
        ..RateLimitResponse::default()
    }
    .encode_to_vec();
    let mut compressed = frame(&ok);
    compressed[0] = 1;
    let unknown = RateLimitResponse {
        statuses: vec![DescriptorStatus::default()],
        ..RateLimitResponse::default()
    }
    .encode_to_vec();
    for broken in [
        vec![],
        frame(&ok)[..8].to_vec(),
        frame(&ok[..ok.len() - 1]),
        frame(&[]),
        frame(&unknown),
        frame(&[0xff; 12]),
        compressed,
    ] {
        assert!(
            matches!(answer::read(&broken, 1), Answer::Malformed(_)),
            "{broken:?}"
        );
    }
    assert!(
        matches!(answer::read(&frame(&ok), 2), Answer::Malformed(_)),
        "a status is missing"
    );
}

fn zipf_follows_its_law() {
    const DRAWS: u32 = 1_000_000;
    for exponent in [0.5_f64, 1.0, 1.3] {
        let args = args(&[
            "--keys=1000",
            "--pick=zipf",
            &format!("--zipf-exponent={exponent}"),
        ]);
        let counts = counts(&args, DRAWS);
        let weights: Vec<f64> = (1..=1_000)
            .map(|rank| f64::from(rank).powf(-exponent))
            .collect();
        let sum: f64 = weights.iter().sum();
        for rank in [0, 1, 2, 10, 100, 999] {
            let expected = weights[rank] / sum * f64::from(DRAWS);
            // Five standard deviations: the seed is fixed, so this fails for a wrong law only.
            assert!(
                (f64::from(counts[rank]) - expected).abs() < 5.0 * expected.sqrt(),
                "exponent {exponent}, rank {rank}: {} for {expected}",
                counts[rank]
            );
        }
    }
}

fn uniform_reaches_every_value() {
    let counts = counts(&args(&["--keys=1000"]), 1_000_000);
    assert!(
        counts.iter().all(|&count| (800..1_200).contains(&count)),
        "{counts:?}"
    );
}

fn limit_check_sees_one_hit_too_many_and_one_too_few() {
    for (granted, over, under) in [(9, 0, 1), (10, 0, 0), (11, 1, 0)] {
        let mut check = LimitCheck::new(10, 1, 3);
        for _ in 0..granted {
            check.record(1, &Told::Ok);
        }
        check.record(1, &Told::Refused);
        let verdict = check.verdict();
        assert_eq!(
            (
                verdict.values_asked,
                verdict.over_granted,
                verdict.under_granted
            ),
            (1, over, under),
            "{granted} granted"
        );
    }
}

fn a_deadline_is_sent_and_late_answers_are_counted() {
    let head = |options: &[&str]| {
        Head::new(&args(options))
            .expect("the arguments are in order")
            .request()
    };
    let sent = |options: &[&str]| head(options).headers().get("grpc-timeout").cloned();
    assert_eq!(sent(&["--deadline=20ms"]).expect("it is sent"), "20m");
    assert_eq!(sent(&["--deadline=1s"]).expect("it is sent"), "1000m");
    assert_eq!(sent(&[]), None);

    // From due to sent, and from sent to answered.
    let times = [(0, 20), (0, 21), (100, 20), (100, 21)];
    let (due_at, ms) = (now(), Duration::from_millis);
    for (deadline, overdue) in [(Some(20), 2), (Some(21), 0), (None, 0)] {
        let mut tally = Tally::new(deadline.map(ms));
        for (late, took) in times {
            let sent_at = due_at + ms(late);
            tally.record(
                Fate::Answered(Answer::Ok),
                due_at,
                sent_at,
                sent_at + ms(took),
            );
        }
        tally.record(
            Fate::Unanswered(Loss::Timeout),
            due_at,
            due_at,
            due_at + ms(1_000),
        );
        assert_eq!(
            (tally.ok, tally.overdue.len()),
            (4, overdue),
            "{deadline:?}"
        );
    }
}

fn counts(args: &Args, draws: u32) -> Vec<u32> {
    let (draw, mut random) = (Draw::new(args), Random::new(args.seed));
    let mut counts = vec![0; args.keys as usize];
    for _ in 0..draws {
        counts[draw.pick(&mut random, 0) as usize] += 1;
    }
    counts
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a test's message is small");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

fn args(options: &[&str]) -> Args {
    Args::try_parse_from(["load"].iter().chain(options)).expect("the options are in order")
}
