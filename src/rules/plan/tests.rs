use super::*;
use crate::limits::Unit;
use crate::rules::query::{Entry, Override};
use crate::rules::tree::tests::rules_of;

const RULES: &str = "
domain: d
metadata: {tollgate: {defaults: {max_wait: 200ms, lease: 30s}}}
descriptors:
  - {key: reject, rate_limit: &five {unit: day, requests_per_unit: 5}}
  - {key: queue, rate_limit: *five, metadata: &queue {tollgate: {algorithm: leaky_bucket, on_limit: queue}}}
  - {key: shadow, rate_limit: *five, shadow_mode: true, metadata: *queue}
  - {key: quota, rate_limit: *five, quota_mode: true, metadata: *queue}
  - {key: degrade, rate_limit: *five, metadata: {tollgate: {on_limit: degrade}}}
  - key: api
    detailed_metric: true
    descriptors:
      - key: id
        rate_limit: *five
        detailed_metric: true
        value_to_metric: true
        metadata: {tollgate: {algorithm: concurrency, lease_by: id}}
  - {key: leased, rate_limit: {unit: hour, requests_per_unit: 100}, metadata: {tollgate: {consistency: leased}}}
  - {key: other, value: o, rate_limit: {unlimited: true, replaces: [{name: replaced}]}}
  - key: org
    rate_limit: *five
    descriptors:
      - {key: user, rate_limit: *five, metadata: {tollgate: {parents: true, limits: [{requests: 9, unit: hour}]}}}
  - key: gone
    descriptors:
      - {key: id, rate_limit: {unit: day, requests_per_unit: 5, name: replaced}, metadata: {tollgate: {algorithm: concurrency, lease_by: id}}}
";
const NOW: Time = Time::from_micros(1_000_000);
const MAX_WAIT: Span = Span::from_micros(200_000);

/// Plans a request, which may be changed before.
fn planned<T>(
    descriptors: &[&str],
    modes: Modes,
    change: impl FnOnce(&mut Query<'_>),
    look: impl FnOnce(Result<Plan<'_>, InvalidRequest>) -> T,
) -> T {
    let descriptors = descriptors.iter().map(|text| {
        Descriptor::new(text.split(',').map(|entry| Entry::parse(entry).expect("it has a key")))
    });
    let mut query = Query { domain: b"d", descriptors: descriptors.collect(), ..Query::default() };
    change(&mut query);
    look(plan(&rules_of(RULES), &query, modes, NOW))
}

/// Whether all checks of a request are one group.
fn is_all_or_nothing(request: &CheckRequest) -> bool {
    request.checks.iter().all(|check| check.group == 1)
}

/// The ask of a plan.
fn asked(descriptors: &[&str], modes: Modes, change: impl FnOnce(&mut Query<'_>)) -> CheckRequest {
    planned(descriptors, modes, change, |plan| plan.expect("it can be counted").request)
}

#[test]
fn a_slot_is_booked_for_hits_of_a_queue_while_the_caller_waits_and_nobody_is_in_shadow() {
    let booked = |key: &str, modes: Modes, change: fn(&mut Query<'_>)| {
        let request = asked(&[key], modes, change);
        request.checks[0].book_ahead
    };
    let usual = Modes::default();
    assert_eq!(booked("queue=1", usual, |_| {}), MAX_WAIT);
    assert_eq!(booked("quota=1", usual, |_| {}), MAX_WAIT);
    assert_eq!(
        booked("queue=1", usual, |query| query.deadline = Some(NOW.plus(Span::from_secs(1)))),
        MAX_WAIT
    );
    assert_eq!(
        booked("queue=1", usual, |query| query.deadline = Some(NOW.plus(Span::from_micros(7)))),
        Span::from_micros(7)
    );
    assert_eq!(
        booked("queue=1", usual, |query| query.deadline = Some(Time::default())),
        Span::ZERO
    );
    assert_eq!(booked("queue=1", usual, |query| query.descriptors[0].hits = Hits::Peek), MAX_WAIT);
    assert_eq!(
        booked("queue=1", usual, |query| query.descriptors[0].hits = Hits::Refund(1)),
        MAX_WAIT
    );
    assert_eq!(booked("queue=1", Modes { shadow: true, ..usual }, |_| {}), Span::ZERO);
    assert_eq!(booked("queue=1", Modes { quota: true, ..usual }, |_| {}), MAX_WAIT);
    for key in ["shadow=1", "reject=1", "degrade=1"] {
        assert_eq!(booked(key, usual, |_| {}), Span::ZERO, "{key}");
    }
    let group = |with: &str| is_all_or_nothing(&asked(&["reject=1", with], usual, |_| {}));
    assert!(group("queue=1"), "what may book is decided together");
    assert!(!group("reject=1"));
}

#[test]
fn what_rejects_or_queues_has_a_veto_and_what_degrades_has_none() {
    let vetoes = |modes: Modes| {
        let request = asked(
            &["reject=1", "queue=1", "shadow=1", "quota=1", "degrade=1", "api=1,id=1"],
            modes,
            |_| {},
        );
        request.checks.iter().map(|check| check.enforcing).collect::<Vec<_>>()
    };
    assert_eq!(vetoes(Modes::default()), [true, true, false, false, false, true]);
    assert_eq!(vetoes(Modes { shadow: true, ..Modes::default() }), [false; 6]);
    assert_eq!(vetoes(Modes { quota: true, ..Modes::default() }), [false; 6]);
}

#[test]
fn a_holder_is_one_whatever_the_call_costs() {
    for (sent, planned) in
        [(Hits::Add(9), Hits::Add(1)), (Hits::Refund(9), Hits::Refund(1)), (Hits::Peek, Hits::Peek)]
    {
        let request = asked(&["api=pay,id=ann"], Modes::default(), |query| {
            query.descriptors[0].hits = sent;
        });
        assert_eq!(
            (request.checks[0].hits, request.checks[0].holder.as_deref()),
            (planned, Some(&b"ann"[..]))
        );
    }
    assert_eq!(asked(&["reject=1"], Modes::default(), |_| {}).checks[0].holder, None);
}

#[test]
fn a_holder_without_a_name_is_refused_where_it_would_be_counted() {
    let error = planned(
        &["reject=1", "api=pay,id="],
        Modes::default(),
        |_| {},
        |plan| plan.expect_err("it has no name"),
    );
    assert_eq!(
        error.to_string(),
        "descriptors[1] has no value for id, which names the holder of a slot; send one that no other request has"
    );
    assert_eq!(
        asked(&["other=o", "gone=1,id="], Modes::default(), |_| {}).checks.len(),
        0,
        "its rule is replaced"
    );
}

#[test]
fn a_holder_makes_no_metric_of_its_own() {
    let metric_name = planned(
        &["api=pay,id=ann"],
        Modes::default(),
        |_| {},
        |plan| match &plan.expect("it can be counted").steps[0] {
            Step::Counted(link) => link.metric_name.clone(),
            _ => None,
        },
    );
    assert_eq!(metric_name.as_deref(), Some("d.api_pay.id"));
}

#[test]
fn checks_of_a_leased_rule_may_use_leases_and_drop_over_limit_hits() {
    let leased = |limit: Option<Override>| {
        let request = asked(&["leased=1"], Modes::default(), |query| {
            query.descriptors[0].limit = limit;
        });
        let check = &request.checks[0];
        assert_eq!(check.lease.is_some(), check.limit.over_limit_hits == OverLimitHits::Drop);
        // A `lease` of the domain without `consistency` is for holders.
        check.lease.as_ref().map(|lease| lease.lifetime)
    };
    let stated = |requests_per_unit| {
        Some(Override { requests_per_unit, unit: Some(Unit::Minute), wire_unit: 2 })
    };
    assert_eq!(leased(None), Some(None));
    assert_eq!(leased(stated(500)), Some(None));
    assert_eq!(leased(stated(0)), None, "there is nothing to take");
    let exact = asked(&["reject=1"], Modes::default(), |_| {});
    assert!(exact.checks[0].lease.is_none());
}

#[test]
fn what_a_soft_limit_admits_is_charged() {
    for (key, is_soft) in
        [("shadow=1", true), ("quota=1", true), ("degrade=1", true), ("reject=1", false)]
    {
        let request = asked(&[key], Modes::default(), |_| {});
        let check = &request.checks[0];
        assert_eq!(check.settles, is_soft, "{key}");
        assert!(!is_soft || check.is_charged(true, false), "{key}");
    }
}

const CHAINS: &str = r"
domain: d
descriptors:
- key: org
  rate_limit: {unit: hour, requests_per_unit: 9}
  shadow_mode: true
  descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {parents: true}}}
  - {key: phase, rate_limit: {unlimited: true}, metadata: {tollgate: {parents: true, over_limit_hits: count}}}
- key: team
  rate_limit: {unit: hour, requests_per_unit: 9}
  descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {tollgate: {parents: true}}}
- key: u
  rate_limit: {unit: second, requests_per_unit: 1000}
  metadata: {tollgate: {limits: [{requests: 100, unit: day}]}}
";

fn chain(entries: &str, limit: Option<(u32, Unit, i32)>) -> Vec<Check> {
    let rules = rules_of(CHAINS);
    let mut query = Query::of_entries("d", [entries].into_iter().flat_map(|one| one.split(',')))
        .expect("entries");
    query.descriptors[0].limit = limit.map(|(requests_per_unit, unit, wire_unit)| Override {
        requests_per_unit,
        unit: Some(unit),
        wire_unit,
    });
    let plan = plan(&rules, &query, Modes::default(), Time::from_micros(0)).expect("it is valid");
    plan.request.checks.into_iter().collect()
}

#[test]
fn in_a_chain_soft_levels_and_settlements_are_charged_over_limit() {
    let settles =
        |entries| -> Vec<bool> { chain(entries, None).iter().map(|check| check.settles).collect() };
    assert_eq!(settles("org=o,user=x"), [true, false]);
    assert_eq!(settles("org=o,phase=x"), [true]);
    assert_eq!(settles("team=o,user=x"), [false, false]);
}

#[test]
fn a_level_drops_hits_over_limit_alone_as_in_a_chain() {
    for entries in ["team=o", "team=o,user=x"] {
        let level = &chain(entries, None)[0];
        assert!(!level.is_charged(true, false), "{entries}");
    }
}

#[test]
fn a_limit_in_the_request_with_the_key_of_another_is_one_check_with_the_lower() {
    for (stated, decides) in [(50, 50), (150, 100)] {
        let checks = chain("u=x", Some((stated, Unit::Day, 4)));
        let keys: std::collections::HashSet<_> = checks.iter().map(|check| &check.key).collect();
        assert_eq!(keys.len(), checks.len(), "{stated}");
        let least = checks.iter().map(|check| check.limit.requests).min();
        assert_eq!(least, Some(decides));
    }
}

#[test]
fn checks_of_one_request_are_bounded() {
    let count = |chains: usize, others: usize| {
        let chains = std::iter::repeat_n("org=1,user=1", chains);
        let others = std::iter::repeat_n("reject=1", others);
        let descriptors: Vec<_> = chains.chain(others).collect();
        planned(
            &descriptors,
            Modes::default(),
            |_| {},
            |plan| plan.map(|plan| plan.request.checks.len()),
        )
    };
    // Each of the chains has three.
    assert_eq!(count(333, 1), Ok(CHECKS_MAX));
    assert_eq!(count(0, CHECKS_MAX), Ok(CHECKS_MAX));
    for (chains, others) in [(334, 0), (333, 2), (1_000, 0)] {
        let error = count(chains, others).expect_err("they are too many");
        assert!(error.to_string().contains("checks_max"), "{error}");
    }
}
