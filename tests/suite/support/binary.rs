//! The binary that cargo built, and what a page of metrics says.

use std::process::{Command, Stdio};

/// The binary, in an environment with nothing in it but where programs are.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command
}

/// The value in the line that begins with this name and labels; `None` if there is no such line.
pub(crate) fn value_on<'p>(page: &'p str, series: &str) -> Option<&'p str> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

/// The sum of the series of a metric whose labels contain this.
pub(crate) fn sum_on(page: &str, name: &str, label: &str) -> u64 {
    let series = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    series
        .filter(|(labels, _)| labels.contains(label))
        .map(|(_, count)| count.parse::<u64>().expect("a counter is a number"))
        .sum()
}
