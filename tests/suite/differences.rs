//! `docs/compatibility.md` names, for each difference, the test that asserts our answer. This holds
//! it to that.

use std::fs;
use std::path::Path;

use crate::support::read_test_file;

#[test]
fn every_difference_names_a_test_and_every_defect_case_has_a_row() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| {
        fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let page = read("docs/compatibility.md");
    let table = page
        .split("## Differences")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the page has a list of differences");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| | envoyproxy/ratelimit |"))
        .map(cells)
        .collect();
    assert!(rows.len() > 20, "only {} rows", rows.len());
    for row in &rows {
        let [_, theirs, ours, _, asserted, _] = row[..] else { panic!("six columns, not {row:?}") };
        assert!(!theirs.is_empty() && !ours.is_empty(), "{row:?}");
        let (file, test) =
            asserted.split_once(": ").unwrap_or_else(|| panic!("`file: test`, not {asserted}"));
        let wanted = if file.starts_with("cases/") {
            format!("case: {test}\n")
        } else {
            format!("fn {test}(")
        };
        assert!(read_test_file(file).contains(&wanted), "{file} has no {wanted}");
    }
    for line in read("tests/suite/cases/defects.yaml").lines() {
        if let Some(number) = line.trim().strip_prefix("defect: ") {
            // The same answer as the reference's, or one that needs a cache to differ.
            let told = ["D33"].contains(&number) || rows.iter().any(|row| row[0] == number);
            assert!(told, "{number} has a case, and no row in docs/compatibility.md");
        }
    }
}

fn cells(line: &str) -> Vec<&str> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    // Before the first bar and behind the last there is nothing.
    cells[1..cells.len() - 1].to_vec()
}
