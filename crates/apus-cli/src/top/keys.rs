//! The meaning of keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// An action of the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Quit,
    /// Closes the panel over the table, or quits if no panel is open.
    Leave,
    /// Moves the selection by this number of processes.
    Move(isize),
    First,
    Last,
    /// Opens or closes the panel of the selected process.
    Panel,
    NextColumn,
    PreviousColumn,
    Pause,
    Help,
    LongerInterval,
    ShorterInterval,
}

/// The action of a key, if it has one.
pub(super) fn action(key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Action::Quit);
    }
    Some(match key.code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Esc => Action::Leave,
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::PageUp => Action::Move(-PAGE),
        KeyCode::PageDown => Action::Move(PAGE),
        KeyCode::Home | KeyCode::Char('g') => Action::First,
        KeyCode::End | KeyCode::Char('G') => Action::Last,
        KeyCode::Enter | KeyCode::Char(' ') => Action::Panel,
        KeyCode::Char('s') => Action::NextColumn,
        KeyCode::Char('S') => Action::PreviousColumn,
        KeyCode::Char('p') => Action::Pause,
        KeyCode::Char('?' | 'h') => Action::Help,
        KeyCode::Char('+' | '=') => Action::LongerInterval,
        KeyCode::Char('-') => Action::ShorterInterval,
        _ => return None,
    })
}

/// The keys, for the help.
pub(super) const KEYS: [(&str, &str); 8] = [
    ("q, Ctrl-C", "quit"),
    ("Esc", "close the help; without it, quit"),
    ("up, down, k, j", "select a process; also PgUp, PgDn, Home, End"),
    ("Enter, Space", "open or close the panel of the process"),
    ("s, S", "sort by the next or the previous column"),
    ("p", "pause, and go on"),
    ("+, -", "longer or shorter interval"),
    ("?", "this help"),
];

/// Processes that a page key passes.
const PAGE: isize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_meaning() {
        let plain = |code| action(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(plain(KeyCode::Char('q')), Some(Action::Quit));
        assert_eq!(plain(KeyCode::Esc), Some(Action::Leave));
        assert_eq!(plain(KeyCode::Char('j')), Some(Action::Move(1)));
        assert_eq!(plain(KeyCode::Char('c')), None);
        let with = |code, modifiers| action(KeyEvent::new(code, modifiers));
        assert_eq!(with(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Action::Quit));
        assert_eq!(with(KeyCode::Char('s'), KeyModifiers::CONTROL), None);
        assert_eq!(with(KeyCode::Char('S'), KeyModifiers::SHIFT), Some(Action::PreviousColumn));
    }

    #[test]
    fn a_key_that_is_let_go_does_nothing() {
        let mut key = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        key.kind = KeyEventKind::Release;
        assert_eq!(action(key), None);
    }
}
