//! `tollgate explain`: the matcher that serves, taking notes.

use std::path::PathBuf;

use crate::cli::check::{self, Reading};
use crate::cli::{Failure, say};
use crate::limiter::Modes;
use crate::rules::explain::{explain, parse_query};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Directory of rules files
    #[arg(long, default_value = "config", value_name = "DIR")]
    rules: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// The domain that Envoy's filter is configured with
    #[arg(value_name = "DOMAIN")]
    domain: String,
    /// Descriptors of one request, each as key=value,key=value
    #[arg(value_name = "DESCRIPTOR", required = true)]
    descriptors: Vec<String>,
}

/// Prints the way of every descriptor, its rule, its key and its limit.
///
/// # Errors
/// Rules that would be refused, descriptors that cannot be read.
pub fn run(args: &Args) -> Result<(), Failure> {
    let checked = check::load(args.rules.clone(), &args.reading)?;
    let descriptors: Vec<&str> = args.descriptors.iter().map(|text| &**text).collect();
    let query = parse_query(&args.domain, &descriptors).map_err(|problem| Failure::Other(anyhow::anyhow!(problem)))?;
    say(&explain(&checked.loaded.rules, &query, Modes::default()));
    Ok(())
}
