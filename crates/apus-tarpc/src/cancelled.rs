//! Requests whose clients may no longer wait, for one task that watches all requests.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The numbers of the requests that the task has to look at again.
#[derive(Default)]
pub(crate) struct Doubtful {
    list: Mutex<DoubtfulList>,
}

#[derive(Default)]
struct DoubtfulList {
    numbers: Vec<u64>,
    task: Option<Waker>,
}

impl Doubtful {
    fn list(&self) -> MutexGuard<'_, DoubtfulList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all numbers. From now on `task` is woken when there is another one.
    pub(crate) fn take(&self, task: &Waker) -> Vec<u64> {
        let mut list = self.list();
        match &mut list.task {
            Some(known) => known.clone_from(task),
            none => *none = Some(task.clone()),
        }
        mem::take(&mut list.numbers)
    }

    /// Notes a request when it is woken.
    pub(crate) fn waker(self: &Arc<Self>, number: u64) -> Waker {
        Arc::new(Doubt { number, doubtful: Arc::clone(self) }).into()
    }
}

struct Doubt {
    number: u64,
    doubtful: Arc<Doubtful>,
}

impl Wake for Doubt {
    fn wake(self: Arc<Self>) {
        let task = {
            let mut list = self.doubtful.list();
            list.numbers.push(self.number);
            list.task.clone()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_doubtful_request_wakes_the_task_that_looked_last() {
        let doubtful = Arc::new(Doubtful::default());
        let (first, last) = (Arc::<Woken>::default(), Arc::<Woken>::default());
        let (three, seven) = (doubtful.waker(3), doubtful.waker(7));
        three.wake_by_ref();
        assert_eq!(doubtful.take(&Arc::clone(&first).into()), [3]);
        assert_eq!(doubtful.take(&Arc::clone(&last).into()), []);
        seven.wake();
        three.wake();
        assert_eq!(doubtful.take(Waker::noop()), [7, 3]);
        assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 2));
    }
}
