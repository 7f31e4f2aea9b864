//! Plots as separate files, for documents.

use anyhow::Result;
use maud::{PreEscaped, html};

use crate::result::ResultFile;
use crate::series::Series;

use super::conventions::Conventions;
use super::html::PALETTE;
use super::plot::{self, Palette};

const STYLE: &str =
    "svg { color: var(--ink); font-family: system-ui, sans-serif; font-size: 26px; }";

/// Width of a file and of its chart.
const WIDTH: usize = 900;
/// Height of the chart.
const CHART_HEIGHT: usize = 600;

/// Height of the title.
const TITLE_HEIGHT: usize = 64;
/// Height of a line of the legend.
const LEGEND_HEIGHT: usize = 44;

/// Entries of the legend side by side.
const LEGEND_COLUMNS: usize = 4;

/// A plot as a separate file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SvgFile {
    /// The file's name: the plot's title in lower case, with `.svg`.
    pub file_name: String,
    /// Title of the plot.
    pub title: String,
    /// The SVG text. Needs no other file, and follows the reader's light or dark setting.
    pub text: String,
}

/// A file for each plot of curves in `result`.
pub fn svg(result: &ResultFile, conventions: &Conventions) -> Result<Vec<SvgFile>> {
    let transports = result.series.iter().map(|curve| curve.transport.as_str());
    let palette = Palette::of(transports, conventions);
    let mut names: Vec<&str> = Vec::new();
    for curve in &result.series {
        if !names.contains(&curve.name.as_str()) {
            names.push(&curve.name);
        }
    }
    names.into_iter().map(|name| file(name, &result.series, &palette)).collect()
}

fn file(name: &str, series: &[Series], palette: &Palette) -> Result<SvgFile> {
    let curves: Vec<&Series> = series.iter().filter(|curve| curve.name == name).collect();
    let chart = plot::chart(name, &curves, palette)?;
    let place =
        format!("<svg x=\"0\" y=\"{TITLE_HEIGHT}\" width=\"{WIDTH}\" height=\"{CHART_HEIGHT}\" ");
    let chart = chart.replacen("<svg ", &place, 1);
    let lines = curves.len().div_ceil(LEGEND_COLUMNS);
    let height = TITLE_HEIGHT + CHART_HEIGHT + lines * LEGEND_HEIGHT + LEGEND_HEIGHT / 2;
    let text = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {height}")) {
            style { (PreEscaped(PALETTE)) (PreEscaped(STYLE)) }
            rect width="100%" height="100%" style="fill:var(--paper)" {}
            text x=(WIDTH / 2) y="42" text-anchor="middle" font-weight="600" fill="currentColor" { (name) }
            (PreEscaped(chart))
            @for (number, curve) in curves.iter().enumerate() {
                @let x = 30 + number % LEGEND_COLUMNS * (WIDTH - 30) / LEGEND_COLUMNS;
                @let line = number / LEGEND_COLUMNS + 1;
                @let y = TITLE_HEIGHT + CHART_HEIGHT + line * LEGEND_HEIGHT - 8;
                path d=(format!("M{x} {} h40", y - 9)) stroke-width="5" style=(palette.line(&curve.transport)) {}
                text x=(x + 50) y=(y) fill="currentColor" { (curve.transport) }
            }
        }
    };
    let text = text.into_string() + "\n";
    Ok(SvgFile { file_name: file_name(name), title: name.to_owned(), text })
}

fn file_name(title: &str) -> String {
    let words = title.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    format!("{}.svg", words.map(str::to_lowercase).collect::<Vec<_>>().join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn every_plot_is_a_file_with_its_legend_and_both_palettes() {
        let result = sample::result();
        let files = svg(&result, &sample::CONVENTIONS).unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.file_name.as_str()).collect();
        assert_eq!(names, ["latency-of-100-b-calls.svg", "slowdown.svg"]);
        for file in &files {
            assert!(file.text.contains("prefers-color-scheme: dark"), "{}", file.text);
            assert!(file.text.contains(&file.title));
            assert!(!file.text.contains("#0102"), "a stand-in colour is left");
            assert_eq!(file.text.matches("<svg ").count(), file.text.matches("</svg>").count());
        }
        assert!(files[0].text.contains(&format!(">{}</text>", result.series[0].transport)));
    }

    #[test]
    fn text_from_results_is_escaped() {
        for file in svg(&sample::hostile(), &sample::CONVENTIONS).unwrap() {
            assert!(!file.text.contains("<script"));
            assert!(file.file_name.chars().all(|c| c.is_alphanumeric() || "-.".contains(c)));
        }
    }
}
