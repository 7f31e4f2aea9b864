//! Memory for packets that an XSK sends: frames of one length.

use std::io;

use super::region::Region;

/// Length of a frame in bytes: a packet of Ethernet's MTU with all its headers.
pub(super) const FRAME_LEN: usize = 2_048;

/// Frames that the kernel reads. A frame is either free, or its [`Frame`] has an owner, or the kernel has it.
#[derive(Debug)]
pub(super) struct Umem {
    region: Region,
    /// The free frames. The last one is used first, because it is in the cache.
    free: Vec<Frame>,
}

/// The right to write a frame.
#[derive(Debug)]
pub(super) struct Frame(u32);

impl Frame {
    /// Returns the frame's place in the memory, as descriptors name it.
    pub(super) fn address(&self) -> u64 {
        u64::from(self.0) * FRAME_LEN as u64
    }
}

impl Umem {
    /// Maps memory for this number of frames, all of them free.
    pub(super) fn new(frames: u32) -> io::Result<Self> {
        let region = Region::anonymous(frames as usize * FRAME_LEN)?;
        Ok(Self { region, free: (0..frames).rev().map(Frame).collect() })
    }

    /// Returns the address and the length of the memory.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.region.at::<u8>(0).addr().get() as u64, self.region.len() as u64)
    }

    /// Takes a free frame.
    pub(super) fn take(&mut self) -> Option<Frame> {
        self.free.pop()
    }

    /// Frees a frame.
    pub(super) fn give_back(&mut self, frame: Frame) {
        self.free.push(frame);
    }

    /// Takes a frame from the kernel, by its place. `None`: there is no such frame.
    pub(super) fn returned(&self, address: u64) -> Option<Frame> {
        let number = u32::try_from(address / FRAME_LEN as u64).ok()?;
        let frames = self.region.len() / FRAME_LEN;
        ((number as usize) < frames).then_some(Frame(number))
    }

    /// Returns the bytes of a frame, for writing.
    pub(super) fn bytes<'a>(&'a mut self, frame: &'a mut Frame) -> &'a mut [u8; FRAME_LEN] {
        let mut place = self.region.at::<[u8; FRAME_LEN]>(frame.0 as usize * FRAME_LEN);
        // SAFETY: the place is inside the region, which is borrowed mutably with all its frames. The kernel reads a frame only
        // after its owner has given it to a ring, and writes none.
        unsafe { place.as_mut() }
    }

    /// Returns bytes that the kernel has written into a frame of its own. `None`: they are not within one frame.
    pub(super) fn received(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let frame = self.returned(address)?;
        let start = usize::try_from(address - frame.address()).ok()?;
        let mut place = self.region.at::<[u8; FRAME_LEN]>(frame.0 as usize * FRAME_LEN);
        // SAFETY: the place is inside the region, which is borrowed mutably with all its frames. The kernel leaves a received frame
        // alone until it gets the frame back.
        unsafe { place.as_mut() }.get_mut(start..start.checked_add(len)?)
    }

    /// Returns the number of free frames.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_apart_and_come_back() {
        let mut umem = Umem::new(4).unwrap();
        let mut frames: Vec<_> = std::iter::from_fn(|| umem.take()).collect();
        assert_eq!((frames.len(), umem.free()), (4, 0));
        for (number, frame) in frames.iter_mut().enumerate() {
            umem.bytes(frame).fill(number as u8);
        }
        for (number, frame) in frames.iter_mut().enumerate() {
            assert_eq!(umem.bytes(frame), &[number as u8; FRAME_LEN]);
        }
        let address = frames[2].address();
        let back = umem.returned(address + 14).unwrap();
        assert_eq!(back.address(), address);
        umem.give_back(back);
        assert_eq!(umem.free(), 1);
    }

    #[test]
    fn received_bytes_are_within_one_frame() {
        let mut umem = Umem::new(4).unwrap();
        let last = 3 * FRAME_LEN as u64;
        assert_eq!(umem.received(last + 256, FRAME_LEN - 256).unwrap().len(), FRAME_LEN - 256);
        assert!(umem.received(last + 256, FRAME_LEN - 255).is_none());
        assert!(umem.received(last + 256, usize::MAX).is_none());
        assert!(umem.received(4 * FRAME_LEN as u64, 0).is_none());
    }

    #[test]
    fn no_frame_is_past_the_memory() {
        let umem = Umem::new(4).unwrap();
        assert!(umem.returned(4 * FRAME_LEN as u64 - 1).is_some());
        assert!(umem.returned(4 * FRAME_LEN as u64).is_none());
        assert!(umem.returned(u64::MAX).is_none());
    }
}
