//! A page in a real browser, without a window.

use std::path::Path;
use std::process::{Command, Output};

use crate::skipped::skipped;

/// Names of the browser on different systems.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Asserts that a page renders without an error, in a window and on a phone, and that its plots have points. Prints a message and
/// does nothing where there is no browser.
pub(crate) fn renders(page: &Path) {
    let runs = |name: &&str| {
        Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success())
    };
    let Some(browser) = NAMES.into_iter().find(runs) else {
        return skipped(format_args!("no browser ({}) is installed", NAMES.join(", ")));
    };
    let dom = open(browser, page, &["--dump-dom"]);
    let dom = String::from_utf8_lossy(&dom.stdout).into_owned();
    let plots: Vec<&str> = dom.split("<svg ").skip(1).collect();
    assert!(plots.len() >= 4, "{} plots", plots.len());
    for plot in plots {
        let plot = plot.split("</svg>").next().unwrap_or_default();
        assert!(plot.contains("var(--c"), "a plot without a curve: {plot}");
    }
    for (name, size) in [("wide", "1280,4000"), ("phone", "390,4000")] {
        let picture = page.with_extension(format!("{name}.png"));
        open(
            browser,
            page,
            &[&format!("--screenshot={}", picture.display()), &format!("--window-size={size}")],
        );
        let bytes = std::fs::metadata(&picture).map_or(0, |file| file.len());
        // A picture of an empty page is smaller than a tenth of this size.
        assert!(bytes > 50_000, "{name}: a picture of {bytes} bytes");
        std::fs::remove_file(&picture).expect("it was written");
    }
}

/// Opens a page, which must not write to the console.
fn open(browser: &str, page: &Path, arguments: &[&str]) -> Output {
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
        ])
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("CONSOLE"), "{said}");
    output
}
