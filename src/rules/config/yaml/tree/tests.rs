use super::*;
use crate::rules::config::yaml::node::WARNINGS_MAX;
use crate::rules::config::yaml::tests::shape::{collect_locations, shape, shape_of, value_at};
use crate::rules::config::yaml::{read, read_within};

#[test]
fn the_tree_has_the_shape_of_the_text() {
    for (text, expected) in [
        ("a: b\nc: [1, {d: }]\n", "{a: b, c: [1, {d: ~}]}"),
        ("a:\n- b\n- c: d\n  e: f\n-\n", "{a: [b, {c: d, e: f}, ~]}"),
        ("a:\n  - - b\n    - c\n", "{a: [[b, c]]}"),
        ("? a\n: b\n? c\n", "{a: b, c: ~}"),
        ("{\"a\":[\"b\"],\"c\":{}}", "{a: [b], c: {}}"),
        ("\u{feff}a: b\r\nc: d\r\n", "{a: b, c: d}"),
        ("%YAML 1.1\n---\na: b\n", "{a: b}"),
        ("--- text\n", "text"),
        ("---\n", "~"),
    ] {
        assert_eq!(shape_of(text), expected, "{text:?}");
    }
    for nothing in ["", "\n\n", "# only\n", "  # a comment\n# and another"] {
        assert!(read(nothing).unwrap().root.is_none(), "{nothing:?}");
    }
}

#[test]
fn only_the_first_document_is_read() {
    for (text, location) in [
        ("a: b\n---\nc: d\n", Location::new(2, 1, 1)),
        ("a: b\n...\nc: d\n", Location::new(3, 1, 1)),
        ("a: b\n---\n@@ no yaml {\n", Location::new(2, 1, 1)),
        ("a: b\n---\nc:\n\t- d: e\n", Location::new(2, 1, 1)),
        ("  a: b\nc: d\n", Location::new(2, 1, 1)),
    ] {
        let document = read(text).unwrap();
        assert_eq!(shape(document.root.as_ref().unwrap()), "{a: b}", "{text:?}");
        assert_eq!(
            document.warnings.iter().map(|warning| warning.location).collect::<Vec<_>>(),
            [location],
            "{text:?}"
        );
    }
    assert!(read("---\na: b\n...\n").unwrap().warnings.is_empty());
}

#[test]
fn aliases_are_copies_with_the_location_of_the_alias() {
    let document = read("a: &x {k: [v]}\nb: *x\nc: &y 5\nd: *y\n").unwrap();
    let root = document.root.unwrap();
    assert_eq!(shape(&root), "{a: {k: [v]}, b: {k: [v]}, c: 5, d: 5}");
    let copy = value_at(&root, 1);
    assert_eq!(copy.location, Location::new(2, 4, 2));
    assert_eq!(value_at(copy, 0).location, Location::new(1, 11, 1));
    assert_eq!(value_at(&root, 3).location, Location::new(4, 4, 2));
}

#[test]
fn invalid_aliases_are_rejected() {
    for (text, location, says) in [
        ("a: &x [1, *x]\n", Location::new(1, 11, 2), "inside the value of its own"),
        ("a: &x\n  b: *x\n", Location::new(2, 6, 2), "inside the value of its own"),
        ("a: *gone\n", Location::new(1, 4, 1), "unknown anchor"),
        ("a: &x 1\n---\nb: *x\n", Location::default(), ""),
    ] {
        match read(text) {
            Ok(_) => assert!(says.is_empty(), "{text:?}"),
            Err(error) => {
                assert_eq!(error.location, location, "{text:?}");
                assert!(error.text.contains(says), "{error}");
            }
        }
    }
}

#[test]
fn an_alias_bomb_is_rejected_at_the_alias() {
    for (first, open, close, item) in [("[x, x]", '[', ']', "*a"), ("{x: 1}", '{', '}', "k: *a")] {
        let mut text = format!("a0: &a0 {first}\n");
        for level in 1..40 {
            let items: Vec<String> = (0..9)
                .map(|i| format!("{}{}", item.replace("k:", &format!("k{i}:")), level - 1))
                .collect();
            text += &format!("a{level}: &a{level} {open}{}{close}\n", items.join(", "));
        }
        let error = read(&text).unwrap_err();
        assert!(
            error.text.starts_with("document contains excessive aliasing: 99 % of "),
            "{error}"
        );
        assert!(error.location.line > 2 && error.location.width == 3, "{error}");
    }
}

#[test]
fn depth_is_bounded_aliases_followed() {
    let nested = |n: usize| format!("{}x{}", "[".repeat(n), "]".repeat(n));
    assert!(read(&nested(DEPTH_MAX)).is_ok());
    assert!(read(&nested(DEPTH_MAX + 1)).unwrap_err().text.contains("128 deep"));
    assert!(read(&"- ".repeat(DEPTH_MAX + 1)).unwrap_err().text.contains("128 deep"));
    let mut chain = "a0: &a0 [x]\n".to_owned();
    for i in 1..=DEPTH_MAX {
        chain += &format!("a{i}: &a{i} [*a{}]\n", i - 1);
    }
    let error = read(&chain).unwrap_err();
    assert!(error.text.contains("128 deep"), "{error}");
    assert_eq!(error.location.line as usize, DEPTH_MAX);
}

#[test]
fn tabs_are_allowed_as_indentation_in_brackets_only() {
    for (text, line) in
        [("\ta: b\n", 1), ("a:\n  b:\n  \t- c\n", 3), ("- a\n\t- b\n", 1), ("a:\n\tb\n", 2)]
    {
        let error = read(text).unwrap_err();
        assert!(error.text.contains("tab"), "{text:?}: {error}");
        assert_eq!(error.location.line, line, "{text:?}: {error}");
    }
    for (text, expected) in [
        ("a: [\n \tb,\n \t{c: d}\n \t]\n", "{a: [b, {c: d}]}"),
        ("&x {\n \ta: b}\n", "{a: b}"),
        ("a: &x [ # why\n \tb]\n", "{a: [b]}"),
        ("a: |\n \tb\n", "{a: \tb\n}"),
        ("a: b\n\t\n", "{a: b}"),
    ] {
        assert_eq!(shape_of(text), expected, "{text:?}");
    }
}

#[test]
fn syntax_errors_have_a_location_and_a_hint() {
    let locations = [
        "a:\n\t- b\n",
        "domain:d\nb: c\n",
        "a: b\nlone\nc: d\n",
        "a: [\n  b\n\n",
        "a: {b: c d: e}\n",
        "a: \"b\nc: d\n",
        "a: 'it's'\n",
        "a: b\n  c: d\n",
        "a: {{ .Values.x }}\n",
        "a: \u{7}\n",
        // Only yaml.v2 accepts these two.
        "a: [\n{b: c},\n]\n",
        "a:\tb\n",
    ]
    .map(|text| {
        let error = read(text).map(|document| document.root).expect_err(text);
        assert!(error.hint.is_some(), "{text:?}");
        format!("{}:{}", error.location.line, error.location.column)
    });
    let expected = "2:2 2:2 3:1 2:3 1:11 1:4 1:8 2:4 1:5 1:4 2:1 1:4";
    assert_eq!(locations.join(" "), expected);
}

#[test]
fn warnings_are_bounded() {
    let warnings = read(&"k: v\n".repeat(100_000)).unwrap().warnings;
    assert_eq!(warnings.len(), WARNINGS_MAX);
}

#[test]
fn nodes_are_counted_with_those_of_aliases() {
    for (text, nodes) in [("[a, b]", 3), ("[&a [b], *a]", 6), ("{a: b}", 3)] {
        assert!(read_within(text, nodes).is_ok(), "{text}");
        let error = read_within(text, nodes - 1).unwrap_err();
        assert!(error.text.contains("nodes up to here"), "{text}: {error}");
    }
}

#[test]
fn large_lists_of_json_are_read_and_those_that_may_be_keys_are_bounded() {
    let items = r#"{"b": 1}, "#.repeat(50_000);
    let json = format!("{{\"a\": [{items}]}}");
    assert!(read(&json).is_ok());
    assert!(read(&format!("\n# JSON\n{json}")).is_err(), "with a comment it may be a key");
    let error = read(&format!("- {json}")).unwrap_err();
    assert!(error.text.contains("rules_tree_bytes_max"), "{error}");
}

#[test]
fn locations_in_json_are_those_of_the_text() {
    for before in ["", "\u{feff}", "\n \n"] {
        let root = read(&format!("{before}{{\"a\": b,\n \"c\": d}}")).unwrap().root;
        let mut locations = Vec::new();
        collect_locations(&root.unwrap(), &mut locations);
        let line = 1 + before.matches('\n').count();
        let expected = [(line, 1), (line, 2), (line, 7), (line + 1, 2), (line + 1, 7)];
        let locations = locations.iter().map(|at| (at.line as usize, at.column as usize));
        assert_eq!(locations.collect::<Vec<_>>(), expected, "{before:?}");
    }
    for (text, column) in [("{a: b, c: d: e}", 12), ("{a: 1}}", 7)] {
        let location = read(text).expect_err(text).location;
        assert_eq!((location.line, location.column), (1, column), "{text}");
    }
}
