//! One line for each process.

use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as TableRow, StatefulWidget, Table, TableState};

use super::Look;
use crate::top::column::Column;
use crate::top::model::Model;
use crate::top::row::Row;

/// Draws the heading, and as many processes as there is room for, with the selected one among them.
pub(super) fn draw(model: &Model, look: Look, area: Rect, buffer: &mut Buffer) {
    let columns = Column::that_fit(area.width);
    let needed: u16 = columns.iter().map(|column| column.width() + 1).sum();
    let spare = (area.width + 1).saturating_sub(needed);
    let width = |column: &Column| {
        column.width() + if *column == Column::Program { spare.min(PROGRAM_SPARE) } else { 0 }
    };
    let headings = columns.iter().map(|column| {
        let style = if *column == model.sort { look.heading() } else { look.strong() };
        Cell::new(aligned(*column, column.heading().to_owned()).style(style))
    });
    let rows = model.rows.iter().map(|row| line(row, &columns, width, look));
    let table = Table::new(rows, columns.iter().map(|it| Constraint::Length(width(it))))
        .header(TableRow::new(headings))
        .row_highlight_style(look.selected())
        .column_spacing(1);
    let mut state = TableState::new().with_selected(model.selected_place());
    table.render(area, buffer, &mut state);
}

fn line<'a>(
    row: &Row,
    columns: &[Column],
    width: impl Fn(&Column) -> u16,
    look: Look,
) -> TableRow<'a> {
    let cells = columns.iter().map(|column| {
        let text = cut(column.text(row), width(column).into());
        let is_warning = *column == Column::Warnings && !text.is_empty();
        let cell = Cell::new(aligned(*column, text));
        if is_warning { cell.style(look.warning()) } else { cell }
    });
    let line = TableRow::new(cells);
    if row.has_ended() { line.style(look.dim()) } else { line }
}

fn aligned(column: Column, text: String) -> Line<'static> {
    let alignment = if column.is_text() { Alignment::Left } else { Alignment::Right };
    Line::raw(text).alignment(alignment)
}

fn cut(text: String, width: usize) -> String {
    if text.chars().count() <= width {
        return text;
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Columns of the terminal that a long name of a program may take beyond the least.
const PROGRAM_SPARE: u16 = 22;
