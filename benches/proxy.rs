//! Proxies in front of the servers of a measurement, which delay and break what passes.
//!
//! They are the tests' (tests/suite/support/proxy.rs). One process has them all, a thread each, so
//! that what they cost is seen apart.

#[path = "../tests/suite/support/proxy.rs"]
#[expect(dead_code, reason = "what only the tests ask for")]
mod proxy;

use std::collections::HashMap;
use std::io::{self, BufRead as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{CommandFactory as _, Parser};

use crate::proxy::{Fault, Proxy};

/// Does what lines of stdin say, and ends with it: `before PORT` stands in front of that local
/// port, and answers with the port to come to instead; `PORT FAULT` does something to what passes
/// there from now on: `none`, `late MS`, `lossy MS`, `reset-half 0|1`, `stall` or `stall-half 0|1`.
#[derive(Parser)]
#[command(name = "proxy")]
struct Args {
    /// Reads stdin. Without it this help is printed, so that a plain `cargo bench` does not wait
    /// for anybody.
    #[arg(long)]
    stdin: bool,

    /// `cargo bench` adds it to every program it starts.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let Args { stdin: true, bench: _ } = Args::parse() else {
        return Args::command().print_help().context("print the help");
    };
    let mut proxies = HashMap::new();
    for line in io::stdin().lock().lines() {
        let line = line.context("read stdin")?;
        match line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            ["before", port] => {
                let proxy = Proxy::before(port.parse().context("read the port")?);
                println!("{}", proxy.addr().port());
                proxies.insert(port.to_owned(), proxy);
            }
            [port, ref fault @ ..] => proxies
                .get(port)
                .with_context(|| format!("nothing stands before {port}"))?
                .set(read(fault)?),
            [] => {}
        }
    }
    Ok(())
}

fn read(words: &[&str]) -> anyhow::Result<Fault> {
    Ok(match *words {
        ["none"] => Fault::None,
        ["late", ms] => Fault::Delay(read_ms(ms)?),
        ["lossy", ms] => Fault::Lossy(read_ms(ms)?),
        ["reset-half", half] => Fault::ResetHalf(half.parse().context("read which half")?),
        ["stall"] => Fault::Stall,
        ["stall-half", half] => Fault::StallHalf(half.parse().context("read which half")?),
        _ => bail!("{:?} is no fault", words.join(" ")),
    })
}

fn read_ms(word: &str) -> anyhow::Result<Duration> {
    Ok(Duration::from_millis(word.parse().context("read the milliseconds")?))
}
