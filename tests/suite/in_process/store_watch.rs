//! What is reported while Redis does not decide: two log lines for each problem, and the sentence
//! on `/ready` as long as it lasts.

use tokio::task::JoinSet;
use tollgate::store::watch::StoreWatch;

use crate::support::fault_log::ERROR_REPLIES;
use crate::support::in_process::{
    ADDRESS, LIMIT, Log, SCRIPT, Service, Verdict, millis, network, pass, single,
};
use crate::support::scripted_redis::{Fault, LOADING, MASTER_DOWN, OOM, Reply};

/// The begin and the end of a problem.
const MESSAGES: [&str; 3] = ["of checks answered by", "Redis answers in", "Redis decides"];

/// The watch ends with its set of tasks.
async fn watched() -> (Log, Service, JoinSet<()>) {
    let log = Log::capture();
    let service = Service::started().await;
    let tasks = watch(&service);
    (log, service, tasks)
}

fn watch(service: &Service) -> JoinSet<()> {
    let watch = StoreWatch::new(service.clock.clone(), &service.metrics);
    let mut tasks = JoinSet::new();
    tasks.spawn(watch.run(service.redis.clone(), service.lifecycle.clone(), Vec::new));
    tasks
}

#[tokio::test(start_paused = true)]
async fn each_fault_is_named_in_five_seconds_and_its_end_is_logged_once() {
    for (fault, cause) in [
        (Fault::RefuseConnections, "Redis is unreachable; check"),
        (Fault::Error(LOADING), "Redis rejects commands"),
        (Fault::Delay(millis(90)), "STORE_TIMEOUT is 100 ms; find"),
    ] {
        let (log, service, _tasks) = watched().await;
        let traffic = service.traffic();
        pass(millis(60_000)).await;
        let ready = || service.lifecycle.state().report();
        assert_eq!(log.lines(&MESSAGES), [""; 0], "{fault:?}");
        service.server.fail(fault);
        pass(millis(5_000)).await;
        assert!(ready().contains(cause), "{fault:?}: {}", ready());
        let first = log.lines(&MESSAGES);
        assert!(first.len() == 1 && first[0].contains(cause), "{first:?}");
        pass(millis(60_000)).await;
        service.server.recover();
        pass(millis(15_000)).await;
        assert!(!ready().contains("on_store_error:"), "{}", ready());
        let lines = log.lines(&MESSAGES);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[1].contains("on_store_error answered "), "{lines:?}");
        traffic.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn redis_that_is_blocked_now_and_then_is_one_problem() {
    let (log, service, _tasks) = watched().await;
    let traffic = service.traffic();
    pass(millis(10_000)).await;
    for _ in 0..300 {
        service.server.fail(Fault::NoReply);
        pass(millis(80)).await;
        service.server.recover();
        pass(millis(20)).await;
    }
    let lines = log.lines(&MESSAGES);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    traffic.finish().await;
}

/// The breaker opens after late replies, and new connections are late as well.
#[tokio::test(start_paused = true)]
async fn late_connections_are_named_as_late_replies() {
    for fault in [Fault::Delay(millis(150)), Fault::Stopped] {
        let (log, service, _tasks) = watched().await;
        let traffic = service.traffic();
        pass(millis(10_000)).await;
        service.server.fail(fault);
        for after in [5_000, 60_000] {
            pass(millis(after)).await;
            let ready = service.lifecycle.state().report();
            let cause = "Redis does not answer within STORE_TIMEOUT (100 ms); find";
            assert!(ready.contains(cause), "{fault:?}: {ready}");
        }
        let lines = log.lines(&MESSAGES);
        assert_eq!(lines.len(), 1, "{lines:#?}");
        traffic.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_leave_no_time_for_redis_are_named() {
    for (grpc_timeout, is_short) in [("0n", true), ("1n", true), ("99999999H", false)] {
        let (_log, service, _tasks) = watched().await;
        for _ in 0..250 {
            service.ask_within("local", "v", Some(grpc_timeout)).await;
            pass(millis(20)).await;
        }
        let ready = service.lifecycle.state().report();
        let cure = "; set the timeout of Envoy's filter to 0.15s";
        assert_eq!(ready.contains(cure), is_short, "{grpc_timeout}: {ready}");
    }
}

/// Only the first hit finds out that INCR is refused.
#[tokio::test(start_paused = true)]
async fn refused_commands_are_replaced_and_named_until_they_are_allowed() {
    const REFUSED: [&str; 4] = ["TIME", "EVALSHA", "EVAL", "INCR"];
    for allowed_first in ["none", "TIME"] {
        let mut service = Service::new(&network(), single());
        for command in REFUSED.into_iter().filter(|command| *command != allowed_first) {
            let name = command.to_lowercase();
            let error = format!("NOPERM User rls has no permissions to run the '{name}' command");
            service.server.reply(command, Reply::error(&error));
        }
        service.start().await;
        let _tasks = watch(&service);
        if allowed_first == "TIME" {
            assert_ne!(service.ask("error", "first").await.verdict, Verdict::Ok);
        }
        for _ in 0..3 {
            assert_eq!(service.ask("error", "v").await.verdict, Verdict::Ok);
        }
        assert_ne!(service.ask(SCRIPT, "v").await.verdict, Verdict::Ok);
        pass(millis(5_000)).await;
        let ready = || service.lifecycle.state().report();
        assert!(ready().contains("'evalsha' command"), "{}", ready());
        assert_eq!(ready().contains("TIME: "), allowed_first == "none", "{}", ready());
        assert!(!service.is_open());
        for command in REFUSED {
            service.server.serve(command);
        }
        pass(millis(70_000)).await;
        assert!(!ready().contains("refuses commands"), "{}", ready());
        service.server.forget_received();
        assert_eq!(service.ask(SCRIPT, "v").await.verdict, Verdict::Ok);
        pass(millis(1_000)).await;
        assert_eq!(service.ask("error", "v").await.verdict, Verdict::Ok);
        assert_eq!(service.server.hits("d_error_v"), 4);
    }
}

/// As twemproxy does.
#[tokio::test(start_paused = true)]
async fn a_proxy_that_closes_connections_of_other_commands_counts_fixed_windows() {
    let log = Log::capture();
    let network = network();
    network.server(ADDRESS).pass_only(&["PING", "INCRBY", "EXPIRE", "GET"]);
    let mut service = Service::new(&network, single());
    service.start().await;
    let _tasks = watch(&service);
    let mut admitted = 0;
    for _ in 0..2 * LIMIT {
        admitted += u64::from(service.ask("error", "v").await.verdict == Verdict::Ok);
    }
    assert_eq!(admitted, LIMIT);
    assert_eq!(service.server.hits("d_error_v_").unsigned_abs(), 2 * LIMIT);
    assert!(service.server.immortal_keys().is_empty());
    pass(millis(5_000)).await;
    let ready = service.lifecycle.state().report();
    for part in ["Redis refuses commands", "TIME: ", "REPLICAS"] {
        assert!(ready.contains(part), "{part}: {ready}");
    }
    assert!(!ready.contains("unreachable"), "{ready}");
    assert_eq!(log.lines(&["Redis refuses commands"]).len(), 1);
    assert_eq!(log.lines(&["unreachable", "heartbeats rejected"]), [""; 0]);
}

/// Errors that Redis replies to all commands or to those that write, and to hits only; and what to
/// do.
#[tokio::test(start_paused = true)]
async fn errors_of_redis_are_reported_with_their_cure_and_not_as_unreachable() {
    let of_redis = [
        (OOM, "raise its maxmemory"),
        (MASTER_DOWN, "set that of the master"),
        (LOADING, "it reads its data after a restart, wait"),
        ("NOAUTH Authentication required.", "set REDIS_AUTH"),
        ("BUSY Redis is busy running a script.", "SCRIPT KILL ends it"),
    ];
    let of_hits = [
        ("MOVED 3999 10.0.0.2:6379", "set REDIS_TYPE=cluster"),
        ("NOPERM No permissions to access a key", "allow its user the command, see ACL LOG"),
        ("NOREPLICAS Not enough good replicas to write.", "its min-replicas-to-write"),
        ("CLUSTERDOWN The cluster is down", "a node is down, see CLUSTER INFO"),
    ];
    let of_redis = of_redis.map(|case| (case, true)).into_iter();
    for ((error, cure), is_of_all) in of_redis.chain(of_hits.map(|case| (case, false))) {
        let (log, service, _tasks) = watched().await;
        if is_of_all {
            service.server.fail(Fault::Error(error));
        } else {
            service.server.reply("INCR", Reply::error(error));
        }
        for call in 0..20 {
            service.ask("error", &call.to_string()).await;
            pass(millis(200)).await;
        }
        for _ in 0..LIMIT {
            assert_eq!(service.ask("local", "v").await.verdict, Verdict::Ok, "{error}");
        }
        let code = error.split(' ').next().expect("a code");
        let ready = service.lifecycle.state().report();
        for text in [&ready, &log.faults()[0]] {
            assert!(text.contains(code) && text.contains(cure), "{error}: {text}");
        }
        assert!(ready.contains("answered by on_store_error"), "{ready}");
        assert!(!ready.contains("in /ready") && !ready.contains("unreachable"), "{ready}");
        log.assert_logged_once(ERROR_REPLIES, false);
        assert_eq!(log.lines(&["unreachable"]), [""; 0], "{error}");
        assert!(!service.is_open(), "{error}");
        service.server.recover();
        service.server.serve("INCR");
        pass(millis(61_000)).await;
        let written_back = service.server.hits("d_local_v_").unsigned_abs();
        assert_eq!(written_back, LIMIT, "{error}");
        assert_eq!(service.ask("local", "v").await.verdict, Verdict::OverLimit, "{error}");
        assert_eq!(service.ask("error", "served").await.verdict, Verdict::Ok, "{error}");
        pass(millis(400)).await;
        log.assert_logged_once(ERROR_REPLIES, true);
    }
}
