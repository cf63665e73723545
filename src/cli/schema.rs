//! `tollgate schema`: the JSON Schemas of files, for editors.

use std::process::ExitCode;

use clap::ValueEnum;

use crate::cli::output::{json, print};
use crate::rules::config::keys::document;
use crate::rules::config::overlay::OverlayFile;
use crate::rules::config::schema::reader::Rules;
use crate::what_if::cases::Tests;

/// Arguments of `schema`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// The kind of file
    #[arg(value_name = "KIND")]
    kind: Kind,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// Rules
    Rules,
    /// Test cases of rules: *.test.yaml
    Tests,
    /// The file that TOLLGATE_OVERLAY names
    Overlay,
}

/// Prints a schema.
pub(crate) fn run(args: &Args) -> ExitCode {
    let schema = match args.kind {
        Kind::Rules => document::<Rules>(),
        Kind::Tests => document::<Tests>(),
        Kind::Overlay => document::<OverlayFile>(),
    };
    print(&json(&schema));
    ExitCode::SUCCESS
}
