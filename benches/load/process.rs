//! What the measured processes cost: CPU time and memory, from `/proc`.

use std::fs;

/// `/proc` counts CPU time in these; Linux fixed USER_HZ at 100 for programs on every architecture
/// this runs on.
const TICK_US: u64 = 10_000;

/// The CPU time that a process has used so far.
#[derive(Clone, Copy)]
pub struct CpuTime {
    ticks: u64,
}

/// A process's memory.
pub struct Memory {
    pub resident_kib: u64,
    pub peak_kib: u64,
}

impl CpuTime {
    /// Of all threads of the process, ended ones too; nothing if there is no such process.
    pub fn of(process: &str) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name comes in parentheses and may hold anything; what follows it starts with field 3.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace().skip(14 - 3);
        let user: u64 = fields.next()?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        Some(Self {
            ticks: user + system,
        })
    }

    /// Microseconds from then to now.
    pub fn since_us(self, then: Self) -> u64 {
        self.ticks.saturating_sub(then.ticks) * TICK_US
    }
}

impl Memory {
    pub fn of(process: &str) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':')
                .split_ascii_whitespace()
                .next()?
                .parse()
                .ok()
        };
        Some(Self {
            resident_kib: kib("VmRSS")?,
            peak_kib: kib("VmHWM")?,
        })
    }
}

/// The program's name, as far as Linux keeps it (15 bytes).
pub fn name(process: &str) -> Option<String> {
    Some(
        fs::read_to_string(format!("/proc/{process}/comm"))
            .ok()?
            .trim_end()
            .to_owned(),
    )
}
