//! Packet delivery as an argument.

use apus::Delivery;

/// Reads a delivery mode, with its parameters if there are any.
///
/// # Errors
/// When it is none; the message has what is allowed in place of what is wrong.
pub(crate) fn parse(text: &str) -> Result<Delivery, String> {
    text.parse().map_err(|error: apus::DeliveryError| format!("expected {}", error.expected()))
}
