//! Test helpers: a tree as one line of text, its values and its locations.

use crate::rules::config::yaml::{Kind, Location, Node, Value, read};

/// [`shape`] of what a text holds.
pub fn shape_of(text: &str) -> String {
    shape(&read(text).expect(text).root.unwrap())
}

/// A tree in flow style, nothing quoted, and `~` for what is null.
pub fn shape(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar(scalar) if scalar.value() == Value::Null => "~".into(),
        Kind::Scalar(scalar) => scalar.text.to_string(),
        Kind::List(items) => {
            format!("[{}]", items.iter().map(shape).collect::<Vec<_>>().join(", "))
        }
        Kind::Map(pairs) => {
            let pairs: Vec<String> = pairs
                .iter()
                .map(|(key, value)| format!("{}: {}", shape(key), shape(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

/// An item of a list, or a value of a map.
pub fn value_at(node: &Node, index: usize) -> &Node {
    match &node.kind {
        Kind::Map(pairs) => &pairs[index].1,
        Kind::List(items) => &items[index],
        Kind::Scalar(_) => panic!("a scalar has no values"),
    }
}

/// Every location, outer before inner, keys before values.
pub fn collect_locations(node: &Node, locations: &mut Vec<Location>) {
    locations.push(node.location);
    match &node.kind {
        Kind::Scalar(_) => {}
        Kind::List(items) => items.iter().for_each(|item| collect_locations(item, locations)),
        Kind::Map(pairs) => pairs.iter().for_each(|(key, value)| {
            collect_locations(key, locations);
            collect_locations(value, locations);
        }),
    }
}
