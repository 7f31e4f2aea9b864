//! What the number of an event means.

/// An event: what a record of it means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventInfo {
    /// By which analyses know it: lower case, words joined by `_`.
    pub name: &'static str,
    /// Names of its arguments, at most four.
    pub arguments: &'static [&'static str],
    /// Its line of text. `{}` stands for the next argument in decimal, `{x}` for the next in hexadecimal.
    pub text: &'static str,
}
