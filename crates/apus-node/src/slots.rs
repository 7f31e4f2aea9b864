//! The outstanding calls of a load generator, by the tag of their reply.

/// A slot for each outstanding call. A tag has the slot's index in its low half and the number of the call in its high half, so
/// that a late reply to a reused slot is recognised.
#[derive(Debug)]
pub struct Slots<T> {
    /// The tag and the data of each call. Its length is the highest number of slots used at a time.
    calls: Vec<Option<(u64, T)>>,
    places: u32,
    free: Vec<u32>,
    /// Number of calls begun.
    begun: u64,
    outstanding: usize,
}

impl<T> Slots<T> {
    /// This many free slots.
    pub fn new(places: u32) -> Self {
        Self { calls: Vec::new(), places, free: Vec::new(), begun: 0, outstanding: 0 }
    }

    /// Number of free slots.
    pub fn free(&self) -> usize {
        self.free.len() + self.places as usize - self.calls.len()
    }

    /// Number of outstanding calls.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Adds a call, made by `make` from its tag. Returns the tag, or `None` if no slot is free.
    pub fn begin(&mut self, make: impl FnOnce(u64) -> T) -> Option<u64> {
        if self.free() == 0 {
            return None;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.calls.push(None);
            self.calls.len() as u32 - 1
        });
        self.begun = (self.begun + 1) & (u64::from(u32::MAX) >> 1);
        let tag = self.begun << 32 | u64::from(place);
        self.calls[place as usize] = Some((tag, make(tag)));
        self.outstanding += 1;
        Some(tag)
    }

    /// The outstanding call with this tag.
    pub fn get(&self, tag: u64) -> Option<&T> {
        let (known, call) = self.calls.get(tag as u32 as usize)?.as_ref()?;
        (*known == tag).then_some(call)
    }

    /// Removes a call, whose slot stays occupied until [`release`](Self::release); `None` if no outstanding call has the tag.
    pub fn take(&mut self, tag: u64) -> Option<T> {
        let call = self.calls.get_mut(tag as u32 as usize)?;
        let (_, call) = call.take_if(|(known, _)| *known == tag)?;
        self.outstanding -= 1;
        Some(call)
    }

    /// Frees the slot of a removed call.
    pub fn release(&mut self, tag: u64) {
        self.free.push(tag as u32);
    }

    /// Removes a call and frees its slot; `None` if no outstanding call has the tag.
    pub fn finish(&mut self, tag: u64) -> Option<T> {
        let call = self.take(tag)?;
        self.release(tag);
        Some(call)
    }

    /// Removes all calls.
    pub fn take_all(&mut self) -> Vec<T> {
        let tags: Vec<u64> = self.calls.iter().flatten().map(|(tag, _)| *tag).collect();
        tags.into_iter().filter_map(|tag| self.finish(tag)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_reply_to_a_place_used_again_is_distinguished() {
        let mut slots = Slots::new(1);
        let first = slots.begin(|_| "first").unwrap();
        assert_eq!(slots.begin(|_| "no room"), None);
        assert_eq!(slots.finish(first), Some("first"));
        let second = slots.begin(|_| "second").unwrap();
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.finish(first), None);
        assert_eq!((slots.get(second), slots.outstanding()), (Some(&"second"), 1));
        assert_eq!(slots.take_all(), ["second"]);
        assert_eq!((slots.free(), slots.outstanding()), (1, 0));
    }
}
