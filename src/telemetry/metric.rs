//! Counters, gauges, histograms and timers, each with its name and help text.
//!
//! Every room defines its own. What the reference also counts has its statsd name beside the
//! Prometheus one: both its statsd and its mapping files go by that. Names follow Prometheus'
//! conventions (base units, `_total`), but for the reference's, which dashboards query as they are.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{HistogramOpts, Opts, Registry};

use crate::telemetry::mapper::{Kind, Mapped, MappedMetric, Mapping, Observer};
use crate::telemetry::metric::page::{Number, PageSample};
use crate::telemetry::tags::Tags;
use crate::time::Span;

pub use prometheus::{Histogram, IntCounter as Counter, IntGauge as Gauge};

mod page;

/// Microseconds, from 50 on: the reference's page begins at 5 ms, which is more than Tollgate
/// takes.
const LATENCY_BUCKETS_US: [f64; 18] = [
    50.0,
    100.0,
    250.0,
    500.0,
    1_000.0,
    2_500.0,
    5_000.0,
    10_000.0,
    20_000.0,
    25_000.0,
    50_000.0,
    100_000.0,
    250_000.0,
    500_000.0,
    1_000_000.0,
    2_500_000.0,
    5_000_000.0,
    10_000_000.0,
];

/// What the reference's library makes of times whose mapping names no buckets, whatever their unit.
/// Dashboards may ask for one by name.
const REFERENCE_BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// Powers of two up to the largest call to a store.
const SIZE_BUCKETS: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// Of how many names it is kept what a mapping file makes of them. Whoever has more has them mapped
/// anew for each page.
pub const MAPPED_NAMES_MAX: usize = 100_000;

/// Source revision of this build: TOLLGATE_REVISION at compile time, set when the image is built.
const REVISION: &str = match option_env!("TOLLGATE_REVISION") {
    Some(revision) if !revision.is_empty() => revision,
    _ => "unknown",
};

/// Every metric of the process. Clones are the same.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Our own.
    registry: Registry,
    naming: Naming,
    reference: Mutex<Vec<Reference>>,
    timers: Mutex<Vec<ReferenceTimer>>,
    sources: Mutex<Vec<Arc<dyn Source>>>,
    mapped: MappedNames,
}

/// How metrics are named and tagged on the page.
#[derive(Debug, Clone, Default)]
pub struct Naming {
    /// What names of the reference become, if not those that it gives them by default.
    pub mapping: Option<Mapping>,
    /// What every series is labelled with.
    pub tags: Tags,
    /// The unit of the reference's times where no mapping says it.
    pub time_unit: TimeUnit,
}

/// A unit of time on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeUnit {
    /// As the name of the metric says.
    #[default]
    Seconds,
    /// As the reference had it once.
    Milliseconds,
}

/// Times that the reference takes, too.
#[derive(Debug, Clone)]
pub struct Timer {
    histogram: Histogram,
    per_second: f64,
}

/// Something that has counters of names that come and go.
pub trait Source: std::fmt::Debug + Send + Sync {
    /// Adds what it has.
    fn collect(&self, series: &mut Vec<Series>);
}

/// A counter or a gauge as a source shows it. Of one name and labels there may be several: they are
/// summed up.
#[derive(Debug, Clone)]
pub struct Series {
    name: String,
    help: &'static str,
    labels: Vec<(&'static str, String)>,
    kind: Kind,
    value: u64,
    statsd: Option<String>,
    of_client: bool,
}

/// What a metric of the reference says at the moment, under its statsd name.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Without tags. No line breaks, whatever clients send.
    pub name: String,
    /// Since the start, or now.
    pub value: SampleValue,
}

/// See [`Sample`].
#[derive(Debug, Clone, PartialEq)]
pub enum SampleValue {
    /// All that was counted.
    Counter(u64),
    /// As it stands.
    Gauge(u64),
    /// How many times were at most so many milliseconds, and more than those before.
    Timer(Vec<(f64, u64)>),
}

/// A metric of the reference that is there from the start.
#[derive(Debug)]
struct Reference {
    statsd: String,
    name: &'static str,
    help: &'static str,
    labels: Vec<(&'static str, String)>,
    value: ReferenceValue,
}

#[derive(Debug)]
enum ReferenceValue {
    Counter(Counter),
    Gauge(Gauge),
    /// The reference tells it as a gauge, although it only grows.
    CounterAsGauge(Counter),
}

#[derive(Debug)]
struct ReferenceTimer {
    statsd: String,
    timer: Timer,
    help: &'static str,
    shown: Option<MappedMetric>,
}

/// What the mapping made of the names that were seen. A name is always of one kind.
#[derive(Debug)]
struct MappedNames {
    known: Mutex<HashMap<Box<str>, Arc<Mapped>>>,
    full: Counter,
    conflicts: Gauge,
}

impl Series {
    /// A counter. `statsd` is its name in the reference, if it has one.
    pub fn counter(
        name: &str,
        help: &'static str,
        labels: Vec<(&'static str, String)>,
        value: u64,
        statsd: Option<String>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            help,
            labels,
            kind: Kind::Counter,
            value,
            statsd,
            of_client: false,
        }
    }

    /// A client chose a part of its statsd name. Where no mapping is about that, it keeps its name
    /// and labels: each name that a client makes up would be a metric family of its own.
    #[must_use]
    pub fn of_client(mut self) -> Self {
        self.of_client = true;
        self
    }
}

impl Timer {
    /// Adds a time.
    pub fn observe(&self, span: Span) {
        self.histogram.observe(span.as_secs_f64() * self.per_second);
    }

    /// How many times are in each bucket, by its upper bound in milliseconds. What is beyond the
    /// last bound is told as that.
    fn buckets(&self) -> Vec<(f64, u64)> {
        let families = self.histogram.collect();
        let Some(metric) = families
            .first()
            .and_then(|family| family.get_metric().first())
        else {
            return Vec::new();
        };
        let histogram = metric.get_histogram();
        let mut below = 0;
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for bucket in histogram.get_bucket() {
            let count = bucket.cumulative_count();
            buckets.push((
                bucket.upper_bound() / self.per_second * 1_000.0,
                count - below,
            ));
            below = count;
        }
        if let Some((_, last)) = buckets.last_mut() {
            *last += histogram.get_sample_count().saturating_sub(below);
        }
        buckets
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::named(Naming::default())
    }
}

impl Metrics {
    /// No metrics yet, with the reference's names.
    pub fn new() -> Self {
        Self::default()
    }

    /// No metrics yet.
    pub fn named(naming: Naming) -> Self {
        let full = "Times that what the mapping file makes of names was forgotten, because there were 100,000 of them (mapped_names_max).";
        let conflicts = "Series left off the page before this one, because the mapping file gives them a name that a metric of another kind has.";
        let mapped = MappedNames {
            known: Mutex::default(),
            full: Counter::new("tollgate_mapped_names_full_total", full)
                .expect("a constant of ours"),
            conflicts: Gauge::new("tollgate_metric_conflicts", conflicts)
                .expect("a constant of ours"),
        };
        let (registry, reference, timers, sources) = (
            Registry::new(),
            Mutex::default(),
            Mutex::default(),
            Mutex::default(),
        );
        let metrics = Self(Arc::new(Inner {
            registry,
            naming,
            reference,
            timers,
            sources,
            mapped,
        }));
        metrics.register(metrics.0.mapped.full.clone());
        metrics.register(metrics.0.mapped.conflicts.clone());
        metrics
    }

    /// Adds the metrics of the process (CPU time, memory, file descriptors, start time) and of the
    /// build.
    pub fn add_process(&self) {
        self.register(prometheus::process_collector::ProcessCollector::for_self());
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("revision", REVISION),
        ];
        self.gauge_with(
            "tollgate_build_info",
            "Version and source revision of this build; always 1.",
            &labels,
        )
        .set(1);
    }

    /// A counter of our own.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        self.counter_with(name, help, &[])
    }

    /// A counter of our own, with labels that never change.
    pub fn counter_with(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> Counter {
        let counter = Counter::with_opts(options(name, help, labels))
            .expect("names and labels are constants of ours");
        self.register(counter.clone());
        counter
    }

    /// A counter that the reference has too, under that statsd name.
    pub fn reference_counter(
        &self,
        statsd: &str,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Counter {
        let counter = Counter::new(name, help).expect("names are constants of ours");
        self.add_reference(
            statsd,
            name,
            help,
            labels,
            ReferenceValue::Counter(counter.clone()),
        );
        counter
    }

    /// A gauge that the reference has too.
    pub fn reference_gauge(&self, statsd: &str, name: &'static str, help: &'static str) -> Gauge {
        let gauge = Gauge::new(name, help).expect("names are constants of ours");
        self.add_reference(
            statsd,
            name,
            help,
            &[],
            ReferenceValue::Gauge(gauge.clone()),
        );
        gauge
    }

    /// Shows a counter of our own under the reference's name, too.
    pub fn reference_counter_of(
        &self,
        counter: Counter,
        statsd: &str,
        name: &'static str,
        help: &'static str,
    ) -> Counter {
        self.add_reference(
            statsd,
            name,
            help,
            &[],
            ReferenceValue::Counter(counter.clone()),
        );
        counter
    }

    /// Shows a counter of our own as the gauge that the reference has of it, too.
    pub fn reference_gauge_of(
        &self,
        counter: Counter,
        statsd: &str,
        name: &'static str,
        help: &'static str,
    ) -> Counter {
        self.add_reference(
            statsd,
            name,
            help,
            &[],
            ReferenceValue::CounterAsGauge(counter.clone()),
        );
        counter
    }

    /// Times that the reference takes, too.
    pub fn reference_timer(
        &self,
        statsd: &str,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> Timer {
        let mapped = match &self.0.naming.mapping {
            Some(mapping) => mapping.map(statsd, Kind::Observer),
            None => Mapped::As(MappedMetric {
                name: name.to_owned(),
                labels: labels
                    .iter()
                    .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
                    .collect(),
                // Mappings are of milliseconds, which is what statsd knows.
                scale: if self.0.naming.time_unit == TimeUnit::Seconds {
                    0.001
                } else {
                    1.0
                },
                help: None,
                observer: Observer::Histogram,
                buckets: Vec::new(),
                is_matched: false,
            }),
        };
        let shown = if let Mapped::As(shown) = mapped {
            Some(shown)
        } else {
            None
        };
        let per_second = shown.as_ref().map_or(1.0, |shown| shown.scale * 1_000.0);
        let buckets = shown
            .as_ref()
            .map(|shown| shown.buckets.clone())
            .filter(|buckets| !buckets.is_empty());
        let options = HistogramOpts::new(name, help)
            .buckets(buckets.unwrap_or_else(|| latency_buckets(per_second)));
        let histogram = Histogram::with_opts(options)
            .expect("names are constants of ours, and buckets were looked at");
        let timer = Timer {
            histogram,
            per_second,
        };
        self.0.timers.lock().push(ReferenceTimer {
            statsd: statsd.to_owned(),
            timer: timer.clone(),
            help,
            shown,
        });
        timer
    }

    /// A gauge of our own.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.gauge_with(name, help, &[])
    }

    /// A gauge of our own, with labels that never change.
    pub fn gauge_with(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> Gauge {
        let gauge = Gauge::with_opts(options(name, help, labels))
            .expect("names and labels are constants of ours");
        self.register(gauge.clone());
        gauge
    }

    /// A histogram of small numbers of things.
    pub fn sizes(&self, name: &str, help: &str) -> Histogram {
        self.histogram(options(name, help, &[]), SIZE_BUCKETS.to_vec())
    }

    /// A histogram of durations in seconds.
    pub fn latency(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> Histogram {
        self.histogram(
            options(name, help, labels),
            LATENCY_BUCKETS_US.map(|micros| micros / 1e6).to_vec(),
        )
    }

    /// Shows the counters of a source, too.
    pub fn add_source(&self, source: Arc<dyn Source>) {
        self.0.sources.lock().push(source);
    }

    /// The page for Prometheus, as of now.
    pub fn page(&self) -> String {
        let mut samples: Vec<PageSample> = self
            .series()
            .into_iter()
            .filter_map(|series| self.sample(series))
            .collect();
        samples.extend(
            self.0
                .timers
                .lock()
                .iter()
                .filter_map(ReferenceTimer::sample),
        );
        let page = page::write(
            self.0.registry.gather(),
            samples,
            &self.0.naming.tags.as_labels(),
        );
        self.0
            .mapped
            .conflicts
            .set(i64::try_from(page.conflicts).unwrap_or(i64::MAX));
        page.text
    }

    /// What all metrics of the reference say, by their statsd names.
    pub fn samples(&self) -> Vec<Sample> {
        let series = self.series().into_iter().filter_map(|series| {
            let value = match series.kind {
                Kind::Gauge => SampleValue::Gauge(series.value),
                Kind::Counter | Kind::Observer => SampleValue::Counter(series.value),
            };
            // Some names come from clients.
            Some(Sample {
                name: series.statsd?.replace(char::is_control, "_"),
                value,
            })
        });
        let mut readings: Vec<Sample> = series.collect();
        readings.extend(self.0.timers.lock().iter().map(|timer| Sample {
            name: timer.statsd.clone(),
            value: SampleValue::Timer(timer.timer.buckets()),
        }));
        readings
    }

    /// One line a counter or gauge under the reference's statsd name: `name: value`, sorted.
    pub fn lines(&self) -> String {
        let numbers = self
            .samples()
            .into_iter()
            .filter_map(|Sample { name, value }| match value {
                SampleValue::Counter(number) | SampleValue::Gauge(number) => Some((name, number)),
                SampleValue::Timer(_) => None,
            });
        let mut lines: Vec<(String, u64)> = numbers.collect();
        lines.sort_unstable();
        let mut text = String::new();
        for (name, value) in lines {
            let _ = writeln!(text, "{name}: {value}");
        }
        text
    }

    /// Everything that has no place in the registry.
    fn series(&self) -> Vec<Series> {
        let mut series: Vec<Series> = self
            .0
            .reference
            .lock()
            .iter()
            .map(Reference::series)
            .collect();
        for source in &*self.0.sources.lock() {
            source.collect(&mut series);
        }
        series
    }

    /// How a series is shown, if it is.
    fn sample(&self, series: Series) -> Option<PageSample> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "the text format knows only doubles"
        )]
        let value = series.value as f64;
        let mapped = match (&series.statsd, &self.0.naming.mapping) {
            (Some(statsd), Some(mapping)) => Some(
                self.0
                    .mapped
                    .get(statsd, || mapping.map(statsd, series.kind)),
            ),
            _ => None,
        };
        match mapped.as_deref() {
            Some(Mapped::Dropped) => None,
            Some(Mapped::As(shown)) if shown.is_matched || !series.of_client => Some(PageSample {
                name: shown.name.clone(),
                help: shown.help.clone().map_or(series.help.into(), Into::into),
                labels: shown
                    .labels
                    .iter()
                    .map(|(label, value)| (label.clone().into(), value.clone()))
                    .collect(),
                number: Number::of(series.kind, value * shown.scale),
            }),
            None | Some(Mapped::As(_)) => {
                let labels = series
                    .labels
                    .into_iter()
                    .map(|(label, value)| (label.into(), value))
                    .collect();
                Some(PageSample {
                    name: series.name,
                    help: series.help.into(),
                    labels,
                    number: Number::of(series.kind, value),
                })
            }
        }
    }

    fn add_reference(
        &self,
        statsd: &str,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        value: ReferenceValue,
    ) {
        let labels = labels
            .iter()
            .map(|(label, value)| (*label, (*value).to_owned()))
            .collect();
        self.0.reference.lock().push(Reference {
            statsd: statsd.to_owned(),
            name,
            help,
            labels,
            value,
        });
    }

    fn histogram(&self, options: Opts, buckets: Vec<f64>) -> Histogram {
        let options = HistogramOpts {
            common_opts: options,
            buckets,
        };
        let histogram =
            Histogram::with_opts(options).expect("names, labels and buckets are constants of ours");
        self.register(histogram.clone());
        histogram
    }

    fn register(&self, collector: impl Collector + 'static) {
        self.0
            .registry
            .register(Box::new(collector))
            .expect("every metric is registered once, under a name of its own");
    }
}

impl Reference {
    fn series(&self) -> Series {
        let (kind, value) = match &self.value {
            ReferenceValue::Counter(counter) => (Kind::Counter, counter.get()),
            ReferenceValue::CounterAsGauge(counter) => (Kind::Gauge, counter.get()),
            ReferenceValue::Gauge(gauge) => (Kind::Gauge, u64::try_from(gauge.get()).unwrap_or(0)),
        };
        Series {
            name: self.name.to_owned(),
            help: self.help,
            labels: self.labels.clone(),
            kind,
            value,
            statsd: Some(self.statsd.clone()),
            of_client: false,
        }
    }
}

impl ReferenceTimer {
    fn sample(&self) -> Option<PageSample> {
        let MappedMetric {
            name,
            labels,
            help,
            observer,
            ..
        } = self.shown.as_ref()?;
        Some(PageSample {
            name: name.clone(),
            help: help.clone().map_or(self.help.into(), Into::into),
            labels: labels
                .iter()
                .map(|(label, value)| (label.clone().into(), value.clone()))
                .collect(),
            number: Number::of_times(&self.timer.histogram, *observer)?,
        })
    }
}

impl MappedNames {
    fn get(&self, statsd: &str, map: impl FnOnce() -> Mapped) -> Arc<Mapped> {
        let mut known = self.known.lock();
        if let Some(mapped) = known.get(statsd) {
            return mapped.clone();
        }
        if known.len() >= MAPPED_NAMES_MAX {
            known.clear();
            self.full.inc();
        }
        let mapped = Arc::new(map());
        known.insert(statsd.into(), mapped.clone());
        mapped
    }
}

/// What a metric is called, and the labels that never change.
fn options(name: &str, help: &str, labels: &[(&str, &str)]) -> Opts {
    labels
        .iter()
        .fold(Opts::new(name, help), |options, (label, value)| {
            options.const_label(*label, *value)
        })
}

/// The bounds of times in a unit of which there are so many a second: those that fit Tollgate, and
/// those of the reference.
fn latency_buckets(per_second: f64) -> Vec<f64> {
    let mut buckets: Vec<f64> = LATENCY_BUCKETS_US
        .iter()
        .map(|micros| micros * per_second / 1e6)
        .chain(REFERENCE_BUCKETS)
        .collect();
    buckets.sort_by(f64::total_cmp);
    buckets.dedup();
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::mapper::{Pattern, Rule};

    fn mapping(rules: &[(&str, &str)]) -> Mapping {
        let mut mapping = Mapping::default();
        for (glob, name) in rules {
            let pattern = Pattern::glob(glob).expect("a glob");
            let (name, labels) = ((*name).to_owned(), Vec::new());
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
    fn times_are_told_by_bucket_in_milliseconds_and_none_is_lost() {
        let metrics = Metrics::new();
        let timer = metrics.reference_timer("a.response_time", "a_seconds", "A.", &[]);
        for millis in [0, 1, 1, 60_000] {
            timer.observe(Span::from_micros(millis * 1_000));
        }
        let [
            Sample {
                name,
                value: SampleValue::Timer(buckets),
            },
        ] = &*metrics.samples()
        else {
            panic!("one timer")
        };
        let told: Vec<_> = buckets
            .iter()
            .copied()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(
            (&**name, &*told),
            ("a.response_time", &[(0.05, 1), (1.0, 2), (10_000.0, 1)][..])
        );
        assert!(
            metrics.page().contains("\na_seconds_count 4\n"),
            "{}",
            metrics.page()
        );
    }

    #[test]
    fn a_mapping_is_for_the_references_metrics_alone_and_sums_up_what_becomes_the_same() {
        let metrics = Metrics::named(Naming {
            mapping: Some(mapping(&[("a.*", "both"), ("t.*", "times")])),
            ..Naming::default()
        });
        metrics
            .reference_counter("a.one", "one", "One.", &[])
            .inc_by(3);
        metrics
            .reference_counter("a.two", "two", "Two.", &[])
            .inc_by(4);
        metrics.counter("own_total", "Own.").inc();
        for name in ["t.a", "t.b"] {
            metrics
                .reference_timer(name, "t_seconds", "T.", &[])
                .observe(Span::from_micros(1_000));
        }
        let page = metrics.page();
        for line in [
            "both 14",
            "own_total 1",
            "# TYPE times summary",
            "times_sum 4",
            "times_count 2",
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line}: {page}");
        }
        assert!(!page.contains("\none "), "{page}");
        assert_eq!(
            metrics.lines(),
            "a.one: 3\na.two: 4\n",
            "statsd knows no mapping"
        );
    }

    #[test]
    fn a_name_that_another_kind_has_is_left_off_and_told() {
        let rules = [("a.*", "mixed"), ("b.*", "tollgate_metric_conflicts")];
        let metrics = Metrics::named(Naming {
            mapping: Some(mapping(&rules)),
            ..Naming::default()
        });
        metrics.reference_counter("a.one", "one", "One.", &[]).inc();
        metrics.reference_gauge("a.two", "two", "Two.").set(5);
        metrics
            .reference_counter("b.one", "three", "Three.", &[])
            .inc();
        assert!(metrics.page().contains("\nmixed 2\n"), "{}", metrics.page());
        assert!(
            metrics.page().contains("\ntollgate_metric_conflicts 2\n"),
            "{}",
            metrics.page()
        );
    }

    #[test]
    fn tags_are_labels_of_every_series_and_labels_of_its_own_win() {
        let tags = Tags::read("zone:a,err_type:b").expect("tags");
        let metrics = Metrics::named(Naming {
            tags,
            ..Naming::default()
        });
        metrics.counter("own_total", "Own.");
        metrics.reference_counter("x", "x", "X.", &[("err_type", "mine")]);
        let page = metrics.page();
        for line in [
            r#"own_total{err_type="b",zone="a"} 0"#,
            r#"x{err_type="mine",zone="a"} 0"#,
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line}: {page}");
        }
    }

    #[test]
    fn milliseconds_have_the_references_buckets_and_ours() {
        let buckets = latency_buckets(1_000.0);
        assert!(
            REFERENCE_BUCKETS
                .iter()
                .all(|bound| buckets.contains(bound)),
            "{buckets:?}"
        );
        assert!(
            buckets.contains(&0.05) && buckets.contains(&20.0) && buckets.contains(&10_000.0),
            "{buckets:?}"
        );
        assert_eq!(
            latency_buckets(1.0),
            LATENCY_BUCKETS_US.map(|micros| micros / 1e6)
        );
    }
}
