//! The endpoints at which a call was tried.

/// Upper bound on the endpoints at which a call is tried without a pause.
pub(crate) const TRIED_MAX: usize = 8;

/// The numbers of the endpoints at which a call was tried since its last pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tried {
    numbers: [u32; TRIED_MAX],
    count: usize,
}

impl Tried {
    pub(crate) fn has(&self, number: u32) -> bool {
        self.numbers[..self.count].contains(&number)
    }

    /// Adds an endpoint, unless there are [`TRIED_MAX`].
    pub(crate) fn add(&mut self, number: u32) {
        if self.count < TRIED_MAX && !self.has(number) {
            self.numbers[self.count] = number;
            self.count += 1;
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == TRIED_MAX
    }

    /// After a pause, only the last endpoint is worse than others.
    pub(crate) fn keep_last(&mut self) {
        if let Some(last) = self.count.checked_sub(1) {
            self.numbers[0] = self.numbers[last];
            self.count = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_of_endpoints_is_remembered() {
        let mut tried = Tried::default();
        tried.keep_last();
        for number in 0..9 {
            tried.add(number);
        }
        assert!(tried.is_full() && tried.has(7) && !tried.has(8));
        tried.keep_last();
        assert!(tried.has(7) && !tried.has(0) && !tried.is_full());
    }
}
