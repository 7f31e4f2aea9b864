//! The frame of every function of the library.

use std::any::Any;
use std::mem;
use std::panic::{self, AssertUnwindSafe};

use crate::failure::Failure;
use crate::last_error;
use crate::owned;

/// Runs a function of the library. Returns its number, which is not negative, or that of its error, whose text the thread keeps.
#[inline]
pub(crate) fn number(run: impl FnOnce() -> Result<i32, Failure>) -> i32 {
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        owned::refuse_in_release()?;
        run()
    }));
    match outcome {
        Ok(Ok(number)) => number,
        Ok(Err(failure)) => last_error::set(failure),
        Err(payload) => last_error::set(panicked(payload)),
    }
}

/// Runs a function whose result is no number: `otherwise` stands for an error.
#[inline]
pub(crate) fn value<T>(otherwise: T, run: impl FnOnce() -> Result<T, Failure>) -> T {
    value_in_release(otherwise, || {
        owned::refuse_in_release()?;
        run()
    })
}

/// As [`value`], for a function that a release function may call.
#[inline]
pub(crate) fn value_in_release<T>(otherwise: T, run: impl FnOnce() -> Result<T, Failure>) -> T {
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            last_error::set(failure);
            otherwise
        }
        Err(payload) => {
            last_error::set(panicked(payload));
            otherwise
        }
    }
}

#[cold]
fn panicked(payload: Box<dyn Any + Send>) -> Failure {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "without a text".to_owned(),
    };
    // Its drop could panic again.
    mem::forget(payload);
    Failure::panicked(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::apus_error::APUS_EPANIC;

    #[test]
    fn no_panic_leaves_a_function() {
        assert_eq!(number(|| panic!("number {}", 7)), APUS_EPANIC as i32);
        assert!(last_error::text().ends_with("number 7"), "{}", last_error::text());
        assert_eq!(value(5, || panic::panic_any(7)), 5);
    }
}
