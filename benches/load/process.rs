//! What the measured processes cost: CPU time and memory, from `/proc`.

use std::fs;

use anyhow::Context as _;

/// `/proc` counts CPU time in these; Linux fixed USER_HZ at 100 for programs on every architecture
/// this runs on.
const TICK_US: u64 = 10_000;

/// A process at one moment.
#[derive(Clone)]
pub struct Process {
    /// As far as Linux keeps it (15 bytes).
    pub name: String,
    /// CPU time so far of all threads, ended ones too.
    pub cpu_us: u64,
    pub resident_kib: u64,
    pub resident_peak_kib: u64,
}

impl Process {
    /// The process of this number, or `self`.
    pub fn read(pid: &str) -> anyhow::Result<Self> {
        Self::of(pid).with_context(|| format!("read the CPU time and memory of process {pid}"))
    }

    fn of(pid: &str) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        let stat = read("stat")?;
        let status = read("status")?;
        // The name comes in parentheses and may hold anything; what follows it starts with field 3.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks = fields.split_ascii_whitespace().skip(14 - 3).take(2);
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        Some(Self {
            name: read("comm")?.trim_end().to_owned(),
            cpu_us: ticks.map(|ticks| ticks.parse().unwrap_or(0)).sum::<u64>() * TICK_US,
            resident_kib: kib("VmRSS:")?,
            resident_peak_kib: kib("VmHWM:")?,
        })
    }
}
