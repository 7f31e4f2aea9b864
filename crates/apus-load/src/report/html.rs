//! One self-contained HTML page.

use crate::result::ResultFile;
use crate::series::Series;

use super::column::Better;
use super::conventions::Conventions;
use super::group::tables;
use super::plot::{self, Palette, PlotError};
use super::table::Table;

const STYLE: &str = include_str!("page.css");

/// The colours, light and dark.
pub(super) const PALETTE: &str = include_str!("palette.css");

/// A page with everything in `results`, one section each: machine and exact command, warnings, what to take
/// home, plots, tables.
///
/// The page needs nothing else: no script, no font, no network (and forbids it to itself). It follows the
/// reader's light or dark setting, fits a phone and prints. All text from the results is escaped.
pub fn html(results: &[ResultFile], conventions: &Conventions) -> Result<String, PlotError> {
    // Curves first: lines of a table may be something else than transports.
    let curves = results.iter().flat_map(|result| &result.series);
    let rows = results.iter().flat_map(|result| &result.rows);
    let transports =
        curves.map(|series| series.transport.as_str()).chain(rows.map(|row| row.transport()));
    let palette = Palette::of(transports);
    let sections: Vec<String> = results
        .iter()
        .map(|result| section(result, conventions, &palette))
        .collect::<Result<_, _>>()?;
    let (title, heading) = match results {
        [result] => {
            let command = escape(&subcommand(&result.command));
            (format!("Results of {command}"), format!("Results of <code>{command}</code>"))
        }
        results => (
            format!("Results of {} runs", results.len()),
            format!("Results of {} runs", results.len()),
        ),
    };
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{PALETTE}{STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n{}</body>\n</html>\n",
        sections.concat()
    ))
}

/// The words of a command line up to its first option: "apus bench rtt".
fn subcommand(command: &str) -> String {
    command
        .split_whitespace()
        .take_while(|word| !word.starts_with('-'))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Makes text harmless between tags and inside quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn section(
    result: &ResultFile,
    conventions: &Conventions,
    palette: &Palette,
) -> Result<String, PlotError> {
    let tables = tables(result, conventions);
    let parts = [
        "<section class=\"run\">\n".to_owned(),
        facts(result),
        warnings(&result.warnings),
        cards(&tables),
        plots(&tables, &result.series, palette)?,
        figures(&tables),
        "</section>\n".to_owned(),
    ];
    Ok(parts.concat())
}

fn facts(result: &ResultFile) -> String {
    format!(
        "<dl>\n<dt>Command</dt><dd><code>{}</code></dd>\n<dt>Machine</dt><dd>{}</dd>\n<dt>Started</dt><dd>{}, load average {:.2}</dd>\n</dl>\n",
        escape(&result.command),
        escape(&result.machine.to_string()),
        escape(&result.started),
        result.machine.load_average,
    )
}

fn warnings(warnings: &[String]) -> String {
    if warnings.is_empty() {
        return "<p class=\"quiet\">Nothing suspicious was noticed during the run.</p>\n"
            .to_owned();
    }
    let items: String =
        warnings.iter().map(|warning| format!("<li>{}</li>\n", escape(warning))).collect();
    format!(
        "<div class=\"warnings\">\n<h3>What may be wrong with this run</h3>\n<ul>\n{items}</ul>\n</div>\n"
    )
}

/// What to take home from each table that compares its subject with a reference.
fn cards(tables: &[Table]) -> String {
    let mut cards = String::new();
    for table in tables {
        let Some(headline) = &table.headline else { continue };
        let Some(verdict) = &headline.verdict else { continue };
        let class = if verdict.is_win { " class=\"win\"" } else { "" };
        cards += &format!(
            "<div class=\"card\"><b{class}>{}</b><p>{} of {}</p><p>{} against {}</p></div>\n",
            escape(&verdict.comparison),
            escape(&headline.column.name),
            escape(&table.title),
            escape(&verdict.ours),
            escape(&verdict.reference),
        );
    }
    if cards.is_empty() {
        cards
    } else {
        format!("<h2>At a glance</h2>\n<div class=\"cards\">\n{cards}</div>\n")
    }
}

/// Bars for each table about throughput, then the curves, those of one name together.
fn plots(tables: &[Table], series: &[Series], palette: &Palette) -> Result<String, PlotError> {
    let mut figures = String::new();
    for table in tables {
        let Some(headline) =
            table.headline.as_ref().filter(|headline| headline.column.better == Better::Higher)
        else {
            continue;
        };
        let name = format!("{} of {}", headline.column.name, table.title);
        figures += &figure(&name, "", &plot::bars(&name, headline, palette)?);
    }
    let mut names: Vec<&str> = Vec::new();
    for curve in series {
        if !names.contains(&curve.name.as_str()) {
            names.push(&curve.name);
        }
    }
    for name in names {
        let curves: Vec<&Series> = series.iter().filter(|curve| curve.name == name).collect();
        figures += &figure(name, &legend(&curves, palette), &plot::chart(name, &curves, palette)?);
    }
    Ok(if figures.is_empty() {
        figures
    } else {
        format!("<h2>Plots</h2>\n<div class=\"plots\">\n{figures}</div>\n")
    })
}

fn figure(name: &str, legend: &str, svg: &str) -> String {
    format!("<figure><figcaption>{}</figcaption>\n{legend}{svg}</figure>\n", escape(name))
}

fn legend(curves: &[&Series], palette: &Palette) -> String {
    let items = curves.iter().map(|curve| {
        format!(
            "<li><span style=\"{}\"></span>{}</li>",
            palette.swatch(&curve.transport),
            escape(&curve.transport)
        )
    });
    format!("<ul class=\"legend\">{}</ul>\n", items.collect::<String>())
}

fn figures(tables: &[Table]) -> String {
    let tables: String = tables.iter().map(table).collect();
    if tables.is_empty() { tables } else { format!("<h2>Figures</h2>\n{tables}") }
}

fn table(table: &Table) -> String {
    let heads = table
        .heads
        .iter()
        .map(|head| format!("<th{}>{}</th>", side(head.right), escape(&head.text)));
    let lines = table.lines.iter().map(|line| {
        let cells = line.iter().zip(&table.heads).map(|(entry, head)| {
            let class = match (head.right, entry.best) {
                (true, true) => " class=\"r best\"",
                (right, _) => side(right),
            };
            format!("<td{class}>{}</td>", escape(&entry.text))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    });
    let note = if table.note.is_empty() {
        String::new()
    } else {
        format!("<p class=\"note\">{}</p>\n", escape(&table.note))
    };
    format!(
        "<div class=\"set\">\n<h3>{}</h3>\n<div class=\"wide\"><table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table></div>\n{note}</div>\n",
        escape(&table.title),
        heads.collect::<String>(),
        lines.collect::<String>(),
    )
}

fn side(right: bool) -> &'static str {
    if right { " class=\"r\"" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use proptest::prelude::*;

    #[test]
    fn a_page_has_command_machine_warnings_verdicts_plots_and_tables() {
        let page = html(&[sample::result()], &sample::CONVENTIONS).unwrap();
        for wanted in [
            "<title>Results of apus bench rtt</title>",
            "<code>apus bench rtt --runs 2</code>",
            "AMD EPYC · 2 cores",
            "<li>the generator was late</li>",
            "<b class=\"win\">1.3× faster</b><p>p50 of rtt · 100 B</p>",
            "<b>1.5× less</b><p>goodput of stream · 8 outstanding</p>",
            "<figcaption>goodput of stream · 8 outstanding</figcaption>",
            "<figcaption>Latency of 100 B calls</figcaption>",
            "aria-label=\"Slowdown\"",
            "<td class=\"r best\">4.90</td>",
        ] {
            assert!(page.contains(wanted), "{wanted}");
        }
        assert!(page.find("generator was late") < page.find("At a glance"), "warnings come first");
        assert_eq!(page.matches("<svg ").count(), 3);
    }

    #[test]
    fn curves_take_their_colours_from_the_page() {
        let page = html(&[sample::result()], &sample::CONVENTIONS).unwrap();
        assert!(
            page.contains("style=\"stroke:var(--c0)\"") && page.contains("fill=\"currentColor\"")
        );
        assert!(!page.contains("#0102") && !page.contains("#010101"), "a stand-in colour is left");
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        let page = html(&[sample::result()], &sample::CONVENTIONS).unwrap();
        let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn text_from_results_is_escaped_everywhere() {
        let page = html(&[sample::hostile(), sample::hostile()], &sample::CONVENTIONS).unwrap();
        assert!(!page.contains("<script") && !page.contains("alert(\"") && !page.contains("a<b>"));
        assert!(page.contains("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;"));
        assert!(page.contains("<h1>Results of 2 runs</h1>"));
    }

    #[test]
    fn a_result_with_nothing_in_it_is_still_a_page() {
        let mut result = sample::result();
        (result.rows, result.series, result.warnings) = Default::default();
        let page = html(&[result], &sample::CONVENTIONS).unwrap();
        assert!(page.contains("Nothing suspicious was noticed") && !page.contains("<h2>"));
        assert!(html(&[], &sample::CONVENTIONS).unwrap().contains("Results of 0 runs"));
    }

    #[test]
    fn more_curves_than_colours_are_dashed() {
        let mut result = sample::result();
        let curve = result.series[0].clone();
        result.series =
            (0..12).map(|n| Series { transport: format!("t{n}"), ..curve.clone() }).collect();
        let page = html(&[result], &sample::CONVENTIONS).unwrap();
        assert!(page.contains("stroke-dasharray") && page.contains("3px dashed"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_result_has_a_page(result in sample::any_result()) {
            prop_assert!(html(&[result], &sample::CONVENTIONS).is_ok());
        }
    }
}
