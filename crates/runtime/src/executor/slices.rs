//! Slices of stacked values, one of which each step of a loop reads or writes.

use kiln_cuda as cuda;
use kiln_cuda::{Launch, Loader};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::memory::ALIGN;
use kiln_plan::cuda::ARGUMENT_ALIGN;
use std::sync::Arc;

/// An argument of a loop that is stacked slices.
pub(super) struct Slices {
    arg: usize,
    /// The bytes of a slice.
    bytes: usize,
    padded: Option<Padded>,
}

/// A copy of slices in the loop's scratch memory, each aligned as kernels on a GPU need their arguments.
struct Padded {
    offset: usize,
    /// The distance of slices, in bytes.
    pitch: usize,
    copy: Arc<Launch>,
}

impl Slices {
    /// Returns the slices of arguments that a loop reads, or writes. `scratch` is the end of its scratch memory, which
    /// padded copies extend.
    pub fn new(
        args: &[u16],
        bytes: &[usize],
        trips: usize,
        reads: bool,
        (scratch, loader): (&mut usize, Option<&Loader>),
    ) -> Result<Vec<Slices>> {
        let slices = args.iter().zip(bytes).map(|(arg, &bytes)| {
            let is_odd = trips > 1 && !bytes.is_multiple_of(ARGUMENT_ALIGN);
            let padded = match loader.filter(|_| is_odd) {
                Some(loader) => Some(Padded::new(bytes, trips, reads, (scratch, loader))?),
                None => None,
            };
            let arg = usize::from(*arg);
            Ok(Slices { arg, bytes, padded })
        });
        slices.collect()
    }

    /// The address of a step's slice.
    pub fn address(&self, args: &[*mut u8], scratch: *mut u8, number: i64) -> *mut u8 {
        let (start, pitch) = match &self.padded {
            Some(padded) => (scratch.wrapping_add(padded.offset), padded.pitch),
            None => (args[self.arg], self.bytes),
        };
        start.wrapping_add(number as usize * pitch)
    }

    /// The launch between the argument and its padded copy, with the addresses of both.
    pub fn copy(&self, args: &[*mut u8], scratch: *mut u8) -> Option<(&Launch, [*mut u8; 2])> {
        let padded = self.padded.as_ref()?;
        let addresses = [args[self.arg], scratch.wrapping_add(padded.offset)];
        Some((&padded.copy, addresses))
    }

    /// True if there is a padded copy.
    pub fn is_padded(&self) -> bool {
        self.padded.is_some()
    }
}

impl Padded {
    fn new(
        bytes: usize,
        trips: usize,
        reads: bool,
        (scratch, loader): (&mut usize, &Loader),
    ) -> Result<Padded> {
        let pitch = bytes.next_multiple_of(ARGUMENT_ALIGN);
        let pitches = if reads {
            [bytes, pitch]
        } else {
            [pitch, bytes]
        };
        let offset = *scratch;
        let end = pitch.checked_mul(trips).and_then(|n| offset.checked_add(n));
        let end = end.and_then(|n| n.checked_next_multiple_of(ALIGN));
        *scratch = end.ok_or_else(|| damaged!("slices of too many bytes"))?;
        let copy = cuda::copy_rows(loader, trips, bytes, pitches)?;
        Ok(Padded {
            offset,
            pitch,
            copy,
        })
    }
}
