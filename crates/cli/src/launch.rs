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
use std::time::{Duration, Instant};

/// The variable by which a rank's copy of this command knows that it is one: the file that the first rank to fail
/// writes its exit code to.
const FAILED: &str = "KILN_LAUNCH_FAILED";
/// The variable that is set if the program is to get its rank as an argument.
const LOCAL_RANK: &str = "KILN_LAUNCH_LOCAL_RANK";

/// The variable that tells a rank's copy its place where no `mpiexec` does: rank, number of ranks, and both on this node.
const PLACE: &str = "KILN_LAUNCH_PLACE";
/// The time that processes have to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Starts a copy of this command for each rank, by itself or by `mpiexec`, which starts the program, or is that copy.
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
    let failed = env::temp_dir().join(format!("kiln-launch-{}", std::process::id()));
    // Of an earlier process of the same number.
    let _ = fs::remove_file(&failed);
    let number = |name: &str| m.get_one::<u32>(name).copied();
    let (count, nodes) = (
        number("nproc-per-node").unwrap_or(1),
        number("nnodes").unwrap_or(1),
    );
    let text = |name: &str| m.get_one::<String>(name).cloned().unwrap_or_default();
    let copy = |mut command: Command| -> Result<Command, Failure> {
        command
            .arg("launch")
            .arg("--")
            .arg(program)
            .args(&arguments)
            .env(FAILED, &failed)
            .env("MASTER_ADDR", text("master-addr"))
            .env("MASTER_PORT", text("master-port"));
        if m.get_flag("local-rank") {
            command.env(LOCAL_RANK, "1");
        }
        Ok(command)
    };
    if text("backend") == "nccl" {
        let node = number("node-rank").unwrap_or(0);
        if node >= nodes {
            let text = format!("there is no node {node} among {nodes}: they count from 0");
            return Err(Usage(text).into());
        }
        let secret = match env::var_os("KILN_STORE_SECRET") {
            None if nodes == 1 => Some(secret()?),
            _ => None,
        };
        let mut children = Children::default();
        for local in 0..count {
            let mut command = copy(Command::new(env::current_exe()?))?;
            let (rank, size) = (
                u64::from(node) * u64::from(count) + u64::from(local),
                u64::from(count) * u64::from(nodes),
            );
            command.env(PLACE, format!("{rank} {size} {local} {count}"));
            command.envs(secret.iter().map(|secret| ("KILN_STORE_SECRET", secret)));
            children.start(command)?;
        }
        return children.wait_for_all(&failed);
    }
    if nodes != 1 {
        let text = "over MPI, `kiln launch` starts the processes of one node; on several, `mpiexec -hosts` or `srun` \
                    starts the program itself, without this command. With `--backend nccl` this command starts those of \
                    each node";
        return Err(Usage(text.into()).into());
    }
    let folder = mpi_folder().ok_or(
        "no `mpiexec` of an MPI with the standard ABI of MPI 5 was found: `pip install mpich`, or name its folder in \
         KILN_MPI",
    )?;
    let mut mpiexec = Command::new(folder.join("mpiexec"));
    mpiexec
        .args(["-n", &count.to_string()])
        .arg(env::current_exe()?);
    let mut mpiexec = copy(mpiexec)?;
    let mut child = mpiexec
        .spawn()
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    forward_signals(child.id() as i32);
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
    Ok(ExitCode::from(first_code(&failed).unwrap_or(code(status))))
}

/// The processes of this node, in a process group of their own.
#[derive(Default)]
struct Children(Vec<Child>);

impl Children {
    fn start(&mut self, mut command: Command) -> Result<(), Failure> {
        use std::os::unix::process::CommandExt;
        let group = self.0.first().map_or(0, |leader| leader.id() as i32);
        command.process_group(group).stdin(Stdio::null());
        end_with_parent(&mut command);
        match command.spawn() {
            Ok(child) => {
                if self.0.is_empty() {
                    // Signals go to all of the group.
                    forward_signals(-(child.id() as i32));
                }
                self.0.push(child);
                Ok(())
            }
            Err(e) => {
                forward(libc::SIGKILL);
                Err(e.into())
            }
        }
    }

    /// Waits for all; when one has failed, ends the others. Returns the code of the first that failed.
    fn wait_for_all(mut self, failed: &Path) -> Result<ExitCode, Failure> {
        let mut ended: Vec<Option<ExitStatus>> = vec![None; self.0.len()];
        let mut since = None;
        loop {
            for (status, child) in ended.iter_mut().zip(&mut self.0) {
                if status.is_none() {
                    *status = child.try_wait()?;
                }
            }
            if ended.iter().all(Option::is_some) {
                break;
            }
            if since.is_none() && failed.exists() {
                since = Some(Instant::now());
                forward(libc::SIGTERM);
            }
            if since.is_some_and(|time| time.elapsed() > GRACE) {
                forward(libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let failed_statuses = ended.iter().flatten().find(|s| !s.success());
        Ok(ExitCode::from(
            first_code(failed).unwrap_or(failed_statuses.map_or(0, |s| code(*s))),
        ))
    }
}

/// The code of the first rank that failed.
fn first_code(failed: &Path) -> Option<u8> {
    let code = fs::read_to_string(failed).ok();
    let _ = fs::remove_file(failed);
    code?.parse().ok()
}

/// A secret that nobody else knows.
fn secret() -> io::Result<String> {
    let mut bytes = [0u8; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// Runs the program as a rank, and passes its output on, a prefix before each line.
fn rank(program: &OsString, arguments: &[&OsString], failed: &Path) -> Result<ExitCode, Failure> {
    let number = |names: &[&str]| names.iter().find_map(|n| env::var(n).ok());
    let rank_text = env::var(PLACE).unwrap_or_default();
    let rank_fields: Vec<String> = match rank_text.is_empty() {
        false => rank_text.split(' ').map(String::from).collect(),
        true => {
            let rank = number(&["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"]);
            let size = number(&["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"]);
            let (rank, size) = (rank.unwrap_or("0".into()), size.unwrap_or("1".into()));
            vec![rank.clone(), size.clone(), rank, size]
        }
    };
    let [rank, size, local, local_size] = &rank_fields[..] else {
        return Err(format!("{PLACE} is set, but not by this command").into());
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_remove(FAILED)
        .env_remove(PLACE)
        .envs([("RANK", rank), ("LOCAL_RANK", local)])
        .envs([("WORLD_SIZE", size), ("LOCAL_WORLD_SIZE", local_size)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if env::var_os(LOCAL_RANK).is_some() {
        command.arg(format!("--local_rank={local}"));
    }
    end_with_parent(&mut command);
    let mut child = command
        .spawn()
        .map_err(|e| format!("{}: {e}", program.to_string_lossy()))?;
    forward_signals(child.id() as i32);
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

/// The process that gets signals in place of this one; if negative, a group of processes.
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn forward(signal: libc::c_int) {
    let child = CHILD.load(Ordering::Relaxed);
    if child != 0 {
        // SAFETY: `kill` may be called in a handler.
        unsafe { libc::kill(child, signal) };
    }
}

/// Passes interrupts and terminations on to a process, or a group of them.
fn forward_signals(child: i32) {
    CHILD.store(child, Ordering::Relaxed);
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
