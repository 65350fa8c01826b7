//! Forks of this process.

use kiln_tensor::Result;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a function in so many children, and waits for them.
///
/// # Errors
/// The description of the first failure; the other children are ended then.
pub(super) fn run_in(
    nprocs: usize,
    f: &impl Fn(usize) -> Result<()>,
) -> std::result::Result<(), String> {
    let mut children = Vec::new();
    for rank in 0..nprocs {
        let child = Child::start(rank, f);
        children.push(child.map_err(|e| format!("process {rank} can't be started: {e}"))?);
    }
    while !children.is_empty() {
        let ended = next(&children).map_err(|e| e.to_string())?;
        children.swap_remove(ended).wait_for_end()?;
    }
    Ok(())
}

/// A child process. Dropping it kills it.
struct Child {
    rank: usize,
    pid: libc::pid_t,
    /// The pipe into which it writes its report before it ends.
    report: PipeReader,
    ended: bool,
}

/// The report of a child whose function returned `Ok`; another one is its error.
const WELL: &str = "ok";

impl Child {
    fn start(rank: usize, f: &impl Fn(usize) -> Result<()>) -> std::io::Result<Child> {
        // Else the child would write it too.
        std::io::stdout().flush()?;
        let (report, reporter) = pipe()?;
        let parent = std::process::id();
        // SAFETY: the child runs on the only thread that it has. Kiln refuses to compute there if other threads of the
        // parent had used it.
        match unsafe { libc::fork() } {
            -1 => Err(std::io::Error::last_os_error()),
            0 => {
                drop(report);
                end_with_parent(parent);
                run(rank, f, reporter)
            }
            pid => Ok(Child {
                rank,
                pid,
                report,
                ended: false,
            }),
        }
    }

    /// Waits for its end.
    fn wait_for_end(mut self) -> std::result::Result<(), String> {
        let rank = self.rank;
        let mut report = String::new();
        let read = self.report.read_to_string(&mut report);
        let status = self.wait();
        read.map_err(|e| format!("process {rank}: {e}"))?;
        match &report[..] {
            WELL => Ok(()),
            "" if libc::WIFSIGNALED(status) => Err(format!(
                "process {rank} was ended by signal {}",
                libc::WTERMSIG(status)
            )),
            "" => Err(format!(
                "process {rank} ended with exit code {} before its function did",
                libc::WEXITSTATUS(status)
            )),
            text => Err(format!("process {rank} failed: {text}")),
        }
    }

    fn wait(&mut self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: the pointer is to writable memory, and nobody else waits for this child.
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        self.ended = true;
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: the child was not waited for, so its number is its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            self.wait();
        }
    }
}

/// Has the system end this process when its parent ends.
fn end_with_parent(parent: u32) {
    #[cfg(target_os = "linux")]
    // SAFETY: the call only sets an attribute of this process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    if std::os::unix::process::parent_id() != parent {
        std::process::abort();
    }
}

/// Runs the function in a child, and ends it.
fn run(rank: usize, f: &impl Fn(usize) -> Result<()>, mut reporter: PipeWriter) -> ! {
    let report = match catch_unwind(AssertUnwindSafe(|| f(rank))) {
        Ok(Ok(())) => WELL.to_string(),
        Ok(Err(e)) => e.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(|s| &s[..]);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            format!("it panicked: {}", text.unwrap_or("see its output"))
        }
    };
    // Without a parent nobody reads them.
    let _ = std::io::stdout().flush();
    let _ = reporter.write_all(report.as_bytes());
    let code = i32::from(report != WELL);
    // SAFETY: unlike `exit`, this runs nothing that the parent has registered for its own end.
    unsafe { libc::_exit(code) }
}

/// Waits until one of the children has reported or ended, and returns its index.
fn next(children: &[Child]) -> std::io::Result<usize> {
    use std::os::fd::AsRawFd;
    let poll = |child: &Child| libc::pollfd {
        fd: child.report.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut polls: Vec<libc::pollfd> = children.iter().map(poll).collect();
    loop {
        // SAFETY: the list has this many elements.
        if unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, -1) } < 0 {
            let e = std::io::Error::last_os_error();
            match e.kind() {
                std::io::ErrorKind::Interrupted => continue,
                _ => return Err(e),
            }
        }
        if let Some(ready) = polls.iter().position(|p| p.revents != 0) {
            return Ok(ready);
        }
    }
}
