//! When INFO of Redis is read, and what is logged of it: with limits of a day or more at the start
//! and every 5 minutes, and each change once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::store::watch::StoreWatch;

use crate::support::in_process::{
    ADDRESS, Log, NODES, RANGES, START, Service, cluster, millis, network, pass, settle, single,
};
use crate::support::scripted_redis::{Fault, Reply};

const INTERVAL: Duration = Duration::from_secs(300);
const INFO: &str = "INFO";
const FINE: [&str; 3] = ["1", "0", "noeviction"];
const NO_AOF: [&str; 3] = ["0", "0", "noeviction"];
/// All lines about it.
const MESSAGES: [&str; 3] = ["of a day or more", "INFO of Redis", "too long replies"];

struct Watched {
    log: Log,
    service: Service,
    has_long_periods: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Watched {
    /// Runs with limits of a day or more on a Redis that replies this to INFO.
    async fn start(info: Reply) -> Self {
        let log = Log::capture();
        let mut service = Service::new(&network(), single());
        service.server.reply(INFO, info);
        service.start().await;
        let has_long_periods = Arc::new(AtomicBool::new(true));
        let watch = StoreWatch::new(service.clock.clone(), &service.metrics);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch.run(service.redis.clone(), service.lifecycle.clone(), Vec::new));
        let redis = service.redis.clone();
        let wanted = has_long_periods.clone();
        tasks.spawn(async move { redis.watch_durability(|| wanted.load(Relaxed)).await });
        pass(millis(2_000)).await;
        Self { log, service, has_long_periods, _tasks: tasks }
    }

    /// Both lines of the gauge, and the lines of the log.
    fn reported(&self) -> ([u64; 2], Vec<String>) {
        (gauges(&self.service), self.log.lines(&MESSAGES))
    }

    fn ready(&self) -> String {
        self.service.lifecycle.state().report()
    }
}

fn info([aof, maxmemory, policy]: [&str; 3]) -> Reply {
    Reply::text(&format!(
        "# Persistence\r\naof_enabled:{aof}\r\n# Memory\r\nmaxmemory:{maxmemory}\r\nmaxmemory_human:0B\r\nmaxmemory_policy:{policy}\r\n"
    ))
}

fn gauges(service: &Service) -> [u64; 2] {
    ["no_aof", "eviction"]
        .map(|reason| service.metric(&format!("tollgate_store_not_durable{{reason=\"{reason}\"}}")))
}

#[tokio::test(start_paused = true)]
async fn info_is_read_at_the_start_and_every_five_minutes() {
    let watched = Watched::start(info(FINE)).await;
    pass(INTERVAL * 3).await;
    let read = watched.service.server.received_at(INFO);
    let seconds = read.iter().map(|at| at.since(START).as_micros() / 1_000_000);
    // Two sections each time.
    let expected = [0, 0, 300, 300, 600, 600, 900, 900];
    assert_eq!(seconds.collect::<Vec<_>>(), expected);
    assert_eq!(watched.reported(), ([0, 0], Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn each_change_is_logged_once_and_is_on_the_ready_page() {
    let watched = Watched::start(info(NO_AOF)).await;
    let no_aof = format!("counters on redis://{ADDRESS} are lost at a restart; set appendonly yes");
    let evicted = format!(
        "counters on redis://{ADDRESS} are evicted when memory is full; set maxmemory-policy noeviction"
    );
    let mut logged = 0;
    for (fields, texts, gauges) in [
        (NO_AOF, vec![&no_aof], [1, 0]),
        (["0", "1", "volatile-lru"], vec![&no_aof, &evicted], [1; 2]),
        (["1", "9", "volatile-ttl"], vec![&evicted], [0, 1]),
        (["0", "0", "allkeys-lfu"], vec![&no_aof], [1, 0]),
        (["1", "9", "noeviction"], Vec::new(), [0; 2]),
        (["1", "9", "allkeys-random"], vec![&evicted], [0, 1]),
    ] {
        watched.service.server.reply(INFO, info(fields));
        pass(INTERVAL * 3).await;
        logged += 1;
        let (shown, lines) = watched.reported();
        assert_eq!(shown, gauges, "{fields:?}");
        assert_eq!(lines.len(), logged, "{fields:?}: {lines:#?}");
        for (text, is_there) in [&no_aof, &evicted].map(|text| (text, texts.contains(&text))) {
            let ready = watched.ready();
            assert_eq!(ready.contains(&**text), is_there, "{fields:?}: {ready}");
            assert_eq!(lines[logged - 1].contains(&**text), is_there, "{lines:#?}");
        }
        assert!(watched.ready().starts_with("not ready\nprocess: running\nstore: "));
    }
}

#[tokio::test(start_paused = true)]
async fn rules_in_force_decide_whether_it_is_read() {
    let watched = Watched::start(info(NO_AOF)).await;
    let server = &watched.service.server;
    assert_eq!(watched.reported().0, [1, 0]);
    watched.has_long_periods.store(false, Relaxed);
    pass(INTERVAL * 3).await;
    assert_eq!(server.received(INFO), 2);
    let (gauges, lines) = watched.reported();
    assert_eq!(gauges, [0, 0]);
    assert!(lines.len() == 2 && lines[1].contains("recovered"), "{lines:#?}");
    assert!(!watched.ready().contains("of a day or more"));
    watched.has_long_periods.store(true, Relaxed);
    pass(millis(1_500)).await;
    assert_eq!(server.received(INFO), 4, "not five minutes later");
    assert_eq!(watched.reported().0, [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn info_that_cannot_be_read_is_logged_once_and_is_no_fault_of_serving() {
    let endless = "x:1\r\n".repeat(300_000);
    for (reply, cause) in [
        (
            Reply::error("NOPERM this user has no permissions to run the 'info' command"),
            "this user has no permissions",
        ),
        (
            Reply::text("# Persistence\r\naof_enabled:0\r\n"),
            "INFO has no aof_enabled, maxmemory or",
        ),
        (Reply::Int(7), "INFO"),
        (Reply::text(&endless), "replies of more than 1048576 bytes"),
    ] {
        let watched = Watched::start(reply).await;
        pass(INTERVAL * 3).await;
        let (gauges, lines) = watched.reported();
        assert_eq!(gauges, [0, 0]);
        let failed = lines.iter().filter(|line| line.contains("INFO of Redis was not read"));
        assert_eq!(failed.count(), 1, "{cause}: {lines:#?}");
        assert!(lines.concat().contains(cause), "{cause}: {lines:#?}");
        assert!(!watched.ready().contains("of a day or more"));
        assert!(!watched.service.is_open(), "requests are not affected");
        watched.service.server.reply(INFO, info(NO_AOF));
        pass(INTERVAL).await;
        assert_eq!(watched.reported().0, [1, 0], "{cause}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_an_outage_stays() {
    let watched = Watched::start(info(NO_AOF)).await;
    watched.service.server.fail(Fault::RefuseConnections);
    pass(INTERVAL * 3).await;
    assert_eq!(watched.reported().0, [1, 0]);
    watched.service.server.recover();
    watched.service.server.reply(INFO, info(FINE));
    pass(INTERVAL + millis(2_000)).await;
    assert_eq!(watched.reported().0, [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn masters_of_a_cluster_are_read_and_named_together() {
    let log = Log::capture();
    let network = network();
    for (master, fields) in NODES.into_iter().zip([FINE, NO_AOF, NO_AOF]) {
        let server = network.server(master);
        server.serve_slots(&RANGES);
        server.reply(INFO, info(fields));
    }
    let mut service = Service::new(&network, cluster(&NODES[..1]));
    service.start().await;
    pass(millis(1_000)).await;
    service.redis.check_durability().await;
    settle().await;
    assert_eq!(gauges(&service), [2, 0]);
    let lines = log.lines(&MESSAGES);
    let named = "counters on redis://10.0.0.2:6379 and 1 more are lost at a restart";
    assert!(lines.len() == 1 && lines[0].contains(named), "{lines:#?}");
}
