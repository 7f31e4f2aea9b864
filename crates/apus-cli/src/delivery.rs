//! Packet delivery as an argument.

use apus::Delivery;

/// Reads a delivery mode by its name.
///
/// # Errors
/// When there is no such mode; the message has those there are.
pub(crate) fn parse(text: &str) -> Result<Delivery, String> {
    text.parse().map_err(|_| {
        let names: Vec<&str> = Delivery::ALL.iter().map(|mode| mode.name()).collect();
        format!("it must be one of {}", names.join(", "))
    })
}
