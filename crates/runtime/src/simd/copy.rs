//! Copies that bypass the cache.

use super::{Isa, Kernel};

/// Destination, source, bytes; the two are the same or do not overlap.
pub(crate) type Copy = (*mut u8, *const u8, usize);

/// Copies with stores that leave the cache alone, for results too large to stay in it.
///
/// The stores are weakly ordered: whoever publishes the result calls [`fence`] first.
pub(crate) struct Stream;

impl Kernel<Copy> for Stream {
    #[inline(always)]
    unsafe fn run<I: Isa>((dst, src, bytes): Copy) {
        #[cfg(target_arch = "x86_64")]
        {
            use super::Level;
            use std::arch::x86_64::*;
            let head = dst.align_offset(64).min(bytes);
            let body = (bytes - head) / 64 * 64;
            // SAFETY: the caller gives `bytes` bytes on both sides; the body of the destination is
            // aligned for its stores, which the machine has at level `I`.
            unsafe {
                std::ptr::copy(src, dst, head);
                let mut i = head;
                while i < head + body {
                    let (d, s) = (dst.add(i), src.add(i));
                    match I::LEVEL {
                        Level::Avx512 => {
                            _mm512_stream_si512(d.cast(), _mm512_loadu_si512(s.cast()));
                        }
                        Level::Avx2 => {
                            _mm256_stream_si256(d.cast(), _mm256_loadu_si256(s.cast()));
                            let (d, s) = (d.add(32), s.add(32));
                            _mm256_stream_si256(d.cast(), _mm256_loadu_si256(s.cast()));
                        }
                        Level::Baseline => {
                            for j in [0, 16, 32, 48] {
                                let x = _mm_loadu_si128(s.add(j).cast());
                                _mm_stream_si128(d.add(j).cast(), x);
                            }
                        }
                    }
                    i += 64;
                }
                std::ptr::copy(src.add(i), dst.add(i), bytes - i);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller gives `bytes` bytes on both sides.
        unsafe {
            std::ptr::copy(src, dst, bytes)
        }
    }
}

/// Orders the stores of [`Stream`] before what follows.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 machine has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    }
}
