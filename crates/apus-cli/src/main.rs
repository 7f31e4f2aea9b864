//! The apus program.

fn main() {}
