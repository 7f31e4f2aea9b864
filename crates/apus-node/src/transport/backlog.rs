//! Requests that wait until the node's budgets have room.

use std::collections::VecDeque;

/// Waiting requests in order. They wait because outstanding requests fill the node's budgets.
#[derive(Debug)]
pub struct Backlog<T>(VecDeque<T>);

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Copy> Backlog<T> {
    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a request at the end.
    pub fn push(&mut self, request: T) {
        self.0.push_back(request);
    }

    /// Sends waiting requests until `try_send` returns `false` for lack of room.
    ///
    /// # Errors
    ///
    /// The error of a request, which is removed. The requests behind it stay.
    pub fn send<E>(&mut self, mut try_send: impl FnMut(T) -> Result<bool, E>) -> Result<(), E> {
        while let Some(&request) = self.0.front() {
            let sent = try_send(request);
            if let Ok(false) = sent {
                break;
            }
            self.0.pop_front();
            sent?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sent_in_order_as_far_as_there_is_room() {
        let mut backlog = Backlog::default();
        (0..4).for_each(|request| backlog.push(request));
        let mut sent = Vec::new();
        let failed = backlog.send(|request| {
            sent.push(request);
            if request == 1 { Err("refused") } else { Ok(true) }
        });
        assert_eq!((failed, &sent[..]), (Err("refused"), &[0, 1][..]));
        assert_eq!(backlog.send(|request| Ok::<_, ()>(request < 3)), Ok(()));
        assert_eq!(backlog.0, [3]);
    }
}
