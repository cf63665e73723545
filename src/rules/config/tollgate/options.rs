//! The options of a `tollgate` block: one table of their keys, types, written forms and where they
//! apply.
//!
//! The table makes the keys that a block may have, [`Block`] with what one block states, and
//! [`ResolvedOptions`] with what is in force for a rule and where it was set. A new option is a row
//! here and its use in `resolve.rs`.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::time::Span;
use crate::limits::{Algorithm, CalendarSpec, Consistency, OverLimitHits, Unit, WarnAt};
use crate::rules::config::error::SourceFindings;
use crate::rules::config::keys::{Text, keys, values};
use crate::rules::config::tollgate::budget::{Amount, CalendarForm, Percentages};
use crate::rules::config::tollgate::conditions::{
    leased, without_misplaced, without_options_of_others,
};
use crate::rules::config::tollgate::reader;
use crate::rules::config::tollgate::value::{
    Body, Buckets, Duration, Headers, OnLimitWord, OptionValue, Percent, Positive, RequestHeaders,
    ResponseBody,
};
use crate::rules::config::yaml::{Diagnostic, Located, Location, Node};
use crate::rules::{EffectiveOption, EnforcedShare, OnStoreError, Origin, Provenance};

/// Limits of a rule beside its own.
pub(crate) const LIMITS_MAX: usize = 8;

/// A block that applies to a rule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layer<'b> {
    pub(crate) block: &'b Block,
    pub(crate) provenance: Provenance,
    pub(crate) file: &'b Arc<str>,
}

impl<'b> Layer<'b> {
    /// The layer of a block of one kind and file.
    pub(crate) fn of(provenance: Provenance, file: &'b Arc<str>) -> impl Fn(&'b Block) -> Self {
        move |block| Self { block, provenance, file }
    }
}

/// Highest precedence first.
pub(crate) type Layers<'b> = SmallVec<[Layer<'b>; 4]>;

/// The value in force of an option, and the layer that sets it.
#[derive(Debug)]
pub(crate) struct Sourced<'b, T> {
    pub(crate) located: &'b Located<T>,
    pub(crate) layer: Layer<'b>,
}

macro_rules! options {
    ($($(#[doc = $meaning:literal])+ $key:ident: $type:ty = $written:ty;)*) => {
        keys! {
            /// Options of a limit, or of all limits.
            pub(crate) enum Options {
                $($(#[doc = $meaning])+ $key: $written;)*
            }
        }

        /// The options of a block.
        #[derive(Debug, Clone, Default)]
        pub(crate) struct Block {
            $(pub(crate) $key: Option<Located<$type>>,)*
            /// A part of it is invalid and was reported, so an option may only seem to be missing.
            pub(crate) is_faulty: bool,
            pub(crate) location: Location,
        }

        impl Block {
            pub(crate) fn set(
                &mut self,
                key: &str,
                node: &Node,
                findings: &mut SourceFindings<'_>,
            ) {
                let location = node.location;
                match key {
                    $(stringify!($key) => {
                        self.$key = <$type>::read(node, key, findings)
                            .map(|value| Located { value, location });
                    })*
                    _ => {}
                }
            }

            /// The options that it states: the key, where, and the value as it is shown.
            pub(crate) fn stated(
                &self,
            ) -> impl Iterator<Item = (&'static str, Location, Arc<str>)> {
                let all = [$(self.$key.as_ref().map(|option| {
                    (stringify!($key), option.location, option.value.display())
                })),*];
                all.into_iter().flatten()
            }
        }

        /// The options in force for a rule.
        #[derive(Debug)]
        pub(crate) struct ResolvedOptions<'b> {
            pub(crate) layers: Layers<'b>,
            $(pub(crate) $key: Option<Sourced<'b, $type>>,)*
        }

        impl<'b> ResolvedOptions<'b> {
            /// Each option from the first layer that states it. An option of the rule's own block
            /// counts whether it applies or not, so that it can be reported; any other that does
            /// not apply is meant for other rules.
            pub(crate) fn new(layers: Layers<'b>) -> Self {
                let algorithm = first(&layers, |block| block.algorithm.as_ref(), |_| true);
                let algorithm = algorithm.map_or(Algorithm::FixedWindow, Sourced::value);
                let on_limit = first(
                    &layers,
                    |block| block.on_limit.as_ref(),
                    |word| word.can_be(algorithm),
                );
                let word = on_limit.map_or(OnLimitWord::Reject, Sourced::value);
                let mut resolved = Self {
                    $($key: first(
                        &layers,
                        |block| block.$key.as_ref(),
                        |_| word.has_option(stringify!($key), algorithm),
                    ),)*
                    layers,
                };
                resolved.on_limit = on_limit;
                resolved.lease = resolved.lease.or_else(|| resolved.lease_beside_consistency());
                resolved
            }

            /// The location of an option that is set in the file of the rule.
            pub(crate) fn location(&self, key: &str) -> Option<Location> {
                match key {
                    $(stringify!($key) => self.$key.and_then(Sourced::location),)*
                    _ => None,
                }
            }

            /// All options in force, and where each was set.
            pub(crate) fn effective(&self) -> Box<[EffectiveOption]> {
                let all = [$(self.$key.map(|option| option.effective(stringify!($key)))),*];
                all.into_iter().flatten().collect()
            }
        }
    };
}

options! {
    /// `fixed_window` (default), `sliding_window`, `sliding_log`, `token_bucket`, `leaky_bucket` or
    /// `concurrency`
    algorithm: Algorithm = Algorithm;
    /// The period is this many units: 5 with `unit: minute` is five minutes
    unit_multiplier: u32 = Positive;
    /// Bucket depth; default `requests_per_unit` for `token_bucket` and 1 for `leaky_bucket`
    burst: u32 = Positive;
    /// Number of sub-windows, 1 to 100: a strict limit
    buckets: u32 = Buckets;
    /// `count` or `drop`: whether over-limit hits consume quota. `fixed_window` counts by default,
    /// all others drop
    over_limit_hits: OverLimitHits = OverLimitHits;
    /// `reject` (default); `queue`: delay the response until the request fits (buckets only);
    /// `degrade`: admit it, with headers for the upstream
    on_limit: OnLimitWord = OnLimitWord;
    /// Longest delay, `1ms` to `1h`. Envoy's `timeout` must be at least a quarter longer
    max_wait: Span = Duration;
    /// Headers for the upstream, such as `{x-degraded: "true"}`: at most 16, and 4 KiB
    request_headers: RequestHeaders = Headers;
    /// Body of the rejection: at most 4 KiB
    response_body: ResponseBody = Body;
    /// Fallback without a verdict of Redis: `local`, `allow`, `deny` or `error`
    on_store_error: OnStoreError = OnStoreError;
    /// Share of the rule's keys for which over limit is enforced, 0 to 100 (default)
    enforce_percent: EnforcedShare = Percent;
    /// Key of the rule's last descriptor, which has no `value`: its value in a request is the name
    /// of the holder
    lease_by: Box<str> = Text;
    /// `exact` (default), or `leased`: replicas take hits of hot counters ahead
    consistency: Consistency = Consistency;
    /// Time until what is held returns, such as `30s`: the slot of an unreleased holder, or unused
    /// hits of `consistency: leased`, in the block with that
    lease: Span = Duration;
    /// Windows of `day`, `week`, `month` or `year` in a time zone, such as `Europe/Berlin`
    calendar: CalendarSpec = CalendarForm;
    /// Further limits, decided in one step with the rule's own: at most 8
    limits: Limits = LimitList;
    /// Whether the limits of the rules above in the tree apply, too, in the same step
    parents: bool = bool;
    /// Used share from which responses carry a warning: `80%`, or a list of up to 4
    warn_at: WarnAt = Percentages;
}

keys! {
    /// A limit of a rule beside its own.
    pub(crate) enum LimitKeys {
        /// Name, unique in the rule; default that of the rule, or its last key, and the unit
        name: Text;
        /// Hits in a period, to 9007199254740990 for `fixed_window`
        requests: Amount, required;
        /// Unit of the period
        unit: Unit, required;
        /// As for the rule
        unit_multiplier: Positive;
        /// As for the rule
        algorithm: Algorithm;
        /// As for the rule
        burst: Positive;
        /// As for the rule
        buckets: Buckets;
        /// As for the rule
        calendar: CalendarForm;
        /// As for the rule
        warn_at: Percentages;
    }
}

values! {
    /// A list of limits.
    pub(crate) enum LimitList(schemas) = {"type": "array", "minItems": 1, "maxItems": LIMITS_MAX,
        "items": schemas.subschema_for::<LimitKeys>()};
    /// The block of a rule, in which no option contradicts `algorithm` or `on_limit` beside it.
    pub(crate) enum RuleBlock(schemas) = {"allOf": [
        schemas.subschema_for::<Options>(),
        {"allOf": Algorithm::ALL.map(without_misplaced)},
        {"allOf": OnLimitWord::ALL.map(without_options_of_others)},
        leased(),
    ]};
    /// The block of many rules.
    pub(crate) enum Defaults(schemas) = {"allOf": [
        schemas.subschema_for::<Options>(),
        {"properties": {"limits": false}},
    ]};
}

fn first<'b, T>(
    layers: &Layers<'b>,
    option: impl Fn(&'b Block) -> Option<&'b Located<T>>,
    applies: impl Fn(&T) -> bool,
) -> Option<Sourced<'b, T>> {
    layers.iter().find_map(|&layer| {
        let located = option(layer.block)?;
        let counts = layer.provenance == Provenance::Rule || applies(&located.value);
        counts.then_some(Sourced { located, layer })
    })
}

impl<T> Sourced<'_, T> {
    /// Its location if it is set in the file of the rule.
    pub(crate) fn location(self) -> Option<Location> {
        let is_in_file = self.layer.provenance.is_in_rules_file();
        is_in_file.then_some(self.located.location)
    }

    /// Its location if the rule itself states it.
    pub(crate) fn own_location(self) -> Option<Location> {
        let is_own = self.layer.provenance == Provenance::Rule;
        is_own.then_some(self.located.location)
    }

    pub(crate) fn value(self) -> T
    where
        T: Clone,
    {
        self.located.value.clone()
    }
}

impl<T: OptionValue> Sourced<'_, T> {
    fn effective(&self, key: &'static str) -> EffectiveOption {
        EffectiveOption {
            key,
            value: self.located.value.display(),
            provenance: self.layer.provenance,
            origin: Origin {
                file: self.layer.file.clone(),
                line: self.located.location.line,
                column: self.located.location.column,
            },
        }
    }
}

impl<T> Clone for Sourced<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Sourced<'_, T> {}

impl<T> std::ops::Deref for Sourced<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.located.value
    }
}

/// `limits` as it is written.
#[derive(Debug, Clone)]
pub(crate) struct Limits(pub(crate) Arc<[LimitItem]>);

/// An item of `limits`.
#[derive(Debug)]
pub(crate) struct LimitItem {
    /// `None` for the default.
    pub(crate) name: Option<Box<str>>,
    pub(crate) requests: u64,
    pub(crate) unit: Unit,
    /// Only with keys that an item may have.
    pub(crate) block: Block,
    pub(crate) location: Location,
}

impl LimitItem {
    fn read(node: &Node, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let elsewhere = (Options::KEYS, "in the block of the rule");
        let mut name = None;
        let mut requests = None;
        let mut unit = None;
        let problems = findings.problem_count();
        let mut block = Block::default();
        for (key, value) in reader::map(node, LimitKeys::KEYS, findings)? {
            match reader::key(key, LimitKeys::KEYS, elsewhere, findings) {
                key @ "name" => {
                    let text = reader::text(value, key, findings);
                    name = text.filter(|text| !text.is_empty()).map(Box::from);
                }
                key @ "requests" => requests = u64::read(value, key, findings),
                key @ "unit" => unit = Unit::read(value, key, findings),
                key => block.set(key, value, findings),
            }
        }
        block.is_faulty = findings.problem_count() > problems;
        let (Some(requests), Some(unit)) = (requests, unit) else {
            if !block.is_faulty {
                let problem = Diagnostic::new(node.location, "a limit without requests and unit");
                findings.problem(problem.hint("write both, such as {requests: 10000, unit: day}"));
            }
            return None;
        };
        Some(Self { name, requests, unit, block, location: node.location })
    }

    fn display(&self) -> String {
        let name = self.name.iter().map(|name| format!("name: {name}, "));
        let stated = self.block.stated();
        let options = stated.map(|(key, _, value)| format!(", {key}: {value}"));
        let (name, options): (String, String) = (name.collect(), options.collect());
        format!("{{{name}requests: {}, unit: {}{options}}}", self.requests, self.unit)
    }
}

impl OptionValue for Limits {
    fn read(node: &Node, _: &str, findings: &mut SourceFindings<'_>) -> Option<Self> {
        let problems = findings.problem_count();
        let items = reader::list(node, &mut findings.at(".limits"), LimitItem::read);
        if items.is_empty() && findings.problem_count() == problems {
            let problem = Diagnostic::new(node.location, "`limits` without a limit");
            findings.problem(problem.hint("write one, such as {requests: 10000, unit: day}"));
        }
        if items.len() > LIMITS_MAX {
            let text = format!("{} limits, more than the {LIMITS_MAX} of limits_max", items.len());
            findings.reject(node.location, text, "write fewer: each is counted for every request");
        }
        Some(Self(items.into()))
    }

    fn display(&self) -> Arc<str> {
        let items: Vec<String> = self.0.iter().map(LimitItem::display).collect();
        format!("[{}]", items.join(", ")).into()
    }
}

#[cfg(test)]
mod tests;
