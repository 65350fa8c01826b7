//! Eviction of memory from the processor's caches, so that a kernel can be timed on cold operands.

/// The bytes of a cache line.
#[cfg(all(target_arch = "x86_64", not(portable)))]
const LINE: usize = 64;

/// True if `Executable::evict` has an effect: only on x86-64 may programs evict cache lines.
pub fn can_evict() -> bool {
    cfg!(all(target_arch = "x86_64", not(portable), not(miri)))
}

/// Writes bytes back to memory and evicts them from every cache.
#[cfg(all(target_arch = "x86_64", not(portable), not(miri)))]
pub fn evict(bytes: &[u8]) {
    use std::arch::asm;
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};
    let start = bytes.as_ptr().addr() % LINE;
    let optimized = flushes_out_of_order();
    for at in (0..bytes.len() + start).step_by(LINE) {
        let line = bytes.as_ptr().wrapping_add(at).wrapping_sub(start);
        // SAFETY: the line holds some of the bytes, so its page can be read; its contents do not change.
        unsafe {
            match optimized {
                true => asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)),
                false => _mm_clflush(line),
            }
        }
    }
    // SAFETY: every x86-64 processor has it.
    unsafe { _mm_mfence() }
}

/// True if the processor has `clflushopt`, which does not wait for one line before the next.
#[cfg(all(target_arch = "x86_64", not(portable), not(miri)))]
fn flushes_out_of_order() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const CLFLUSHOPT: u32 = 1 << 23;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & CLFLUSHOPT != 0
}

/// Has no effect where programs can't evict.
#[cfg(not(all(target_arch = "x86_64", not(portable), not(miri))))]
pub fn evict(_: &[u8]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_what_they_are() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let bytes: Vec<u8> = (0..=255).cycle().take(len + 3).collect();
            for start in 0..3 {
                let part = &bytes[start..start + len];
                let before = part.to_vec();
                evict(part);
                assert_eq!(part, before);
            }
        }
    }
}
