//! One self-contained HTML page.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html as markup};

use crate::result::ResultFile;
use crate::series::Series;

use super::column::Better;
use super::conventions::Conventions;
use super::glossary::Glossary;
use super::group::tables;
use super::plot::{self, Palette};
use super::table::{Claim, Head, Standing, Table, TableCell};
use super::warnings;

const STYLE: &str = include_str!("page.css");

/// The colours, for light and dark settings.
pub(super) const PALETTE: &str = include_str!("palette.css");

/// A page with everything in `results`, one section each: machine and exact command, warnings, comparisons, plots, tables, and last
/// the measurements for the choice of a set-up. The page ends with the terms used.
///
/// The page needs no other file, script, font or network, and forbids itself network access. It follows the reader's light or dark
/// setting, fits a phone and prints. All text from the results is escaped.
pub fn html(results: &[ResultFile], conventions: &Conventions) -> Result<String> {
    // Curves first: lines of a table need not be transports.
    let curves = results.iter().flat_map(|result| &result.series);
    let rows = results.iter().flat_map(|result| &result.rows);
    let transports =
        curves.map(|series| series.transport.as_str()).chain(rows.map(|row| row.transport()));
    let page = Page { palette: Palette::of(transports, conventions), conventions };
    let tables: Vec<Vec<Table>> =
        results.iter().map(|result| tables(result, conventions)).collect();
    let glossary = Glossary::of(tables.iter().flatten(), conventions);
    let sections = results.iter().zip(&tables);
    let sections: Vec<Markup> = sections
        .enumerate()
        .map(|(number, (result, tables))| page.section(number, result, tables, &glossary))
        .collect::<Result<_>>()?;
    let heading = match results {
        [result] => subcommand(&result.command),
        results => format!("{} runs", results.len()),
    };
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    let page = markup! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(policy);
                title { "Results of " (heading) }
                style { (PreEscaped(PALETTE)) (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Results of " @if results.len() == 1 { code { (heading) } } @else { (heading) } }
                (contents(results, &tables))
                @for section in sections { (section) }
                (terms(&glossary))
            }
        }
    };
    Ok(page.into_string())
}

/// The words of a command line up to its first option: "apus bench rtt".
fn subcommand(command: &str) -> String {
    command
        .split_whitespace()
        .take_while(|word| !word.starts_with('-'))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Escapes text for use between tags and inside quoted attributes.
pub(super) fn escape(text: &str) -> String {
    markup! { (text) }.into_string()
}

/// State common to all sections.
struct Page<'a> {
    palette: Palette,
    conventions: &'a Conventions,
}

impl Page<'_> {
    fn section(
        &self,
        number: usize,
        result: &ResultFile,
        tables: &[Table],
        glossary: &Glossary,
    ) -> Result<Markup> {
        let (set_up, main): (Vec<&Table>, Vec<&Table>) =
            tables.iter().partition(|table| table.is_set_up);
        let figures = |tables: &[&Table]| {
            markup! { @for table in tables { (self.table(table, glossary)) } }
        };
        let (plots, set_up_plots) = (self.plots(&main, &result.series)?, self.plots(&set_up, &[])?);
        Ok(markup! {
            section.run id=(format!("run-{}", number + 1)) {
                (facts(result))
                (warning_list(&result.warnings))
                (self.glance(&main))
                @if let Some(plots) = plots { h2 { "Plots" } (plots) }
                @if !main.is_empty() { h2 { "Figures" } (figures(&main)) }
                @if !set_up.is_empty() {
                    h2 { "Set-up" }
                    p.note { "Measured only to choose the configuration of the rivals; not part of the comparison." }
                    (figures(&set_up))
                    @if let Some(plots) = set_up_plots { (plots) }
                }
            }
        })
    }

    /// The standing of the subjects: one sentence, and a card for each table with a comparison.
    fn glance(&self, tables: &[&Table]) -> Markup {
        let compared: Vec<(&Table, &str, &Claim)> = tables
            .iter()
            .filter_map(|table| {
                let headline = table.headline.as_ref()?;
                Some((*table, headline.column.name.as_str(), headline.claims.first()?))
            })
            .collect();
        if compared.is_empty() {
            return markup! {};
        }
        // The cards have the best rival; the sentence counts each kind of rival.
        let headlines = tables.iter().filter_map(|table| table.headline.as_ref());
        let claims: Vec<&Claim> = headlines.flat_map(|headline| &headline.claims).collect();
        markup! {
            h2 { "At a glance" }
            p.lead { (self.balance(&claims)) }
            div.cards {
                @for (table, figure, claim) in compared {
                    @let (class, mark) = match claim.standing {
                        Standing::Ahead => ("card ahead", "▲ ahead"),
                        Standing::Behind => ("card behind", "▼ behind"),
                        Standing::Level => ("card", "= level"),
                        Standing::Unclear => ("card", "? not clear"),
                    };
                    div class=(class) {
                        span.side { (mark) }
                        b { (claim.headline) }
                        p { (figure) " of " (table.title) }
                        p { (claim.ours) " against " (claim.reference) }
                    }
                }
            }
        }
    }

    /// "Apus is ahead of kernel TCP in 3 of 5 comparisons, behind in 1, level in 1."
    fn balance(&self, claims: &[&Claim]) -> String {
        if let [claim] = claims {
            return format!("{}.", claim.headline);
        }
        let mut subjects: Vec<(&str, &str)> = Vec::new();
        for claim in claims {
            let pair = [&claim.subject, &claim.rival].map(|name| self.conventions.name_of(name));
            if !subjects.contains(&(pair[0], pair[1])) {
                subjects.push((pair[0], pair[1]));
            }
        }
        let sentence = |(subject, rival): &(&str, &str)| {
            let about = |claim: &&&Claim| {
                self.conventions.name_of(&claim.subject) == *subject
                    && self.conventions.name_of(&claim.rival) == *rival
            };
            let count = |standing| {
                claims.iter().filter(about).filter(|claim| claim.standing == standing).count()
            };
            let all = claims.iter().filter(about).count();
            let mut text = format!(
                "{subject} is ahead of {rival} in {} of {all} comparisons, behind in {}",
                count(Standing::Ahead),
                count(Standing::Behind),
            );
            for (standing, word) in [(Standing::Level, "level"), (Standing::Unclear, "not clear")] {
                if count(standing) > 0 {
                    text += &format!(", {word} in {}", count(standing));
                }
            }
            text + "."
        };
        subjects.iter().map(sentence).collect::<Vec<_>>().join(" ")
    }

    /// Bars for each table about throughput, then the curves, grouped by name; `None` without any.
    fn plots(&self, tables: &[&Table], series: &[Series]) -> Result<Option<Markup>> {
        let mut figures = Vec::new();
        for table in tables {
            let Some(headline) =
                table.headline.as_ref().filter(|headline| headline.column.better == Better::Higher)
            else {
                continue;
            };
            let name = format!("{} of {}", headline.column.name, table.title);
            let bars = plot::bars(&name, headline, &self.palette)?;
            figures.push(figure(&name, &markup! {}, bars));
        }
        let mut names: Vec<&str> = Vec::new();
        for curve in series {
            if !names.contains(&curve.name.as_str()) {
                names.push(&curve.name);
            }
        }
        for name in names {
            let curves: Vec<&Series> = series.iter().filter(|curve| curve.name == name).collect();
            if is_of_one_place(&curves) {
                continue;
            }
            let chart = plot::chart(name, &curves, &self.palette)?;
            figures.push(figure(name, &self.legend(&curves), chart));
        }
        Ok((!figures.is_empty()).then(|| {
            markup! { div.plots { @for figure in figures { (figure) } } }
        }))
    }

    fn legend(&self, curves: &[&Series]) -> Markup {
        markup! {
            ul.legend {
                @for curve in curves {
                    li { span style=(self.palette.swatch(&curve.transport)) {} (curve.transport) }
                }
            }
        }
    }

    fn table(&self, table: &Table, glossary: &Glossary) -> Markup {
        // Without a headline, the first column need not be transports.
        let of_transports = table.headline.is_some();
        let class = |head: &Head, entry: &TableCell| match (head.right, entry.best) {
            (true, true) => Some("r best"),
            (true, false) => Some("r"),
            (false, _) => None,
        };
        markup! {
            div.set {
                h3 { (table.title) }
                div.wide tabindex="0" role="region" aria-label=(table.title) {
                    table {
                        thead { tr {
                            @for head in &table.heads {
                                th scope="col" class=[head.right.then_some("r")] { (glossary.mark(&head.text)) }
                            }
                        } }
                        tbody {
                            @for line in &table.lines { tr {
                                @for (place, (entry, head)) in line.iter().zip(&table.heads).enumerate() {
                                    @if place == 0 {
                                        th scope="row" {
                                            @if of_transports { (self.dot(&entry.text)) }
                                            (entry.text)
                                        }
                                    } @else {
                                        td class=[class(head, entry)] { (entry.text) }
                                    }
                                }
                            } }
                        }
                    }
                }
                @if !table.note.is_empty() { p.note { (table.note) } }
            }
        }
    }

    /// A dot in the colour of a line's transport.
    fn dot(&self, name: &str) -> Markup {
        let transport = name.split(" (").next().unwrap_or(name);
        markup! { span.dot style=(self.palette.spot(transport)) {} }
    }
}

/// Whether all points have the same x value, as for messages of one length. The tables have these figures.
fn is_of_one_place(curves: &[&Series]) -> bool {
    let mut places = curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x);
    let first = places.next();
    curves.iter().any(|curve| !curve.points.is_empty()) && places.all(|x| Some(x) == first)
}

/// Links to the results of a page with several results, by their commands and first tables.
fn contents(results: &[ResultFile], tables: &[Vec<Table>]) -> Markup {
    if results.len() < 2 {
        return markup! {};
    }
    markup! {
        nav.contents aria-label="Contents" {
            h2 { "Contents" }
            ol {
                @for (number, (result, tables)) in results.iter().zip(tables).enumerate() {
                    li {
                        a href=(format!("#run-{}", number + 1)) { (subcommand(&result.command)) }
                        @if let Some(table) = tables.first() { " " span.quiet { (table.title) } }
                    }
                }
            }
        }
    }
}

fn facts(result: &ResultFile) -> Markup {
    markup! {
        dl {
            dt { "Command" } dd { code { (result.command) } }
            dt { "Machine" } dd { (result.machine) }
            dt { "Started" }
            dd { (result.started) ", load average " (format!("{:.2}", result.machine.load_average)) }
            @if let Some(plan) = &result.plan {
                dt { "Plan" } dd { details { summary { "all values" } code { (plan.to_string()) } } }
            }
        }
    }
}

/// One line for each kind of warning, which unfolds to the warnings of the kind.
fn warning_list(texts: &[String]) -> Markup {
    if texts.is_empty() {
        return markup! { p.quiet { "Nothing suspicious was noticed during the run." } };
    }
    markup! {
        div.warnings {
            h3 { "Warnings for this run" }
            ul {
                @for (kind, texts) in warnings::by_kind(texts) {
                    @if let [text] = texts[..] { li { (text) } } @else {
                        li { details {
                            summary { b { (texts.len()) " ×" } " " (kind) }
                            ul { @for text in texts { li { (text) } } }
                        } }
                    }
                }
            }
        }
    }
}

fn figure(name: &str, legend: &Markup, svg: String) -> Markup {
    markup! { figure { figcaption { (name) } (legend) (PreEscaped(svg)) } }
}

/// The terms that the page uses, at its end.
fn terms(glossary: &Glossary) -> Markup {
    markup! {
        @if !glossary.terms().is_empty() {
            section.terms {
                h2 { "Terms" }
                dl { @for (term, meaning) in glossary.terms() { dt { (term) } dd { (meaning) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use proptest::prelude::*;

    fn page(result: ResultFile) -> String {
        html(&[result], &sample::CONVENTIONS).unwrap()
    }

    #[test]
    fn a_page_has_command_machine_warnings_claims_plots_tables_and_terms() {
        let page = page(sample::result());
        for wanted in [
            "<title>Results of apus bench rtt</title>",
            "<code>apus bench rtt --runs 2</code>",
            "AMD EPYC · 2 cores",
            "<li>the generator was late</li>",
            "Apus is ahead of kernel TCP in 1 of 2 comparisons, behind in 1.",
            "<b>Apus is 1.3× faster than kernel TCP</b><p>p50 of rtt · 100 B</p>",
            "<b>Apus has 1.5× less goodput than kernel TCP</b>",
            "<div class=\"card behind\"><span class=\"side\">▼ behind</span>",
            "<figcaption>goodput of stream · 8 outstanding</figcaption>",
            "<figcaption>Latency of 100 B calls</figcaption>",
            "aria-label=\"Slowdown\"",
            "<td class=\"r best\">4.90</td>",
            "<dt>p50</dt>",
        ] {
            assert!(page.contains(wanted), "{wanted} in {page}");
        }
        assert!(page.find("generator was late") < page.find("At a glance"), "warnings come first");
        assert_eq!(page.matches("<svg ").count(), 3);
    }

    #[test]
    fn warnings_of_a_kind_are_folded_behind_one_line() {
        let mut result = sample::result();
        result.warn("a at 80 %, run 1: refused 4 times, the last time with 2.7 % late");
        result.warn("b at 100 %, run 2: refused 3 times, the last time with 27 % late");
        let page = page(result);
        let line = "<summary><b>2 ×</b> refused … times, the last time with … % late</summary>";
        assert!(page.contains(line), "{page}");
        assert!(page.contains("<li>the generator was late</li>"));
    }

    #[test]
    fn what_was_measured_to_choose_a_set_up_comes_last() {
        let mut result = sample::result();
        for transport in ["tcp-a", "tcp-b"] {
            let row = crate::Row::new(transport).set("bench", "choice").set("calls_per_s", 5.5);
            result.rows.insert(0, row);
        }
        let page = page(result);
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}"));
        assert!(at("<h2>Figures") < at("<h2>Set-up") && at("<h2>Set-up") < at("<h3>choice"));
        assert!(at("Slowdown</figcaption>") < at("calls of choice</figcaption>"));
    }

    #[test]
    fn a_transport_has_the_same_colour_in_every_report() {
        let whole = sample::result();
        let mut alone = whole.clone();
        alone.series.retain(|series| series.transport == "tcp-busy");
        alone.rows.clear();
        for page in [page(whole), page(alone)] {
            let legend = "<span style=\"border-top:3px solid var(--c1)\"></span>tcp-busy</li>";
            assert!(page.contains(legend), "{page}");
        }
    }

    #[test]
    fn curves_take_their_colours_from_the_page() {
        let page = page(sample::result());
        assert!(
            page.contains("style=\"stroke:var(--c0)\"") && page.contains("fill=\"currentColor\"")
        );
        assert!(!page.contains("#0102") && !page.contains("#010101"), "a stand-in colour is left");
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        let page = page(sample::result()).replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
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
        let page = page(result);
        assert!(page.contains("Nothing suspicious was noticed") && !page.contains("<h2>"));
        assert!(html(&[], &sample::CONVENTIONS).unwrap().contains("Results of 0 runs"));
    }

    #[test]
    fn a_page_of_several_results_has_contents() {
        let results = [sample::result(), sample::result()];
        let page = html(&results, &sample::CONVENTIONS).unwrap();
        for number in 1..=2 {
            let (link, target) =
                (format!("href=\"#run-{number}\""), format!("id=\"run-{number}\""));
            assert!(page.contains(&link) && page.contains(&target), "{number}");
        }
        assert!(!html(&results[..1], &sample::CONVENTIONS).unwrap().contains("Contents"));
    }

    #[test]
    fn messages_of_one_length_are_no_curve() {
        let mut result = sample::result();
        let curve = result.series[0].clone();
        result.series = vec![Series { points: vec![(100.0, 1.0), (100.0, 2.0)], ..curve.clone() }];
        assert!(!page(result.clone()).contains(&format!("<figcaption>{}", curve.name)));
        result.series = vec![Series { points: vec![(100.0, 1.0), (200.0, 2.0)], ..curve.clone() }];
        assert!(page(result).contains(&format!("<figcaption>{}", curve.name)));
    }

    #[test]
    fn more_curves_than_colours_are_dashed() {
        let mut result = sample::result();
        let curve = result.series[0].clone();
        result.series =
            (0..12).map(|n| Series { transport: format!("t{n}"), ..curve.clone() }).collect();
        let page = page(result);
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
