//! CPU time, memory, threads and file descriptors of this process.
//!
//! The collector of `prometheus` parses all of /proc with a crate that is larger than `prometheus`.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntGauge};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::telemetry::metric::gauged;

const CPU: &str = "process_cpu_seconds_total";
const CPU_HELP: &str = "Total user and system CPU time spent in seconds.";
/// Names and help texts, in the order of [`gauges`].
const GAUGES: &str = "\
process_open_fds: Number of open file descriptors.
process_max_fds: Maximum number of open file descriptors.
process_virtual_memory_bytes: Virtual memory size in bytes.
process_resident_memory_bytes: Resident memory size in bytes.
process_threads: Number of OS threads in the process.";

pub(super) struct Process;

fn gauges() -> [Option<u64>; 5] {
    let files = fs::read_dir("/proc/self/fd").ok();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |name| Some(number(&status, name)? * 1_024);
    [
        files.map(|files| files.count() as u64),
        getrlimit(Resource::Nofile).current,
        bytes("VmSize:"),
        bytes("VmRSS:"),
        number(&status, "Threads:"),
    ]
}

impl Collector for Process {
    /// None: no other metric has these names.
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let cpu = Counter::new(CPU, CPU_HELP).expect("constants are valid");
        let time = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(clippy::cast_precision_loss, reason = "exact for 104 days of CPU time")]
        cpu.inc_by(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9);
        let mut families = cpu.collect();
        for (line, value) in GAUGES.lines().zip(gauges()) {
            let (name, help) = line.split_once(": ").expect("each line has both");
            let gauge = IntGauge::new(name, help).expect("constants are valid");
            if let Some(value) = value {
                gauge.set(gauged(value));
                families.extend(gauge.collect());
            }
        }
        families
    }
}

/// A field of /proc/self/status.
fn number(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Time;
    use crate::telemetry::metric::Metrics;

    #[test]
    fn process_is_measured() {
        let metrics = Metrics::new();
        metrics.add_process(Time::from_micros(7_000_000));
        let value = |name: &str| {
            let families = metrics.families();
            let family = families.iter().find(|family| family.name() == name);
            let metric = &family.expect("each is measured").get_metric()[0];
            metric.get_gauge().get_value() + metric.get_counter().get_value()
        };
        let [files, files_max] = ["open", "max"].map(|kind| value(&format!("process_{kind}_fds")));
        let [virtual_memory, memory] =
            ["virtual", "resident"].map(|kind| value(&format!("process_{kind}_memory_bytes")));
        let [threads, start, cpu] =
            ["process_threads", "process_start_time_seconds", CPU].map(value);
        assert!(0.0 < files && files < files_max, "{files} of {files_max}");
        assert!(0.0 < memory && memory < virtual_memory);
        assert!(threads >= 1.0);
        assert!((start - 7.0).abs() < f64::EPSILON);
        assert!(cpu > 0.0 && value(CPU) > cpu, "CPU time has fractions");
    }

    #[test]
    fn fields_of_the_status_are_found() {
        let status = "VmPeak:\t  9 kB\nVmSize:\t  20 kB\nThreads:\t4\n";
        assert_eq!(number(status, "VmSize:"), Some(20));
        assert_eq!(number(status, "Threads:"), Some(4));
        assert_eq!(number(status, "VmRSS:"), None);
    }
}
