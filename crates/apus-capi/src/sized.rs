//! Structures that begin with their size in bytes, so that later versions can add members.
//!
//! A program that was built with an earlier version gives a smaller structure: the missing members are zero when they are read,
//! and not written. A program that was built with a later version gives a larger one. Its other members must be zero, which
//! stands for their default, when they are read, and are set to zero when they are written.

use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::failure::Failure;

/// A structure of the C interface.
///
/// # Safety
///
/// The type is `repr(C)`, begins with its size as a `u32`, and all zeros is a value of it.
pub(crate) unsafe trait Growing: Copy {
    const NAME: &'static str;
    /// The size of the first version.
    const FIRST: usize;
}

/// No version is as large: a size above it was not initialised.
const SIZE_MAX: usize = 4_096;

/// The size that a structure states.
unsafe fn stated<T: Growing>(name: &str, pointer: *const T) -> Result<usize, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: the structure begins with this member.
    let size = unsafe { ptr::read_unaligned(pointer.cast::<u32>()) } as usize;
    if !(T::FIRST..=SIZE_MAX).contains(&size) {
        let allowed = format!("sizeof({}), which is {} here", T::NAME, size_of::<T>());
        return Err(Failure::argument(&format!("{name}->size"), &size, &allowed));
    }
    Ok(size)
}

/// Reads a structure.
#[inline(always)]
pub(crate) unsafe fn read<T: Growing>(name: &str, pointer: *const T) -> Result<T, Failure> {
    let size = match pointer.is_null() {
        true => 0,
        // SAFETY: a structure begins with its size.
        false => unsafe { ptr::read_unaligned(pointer.cast::<u32>()) },
    };
    if size as usize == size_of::<T>() {
        // SAFETY: the structure is of this version.
        return Ok(unsafe { ptr::read_unaligned(pointer) });
    }
    // SAFETY: as of this function.
    unsafe { read_other(name, pointer) }
}

/// Reads a structure of another version.
#[cold]
unsafe fn read_other<T: Growing>(name: &str, pointer: *const T) -> Result<T, Failure> {
    // SAFETY: as of this function.
    let size = unsafe { stated(name, pointer)? };
    // SAFETY: the structure has that many bytes.
    let bytes = unsafe { slice::from_raw_parts(pointer.cast::<u8>(), size) };
    let (known, unknown) = bytes.split_at(size.min(size_of::<T>()));
    if unknown.iter().any(|byte| *byte != 0) {
        let value = format!("{size} with members that this version of the library does not know");
        let allowed = format!("{}, or zeros behind that", size_of::<T>());
        return Err(Failure::argument(&format!("{name}->size"), &value, &allowed));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` is no longer than the value.
    unsafe { ptr::copy_nonoverlapping(known.as_ptr(), value.as_mut_ptr().cast(), known.len()) };
    // SAFETY: all zeros is a value, and the bytes are those of another one.
    Ok(unsafe { value.assume_init() })
}

/// Places for structures of one size, which the first one states.
pub(crate) struct Places {
    first: *mut u8,
    size: usize,
}

impl Places {
    pub(crate) unsafe fn new<T: Growing>(name: &str, first: *mut T) -> Result<Self, Failure> {
        // SAFETY: as of this function.
        let size = unsafe { stated(name, first)? };
        Ok(Self { first: first.cast(), size })
    }

    /// Writes the structure of this index, except for its size.
    pub(crate) unsafe fn write<T: Growing>(&self, index: usize, value: &T) {
        const STATED: usize = size_of::<u32>();
        let known = self.size.min(size_of::<T>());
        // SAFETY: the program has a place with this index.
        let place = unsafe { self.first.add(index * self.size) };
        let value = ptr::from_ref(value).cast::<u8>();
        // SAFETY: both have `known` bytes, and the place has `size` bytes.
        unsafe {
            ptr::copy_nonoverlapping(value.add(STATED), place.add(STATED), known - STATED);
            ptr::write_bytes(place.add(known), 0, self.size - known);
        }
    }
}

/// Writes one structure.
pub(crate) unsafe fn write<T: Growing>(
    name: &str,
    pointer: *mut T,
    value: &T,
) -> Result<(), Failure> {
    // SAFETY: as of this function.
    let places = unsafe { Places::new(name, pointer)? };
    // SAFETY: there is one place.
    unsafe { places.write(0, value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last_error;

    /// A structure of two versions.
    #[repr(C)]
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Grown {
        size: u32,
        first: u32,
        second: u64,
    }

    // SAFETY: it is `repr(C)`, of numbers, and begins with its size.
    unsafe impl Growing for Grown {
        const NAME: &'static str = "grown";
        const FIRST: usize = 8;
    }

    fn read_of(words: &[u32]) -> Result<Grown, String> {
        // SAFETY: the words are as many bytes as the first of them says, or more.
        let read = unsafe { read::<Grown>("it", words.as_ptr().cast()) };
        read.map_err(|failure| {
            last_error::set(failure);
            last_error::text()
        })
    }

    #[test]
    fn an_older_structure_has_zeros_and_a_newer_one_must_have_them() {
        assert_eq!(read_of(&[8, 5, 7, 7]), Ok(Grown { size: 8, first: 5, second: 0 }));
        assert_eq!(read_of(&[16, 5, 7, 0]), Ok(Grown { size: 16, first: 5, second: 7 }));
        assert_eq!(read_of(&[24, 5, 7, 0, 0, 0]), Ok(Grown { size: 24, first: 5, second: 7 }));
        assert!(
            read_of(&[24, 5, 7, 0, 0, 1]).unwrap_err().starts_with("it->size: 24 with members")
        );
    }

    #[test]
    fn a_size_that_no_version_has_is_named() {
        for size in [0, 7, 4_097, u32::MAX] {
            let expected = format!("it->size: {size}: expected sizeof(grown), which is 16 here");
            assert_eq!(read_of(&[size, 0, 0, 0]), Err(expected));
        }
    }

    #[test]
    fn a_newer_structure_is_filled_with_zeros_and_an_older_one_is_not_overrun() {
        let value = Grown { size: 99, first: 1, second: 2 };
        let mut newer = [24_u32, 9, 9, 9, 9, 9, 24, 9, 9, 9, 9, 9, 77];
        // SAFETY: there are two places of 24 bytes.
        let places = unsafe { Places::new::<Grown>("it", newer.as_mut_ptr().cast()).ok().unwrap() };
        for index in 0..2 {
            // SAFETY: as above.
            unsafe { places.write(index, &value) };
        }
        assert_eq!(newer, [24, 1, 2, 0, 0, 0, 24, 1, 2, 0, 0, 0, 77]);
        let mut older = [8_u32, 9, 77];
        // SAFETY: there is a place of 8 bytes.
        unsafe { write::<Grown>("it", older.as_mut_ptr().cast(), &value).ok().unwrap() };
        assert_eq!(older, [8, 1, 77]);
    }
}
