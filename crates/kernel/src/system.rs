//! Separation of threads. A woken thread often shares a core with the thread that woke it, for some milliseconds,
//! although other cores are idle. This module lets it move elsewhere by itself.

/// Returns the processor that the calling thread runs on, if the system tells it.
#[cfg(target_os = "linux")]
pub(super) fn here() -> usize {
    // SAFETY: it only returns a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
}

/// Moves the calling thread off that processor, if it runs there and may run elsewhere.
#[cfg(target_os = "linux")]
pub(super) fn keep_from(other: usize) {
    if other != here() || other >= libc::CPU_SETSIZE as usize {
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
pub(super) fn here() -> usize {
    usize::MAX
}

#[cfg(not(target_os = "linux"))]
pub(super) fn keep_from(_: usize) {}

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
            keep_from(here());
        }
        assert_eq!(allowed(), before);
    }
}
