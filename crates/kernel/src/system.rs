//! Calls of the operating system about processors, memory and forks.

/// Returns the bytes of the machine's memory, where known.
#[cfg(target_os = "linux")]
pub(crate) fn physical_memory() -> usize {
    // SAFETY: sysconf takes any name and only reads.
    let of = |name| usize::try_from(unsafe { libc::sysconf(name) });
    match (of(libc::_SC_PHYS_PAGES), of(libc::_SC_PAGESIZE)) {
        (Ok(pages), Ok(size)) if pages > 0 => pages.saturating_mul(size),
        _ => usize::MAX,
    }
}

/// Lets every fork from now on call a function in the child, before `fork` returns there. Without memory for it, forks
/// call nothing.
///
/// The function may only use what is safe to use after a fork of a process with threads, such as atomics.
#[cfg(unix)]
pub(crate) fn in_children(f: extern "C" fn()) {
    // SAFETY: the function takes nothing and is never unloaded.
    unsafe {
        libc::pthread_atfork(None, None, Some(f));
    }
}

/// Returns the processor that the calling thread runs on, if the system tells it.
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
pub(crate) fn leave_processor(other: usize) {
    if other != processor() || other >= libc::CPU_SETSIZE as usize {
        return;
    }
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: both sets are plain bits of the given size. A set without the processor is tried, then the thread may run
    // again wherever it could before. If the system refuses, the thread stays.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size, &mut allowed) != 0 {
            return;
        }
        let mut rest = allowed;
        libc::CPU_CLR(other, &mut rest);
        if libc::CPU_COUNT(&rest) > 0 && libc::sched_setaffinity(0, size, &rest) == 0 {
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

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
}
