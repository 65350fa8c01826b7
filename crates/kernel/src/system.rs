//! Calls of the operating system about processors, memory and forks; and the processor's caches.

/// Returns the bytes of the machine's memory, where known.
#[cfg(target_os = "linux")]
pub(crate) fn physical_memory() -> usize {
    // SAFETY: sysconf takes any name and only reads.
    let query = |name| usize::try_from(unsafe { libc::sysconf(name) });
    match (query(libc::_SC_PHYS_PAGES), query(libc::_SC_PAGESIZE)) {
        (Ok(pages), Ok(size)) if pages > 0 => pages.saturating_mul(size),
        _ => usize::MAX,
    }
}

/// Returns the memory limit of the root control group (version 2 or 1), which containers have.
#[cfg(target_os = "linux")]
pub(crate) fn container_memory() -> usize {
    let files = ["memory.max", "memory/memory.limit_in_bytes"];
    let read = |file| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok();
    // Without a limit, the text is `max` or a huge number.
    let limit = files
        .into_iter()
        .find_map(|file| read(file)?.trim().parse().ok());
    limit.unwrap_or(usize::MAX)
}

/// Registers a function that later forks call in the child before `fork` returns. If there is no memory for that, forks
/// call nothing.
///
/// The function may only use what is safe to use after a fork of a process with threads, such as atomics.
#[cfg(unix)]
pub(crate) fn on_fork_in_child(f: extern "C" fn()) {
    // SAFETY: the function takes nothing and is never unloaded.
    unsafe {
        libc::pthread_atfork(None, None, Some(f));
    }
}

/// Returns the processor of the calling thread, or `usize::MAX` if it is unknown.
#[cfg(target_os = "linux")]
pub(crate) fn processor() -> usize {
    // SAFETY: it only returns a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
}

/// Moves the calling thread off a processor, if it runs there and may run elsewhere.
///
/// A woken thread often shares a core with the thread that woke it, for some milliseconds, although other cores are
/// idle. This lets it move elsewhere by itself.
#[cfg(target_os = "linux")]
pub(crate) fn leave_processor(avoided: usize) {
    if avoided != processor() || avoided >= libc::CPU_SETSIZE as usize {
        return;
    }
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: both sets are plain bits of the given size. The thread is moved to a set without the processor, and then
    // allowed on all of its processors again. If the system refuses, the thread stays.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size, &mut allowed) != 0 {
            return;
        }
        let mut others = allowed;
        libc::CPU_CLR(avoided, &mut others);
        if libc::CPU_COUNT(&others) > 0 && libc::sched_setaffinity(0, size, &others) == 0 {
            libc::sched_setaffinity(0, size, &allowed);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn processor() -> usize {
    usize::MAX
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn leave_processor(_: usize) {}

/// The bytes of a cache line.
#[cfg(all(target_arch = "x86_64", not(portable)))]
const LINE: usize = 64;

/// True if `Executable::evict` has an effect: only on x86-64 may programs evict cache lines.
pub fn can_evict() -> bool {
    cfg!(all(target_arch = "x86_64", not(portable), not(miri)))
}

/// Writes bytes back to memory and evicts them from every cache, to time a kernel on cold operands.
#[cfg(all(target_arch = "x86_64", not(portable), not(miri)))]
pub fn evict(bytes: &[u8]) {
    use std::arch::asm;
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};
    let start = bytes.as_ptr().addr() % LINE;
    let optimized = flushes_out_of_order();
    for offset in (0..bytes.len() + start).step_by(LINE) {
        let line = bytes.as_ptr().wrapping_add(offset).wrapping_sub(start);
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

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_leaves_the_processor_and_may_come_back() {
        let allowed = || {
            // SAFETY: as above.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
                libc::CPU_COUNT(&set)
            }
        };
        let before = allowed();
        for _ in 0..100 {
            leave_processor(processor());
        }
        assert_eq!(allowed(), before);
    }

    #[test]
    fn evicting_keeps_the_bytes() {
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
