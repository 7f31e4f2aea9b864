//! The tests of the model: `holds` explores it, `reverts` brings mended faults back, `replay` compares it with `apus-proto`.

mod holds;
mod replay;
mod reverts;
mod twin;
