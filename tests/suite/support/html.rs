//! What is readable of a page in HTML.

/// The text between the tags of a part of a page, with one space for each run of white space.
pub(crate) fn text(part: &str) -> String {
    let mut text = String::new();
    for piece in part.split('<') {
        text += piece.split_once('>').map_or(piece, |(_, behind)| behind);
        text.push(' ');
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
