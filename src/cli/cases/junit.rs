//! The report as JUnit's XML, which CI systems show. It has no place for the coverage.

use crate::cli::cases::text;
use crate::report::CaseReport;

pub(super) fn write(report: &CaseReport) -> String {
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites tests=\"{}\" failures=\"{}\">\n",
        report.tests.len(),
        report.failed
    );
    for tests in report.files() {
        let path = escaped(&tests[0].file);
        let failed = tests.iter().filter(|test| !test.passed).count();
        xml += &format!(
            "  <testsuite name=\"{path}\" tests=\"{}\" failures=\"{failed}\">\n",
            tests.len()
        );
        for test in tests {
            let name = escaped(&test.name);
            let line = test.line;
            xml += &format!(
                "    <testcase classname=\"{path}\" name=\"{name}\" file=\"{path}\" line=\"{line}\""
            );
            let Some(failure) = &test.failure else {
                xml += "/>\n";
                continue;
            };
            let texts: Vec<&str> =
                failure.mismatches.iter().map(|mismatch| &*mismatch.text).collect();
            xml += &format!(
                ">\n      <failure message=\"{}\">{}</failure>\n    </testcase>\n",
                escaped(&texts.join("; ")),
                escaped(text::failure(test).trim())
            );
        }
        xml += "  </testsuite>\n";
    }
    xml + "</testsuites>\n"
}

/// Text for an attribute or an element. XML has no form for most control characters.
fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => xml += "&amp;",
            '<' => xml += "&lt;",
            '>' => xml += "&gt;",
            '"' => xml += "&quot;",
            '\n' | '\t' => xml.push(letter),
            '\u{fffe}' | '\u{ffff}' => xml.push(char::REPLACEMENT_CHARACTER),
            _ if letter.is_control() => xml.push(char::REPLACEMENT_CHARACTER),
            _ => xml.push(letter),
        }
    }
    xml
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_for_xml() {
        let text = "a <b> & \"c\"\n\u{1b}[1m\u{ffff}ü";
        let expected = "a &lt;b&gt; &amp; &quot;c&quot;\n\u{fffd}[1m\u{fffd}ü";
        assert_eq!(escaped(text), expected);
    }
}
