//! Starting a program as several processes.

use crate::{Failure, Usage};
use clap::ArgMatches;
use kiln::distributed::mpi_folder;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The variable by which a rank's copy of this command knows that it is one: the file that the first rank to fail
/// writes its exit code to.
const FAILED: &str = "KILN_LAUNCH_FAILED";
/// The variable that is set if the program is to get its rank as an argument.
const LOCAL_RANK: &str = "KILN_LAUNCH_LOCAL_RANK";

/// Starts `mpiexec` with a copy of this command for each rank, which starts the program, or is that copy.
///
/// # Errors
/// If there is no MPI, or a program can't be started.
pub fn launch(m: &ArgMatches) -> Result<ExitCode, Failure> {
    let mut words = m.get_many::<OsString>("program").into_iter().flatten();
    let program = words.next().ok_or_else(|| Usage("no program".into()))?;
    let arguments: Vec<&OsString> = words.collect();
    if let Some(failed) = env::var_os(FAILED) {
        return rank(program, &arguments, Path::new(&failed));
    }
    if m.get_one::<u32>("nnodes").is_some_and(|n| *n != 1) {
        let text = "`kiln launch` starts the processes of one node; on several, `mpiexec -hosts` or `srun` starts the \
                    program itself, without this command";
        return Err(Usage(text.into()).into());
    }
    let folder = mpi_folder().ok_or(
        "no `mpiexec` of an MPI with the standard ABI of MPI 5 was found: `pip install mpich`, or name its folder in \
         KILN_MPI",
    )?;
    let count = m.get_one::<u32>("nproc-per-node").copied().unwrap_or(1);
    let text = |name: &str| m.get_one::<String>(name).cloned().unwrap_or_default();
    let failed = env::temp_dir().join(format!("kiln-launch-{}", std::process::id()));
    // Of an earlier process of the same number.
    let _ = fs::remove_file(&failed);
    let mut mpiexec = Command::new(folder.join("mpiexec"));
    mpiexec
        .args(["-n", &count.to_string()])
        .arg(env::current_exe()?)
        .args(["launch", "--"])
        .arg(program)
        .args(arguments)
        .env(FAILED, &failed)
        .env("MASTER_ADDR", text("master-addr"))
        .env("MASTER_PORT", text("master-port"));
    if m.get_flag("local-rank") {
        mpiexec.env(LOCAL_RANK, "1");
    }
    let mut child = mpiexec
        .spawn()
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    forward_signals(&child);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // Not every `mpiexec` ends the others, and none does before a rank has initialised MPI.
        if failed.exists() {
            forward(libc::SIGTERM);
            break child.wait()?;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let first = fs::read_to_string(&failed).ok();
    let first = first.and_then(|text| text.parse::<u8>().ok());
    let _ = fs::remove_file(&failed);
    Ok(ExitCode::from(first.unwrap_or(code(status))))
}

/// Runs the program as a rank of `mpiexec`, and passes its output on, a prefix before each line.
fn rank(program: &OsString, arguments: &[&OsString], failed: &Path) -> Result<ExitCode, Failure> {
    let number = |names: &[&str]| names.iter().find_map(|n| env::var(n).ok());
    let rank = number(&["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"]).unwrap_or("0".into());
    let size = number(&["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"]).unwrap_or("1".into());
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_remove(FAILED)
        .envs([("RANK", &rank), ("LOCAL_RANK", &rank)])
        .envs([("WORLD_SIZE", &size), ("LOCAL_WORLD_SIZE", &size)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if env::var_os(LOCAL_RANK).is_some() {
        command.arg(format!("--local_rank={rank}"));
    }
    end_with_parent(&mut command);
    let mut child = command
        .spawn()
        .map_err(|e| format!("{}: {e}", program.to_string_lossy()))?;
    forward_signals(&child);
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let prefix = &format!("[{rank}] ");
    std::thread::scope(|s| {
        s.spawn(|| pass(out, prefix, &mut io::stdout()));
        s.spawn(|| pass(err, prefix, &mut io::stderr()));
    });
    let status = child.wait()?;
    let code = code(status);
    if !status.success()
        && let Ok(mut file) = File::create_new(failed)
    {
        eprintln!("kiln: rank {rank} of {size} ended with {status}: the others are ended too");
        file.write_all(code.to_string().as_bytes())?;
    }
    Ok(ExitCode::from(code))
}

/// Passes lines on until the writer closes them.
fn pass(from: Option<impl Read>, prefix: &str, to: &mut impl Write) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut line = prefix.as_bytes().to_vec();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        // A reader that has gone does not end the program.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        line.truncate(prefix.len());
    }
}

/// A shell's code for the end of a program.
fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s));
    code.unwrap_or(1).clamp(0, 255) as u8
}

/// The process that gets signals in place of this one.
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn forward(signal: libc::c_int) {
    let child = CHILD.load(Ordering::Relaxed);
    if child > 0 {
        // SAFETY: `kill` may be called in a handler.
        unsafe { libc::kill(child, signal) };
    }
}

/// Passes interrupts and terminations on to a process.
fn forward_signals(child: &Child) {
    CHILD.store(child.id() as i32, Ordering::Relaxed);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
        let handler = forward as extern "C" fn(libc::c_int);
        // SAFETY: the handler makes one call that handlers may make.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Makes a process end when this one does, however that happens.
fn end_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::process::CommandExt;
        let end = || {
            // SAFETY: one call of the system, between `fork` and `exec`.
            match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: it allocates nothing and takes no lock.
        unsafe { command.pre_exec(end) };
    }
}
