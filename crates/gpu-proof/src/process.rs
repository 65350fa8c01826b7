//! Processes of the proof, which end with whoever started them.

use crate::Failed;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Makes a process end when the one that starts it does, however that ends.
pub(crate) fn ends_with_us(command: &mut Command) -> &mut Command {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;
        // SAFETY: between fork and exec a system call alone is made.
        unsafe {
            command.pre_exec(
                || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                },
            );
        }
    }
    command
}

/// Runs a process at the head of a group of its own, and kills the whole group when it takes longer than this; `None`
/// then.
///
/// # Errors
/// If it does not start.
pub(crate) fn run_within(
    command: &mut Command,
    limit: Duration,
) -> Result<Option<ExitStatus>, Failed> {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    let start = Instant::now();
    let mut child = ends_with_us(command).spawn()?;
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > limit {
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Whatever it has left behind would be on the GPU beside the next part.
    kill_group(&mut child)?;
    Ok(ended)
}

fn kill_group(child: &mut Child) -> std::io::Result<()> {
    #[cfg(unix)]
    // SAFETY: a signal to the group of this process, which was made for it.
    unsafe {
        libc::kill(-(child.id() as i32), libc::SIGKILL);
    }
    #[cfg(not(unix))]
    let _ = child.kill();
    child.wait().map(drop)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_group_outlives_its_time() {
        let file = std::env::temp_dir().join(format!("kiln-group-{}", std::process::id()));
        let mut command = Command::new("sh");
        let script = format!("sleep 60 & echo $! > {}; wait", file.display());
        let start = Instant::now();
        let ended = run_within(command.args(["-c", &script]), Duration::from_millis(300)).unwrap();
        assert!(ended.is_none() && start.elapsed() < Duration::from_secs(20));
        let pid = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        // It dies when it is next scheduled, and may be a zombie until its new parent looks.
        let gone = || {
            let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            status.map_or(true, |s| s.contains(") Z"))
        };
        while !gone() {
            let waited = start.elapsed();
            assert!(waited < Duration::from_secs(20), "it still sleeps");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
