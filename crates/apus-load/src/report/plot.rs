//! placeholder
/// A plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw plot `{name}`: {reason}")]
pub struct PlotError {
    /// Title of the plot.
    pub name: String,
    /// What the drawing library says.
    pub reason: String,
}
