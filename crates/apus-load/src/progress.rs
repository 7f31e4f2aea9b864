//! How far a measurement is.

/// Receives the steps of a measurement. It is called between measurements only, never while one runs.
pub trait Progress: Sync {
    /// The work has `steps` more steps than was known.
    fn lengthen(&self, steps: u64);

    /// A step begins; `name` says what it measures.
    fn begin(&self, name: &str);

    /// The step is done.
    fn done(&self);
}

/// Progress that nobody watches.
impl Progress for () {
    fn lengthen(&self, _: u64) {}

    fn begin(&self, _: &str) {}

    fn done(&self) {}
}
