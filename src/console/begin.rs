//! How to begin a trial, and how to try candidate rules: shown where there are none.

use std::path::Path;

use maud::{Markup, html};

use crate::console::parts::Parts;

/// Without TRIAL_UPSTREAM.
pub(crate) fn trial() -> Markup {
    html! {
        h1 { "Trial" }
        p.lead {
            "A trial shows with live traffic what a switch from envoyproxy/ratelimit would change. "
            "This service forwards each call to the one in use, returns its answer, and compares it with its own. "
            "None is running: TRIAL_UPSTREAM is not set."
        }
        ol.steps {
            li {
                "Restart this service with the address of the one in use, here " code { "ratelimit.istio-system:8081" } ":"
                pre { "TRIAL_UPSTREAM=ratelimit.istio-system:8081" }
                "With the chart:"
                pre { "helm upgrade tollgate helm/tollgate --reuse-values --set trial.upstream=ratelimit.istio-system:8081" }
            }
            li { "Give Envoy's cluster of the rate limit service the address of this one. Callers get the same answers as before." }
            li {
                "Open this page again, or print the same, of each replica by the URL of its admin port:"
                pre { "tollgate trial report" }
            }
        }
        p.dim { "docs/migration.md explains each class of disagreements, and the switch." }
    }
}

/// Without candidate rules.
pub(crate) fn candidate(parts: &Parts) -> Markup {
    let snapshot = parts.metrics.snapshot();
    let is_rejected = snapshot.count("tollgate_candidate_rules_rejected") > 0;
    html! {
        h1 { "Candidate" }
        p.lead {
            "Candidate rules are decided for every request beside the rules in force, and have no effect on responses. "
            "This page counts what they would change. There are none."
        }
        @if is_rejected { p.empty role="alert" { "Candidate rules were rejected: the log has every error." } }
        @match &parts.candidate_folder {
            Some(candidate) => (candidate_steps(parts.folder.as_deref(), candidate)),
            None => p.empty { "Set CANDIDATE_SUBDIRECTORY, and restart this service: candidate rules are read from that folder of RUNTIME_ROOT." },
        }
        p.dim { "docs/rules.md explains the counts." }
    }
}

/// Without `rules`, these come from a control plane.
fn candidate_steps(rules: Option<&Path>, candidate: &Path) -> Markup {
    let candidate = candidate.display();
    html! {
        ol.steps {
            li {
                "Write the rules of all domains as they will be, beginning with a copy of those in force:"
                pre {
                    "mkdir -p " (candidate)
                    @if let Some(rules) = rules { "\ncp " (rules.display()) "/*.yaml " (candidate) "/" }
                }
            }
            li {
                "Change and check them:"
                pre { "tollgate check " (candidate) }
            }
            li {
                "They are loaded when the files change, without a restart. This page then has the counts; the same is printed by:"
                pre { "tollgate candidate report" }
            }
        }
    }
}
