//! CPU time, memory, threads and file descriptors of this process, read when the page is.
//!
//! The collector of `prometheus` parses all of /proc with a crate that is larger than `prometheus`.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntGauge};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::base::time::Time;

pub(super) struct Process {
    cpu: Counter,
    open_files: IntGauge,
    open_files_max: IntGauge,
    virtual_memory: IntGauge,
    resident_memory: IntGauge,
    threads: IntGauge,
    start: IntGauge,
}

impl Process {
    pub(super) fn started(at: Time) -> Self {
        let gauge = |name, help| IntGauge::new(name, help).expect("names and help texts are valid");
        let cpu_help = "Total user and system CPU time spent in seconds.";
        let process = Self {
            cpu: Counter::new("process_cpu_seconds_total", cpu_help)
                .expect("the name and the help text are valid"),
            open_files: gauge("process_open_fds", "Number of open file descriptors."),
            open_files_max: gauge(
                "process_max_fds",
                "Maximum number of open file descriptors.",
            ),
            virtual_memory: gauge(
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
            ),
            resident_memory: gauge(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
            ),
            threads: gauge("process_threads", "Number of OS threads in the process."),
            start: gauge(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
            ),
        };
        set(&process.start, Some(at.as_micros() / 1_000_000));
        process
    }

    fn gauges(&self) -> [&IntGauge; 6] {
        [
            &self.open_files,
            &self.open_files_max,
            &self.virtual_memory,
            &self.resident_memory,
            &self.threads,
            &self.start,
        ]
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = self.gauges().into_iter();
        let gauges = gauges.flat_map(Collector::desc);
        self.cpu.desc().into_iter().chain(gauges).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(clippy::cast_precision_loss, reason = "exact for 285 million years")]
        let seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        // Another reader of the page may have added more.
        self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));

        let files = fs::read_dir("/proc/self/fd").map(|files| files.count() as u64);
        set(&self.open_files, files.ok());
        set(&self.open_files_max, getrlimit(Resource::Nofile).current);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name| number(&status, name).map(|kib| kib * 1_024);
        set(&self.virtual_memory, kib("VmSize:"));
        set(&self.resident_memory, kib("VmRSS:"));
        set(&self.threads, number(&status, "Threads:"));

        let gauges = self.gauges().into_iter();
        let gauges = gauges.flat_map(Collector::collect);
        self.cpu.collect().into_iter().chain(gauges).collect()
    }
}

/// Sets a gauge; without a value it keeps the last one.
fn set(gauge: &IntGauge, value: Option<u64>) {
    if let Some(value) = value {
        gauge.set(value.try_into().unwrap_or(i64::MAX));
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

    #[test]
    fn process_is_measured() {
        let process = Process::started(Time::from_micros(7_000_000));
        let families = process.collect();
        assert_eq!(families.len(), process.desc().len());
        for family in &families {
            let metric = &family.get_metric()[0];
            let value = metric.get_gauge().get_value() + metric.get_counter().get_value();
            assert!(value > 0.0, "{family:?}");
        }
        assert_eq!(process.start.get(), 7);
        assert!(process.virtual_memory.get() > process.resident_memory.get());
        assert!(process.open_files_max.get() > process.open_files.get());
        let before = process.cpu.get();
        process.collect();
        assert!(process.cpu.get() > before, "CPU time has fractions");
    }

    #[test]
    fn fields_of_the_status_are_found() {
        let status = "VmPeak:\t  9 kB\nVmSize:\t  20 kB\nThreads:\t4\n";
        assert_eq!(number(status, "VmSize:"), Some(20));
        assert_eq!(number(status, "Threads:"), Some(4));
        assert_eq!(number(status, "VmRSS:"), None);
    }
}
