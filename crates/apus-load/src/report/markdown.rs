//! Tables for documents.

use crate::result::ResultFile;

use super::conventions::Conventions;
use super::group::tables;
use super::table::Table;

/// The tables of `result` in Markdown, below its command and its machine. Ends with a newline.
#[must_use]
pub fn markdown(result: &ResultFile, conventions: &Conventions) -> String {
    let mut parts = vec![
        format!("`{}`", escape(&result.command)),
        escape(&format!("{} · {}", result.machine, result.started)),
    ];
    if !result.warnings.is_empty() {
        let warnings = result.warnings.iter().map(|warning| format!("- {}", escape(warning)));
        parts.push(warnings.collect::<Vec<_>>().join("\n"));
    }
    parts.extend(tables(result, conventions).iter().map(table));
    parts.join("\n\n") + "\n"
}

fn table(table: &Table) -> String {
    let row = |cells: &mut dyn Iterator<Item = String>| {
        format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
    };
    let mut lines = vec![format!("**{}**\n", escape(&table.title))];
    lines.push(row(&mut table.heads.iter().map(|head| escape(&head.text))));
    let side = |right| if right { "--:" } else { "---" }.to_owned();
    lines.push(row(&mut table.heads.iter().map(|head| side(head.right))));
    lines.extend(table.lines.iter().map(|line| {
        row(&mut line.iter().map(|entry| match escape(&entry.text) {
            text if entry.best => format!("**{text}**"),
            text => text,
        }))
    }));
    if !table.note.is_empty() {
        lines.push(format!("\n{}", escape(&table.note)));
    }
    lines.join("\n")
}

/// One line of text without cell separators or tags.
fn escape(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn a_table_has_as_many_cells_in_every_line() {
        let text = markdown(&sample::result(), &sample::CONVENTIONS);
        assert!(text.starts_with("`apus bench rtt --runs 2`\n\n"), "{text}");
        assert!(text.contains("- the generator was late"));
        let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with('|')).collect();
        let cells = |line: &str| line.matches(" | ").count();
        assert!(table[1].starts_with("| ---") && cells(table[0]) == cells(table[1]));
        assert_eq!(cells(table[1]), cells(table[2]));
    }

    #[test]
    fn text_from_results_is_harmless() {
        assert!(!markdown(&sample::hostile(), &sample::CONVENTIONS).contains("<script"));
    }
}
