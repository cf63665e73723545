//! The sets of rules that are compared: RULES, those of --compare, and RULES with other
//! algorithms.

use std::path::PathBuf;

use crate::base::environment::Environment;
use crate::cli::deciding::Deciding;
use crate::cli::output::CliError;
use crate::limits::{Algorithm, LimitOption};
use crate::what_if::replay::{Variant, change_algorithm};
use crate::what_if::simulate::compared::{BUCKETS_DEFAULT, Named};

/// Loads all rules, first those that the others are compared with.
pub(super) fn load(
    rules: Option<&PathBuf>,
    compare: &[PathBuf],
    named: &[Named],
    deciding: &Deciding,
    environment: &Environment,
) -> Result<Vec<Variant>, CliError> {
    let rules = || deciding.rules(rules, environment);
    let mut variants = vec![Variant::new("rules".to_owned(), deciding.engine(rules()?))];
    for directory in compare {
        let rules = deciding.rules(Some(directory), environment)?;
        let label = directory.display().to_string();
        variants.push(Variant::new(label, deciding.engine(rules)));
    }
    for (algorithm, buckets) in algorithms(named)? {
        let mut rules = rules()?;
        rules.change_rules(|rule, format| change_algorithm(rule, format, algorithm, buckets));
        let label = match buckets {
            Some(buckets) => format!("{algorithm}, {buckets} buckets"),
            None => algorithm.to_string(),
        };
        variants.push(Variant::new(label, deciding.engine(rules)));
    }
    Ok(variants)
}

/// Each algorithm that was named, and a sliding window with buckets among all of them.
fn algorithms(named: &[Named]) -> Result<Vec<(Algorithm, Option<u32>)>, CliError> {
    let mut wanted = Vec::new();
    for name in named {
        match *name {
            Named::One(algorithm) if algorithm.counts_holders() => {
                return Err(CliError::Usage(
                    "--algorithm: a log does not say when requests end, as concurrency needs; name another algorithm"
                        .to_owned(),
                ));
            }
            Named::One(algorithm) => wanted.push((algorithm, None)),
            Named::All => {
                let mut all = Algorithm::ALL.to_vec();
                all.retain(|algorithm| !algorithm.counts_holders());
                for algorithm in all {
                    wanted.push((algorithm, None));
                    if algorithm.takes(LimitOption::Buckets) {
                        wanted.push((algorithm, Some(BUCKETS_DEFAULT)));
                    }
                }
            }
        }
    }
    Ok(wanted)
}
