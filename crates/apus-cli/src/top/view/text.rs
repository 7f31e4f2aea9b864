//! Styles, wrapped lines, bars.

use ratatui::style::{Color, Modifier, Style};

/// Kinds of emphasis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::top) struct Look {
    /// With colours, and not only with bold and the like.
    pub(in crate::top) colours: bool,
}

impl Look {
    /// For text without styles.
    pub(super) const PLAIN: Self = Self { colours: false };

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn warning(self) -> Style {
        self.coloured(Color::Yellow)
    }

    pub(super) fn trouble(self) -> Style {
        self.coloured(Color::Red)
    }

    pub(super) fn bar(self) -> Style {
        if self.colours { Style::new().fg(Color::Cyan) } else { Style::new() }
    }

    fn coloured(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { self.strong() }
    }
}

/// Wraps a text to lines of at most this width, between words, or within a word that is longer than a line.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (place, part) in letters.chunks(width).enumerate() {
            let part: String = part.iter().collect();
            let line = lines.last_mut().expect("there is a first line");
            let space = usize::from(!line.is_empty());
            if place > 0 || line.chars().count() + space + part.chars().count() > width {
                if line.is_empty() { *line = part } else { lines.push(part) }
            } else {
                line.push_str(&" ".repeat(space));
                line.push_str(&part);
            }
        }
    }
    lines
}

/// A bar that fills a share, from 0 to 1, of this number of columns. A share above 0 is visible.
pub(super) fn bar(share: f64, columns: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * columns as f64 * 8.0).ceil() as usize;
    let rest = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'][eighths % 8];
    let bar = "█".repeat(eighths / 8) + &rest.to_string();
    bar.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_whole_where_they_can() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("abcdefgh ij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrapped("x abcdefgh", 4), ["x", "abcd", "efgh"]);
        assert_eq!(wrapped("", 4), [""]);
        assert_eq!(wrapped("ab", 0), ["a", "b"]);
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(bar(1.0, 3), "███");
        assert_eq!(bar(0.5, 3), "█▌");
        assert_eq!(bar(0.001, 3), "▏");
        assert_eq!(bar(0.0, 3), "");
    }
}
