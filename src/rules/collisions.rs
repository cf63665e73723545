//! Finds counters that share a key in the reference form, where underscores join what may have
//! underscores itself.
//!
//! The keys of a rule have a shape: literal text, with a gap wherever clients choose. Two shapes
//! that both have a gap have texts in common if their beginnings agree and their ends do, since
//! each takes what the other has in its middle into a gap of its own:
//!
//! ```text
//! rule user              shop_user_ · · · · · · · · · · _
//! rule user=ann, ip      shop_user_ann_ip_ · · · · · · · _
//! a text of both         shop_user_ann_ip_x_                user=ann_ip_x, or user=ann and ip=x
//! ```
//!
//! Such a text is then read as entries of either rule, and only what the matcher and the keys that
//! serve make of them counts: nothing is told that no request can do. Two readings of a text by one
//! rule are a collision, too. The limits of requests are none of this: no rules file says which
//! there are. Nor are descriptors whose own key has a star, which nobody documents.

use crate::check::Hits;
use crate::rules::Rule;
use crate::rules::key::{KeyTail, counter_key};
use crate::rules::lookup::{counted_by, lookup};
use crate::rules::query::{Descriptor, Entry};
use crate::rules::tree::{Domain, Level, Node, RuleSet};
use crate::rules::wildcard::Pattern;

/// How many collisions are looked for. There is one way out of all of them, and nobody reads more.
pub const COLLISIONS_MAX: usize = 20;
/// How many pairs of rules are compared: a default beside 100,000 values makes 100,000.
pub const PAIRS_MAX: usize = 500_000;
/// How often a text is cut in two to be read as entries. Few need ten.
const CUTS_MAX: usize = 1_000;

/// What is tried.
const TRIES: [Try; 3] = [
    Try {
        chosen: ["x", "y", "z"],
        fill: apart,
    },
    // Where the first are values of rules.
    Try {
        chosen: ["1", "2", "3"],
        fill: apart,
    },
    // Where values that have an underscore meet another rule.
    Try {
        chosen: ["x", "y", "z"],
        fill: closed_up,
    },
];

/// What was found.
#[derive(Debug)]
pub struct Collisions<'r> {
    /// At most one that begins with each rule.
    pub found: Vec<Collision<'r>>,
    /// Whether no bound was reached, so that there are no more rules to be told.
    pub is_complete: bool,
}

/// Two calls that are counted as one.
#[derive(Debug)]
pub struct Collision<'r> {
    /// A call.
    pub one: Call<'r>,
    /// Another one.
    pub other: Call<'r>,
    /// The key of both, without the start of the window.
    pub key: String,
}

/// A descriptor that meets a rule.
#[derive(Debug)]
pub struct Call<'r> {
    /// The domain.
    pub domain: &'r str,
    /// `key=value,key=value`
    pub descriptor: String,
    /// The rule.
    pub rule: &'r Rule,
}

/// The keys that a rule makes.
#[derive(Debug)]
struct Shape<'r> {
    domain: &'r Domain,
    rule: &'r Rule,
    /// From the root to the rule.
    way: Vec<&'r Node>,
    /// Around the gaps, so one more than there are gaps.
    literals: Vec<String>,
    /// For each gap, which level of the way it is in.
    levels: Vec<usize>,
}

/// A way to make texts of literals.
#[derive(Debug)]
struct Try {
    /// What clients may have chosen.
    chosen: [&'static str; 3],
    fill: fn(&[&str], &[&str]) -> Vec<String>,
}

/// Reads a text as entries of a rule.
struct Reader<'s, 't> {
    shape: &'s Shape<'s>,
    text: &'t str,
    tried: &'static Try,
    values: Vec<&'t str>,
    wanted: usize,
    cuts: usize,
    readings: Vec<Vec<&'t str>>,
}

/// Finds collisions among rules whose keys have the reference form; there are none among others.
pub fn collisions(rules: &RuleSet) -> Collisions<'_> {
    let shapes = shapes(rules);
    let mut found = Vec::new();
    let mut pairs = 0;
    for (index, one) in shapes.iter().enumerate() {
        let mut collision = one.with_itself();
        for other in shapes[index + 1..]
            .iter()
            .take_while(|other| one.may_precede(other))
        {
            if collision.is_some() {
                break;
            }
            pairs += 1;
            if pairs > PAIRS_MAX {
                return Collisions {
                    found,
                    is_complete: false,
                };
            }
            collision = one.with(other);
        }
        if collision.is_some() && found.len() == COLLISIONS_MAX {
            return Collisions {
                found,
                is_complete: false,
            };
        }
        found.extend(collision);
    }
    Collisions {
        found,
        is_complete: true,
    }
}

/// All shapes of keys, sorted by what they begin with, so that those which begin alike stand
/// together.
fn shapes(rules: &RuleSet) -> Vec<Shape<'_>> {
    let mut shapes = Vec::new();
    for domain in rules.domains() {
        collect(domain, &domain.root, &mut Vec::new(), &mut shapes);
    }
    shapes.sort_by(|a, b| (&a.literals[0], &a.rule.path).cmp(&(&b.literals[0], &b.rule.path)));
    shapes
}

fn collect<'r>(
    domain: &'r Domain,
    level: &'r Level,
    way: &mut Vec<&'r Node>,
    shapes: &mut Vec<Shape<'r>>,
) {
    for node in level.nodes().iter().filter(|node| !node.key.contains('*')) {
        way.push(node);
        let rule = node
            .rule
            .as_deref()
            .filter(|rule| rule.key_tail == KeyTail::Reference);
        shapes.extend(rule.map(|rule| Shape::new(domain, rule, way)));
        if let Some(below) = &node.below {
            collect(domain, below, way, shapes);
        }
        way.pop();
    }
}

impl<'r> Shape<'r> {
    fn new(domain: &'r Domain, rule: &'r Rule, way: &[&'r Node]) -> Self {
        let mut literals = vec![domain.key_head.reference().to_owned()];
        let mut levels = Vec::new();
        for (level, node) in way.iter().enumerate() {
            let mut pieces: Vec<&str> = match &*node.value {
                "" => vec!["", ""],
                value if is_free(node) => value.split('*').collect(),
                value => vec![value],
            };
            let first = pieces.remove(0);
            let last = literals.last_mut().expect("it begins with one");
            *last += &format!("{}_{first}", node.key);
            for piece in pieces {
                levels.push(level);
                literals.push(piece.to_owned());
            }
            *literals.last_mut().expect("it begins with one") += "_";
        }
        Self {
            domain,
            rule,
            way: way.to_vec(),
            literals,
            levels,
        }
    }

    /// Whether an `other` behind it in the order may have a text in common with it; if not, none
    /// behind that may.
    fn may_precede(&self, other: &Self) -> bool {
        let (own, others) = (&self.literals[0], &other.literals[0]);
        if self.levels.is_empty() {
            own == others
        } else {
            others.starts_with(own)
        }
    }

    /// Two ways to read one text: what stands between two entries that clients choose stands in it
    /// twice.
    fn with_itself(&self) -> Option<Collision<'r>> {
        let between =
            (1..self.levels.len()).filter(|&gap| self.levels[gap - 1] != self.levels[gap]);
        for (gap, tried) in TRIES
            .iter()
            .flat_map(|tried| between.clone().map(move |gap| (gap, tried)))
        {
            let mut literals: Vec<&str> = self.literals.iter().map(|literal| &**literal).collect();
            literals.insert(gap, literals[gap]);
            for text in (tried.fill)(&literals, &tried.chosen) {
                if let [one, other] = &self.readings(&text, tried, 2)[..] {
                    return Some(Collision {
                        one: self.call(one, tried),
                        other: self.call(other, tried),
                        key: text.clone(),
                    });
                }
            }
        }
        None
    }

    fn with(&self, other: &Self) -> Option<Collision<'r>> {
        if self.is_beside(other) {
            return None;
        }
        for tried in &TRIES {
            for text in self.texts_in_common(other, tried) {
                let (own, others) = (
                    self.readings(&text, tried, 1),
                    other.readings(&text, tried, 1),
                );
                if let ([own], [others]) = (&own[..], &others[..]) {
                    return Some(Collision {
                        one: self.call(own, tried),
                        other: other.call(others, tried),
                        key: text.clone(),
                    });
                }
            }
        }
        None
    }

    /// Whether only the value of the last entry can differ, so that equal keys are of equal
    /// requests. The many values of one key are so, and need no look.
    fn is_beside(&self, other: &Self) -> bool {
        let (Some((own, own_above)), Some((others, others_above))) =
            (self.way.split_last(), other.way.split_last())
        else {
            return false;
        };
        let are_same = |(a, b): (&&Node, &&Node)| std::ptr::eq(*a, *b) && !is_free(a);
        std::ptr::eq(self.domain, other.domain)
            && own.key == others.key
            && own_above.len() == others_above.len()
            && own_above.iter().zip(others_above).all(are_same)
    }

    /// Texts that may be keys of both. The shorter ones come first, since somebody is going to read
    /// them.
    fn texts_in_common(&self, other: &Self, tried: &Try) -> Vec<String> {
        let longer = |a: &'_ str, b: &'_ str| {
            if a.len() > b.len() {
                a.to_owned()
            } else {
                b.to_owned()
            }
        };
        let (own, others) = (&self.literals, &other.literals);
        if let [text] = &others[..] {
            return if self.may_make(text) {
                vec![text.clone()]
            } else {
                Vec::new()
            };
        }
        if let [text] = &own[..] {
            return if other.may_make(text) {
                vec![text.clone()]
            } else {
                Vec::new()
            };
        }
        let (own_end, others_end) = (&own[own.len() - 1], &others[others.len() - 1]);
        if !own_end.ends_with(&**others_end) && !others_end.ends_with(&**own_end) {
            return Vec::new();
        }
        let (begin, end) = (longer(&own[0], &others[0]), longer(own_end, others_end));
        let (own, others) = (&own[1..own.len() - 1], &others[1..others.len() - 1]);
        let middles = [[own, &[]], [others, &[]], [own, others], [others, own]];
        let texts = |middle: [&[String]; 2]| {
            let middle = middle.concat();
            let mut literals = vec![&*begin];
            literals.extend(middle.iter().map(|literal| &**literal));
            literals.push(&end);
            (tried.fill)(&literals, &tried.chosen)
        };
        middles.into_iter().flat_map(texts).collect()
    }

    /// Whether the literals stand in the text one after the other.
    fn may_make(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &self.literals[..] else {
            return *self.literals[0] == *text;
        };
        let Some(mut rest) = text
            .strip_prefix(&**first)
            .and_then(|rest| rest.strip_suffix(&**last))
        else {
            return false;
        };
        middle
            .iter()
            .all(|literal| match rest.split_once(&**literal) {
                Some((_, after)) => {
                    rest = after;
                    true
                }
                None => false,
            })
    }

    fn readings<'t>(&self, text: &'t str, tried: &'static Try, wanted: usize) -> Vec<Vec<&'t str>> {
        let Some(rest) = text.strip_prefix(self.domain.key_head.reference()) else {
            return Vec::new();
        };
        let mut reader = Reader {
            shape: self,
            text,
            tried,
            values: Vec::new(),
            wanted,
            cuts: 0,
            readings: Vec::new(),
        };
        reader.read(rest);
        reader.readings
    }

    fn call(&self, reading: &[&str], tried: &Try) -> Call<'r> {
        let values =
            self.way.iter().zip(reading).map(|(node, counted)| {
                format!("{}={}", node.key, sent_value(node, counted, tried))
            });
        Call {
            domain: &self.domain.name,
            descriptor: values.collect::<Vec<_>>().join(","),
            rule: self.rule,
        }
    }
}

impl<'t> Reader<'_, 't> {
    /// Reads the entries of a rest of the text, from the level that has no value yet.
    fn read(&mut self, rest: &'t str) {
        let Some(node) = self.shape.way.get(self.values.len()) else {
            if rest.is_empty() && self.is_met() {
                self.readings.push(self.values.clone());
            }
            return;
        };
        let Some(rest) = rest
            .strip_prefix(&*node.key)
            .and_then(|rest| rest.strip_prefix('_'))
        else {
            return;
        };
        for (end, _) in rest.match_indices('_') {
            if self.readings.len() == self.wanted || self.cuts == CUTS_MAX {
                return;
            }
            self.cuts += 1;
            if takes(node, &rest[..end]) {
                self.values.push(&rest[..end]);
                self.read(&rest[end + 1..]);
                self.values.pop();
            }
        }
    }

    /// Whether a request with these values meets the rule, and is counted under the text.
    fn is_met(&self) -> bool {
        let Shape {
            domain, rule, way, ..
        } = self.shape;
        let values: Vec<String> = way
            .iter()
            .zip(&self.values)
            .map(|(node, counted)| sent_value(node, counted, self.tried))
            .collect();
        let entries = way
            .iter()
            .zip(&values)
            .map(|(node, value)| Entry::new(&*node.key, value))
            .collect();
        let descriptor = Descriptor {
            entries,
            limit: None,
            hits: Hits::Peek,
            hits_addend: None,
        };
        lookup(domain, &descriptor, &mut ()).is_some_and(|met| {
            let key = counter_key(
                &domain.key_head,
                counted_by(&descriptor.entries, &met.hops, met.rule),
                &met.rule.key_tail,
            );
            std::ptr::eq(met.rule, *rule) && key.as_bytes() == self.text.as_bytes()
        })
    }
}

/// Whether clients choose a part of what it is counted by.
fn is_free(node: &Node) -> bool {
    node.value.is_empty() || (node.value.contains('*') && !node.share_threshold)
}

/// Whether entries of the descriptor can be counted by this value.
fn takes(node: &Node, value: &str) -> bool {
    match Pattern::new(&node.value).filter(|_| is_free(node)) {
        Some(pattern) => pattern.matches(value.as_bytes()),
        None => node.value.is_empty() || *node.value == *value,
    }
}

/// A value that a client sends to be counted by this one.
fn sent_value(node: &Node, counted: &str, tried: &Try) -> String {
    if node.share_threshold {
        node.value.replace('*', tried.chosen[0])
    } else {
        counted.to_owned()
    }
}

/// Literals with something between them.
fn apart(literals: &[&str], chosen: &[&str]) -> Vec<String> {
    let (first, others) = literals
        .split_first()
        .expect("there is what a key begins with");
    let chosen = chosen.iter().cycle();
    vec![
        others
            .iter()
            .zip(chosen)
            .fold((*first).to_owned(), |text, (literal, chosen)| {
                text + chosen + literal
            }),
    ]
}

/// Literals with nothing between two of them, where the end of the one may be the beginning of the
/// other, too.
fn closed_up(literals: &[&str], chosen: &[&str]) -> Vec<String> {
    let mut texts = Vec::new();
    for place in 1..literals.len() {
        let (before, after) = (apart(&literals[..place], chosen).concat(), literals[place]);
        for (overlap, _) in after
            .char_indices()
            .filter(|&(overlap, _)| before.ends_with(&after[..overlap]))
        {
            let closed = format!("{before}{}", &after[overlap..]);
            let rest = literals[place + 1..].iter().copied();
            texts.extend(apart(
                &std::iter::once(&*closed).chain(rest).collect::<Vec<_>>(),
                chosen,
            ));
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;
    use crate::config::{self, CompileOptions, Source};
    use crate::rules::KeyFormat;
    use crate::rules::plan::{Modes, plan};
    use crate::rules::query::Query;
    use crate::rules::stats::{METRIC_SERIES_MAX, StatsTable};
    use crate::telemetry::metric::Metrics;
    use crate::text::Text;
    use crate::time::Time;

    /// The paths of two rules that can share a counter; twice the same where a rule does with
    /// itself.
    type Pair = (String, String);

    /// Domains, each with rules written as `key=value,key=value`, where a value may be missing; `!`
    /// in front shares a threshold, and `~` makes a token bucket. Then the pairs that collide,
    /// and the key of one of them.
    type Row = (
        &'static [(&'static str, &'static [&'static str])],
        &'static [(&'static str, &'static str)],
        &'static str,
    );

    const TABLE: &[Row] = &[
        // What most files look like.
        (&[("d", &["user"])], &[], ""),
        (
            &[("d", &["user", "ip", "path=/a", "path=/b*", "!path=/c*"])],
            &[],
            "",
        ),
        (
            &[("d", &["user", "user=ann", "user=a*", "user=ann_lee"])],
            &[],
            "",
        ),
        (
            &[(
                "d",
                &[
                    "generic_key=login,remote_address",
                    "generic_key=search,remote_address",
                    "remote_address",
                ],
            )],
            &[],
            "",
        ),
        (&[("d", &["user"]), ("e", &["user"])], &[], ""),
        // A value that looks like more entries.
        (
            &[("d", &["user", "user=ann,ip"])],
            &[("d.user", "d.user_ann.ip")],
            "d_user_ann_ip_x_",
        ),
        (
            &[("d", &["user", "user,ip=1"])],
            &[("d.user", "d.user.ip_1")],
            "d_user_x_ip_1_",
        ),
        (
            &[("d", &["user=a*", "user=ann,ip"])],
            &[("d.user_a*", "d.user_ann.ip")],
            "d_user_ann_ip_x_",
        ),
        (&[("d", &["user=b*", "user=ann,ip"])], &[], ""),
        (&[("d", &["user=*b", "user=ann,ip=1"])], &[], ""),
        // A key that looks like a key and the beginning of a value.
        (
            &[("d", &["user_id", "user_id_admin"])],
            &[("d.user_id", "d.user_id_admin")],
            "d_user_id_admin_x_",
        ),
        (&[("d", &["user_id=1", "user_id_admin"])], &[], ""),
        (&[("d", &["user_id", "user_identity"])], &[], ""),
        // A rule by itself: what stands between two values can stand in a value.
        (
            &[("d", &["user,ip"])],
            &[("d.user.ip", "d.user.ip")],
            "d_user_x_ip_y_ip_z_",
        ),
        (&[("d", &["user=a*b*c"])], &[], ""),
        (
            &[("d", &["user=a*,ip=*9"])],
            &[("d.user_a*.ip_*9", "d.user_a*.ip_*9")],
            "d_user_ax_ip_y_ip_z9_",
        ),
        (
            &[("d", &["user,path=/,ip"])],
            &[("d.user.path_/.ip", "d.user.path_/.ip")],
            "d_user_x_path_/_ip_y_path_/_ip_z_",
        ),
        (&[("d", &["user,plan=gold"])], &[], ""),
        // Values that share a threshold are one text.
        (&[("d", &["!user=a*,ip"])], &[], ""),
        (&[("d", &["!user=a*", "user=b,ip"])], &[], ""),
        (&[("d", &["!user=a*,ip=1", "user"])], &[], ""),
        (
            &[("d", &["!user=*b,ip=1", "user"])],
            &[("d.user", "d.user_*b.ip_1")],
            "d_user_*b_ip_1_",
        ),
        // No client needs to do anything.
        (
            &[("d", &["a=b,c=d", "a=b_c_d"])],
            &[("d.a_b.c_d", "d.a_b_c_d")],
            "d_a_b_c_d_",
        ),
        (&[("d", &["a=b"]), ("d_a", &["b="])], &[], ""),
        (
            &[("d", &["a_b=c"]), ("d_a", &["b=c"])],
            &[("d.a_b_c", "d_a.b_c")],
            "d_a_b_c_",
        ),
        (
            &[("d", &["a"]), ("d_a", &["b"])],
            &[("d.a", "d_a.b")],
            "d_a_b_x_",
        ),
        // A value that is another rule's leads there.
        (&[("d", &["user,plan=gold", "user=ann,plan=gold"])], &[], ""),
        (
            &[("d", &["user,ip=1", "user=*_*,ip=1", "user=ann,ip"])],
            &[("d.user_*_*.ip_1", "d.user_ann.ip")],
            "d_user_ann_ip_x_y_ip_1_",
        ),
        // What the reference does not have has the safe form.
        (&[("d", &["~user,ip"])], &[], ""),
        (&[("d", &["~user", "user=ann,ip"])], &[], ""),
        // The first of what clients choose is a value here.
        (
            &[("d", &["user", "user=x", "user=x_ip_x", "user=x,ip=1"])],
            &[("d.user", "d.user_x.ip_1")],
            "d_user_x_ip_1_",
        ),
        (
            &[("d", &["user", "user=ann,ip", "user=ann_ip_x"])],
            &[
                ("d.user", "d.user_ann.ip"),
                ("d.user_ann.ip", "d.user_ann_ip_x"),
            ],
            "d_user_ann_ip_1_",
        ),
        (
            &[("d", &["user,ip", "user=x"])],
            &[("d.user.ip", "d.user.ip")],
            "d_user_1_ip_2_ip_3_",
        ),
    ];

    #[test]
    fn two_rules_collide_or_do_not() {
        for (domains, expected, key) in TABLE {
            let rules = loaded(domains, KeyFormat::Reference);
            let collisions = all(&rules);
            let mut expected: Vec<Pair> = expected
                .iter()
                .map(|(one, other)| (one.to_string(), other.to_string()))
                .collect();
            expected.sort();
            assert_eq!(
                collisions.keys().cloned().collect::<Vec<_>>(),
                expected,
                "{domains:?}"
            );
            let keys: Vec<&str> = collisions
                .values()
                .map(|collision| &*collision.key)
                .collect();
            assert!(
                key.is_empty() || keys.contains(key),
                "{domains:?}: {keys:?}"
            );
            for collision in collisions.values() {
                is_real(&rules, collision);
            }
            assert_eq!(
                super::collisions(&rules).found.is_empty(),
                expected.is_empty()
            );
            assert!(
                super::collisions(&loaded(domains, KeyFormat::Safe))
                    .found
                    .is_empty()
            );
        }
    }

    #[test]
    fn a_rule_is_told_once_and_bounds_are_said() {
        let many: Vec<String> = (0..30).map(|number| format!("k{number},ip")).collect();
        let many: Vec<&str> = many.iter().map(|rule| &**rule).collect();
        let rules = loaded(&[("d", &many[..COLLISIONS_MAX])], KeyFormat::Reference);
        let all = collisions(&rules);
        assert_eq!((all.found.len(), all.is_complete), (COLLISIONS_MAX, true));
        let rules = loaded(&[("d", &many)], KeyFormat::Reference);
        let some = collisions(&rules);
        assert_eq!(
            (some.found.len(), some.is_complete),
            (COLLISIONS_MAX, false)
        );
        // Each of the values collides with the default, which is told once.
        let rules = loaded(
            &[("d", &["user", "user=a,ip", "user=b,ip", "user=c,ip"])],
            KeyFormat::Reference,
        );
        assert_eq!(collisions(&rules).found.len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Whatever clients can do with short values is found, and what is found can be done.
        #[test]
        fn it_finds_what_trying_everything_finds(
            rules in prop::collection::vec((0..2usize, prop::collection::vec((key(), value()), 1..=2)), 1..=4),
        ) {
            let mut domains: [BTreeSet<String>; 2] = Default::default();
            for (domain, way) in rules {
                let way: Vec<String> = way.iter().map(|(key, value)| format!("{key}{value}")).collect();
                domains[domain].insert(way.join(","));
            }
            let written: Vec<(&str, Vec<&str>)> =
                ["d", "d_a"].into_iter().zip(&domains).map(|(name, rules)| (name, rules.iter().map(|rule| &**rule).collect())).collect();
            let written: Vec<(&str, &[&str])> = written.iter().map(|(name, rules)| (*name, &rules[..])).collect();
            let Some(rules) = try_load(&written, KeyFormat::Reference) else { eprintln!("REFUSED"); return Ok(()) };
            let found = all(&rules);
            for collision in found.values() { is_real(&rules, collision); } for pair in tried(&rules) {
                prop_assert!(found.contains_key(&pair), "{pair:?} of {written:?}");
            }
        }
    }

    fn key() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["a", "b", "a_b", "!a", "!b"])
    }

    fn value() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "", "", "", "=a", "=b", "=_", "=a_b", "=*", "=a*", "=*b", "=*_*", "=a*b", "=*a_b*",
        ])
    }

    /// Every pair, found by comparing each rule with each.
    fn all(rules: &RuleSet) -> BTreeMap<Pair, Collision<'_>> {
        let shapes = shapes(rules);
        let mut found = BTreeMap::new();
        for (index, one) in shapes.iter().enumerate() {
            let others = shapes[index + 1..].iter().filter_map(|other| {
                let collision = one.with(other);
                assert!(
                    collision.is_none() || one.may_precede(other),
                    "the order hides {collision:?}"
                );
                collision
            });
            for collision in one.with_itself().into_iter().chain(others) {
                found.insert(
                    pair(&collision.one.rule.path, &collision.other.rule.path),
                    collision,
                );
            }
        }
        found
    }

    fn pair(one: &str, other: &str) -> Pair {
        let mut pair = [one.to_owned(), other.to_owned()];
        pair.sort();
        pair.into()
    }

    /// Asks the plan that serves.
    fn is_real(rules: &RuleSet, collision: &Collision<'_>) {
        let (one, other) = (&collision.one, &collision.other);
        assert!(
            (one.domain, &one.descriptor) != (other.domain, &other.descriptor),
            "{collision:?}"
        );
        for call in [one, other] {
            let query =
                Query::of_entries(call.domain, call.descriptor.split(',')).expect("it can be read");
            let plan = plan(rules, &query, Modes::default(), Time::default())
                .expect("it has no limit of its own");
            assert_eq!(
                plan.request.checks[0].key.to_string(),
                collision.key,
                "{collision:?}"
            );
        }
    }

    /// The pairs that share a key for some short values, found by asking for all of them.
    fn tried(rules: &RuleSet) -> BTreeSet<Pair> {
        let mut texts = vec![String::new()];
        for length in 0..3 {
            let longer: Vec<_> = texts
                .iter()
                .filter(|text| text.len() == length)
                .cloned()
                .collect();
            texts.extend(
                longer
                    .iter()
                    .flat_map(|text| ["a", "b", "_"].map(|letter| format!("{text}{letter}"))),
            );
        }
        let mut met: BTreeMap<String, BTreeSet<(String, Vec<String>)>> = BTreeMap::new();
        for shape in shapes(rules) {
            let options: Vec<Vec<String>> = shape
                .way
                .iter()
                .map(|node| {
                    if is_free(node) {
                        texts.clone()
                    } else {
                        vec![node.value.replace('*', "")]
                    }
                })
                .collect();
            let rest = if options.len() > 1 {
                options[1].clone()
            } else {
                vec![String::new()]
            };
            for (first, second) in options[0]
                .iter()
                .flat_map(|first| rest.iter().map(move |second| (first, second)))
            {
                let values = [first, second];
                let entries = shape
                    .way
                    .iter()
                    .zip(values)
                    .map(|(node, value)| Entry::new(&*node.key, value))
                    .collect();
                let descriptor = Descriptor {
                    entries,
                    limit: None,
                    hits: Hits::Peek,
                    hits_addend: None,
                };
                let Some(found) = lookup(shape.domain, &descriptor, &mut ()) else {
                    continue;
                };
                if found.rule.key_tail == KeyTail::Reference {
                    let counted: Vec<Entry<'_>> =
                        counted_by(&descriptor.entries, &found.hops, found.rule).collect();
                    let key = counter_key(
                        &shape.domain.key_head,
                        counted.iter().copied(),
                        &found.rule.key_tail,
                    )
                    .to_string();
                    let counted = counted
                        .iter()
                        .map(|entry| format!("{:?}={:?}", Text(entry.key), Text(entry.value)))
                        .collect();
                    met.entry(key)
                        .or_default()
                        .insert((found.rule.path.to_string(), counted));
                }
            }
        }
        let pairs = met.values().flat_map(|callers| {
            let callers: Vec<_> = callers.iter().collect();
            (1..callers.len()).flat_map(move |to| {
                let callers = callers.clone();
                (0..to).map(move |from| pair(&callers[from].0, &callers[to].0))
            })
        });
        pairs.collect()
    }

    fn loaded(domains: &[(&str, &[&str])], format: KeyFormat) -> RuleSet {
        try_load(domains, format).unwrap_or_else(|| panic!("{domains:?} do not load"))
    }

    /// `None` if such rules are refused.
    fn try_load(domains: &[(&str, &[&str])], key_format: KeyFormat) -> Option<RuleSet> {
        let sources: Vec<Source> = domains
            .iter()
            .map(|(name, rules)| source(name, rules))
            .collect();
        let stats = StatsTable::new(METRIC_SERIES_MAX, &Metrics::new());
        let options = CompileOptions {
            key_format,
            ..CompileOptions::new(stats)
        };
        config::load(&sources, &options)
            .ok()
            .map(|loaded| loaded.rules)
    }

    #[derive(Default)]
    struct Tree {
        below: Vec<(String, Tree)>,
        rule: Option<bool>,
    }

    fn source(domain: &str, rules: &[&str]) -> Source {
        let mut root = Tree::default();
        for rule in rules {
            let mut tree = &mut root;
            for part in rule.trim_start_matches('~').split(',') {
                let index = tree
                    .below
                    .iter()
                    .position(|(name, _)| name == part)
                    .unwrap_or_else(|| {
                        tree.below.push((part.to_owned(), Tree::default()));
                        tree.below.len() - 1
                    });
                tree = &mut tree.below[index].1;
            }
            tree.rule = Some(rule.starts_with('~'));
        }
        let text = format!("domain: {domain}\ndescriptors: {}\n", written(&root));
        Source {
            name: domain.into(),
            path: domain.into(),
            text: text.into(),
        }
    }

    fn written(tree: &Tree) -> String {
        let mut text = String::new();
        for (part, below) in &tree.below {
            let (key, value) = part
                .trim_start_matches('!')
                .split_once('=')
                .unwrap_or((part.trim_start_matches('!'), ""));
            let shared = part.starts_with('!') && value.contains('*');
            let _ = write!(
                text,
                "{{key: '{key}', value: '{value}', share_threshold: {shared}, descriptors: {}",
                written(below)
            );
            if let Some(is_bucket) = below.rule {
                text += ", rate_limit: {unit: hour, requests_per_unit: 5}";
                text += if is_bucket {
                    ", metadata: {tollgate: {algorithm: token_bucket}}"
                } else {
                    ""
                };
            }
            text += "}, ";
        }
        format!("[{text}]")
    }
}
