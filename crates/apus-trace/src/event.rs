//! Descriptions of events.

/// The description of an event's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventInfo {
    /// The name by which analyses find the event: lower case, words joined by `_`.
    pub name: &'static str,
    /// Names of its arguments, at most four.
    pub arguments: &'static [&'static str],
    /// Its line of text. `{}` stands for the next argument in decimal, `{x}` for the next in hexadecimal.
    pub text: &'static str,
}
