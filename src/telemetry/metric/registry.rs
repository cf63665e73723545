//! Every metric of the process: registered once, shown on the page and sampled for statsd.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry};

use crate::base::revision::{REVISION, TZDATA};
use crate::base::time::{MICROS_PER_SECOND, Time};
use crate::telemetry::mapper::{Kind, Mapping, escaped};
use crate::telemetry::metric::gauged;
use crate::telemetry::metric::mapped::MappedNames;
use crate::telemetry::metric::page;
use crate::telemetry::metric::process::Process;
use crate::telemetry::metric::series::{
    LATENCY_BUCKETS_US, Reference, Series, Source, Timer, Value,
};
use crate::telemetry::metric::snapshot::Snapshot;
use crate::telemetry::tags::Tags;

/// Powers of two up to the largest batch.
const SIZE_BUCKETS: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// Timeouts that people configure, in seconds: the bound of a bucket is the deadline of its calls.
const DEADLINE_BUCKETS: [f64; 20] = [
    0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.5,
    1.0, 2.0, 5.0, 10.0, 30.0,
];

/// Every metric of the process. Clones are the same.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    /// Our own metrics.
    registry: Registry,
    /// Those of the process, which are read for pages only.
    process: Registry,
    naming: Naming,
    reference: Mutex<Vec<Reference>>,
    sources: Mutex<Vec<Arc<dyn Source>>>,
    mapped: MappedNames,
}

/// How metrics are named and labelled on the page.
#[derive(Debug, Clone, Default)]
pub struct Naming {
    /// Renames the metrics of envoyproxy/ratelimit.
    pub mapping: Option<Mapping>,
    /// Labels of every series.
    pub tags: Tags,
    /// Whether response times are in milliseconds without a mapping, as envoyproxy/ratelimit had
    /// them; else in seconds, as their names say.
    pub response_time_as_milliseconds: bool,
}

impl fmt::Debug for Metrics {
    /// Without what it reads.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.registry.fmt(formatter)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::named(Naming::default())
    }
}

impl Metrics {
    /// With the names of envoyproxy/ratelimit.
    pub fn new() -> Self {
        Self::default()
    }

    /// With these names.
    pub fn named(naming: Naming) -> Self {
        let metrics = Self(Arc::new(Inner {
            registry: Registry::new(),
            process: Registry::new(),
            naming,
            reference: Mutex::default(),
            sources: Mutex::default(),
            mapped: MappedNames::new(),
        }));
        metrics.register(metrics.0.mapped.full.clone());
        metrics.register(metrics.0.mapped.conflicts.clone());
        metrics
    }

    /// Adds the metrics of the process (CPU time, memory, file descriptors, start time) and of the
    /// build.
    pub(crate) fn add_process(&self, start: Time) {
        let process = self.0.process.register(Box::new(Process));
        process.expect("it is added once");
        let help = "Start time of the process since unix epoch in seconds.";
        let seconds = gauged(start.as_micros() / MICROS_PER_SECOND);
        self.gauge("process_start_time_seconds", help).set(seconds);
        let help = "Version and source revision of this build; always 1.";
        let version = ("version", env!("CARGO_PKG_VERSION"));
        self.info("tollgate_build_info", help, &[version, ("revision", REVISION)]);
        let help = "Version of the time zone data of this build; always 1.";
        self.info("tollgate_tzdata_info", help, &[("version", TZDATA)]);
    }

    /// A gauge that is always 1, for its labels.
    pub(crate) fn info(&self, name: &str, help: &str, labels: &[(&str, &str)]) {
        self.gauge_with(name, help, labels).set(1);
    }

    /// A counter of our own.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.counter_with(name, help, &[])
    }

    /// A counter of our own with constant labels.
    pub fn counter_with(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> IntCounter {
        let counter =
            IntCounter::with_opts(options(name, help, labels)).expect("constants are valid");
        self.register(counter.clone());
        counter
    }

    /// A gauge of our own.
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.gauge_with(name, help, &[])
    }

    /// A gauge of our own with constant labels.
    pub fn gauge_with(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> IntGauge {
        let gauge = IntGauge::with_opts(options(name, help, labels)).expect("constants are valid");
        self.register(gauge.clone());
        gauge
    }

    /// A histogram of sizes from 1 to 64.
    pub(crate) fn sizes(&self, name: &str, help: &str) -> Histogram {
        self.histogram(options(name, help, &[]), SIZE_BUCKETS.to_vec())
    }

    /// A histogram of durations in seconds.
    pub(crate) fn latency(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> Histogram {
        let buckets = LATENCY_BUCKETS_US.map(|micros| f64::from(micros) / 1e6);
        self.histogram(options(name, help, labels), buckets.to_vec())
    }

    /// A histogram of the timeouts of callers in seconds.
    pub(crate) fn deadlines(&self, name: &str, help: &str) -> Histogram {
        self.histogram(options(name, help, &[]), DEADLINE_BUCKETS.to_vec())
    }

    /// A counter of envoyproxy/ratelimit, under its statsd name.
    pub fn reference_counter(
        &self,
        statsd: &str,
        name: &str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> IntCounter {
        let counter = IntCounter::new(name, help).expect("constants are valid");
        let own = counter.clone();
        self.add_reference(statsd, name, help, labels, move || Value::Counter(own.get()));
        counter
    }

    /// A gauge of envoyproxy/ratelimit.
    pub fn reference_gauge(&self, statsd: &str, name: &str, help: &'static str) -> IntGauge {
        let gauge = IntGauge::new(name, help).expect("constants are valid");
        let own = gauge.clone();
        let value = move || Value::Gauge(u64::try_from(own.get()).unwrap_or(0));
        self.add_reference(statsd, name, help, &[], value);
        gauge
    }

    /// Shows a counter of our own as the counter of envoyproxy/ratelimit too.
    pub(crate) fn reference_counter_of(&self, own: &IntCounter, statsd: &str, help: &'static str) {
        let own = own.clone();
        let value = move || Value::Counter(own.get());
        self.add_reference(statsd, &escaped(statsd), help, &[], value);
    }

    /// A counter of our own that is a gauge in envoyproxy/ratelimit.
    pub(crate) fn counter_as_gauge(
        &self,
        name: &str,
        statsd: &str,
        help: &'static str,
    ) -> IntCounter {
        let counter = self.counter(name, help);
        let own = counter.clone();
        let value = move || Value::Gauge(own.get());
        self.add_reference(statsd, &escaped(statsd), help, &[], value);
        counter
    }

    /// A timer of envoyproxy/ratelimit.
    pub fn reference_timer(
        &self,
        statsd: &str,
        name: &str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Timer {
        let naming = &self.0.naming;
        let (per_second, buckets) = match &naming.mapping {
            // Mappings scale from milliseconds, the unit of statsd.
            Some(mapping) => mapping.map(statsd, Kind::Observer).map_or_else(
                || (1.0, Vec::new()),
                |mapped| (mapped.scale * 1_000.0, mapped.buckets),
            ),
            None if naming.response_time_as_milliseconds => (1_000.0, Vec::new()),
            None => (1.0, Vec::new()),
        };
        let timer = Timer::new(name, help, per_second, buckets)
            .expect("names are constants, and buckets are validated by the mapping");
        let own = timer.clone();
        self.add_reference(statsd, name, help, labels, move || Value::Times(own.times()));
        timer
    }

    /// Shows the series of a source too.
    pub fn add_source(&self, source: Arc<dyn Source>) {
        self.0.sources.lock().push(source);
    }

    /// The current page for Prometheus.
    pub fn page(&self) -> String {
        page::write(&self.families())
    }

    /// The current metrics.
    pub(crate) fn families(&self) -> Vec<MetricFamily> {
        let Inner { registry, process, naming, mapped, .. } = &*self.0;
        let mut registered = registry.gather();
        registered.extend(process.gather());
        let series = self.series().into_iter();
        let samples = series.filter_map(|series| mapped.sample(series, naming.mapping.as_ref()));
        let (families, conflicts) =
            page::families(registered, samples.collect(), &naming.tags.as_labels());
        mapped.conflicts.set(gauged(conflicts));
        families
    }

    /// The current values of the metrics of envoyproxy/ratelimit, by statsd name. It has no control
    /// characters, whatever clients send, and no tags.
    pub fn samples(&self) -> Vec<(String, Value)> {
        let series = self.series().into_iter();
        let samples = series.filter_map(|series| {
            Some((series.statsd?.replace(char::is_control, "_"), series.value))
        });
        samples.collect()
    }

    /// `name: value` for each counter and gauge of envoyproxy/ratelimit, sorted by statsd name.
    pub fn lines(&self) -> String {
        let mut lines: Vec<(String, u64)> = self
            .samples()
            .into_iter()
            .filter_map(|(name, value)| match value {
                Value::Counter(number) | Value::Gauge(number) => Some((name, number)),
                Value::Times(_) => None,
            })
            .collect();
        lines.sort_unstable();
        let mut text = String::new();
        for (name, value) in lines {
            let _ = writeln!(text, "{name}: {value}");
        }
        text
    }

    /// The current values of the metrics that are registered at the start.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let reference = self.0.reference.lock();
        Snapshot::new(&self.0.registry.gather(), reference.iter().map(|read| read()))
    }

    /// The current values of CPU time, memory, threads and file descriptors, which take system
    /// calls.
    pub(crate) fn process(&self) -> Snapshot {
        Snapshot::new(&self.0.process.gather(), std::iter::empty())
    }

    /// Everything that is not in the registry.
    fn series(&self) -> Vec<Series> {
        let reference = self.0.reference.lock();
        let mut series: Vec<Series> = reference.iter().map(|read| read()).collect();
        for source in &*self.0.sources.lock() {
            source.collect(&mut series);
        }
        series
    }

    fn add_reference(
        &self,
        statsd: &str,
        name: &str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        value: impl Fn() -> Value + Send + Sync + 'static,
    ) {
        let labels = labels.iter().map(|(label, value)| (*label, (*value).to_owned()));
        let zero = Series::counter(name, help, labels.collect(), 0, Some(statsd.to_owned()));
        let read = move || Series { value: value(), ..zero.clone() };
        self.0.reference.lock().push(Box::new(read));
    }

    fn histogram(&self, common_opts: Opts, buckets: Vec<f64>) -> Histogram {
        let options = HistogramOpts { common_opts, buckets };
        let histogram = Histogram::with_opts(options).expect("constants are valid");
        self.register(histogram.clone());
        histogram
    }

    /// Shows a metric that exists already.
    pub(crate) fn register(&self, collector: impl Collector + 'static) {
        self.0
            .registry
            .register(Box::new(collector))
            .expect("every metric is registered once, under its own name");
    }
}

fn options(name: &str, help: &str, labels: &[(&str, &str)]) -> Opts {
    let options = Opts::new(name, help);
    labels.iter().fold(options, |options, (label, value)| options.const_label(*label, *value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Span;
    use crate::telemetry::mapper::{Pattern, Rule};

    fn mapping(rules: &[(&str, &str)]) -> Mapping {
        let mut mapping = Mapping::default();
        for (glob, name) in rules {
            let pattern = Pattern::glob(glob).expect("a glob");
            let name = (*name).to_owned();
            let labels = Vec::new();
            let rest = (false, 2.0, None, None, Vec::new());
            let (drops, scale, help, observer, buckets) = rest;
            mapping.add(Rule {
                pattern,
                kind: None,
                name,
                labels,
                drops,
                scale,
                help,
                observer,
                buckets,
            });
        }
        mapping
    }

    #[test]
    fn names_from_clients_do_not_break_lines() {
        let metrics = Metrics::new();
        let name = "a\nforged: 1";
        metrics.reference_counter(name, "a", "A.", &[("domain", name)]).inc();
        for page in [metrics.page(), metrics.lines()] {
            assert!(page.lines().all(|line| !line.starts_with("forged")), "{page}");
        }
        assert_eq!(metrics.lines(), "a_forged: 1: 1\n");
    }

    #[test]
    fn timers_are_sampled_and_on_the_page() {
        let metrics = Metrics::new();
        let latency = metrics.reference_timer("a.response_time", "a_seconds", "A.", &[]);
        for millis in [0, 1, 1, 60_000] {
            latency.observe(Span::from_micros(millis * 1_000));
        }
        let [(series, Value::Times(times))] = &*metrics.samples() else { panic!("one timer") };
        assert_eq!((&**series, times.count), ("a.response_time", 4));
        assert!(metrics.page().contains("\na_seconds_count 4\n"), "{}", metrics.page());
    }

    #[test]
    fn mappings_rename_reference_metrics_only_and_sum_equal_names() {
        let metrics = Metrics::named(Naming {
            mapping: Some(mapping(&[("a.*", "both"), ("t.*", "times")])),
            ..Naming::default()
        });
        metrics.reference_counter("a.one", "one", "One.", &[]).inc_by(3);
        metrics.reference_counter("a.two", "two", "Two.", &[]).inc_by(4);
        metrics.counter("own_total", "Own.").inc();
        for name in ["t.a", "t.b"] {
            metrics.reference_timer(name, "t_seconds", "T.", &[]).observe(Span::from_micros(1_000));
        }
        let page = metrics.page();
        for line in
            ["both 14", "own_total 1", "# TYPE times summary", "times_sum 4", "times_count 2"]
        {
            assert!(page.lines().any(|shown| shown == line), "{line}: {page}");
        }
        assert!(!page.contains("\none "), "{page}");
        assert_eq!(metrics.lines(), "a.one: 3\na.two: 4\n", "mappings do not apply to statsd");
    }

    #[test]
    fn names_of_another_type_are_left_off_and_counted() {
        let rules = [("a.*", "mixed"), ("b.*", "tollgate_metric_conflicts")];
        let metrics =
            Metrics::named(Naming { mapping: Some(mapping(&rules)), ..Naming::default() });
        metrics.reference_counter("a.one", "one", "One.", &[]).inc();
        metrics.reference_gauge("a.two", "two", "Two.").set(5);
        metrics.reference_counter("b.one", "three", "Three.", &[]).inc();
        assert!(metrics.page().contains("\nmixed 2\n"), "{}", metrics.page());
        assert!(metrics.page().contains("\ntollgate_metric_conflicts 2\n"), "{}", metrics.page());
    }

    #[test]
    fn tags_label_every_series_and_its_own_labels_take_precedence() {
        let tags = Tags::read("zone:a,err_type:b").expect("tags");
        let metrics = Metrics::named(Naming { tags, ..Naming::default() });
        metrics.counter("own_total", "Own.");
        metrics.reference_counter("x", "x", "X.", &[("err_type", "mine")]);
        let page = metrics.page();
        for line in [r#"own_total{err_type="b",zone="a"} 0"#, r#"x{err_type="mine",zone="a"} 0"#] {
            assert!(page.lines().any(|shown| shown == line), "{line}: {page}");
        }
    }
}
