//! The keys and the columns.

use ratatui::text::{Line, Span};

use super::Look;
use crate::top::column::Column;
use crate::top::keys::KEYS;

/// The help: 22 lines of at most 80 columns.
pub(super) fn lines(look: Look) -> Vec<Line<'static>> {
    let line = |(what, means): (&str, &str)| {
        Line::from(vec![
            Span::styled(format!("{what:<16}"), look.strong()),
            Span::raw(means.to_owned()),
        ])
    };
    let columns = Column::ALL.map(|column| (column.heading(), column.meaning()));
    // pid, program and user explain themselves.
    let columns = columns.iter().skip(3).copied();
    let keys = KEYS.iter().copied().map(line);
    keys.chain([Line::default()]).chain(columns.map(line)).collect()
}
