//! `tollgate completions` and `tollgate man`: what packages install beside the binary, made from
//! the definition of the command line.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;

use crate::cli::output::{CliError, print};

const NAME: &str = "tollgate";

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Man {
    /// The subcommand whose page is printed [default: the page of tollgate]
    #[arg(value_name = "SUBCOMMAND")]
    subcommand: Option<String>,
}

/// Prints the completion script.
pub(crate) fn complete(args: &Completions, mut command: Command) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, NAME, &mut script);
    print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// Prints the manual page.
///
/// # Errors
/// There is no such subcommand.
pub(crate) fn man(args: &Man, mut command: Command) -> Result<ExitCode, CliError> {
    command.build();
    if let Some(name) = &args.subcommand {
        let found = command.find_subcommand(name).cloned();
        command = found.ok_or_else(|| CliError::Usage(format!("there is no subcommand {name}")))?;
        let full = format!("{NAME}-{}", command.get_name());
        command = command.name(full).version(env!("CARGO_PKG_VERSION"));
    }
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command).render(&mut page);
    rendered.context("write the manual page")?;
    print(&String::from_utf8_lossy(&page));
    Ok(ExitCode::SUCCESS)
}
