//! Renders `docs/operations.md` as the runbook of the console, and has `check --environment` read
//! what pages say of settings and of Redis' commands.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html};

fn main() -> Result<(), Box<dyn Error>> {
    describe_build()?;
    println!("cargo:rerun-if-changed=docs/operations.md");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR for a build script")?);
    let page = fs::read_to_string("docs/operations.md")?;
    fs::write(out.join("operations.html"), rendered(&page))?;
    for (page, table, headings) in [
        ("compatibility", "settings", "| setting | default | here |"),
        ("redis", "commands", "| commands | used for |"),
    ] {
        let page = format!("docs/{page}.md");
        println!("cargo:rerun-if-changed={page}");
        let rows = rows(&fs::read_to_string(&page)?, headings);
        if rows.is_empty() {
            return Err(format!("{page} has no table {headings}").into());
        }
        fs::write(
            out.join(format!("{table}.rs")),
            format!("&{rows:?}").replace("[\"", "&[\""),
        )?;
    }
    Ok(())
}

/// The cells of all tables of a page whose headings begin with these, as plain text.
fn rows(page: &str, headings: &str) -> Vec<Vec<String>> {
    let mut is_in = false;
    let rows = page.lines().filter(|line| {
        is_in = line.starts_with(headings) || is_in && line.starts_with('|');
        is_in && !line.starts_with(headings) && !line.starts_with("|---")
    });
    rows.map(|row| row.trim_matches('|').split('|').map(plain).collect())
        .collect()
}

/// Markdown without its code and links.
fn plain(cell: &str) -> String {
    let events = Parser::new(cell).filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) => Some(text.to_string()),
        Event::SoftBreak => Some(" ".to_owned()),
        _ => None,
    });
    events.collect()
}

/// Sets the variables that `src/report/build.rs` reads.
fn describe_build() -> Result<(), Box<dyn Error>> {
    let rustc = Command::new(env::var("RUSTC")?).arg("--version").output()?;
    let rustc = String::from_utf8(rustc.stdout)?;
    println!("cargo:rustc-env=TOLLGATE_RUSTC={}", rustc.trim());
    for (name, source) in [
        ("TOLLGATE_PROFILE", "PROFILE"),
        ("TOLLGATE_TARGET", "TARGET"),
        ("TOLLGATE_FEATURES", "CARGO_CFG_TARGET_FEATURE"),
    ] {
        println!("cargo:rustc-env={name}={}", env::var(source)?);
    }
    Ok(())
}

/// The HTML of a page on its own: headings have the anchors of GitHub, links to other pages and
/// images are text.
fn rendered(page: &str) -> String {
    let mut is_kept = true;
    let events = Parser::new_ext(page, Options::ENABLE_TABLES).filter(|event| match event {
        Event::Start(Tag::Link { dest_url, .. }) => {
            is_kept = dest_url.starts_with('#');
            is_kept
        }
        Event::End(TagEnd::Link) => is_kept,
        Event::Start(Tag::Image { .. })
        | Event::End(TagEnd::Image)
        | Event::Html(_)
        | Event::InlineHtml(_) => false,
        _ => true,
    });
    let mut events: Vec<Event<'_>> = events.collect();
    for start in 0..events.len() {
        let (before, after) = events.split_at_mut(start + 1);
        if let Event::Start(Tag::Heading { id, .. }) = &mut before[start] {
            let texts = after.iter().map_while(|event| match event {
                Event::Text(text) | Event::Code(text) => Some(&**text),
                _ => None,
            });
            *id = Some(anchor(&texts.collect::<String>()).into());
        }
    }
    let mut page = String::new();
    html::push_html(&mut page, events.into_iter());
    page
}

fn anchor(heading: &str) -> String {
    let heading = heading.to_lowercase();
    let kept = |letter: &char| letter.is_alphanumeric() || "-_ ".contains(*letter);
    let kept: String = heading.chars().filter(kept).collect();
    kept.replace(' ', "-")
}
