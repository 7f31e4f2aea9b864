//! Lines of text that fit a terminal.

use std::fmt::Write as _;

use super::terminal::WIDTH;

/// Appends a text in lines of at most [`WIDTH`] characters, indented by the length of `first`, with which the first line begins. A
/// word that is longer than a line has a line of its own.
pub fn wrap(first: &str, words: &str, text: &mut String) {
    let indent = first.chars().count();
    text.push_str(first);
    let mut column = indent;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            let _ = write!(text, "\n{:indent$}", "");
            column = indent;
        }
        if column > indent {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_indented_and_end_before_the_width() {
        let mut text = String::new();
        wrap("  ok  ", &"word ".repeat(40), &mut text);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.starts_with("  ok  word") && text.contains("\n      word"), "{text}");
    }
}
