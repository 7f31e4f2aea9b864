//! A preprocessor of mdBook: reads a book from standard input and writes it to standard output.

#![forbid(unsafe_code)]

use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    // `supports RENDERER` asks whether the program can be used with a renderer.
    if std::env::args().nth(1).as_deref() == Some("supports") {
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apus-book: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut input = String::new();
    stdin().read_to_string(&mut input)?;
    let book = apus_book::preprocess(&input)?;
    stdout().write_all(book.to_string().as_bytes())?;
    Ok(())
}
