//! Which settings are set: the only place that reads the environment.
//!
//! clap gives every setting its value. This says what clap's values cannot: whether a setting was
//! set at all, by its flag or by its variable, and the variables that have no flag.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// Empty is a value for these: in Go, and so in envoyproxy/ratelimit, no host means all addresses.
const EMPTY_IS_A_VALUE: [&str; 3] = ["HOST", "GRPC_HOST", "DEBUG_HOST"];

/// Variables and flags that are set.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// Name and value, sorted.
    variables: Vec<(String, String)>,
    /// Values of the settings whose flag is given, by the name of the variable.
    flags: BTreeMap<String, String>,
}

impl Environment {
    /// The environment of this process. `matches` are those of `command`, which has the flags.
    pub fn read(command: &Command, matches: &ArgMatches) -> Self {
        // A variable that is not UTF-8 is not a setting.
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let flags = command.get_arguments().filter_map(|argument| {
            let id = argument.get_id().as_str();
            // An empty variable is removed from the argument: the name is that of the flag.
            let name = argument.get_long()?.to_uppercase().replace('-', "_");
            matches.try_contains_id(id).ok()?;
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                return None;
            }
            let values = matches.get_raw(id)?.map(OsStr::to_string_lossy);
            Some((name, values.collect::<Vec<_>>().join(",")))
        });
        Self::new(variables, flags)
    }

    /// These variables, and the values of flags by the names of their variables.
    pub fn new(
        variables: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let mut variables: Vec<_> = variables.into_iter().collect();
        variables.sort();
        Self { variables, flags: flags.into_iter().collect() }
    }

    /// Whether a setting is set, by its flag or by a variable that is not empty.
    pub fn is_set(&self, name: &str) -> bool {
        self.flag(name).or_else(|| self.variable(name)).is_some()
    }

    /// The value of the flag of a setting.
    pub(crate) fn flag(&self, name: &str) -> Option<&str> {
        self.flags.get(name).map(|value| &**value)
    }

    /// The value of the variable of a setting, unless it is empty and has no meaning.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let at = self.variables.binary_search_by(|(known, _)| (**known).cmp(name));
        let value = &*self.variables[at.ok()?].1;
        Some(value).filter(|value| !value.is_empty() || EMPTY_IS_A_VALUE.contains(&name))
    }

    /// All variables, sorted by name.
    pub fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// The value of a variable that has no flag, unless it is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variable(name).filter(|value| !value.is_empty())
    }
}

/// Makes variables that are set to nothing unset ones, in all subcommands: templates leave a
/// variable empty when they have no value for it.
pub fn without_empty_variables(command: Command) -> Command {
    let unset_if_empty = |argument: Arg| {
        let is_empty = |name: &str| {
            !EMPTY_IS_A_VALUE.contains(&name)
                && std::env::var_os(name).is_some_and(|value| value.is_empty())
        };
        let name = argument.get_env().and_then(OsStr::to_str);
        if name.is_some_and(is_empty) { argument.env(None::<&str>) } else { argument }
    };
    command.mut_args(unset_if_empty).mut_subcommands(without_empty_variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_set_by_its_flag_or_by_a_variable_that_is_not_empty() {
        let variables =
            [("REDIS_URL", ""), ("REDIS_TLS", "true"), ("GRPC_HOST", ""), ("WORKERS", "")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment = Environment::new(variables, [("WORKERS".to_owned(), "2".to_owned())]);
        for name in ["REDIS_TLS", "GRPC_HOST", "WORKERS"] {
            assert!(environment.is_set(name), "{name}");
        }
        assert!(!environment.is_set("REDIS_URL"));
        assert_eq!(environment.get("REDIS_TLS"), Some("true"));
        assert_eq!(environment.get("REDIS_URL"), None);
    }
}
