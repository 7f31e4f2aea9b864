//! The progress of a measurement.

/// Receives the steps of a measurement. Called only between measurements, never during one.
pub trait Progress: Sync {
    /// Adds `steps` steps to the work.
    fn lengthen(&self, steps: u64);

    /// A step begins, which measures `name`.
    fn begin(&self, name: &str);

    /// The step is done.
    fn done(&self);
}

/// Ignores progress.
impl Progress for () {
    fn lengthen(&self, _: u64) {}

    fn begin(&self, _: &str) {}

    fn done(&self) {}
}
