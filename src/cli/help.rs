//! Help: commands by what they are for, `-h` that fits a screen, and the list of settings.

use clap::{Arg, Args as _, Command};

use crate::app::settings::Settings;

/// Every command, by what it is for.
const GROUPS: [(&str, &str); 4] = [
    ("Serve", "serve config healthcheck"),
    ("Author rules", "check explain test simulate replay diff schema"),
    ("Operate", "top usage counter trial"),
    ("Others", "version completions man"),
];
/// Settings on the `-h` of `serve` and `config`: those that nearly every deployment sets.
const COMMON: &str = "PORT GRPC_PORT DEBUG_PORT RUNTIME_ROOT REDIS_URL LOG_LEVEL";
const USAGE: &str = "tollgate [OPTIONS] [DIR]\n       tollgate <COMMAND>";
const MORE: &str =
    "`tollgate help COMMAND` is about a command, and `tollgate help settings` lists all settings.";

/// The command with this help.
pub(super) fn with_help(command: Command) -> Command {
    let groups: String = GROUPS.iter().map(|group| group_text(&command, *group)).collect();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{{all-args}}{{after-help}}"
    );
    shortened(command.mut_subcommands(|subcommand| subcommand.hide(true)))
        .override_usage(USAGE)
        .help_template(template)
        .after_help(MORE)
}

/// The commands of a group with their lines.
fn group_text(command: &Command, (heading, names): (&str, &str)) -> String {
    let lines = names.split(' ').map(|name| {
        let about = command.find_subcommand(name).and_then(Command::get_about);
        format!("  {name:<11}  {}\n", about.cloned().unwrap_or_default())
    });
    format!("{heading}:\n{}\n", lines.collect::<String>())
}

/// Leaves settings out of `-h`, in all subcommands.
fn shortened(command: Command) -> Command {
    let serves = ["serve", "config"].contains(&command.get_name());
    let shorten = |argument: Arg| {
        // The URL of a service has no heading.
        let is_setting = argument.get_help_heading().is_some();
        let name = argument.get_env().and_then(|name| name.to_str());
        let is_common = |name| serves && COMMON.split(' ').any(|common| common == name);
        let is_shown = name.is_none_or(is_common);
        argument.hide_short_help(is_setting && !is_shown)
    };
    command.mut_args(shorten).mut_subcommands(shortened)
}

/// All settings, by component.
pub(super) fn settings() -> String {
    let settings = Settings::augment_args(Command::new("settings")).disable_help_flag(true);
    settings.help_template("{all-args}").render_long_help().to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = crate::cli::Cli::command();
        let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        let grouped = GROUPS.iter().flat_map(|(_, names)| names.split(' '));
        let grouped: Vec<&str> = grouped.collect();
        assert_eq!(grouped.len(), names.len());
        assert_eq!(BTreeSet::from_iter(grouped), BTreeSet::from_iter(names));
    }
}
