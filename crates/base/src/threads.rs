//! The number of threads that kernels run on unless the program sets one.

use std::fs::read_to_string;
use std::thread::available_parallelism;

/// The environment variables that set the number of threads; the first that holds one counts.
pub const THREAD_VARIABLES: [&str; 3] =
    ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];

/// The default number of threads, and its reason.
///
/// The first of [`THREAD_VARIABLES`] that holds a number above 0 decides. Otherwise it is the number of processors that
/// this process may use: those of its affinity mask, and no more than the CPU quota of its control group (of version 1
/// or 2), rounded down, at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultThreads {
    /// The number.
    pub count: usize,
    /// The variable, limit or fact that decided.
    pub reason: String,
}

impl DefaultThreads {
    /// Returns the default of this process, as its environment is now.
    pub fn find() -> DefaultThreads {
        let set = from_variables(|name| std::env::var(name).ok());
        set.unwrap_or_else(DefaultThreads::of_machine)
    }

    /// Returns the number of processors that this process may use.
    fn of_machine() -> DefaultThreads {
        let count = available_parallelism().map_or(1, |n| n.get());
        let listed = |file: &str, key: &str| {
            let text = read_to_string(file).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            count_list(line)
        };
        let allowed = listed("/proc/self/status", "Cpus_allowed_list:");
        let online = listed("/sys/devices/system/cpu/online", "");
        let reason = match (allowed, online) {
            (Some(allowed), _) if count < allowed => {
                format!("the CPU quota of the control group, {allowed} processors otherwise")
            }
            (Some(allowed), Some(online)) if allowed < online => {
                format!("the CPU affinity, of {online} processors")
            }
            _ => "the number of processors".into(),
        };
        DefaultThreads { count, reason }
    }
}

/// Returns the number that the environment variables set, if they do. OpenMP's lists begin with the outermost level.
fn from_variables(value: impl Fn(&str) -> Option<String>) -> Option<DefaultThreads> {
    THREAD_VARIABLES.iter().find_map(|name| {
        let value = value(name)?;
        let count = value.split(',').next()?.trim().parse().ok()?;
        let reason = format!("{name}={value}");
        (count > 0).then_some(DefaultThreads { count, reason })
    })
}

/// Returns the number of CPUs in a list of the Linux kernel, such as `0-3,8`.
fn count_list(list: &str) -> Option<usize> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    ranges.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_holds_a_number_decides() {
        let of = |values: [&str; 3]| {
            let value = |name: &str| {
                let at = THREAD_VARIABLES.iter().position(|n| *n == name)?;
                Some(values[at].to_string())
            };
            from_variables(value).map(|t| (t.count, t.reason))
        };
        assert_eq!(of(["3", "4", "5"]), Some((3, "OMP_NUM_THREADS=3".into())));
        assert_eq!(
            of([" 6 ,2", "", ""]),
            Some((6, "OMP_NUM_THREADS= 6 ,2".into()))
        );
        assert_eq!(of(["", "4", "5"]), Some((4, "MKL_NUM_THREADS=4".into())));
        assert_eq!(
            of(["0", "-1", "5"]),
            Some((5, "OPENBLAS_NUM_THREADS=5".into()))
        );
        assert_eq!(of(["many", "1.5", "99999999999999999999"]), None);
        assert_eq!(from_variables(|_| None), None);
    }

    #[test]
    fn lists_of_processors_are_counted() {
        let counts = ["0", "\t0-3,8\n", "1,3,5-6", "", "3-1", "x"].map(count_list);
        assert_eq!(counts, [Some(1), Some(5), Some(4), None, None, None]);
    }
}
