//! Hostile texts: reading them ends, soon, without a panic or a stack overflow.

use crate::rules::config::yaml::read;
use crate::rules::config::yaml::tests::shape::collect_locations;

pub mod scalar_cases;
pub mod shape;

#[test]
fn repeated_tokens_are_read_in_bounded_time_and_stack() {
    const PIECES: &str = "[|{|- |a: |? |-\n|[],|{a: |{[|&a |*a |!a |'|\"|'' |: |:|,|]|}|>\n|%|---\n|...\n|#|\n| |\t|\r|\0|x |x: y\n|\
                          a:\n |é|[? |[a: |\"a\\\n|'a\n|key: [\n|\\|!<|!!str |@|<<: |'a': b\n|%TAG ! x\n|a: >\n  b\n|a: &a b\n";
    // A worker thread's stack may be small: nothing here recurses deeper than DEPTH_MAX.
    let all = || {
        for piece in PIECES.split('|') {
            for start in ["", "[", "a: ", "a:\n  ", "\"", ">\n  "] {
                let _ = read(&format!("{start}{}", piece.repeat(20_000)));
            }
        }
    };
    std::thread::Builder::new().stack_size(512 << 10).spawn(all).unwrap().join().unwrap();
}

#[test]
fn mutated_texts_give_locations_inside_the_text() {
    const SAMPLE: &str = "domain: é\ndescriptors:\n- key: a\n  value: \"b*\"  # c\n  rate_limit: &r {unit: hour, requests_per_unit: 0x10}\n\
                          - <<: *r\n  key: 'it''s'\n  metadata: {x: [1, ~], y: >-\n  }\n  descriptors: [\n  {key: c, rate_limit: *r}\n]\n- |\n  text\n\n";
    const PIECES: &[char] = &[
        ' ', '\n', '\t', ':', '-', '[', ']', '{', '}', ',', '#', '"', '\'', '|', '>', '&', '*',
        '!', '?', '%', 'é', '\r', 'y',
    ];
    let mut state = 7_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..5_000 {
        let mut chars: Vec<char> = SAMPLE.chars().collect();
        for _ in 0..=random(4) {
            let at = random(chars.len());
            match random(3) {
                0 => chars.insert(at, PIECES[random(PIECES.len())]),
                1 => chars[at] = PIECES[random(PIECES.len())],
                _ => drop(chars.drain(at..(at + 1 + random(4)).min(chars.len()))),
            }
        }
        let text: String = chars.into_iter().collect();
        let mut locations = Vec::new();
        match read(&text) {
            Ok(document) => {
                locations.extend(document.warnings.iter().map(|warning| warning.location));
                document.root.iter().for_each(|root| collect_locations(root, &mut locations));
            }
            Err(error) => locations.push(error.location),
        }
        let lines: Vec<&str> = text.split('\n').flat_map(|line| line.split('\r')).collect();
        for location in locations {
            assert!(
                location.line >= 1 && location.column >= 1 && location.width >= 1,
                "{location:?} in {text:?}"
            );
            assert!(location.line as usize <= lines.len(), "{location:?} in {text:?}");
            assert!(
                (location.column + location.width) as usize <= text.chars().count() + 2,
                "{location:?} in {text:?}"
            );
        }
    }
}
