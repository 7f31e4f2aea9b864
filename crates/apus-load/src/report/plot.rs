//! Plots as SVG for the page, drawn by plotters.
//!
//! plotters knows fixed colours only, but the page must be legible on light and on dark backgrounds. So plots are drawn in stand-in
//! colours, which are replaced in the finished text: ink by the page's text colour, each curve's by a variable of the page's style.

use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::series::Series;

use super::axis::{Axis, without_unit};
use super::conventions::Conventions;
use super::table::Headline;

/// Width of all plots, in units of nearly two per pixel of a page at full size: fine enough to hide rounding to whole units, and
/// coarse enough for legible letters on a phone.
const WIDTH: u32 = 900;
/// Height of a chart.
const CHART_HEIGHT: u32 = 600;
/// Height of a bar with its label.
const BAR_HEIGHT: u32 = 84;

/// plotters divides by 1.24 when it writes SVG.
const FONT: (&str, f64) = ("sans-serif", 27.0 * 1.24);

/// Stand-in for the page's text colour.
const INK: RGBColor = RGBColor(1, 1, 1);

/// Colours of the page's style: `--c0` to `--c7`.
const COLOURS: usize = 8;

/// Number of curves that colours and dashes distinguish. Further curves repeat them.
const CURVES: usize = 2 * COLOURS;

/// The colours of curves. A transport has the same colour in all plots of a page, and in all reports if the conventions know it.
#[derive(Clone, Debug, Default)]
pub(super) struct Palette {
    /// Names with their colours. Those from [`COLOURS`] on are dashed.
    places: Vec<(String, usize)>,
}

impl Palette {
    /// Colours for `names`: the one given by the conventions, otherwise the colour of the name up to its first comma, otherwise a free
    /// one.
    pub(super) fn of<'a>(names: impl Iterator<Item = &'a str>, conventions: &Conventions) -> Self {
        let mut palette = Self::default();
        let mut others = Vec::new();
        for name in names {
            match conventions.colour(name) {
                _ if palette.knows(name) || others.contains(&name) => {}
                Some(place) => palette.places.push((name.to_owned(), place % CURVES)),
                None => others.push(name),
            }
        }
        for name in others {
            let relative = name.split(',').next().and_then(|name| conventions.colour(name));
            let relatives = relative.map(|place| [place % CURVES, (place + COLOURS) % CURVES]);
            let mut wanted = relatives.into_iter().flatten().chain(0..CURVES);
            let is_free = |place: &usize| !palette.places.iter().any(|(_, taken)| taken == place);
            let place = wanted.find(is_free).unwrap_or(palette.places.len() % CURVES);
            palette.places.push((name.to_owned(), place));
        }
        palette
    }

    fn knows(&self, name: &str) -> bool {
        self.places.iter().any(|(known, _)| known == name)
    }

    /// Style of a spot in a transport's colour.
    pub(super) fn spot(&self, transport: &str) -> String {
        format!("background:var(--c{})", self.place(transport) % COLOURS)
    }

    /// Style of the swatch beside a transport's name in a legend.
    pub(super) fn swatch(&self, transport: &str) -> String {
        let place = self.place(transport);
        let dash = if place < COLOURS { "solid" } else { "dashed" };
        format!("border-top:3px {dash} var(--c{})", place % COLOURS)
    }

    /// Style of a line in a transport's colour.
    pub(super) fn line(&self, transport: &str) -> String {
        stroke(self.place(transport))
    }

    fn place(&self, transport: &str) -> usize {
        self.places.iter().find(|(known, _)| known == transport).map_or(0, |(_, place)| *place)
    }

    fn stand_in(&self, transport: &str) -> RGBColor {
        RGBColor(1, 2, self.place(transport) as u8)
    }
}

/// Curves over common axes. `curves` all belong to the plot `name`, and there is at least one.
pub(super) fn chart(name: &str, curves: &[&Series], palette: &Palette) -> Result<String> {
    let mut svg = String::new();
    let canvas = SVGBackend::with_string(&mut svg, (WIDTH, CHART_HEIGHT)).into_drawing_area();
    draw_chart(&canvas, curves, palette).with_context(|| format!("cannot draw plot `{name}`"))?;
    drop(canvas);
    Ok(finish(svg, CHART_HEIGHT, name))
}

/// One horizontal bar for each line of a table, with its label above it and its value at its end.
pub(super) fn bars(name: &str, headline: &Headline, palette: &Palette) -> Result<String> {
    let mut svg = String::new();
    let height = BAR_HEIGHT * headline.values.len() as u32;
    let canvas = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    draw_bars(&canvas, headline, palette).with_context(|| format!("cannot draw plot `{name}`"))?;
    drop(canvas);
    Ok(finish(svg, height, name))
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_chart(canvas: &Canvas<'_>, curves: &[&Series], palette: &Palette) -> Result<()> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (x_label, y_label) = (curves[0].x_label.as_str(), curves[0].y_label.as_str());
    let x = Axis::around(curves[0].x_scale, points().map(|point| point.0)).of(x_label);
    let y = Axis::around(curves[0].y_scale, points().map(|point| point.1)).of(y_label);
    let mut chart = ChartBuilder::on(canvas)
        .margin_top(16)
        .margin_right(36)
        .x_label_area_size(92)
        .y_label_area_size(150)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .x_desc(without_unit(x_label))
        .y_desc(without_unit(y_label))
        .bold_line_style(INK.mix(0.16))
        .light_line_style(INK.mix(0.06))
        .axis_style(INK.mix(0.6).stroke_width(2))
        .label_style(FONT.into_font().color(&INK.mix(0.75)))
        .axis_desc_style(FONT.into_font().color(&INK))
        .draw()?;
    // The first curve is drawn last, so that it is on top.
    for curve in curves.iter().rev() {
        let shown: Vec<(f64, f64)> = curve
            .points
            .iter()
            .copied()
            .filter(|point| x.shows(point.0) && y.shows(point.1))
            .collect();
        let line = palette.stand_in(&curve.transport).stroke_width(5);
        // Many points make a curve by themselves; few are marked as measured points.
        let mark = if shown.len() <= 60 { 6 } else { 0 };
        chart.draw_series(LineSeries::new(shown.iter().copied(), line))?;
        let dots =
            shown.iter().filter(|_| mark > 0).map(|point| Circle::new(*point, mark, line.filled()));
        chart.draw_series(dots)?;
    }
    Ok(canvas.present()?)
}

fn draw_bars(canvas: &Canvas<'_>, headline: &Headline, palette: &Palette) -> Result<()> {
    let largest =
        headline.values.iter().map(|(_, _, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let label = FONT.into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    for (place, (name, transport, value)) in headline.values.iter().enumerate() {
        let top = (place as u32 * BAR_HEIGHT) as i32;
        // The value is to the right of its bar, so the longest bar leaves room for it.
        let length = (value.max(0.0) / largest * f64::from(WIDTH - 260)).round() as i32;
        let bar = Rectangle::new(
            [(0, top + 40), (length.max(2), top + 72)],
            palette.stand_in(transport).filled(),
        );
        canvas.draw(&bar)?;
        let value = headline.column.with_unit(*value);
        for (text, at) in [(name.clone(), (0, top + 22)), (value, (length + 14, top + 56))] {
            canvas.draw(&Text::new(text, at, label.clone()))?;
        }
    }
    Ok(canvas.present()?)
}

/// Replaces the stand-in colours, leaves the size to the page, and names the picture for screen readers.
///
/// Text from the data is not affected: plotters writes its quotation marks as entities.
fn finish(svg: String, height: u32, name: &str) -> String {
    let fixed = format!("<svg width=\"{WIDTH}\" height=\"{height}\"");
    let named = format!("<svg role=\"img\" aria-label=\"{}\"", super::html::escape(name));
    let mut svg = svg.replacen(&fixed, &named, 1).replace("\"#010101\"", "\"currentColor\"");
    for place in 0..CURVES {
        let colour = format!("var(--c{})", place % COLOURS);
        svg = svg
            .replace(
                &format!("stroke=\"#0102{place:02X}\""),
                &format!("style=\"{}\"", stroke(place)),
            )
            .replace(&format!("fill=\"#0102{place:02X}\""), &format!("style=\"fill:{colour}\""));
    }
    svg
}

/// Style of the line of a curve: dashed after the last colour.
fn stroke(place: usize) -> String {
    let dash = if place < COLOURS { "" } else { ";stroke-dasharray:14 9" };
    format!("stroke:var(--c{}){dash}", place % COLOURS)
}
