//! The same with processes of `mpiexec`, where an MPI is found (`KILN_MPI` names its folder).
//!
//! This program starts itself: alone it starts the ranks of each part and checks how they end.

use kiln_distributed::{
    DataParallelOptions, DistributedDataParallel, Init, ReduceOp, SyncBatchNorm, all_gather_object,
    all_reduce, barrier, broadcast_object, destroy_process_group, init_process_group_with,
    mpi_folder, new_group, rank, recv, send, world, world_size,
};
use kiln_nn::Module;
use kiln_tensor::{DType, Device, Result, Tensor};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

#[path = "../checks.rs"]
mod checks;
mod overlap;
#[path = "../steps.rs"]
mod steps;

/// The part that a rank runs.
const PART: &str = "KILN_MPI_PART";
/// The milliseconds of training after which a rank is killed.
const MOMENT: &str = "KILN_MPI_MOMENT";

fn main() {
    if let Ok(part) = std::env::var(PART) {
        if let Err(e) = rank_of(&part) {
            eprintln!("{e}");
            std::process::exit(1);
        }
        return;
    }
    let Some(folder) = mpi_folder() else {
        println!("skipped: no MPI with the standard ABI (`pip install mpich`, or KILN_MPI)");
        return;
    };
    let filter = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with('-'))
        .unwrap_or_default();
    // A rank is killed at this many moments of training.
    let moments = std::env::var("KILN_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok());
    let moments = vec![3; moments.unwrap_or(3)];
    let runs: [(&str, &[usize], &[&str]); 8] = [
        ("operations", &[2, 3, 4], &[]),
        ("training", &[2, 3], &[]),
        ("overlap", &[2], &[]),
        ("mismatch", &[3], &[]),
        // Else `mpiexec` ends the others before they can say anything.
        ("late", &[3], &["-disable-auto-cleanup"]),
        ("early", &[3], &["-disable-auto-cleanup"]),
        ("killed", &[2, 3], &["-disable-auto-cleanup"]),
        ("anywhere", &moments, &["-disable-auto-cleanup"]),
    ];
    if "srun".contains(&filter) {
        without_pmi();
    }
    for (part, sizes, flags) in runs {
        if !part.contains(&filter) {
            continue;
        }
        for (run, ranks) in sizes.iter().enumerate() {
            let start = Instant::now();
            let mut mpiexec = Command::new(folder.join("mpiexec"));
            mpiexec
                .args(flags)
                .args(["-n", &ranks.to_string()])
                .env(PART, part)
                .env(MOMENT, (run * 37 % 100).to_string());
            if matches!(part, "killed" | "anywhere") {
                // Whatever its flags, MPICH's ends all ranks if a signal ended one. It does not see that of a child,
                // but tells the others by another signal.
                mpiexec.args(["sh", "-c", r#"trap : USR1; "$0"; exit 0"#]);
            }
            mpiexec.arg(std::env::current_exe().expect("a path"));
            let ended = mpiexec.output().expect("mpiexec starts");
            check(part, *ranks, &ended);
            println!(
                "{part} with {ranks} ranks: {:.1} s",
                start.elapsed().as_secs_f64()
            );
        }
    }
}

/// Starts a process as `srun` does if its PMI is not MPI's: it would train alone.
fn without_pmi() {
    let program = std::env::current_exe().expect("a path");
    let ended = Command::new(program)
        .env(PART, "mismatch")
        .envs([("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")])
        .output()
        .expect("the program starts");
    let err = String::from_utf8_lossy(&ended.stderr);
    let text = "the launcher started 2 processes, of which this MPI sees 1";
    assert!(!ended.status.success() && err.contains(text), "{err}");
}

/// Panics unless all ranks that should have said that they are right.
fn check(part: &str, ranks: usize, ended: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    let lost = usize::from(matches!(part, "early" | "killed" | "anywhere"));
    let right = out.matches("right").count();
    assert_eq!(
        right,
        ranks - lost,
        "{part} with {ranks} ranks:\n{out}\n{err}"
    );
    if lost == 0 {
        assert!(
            ended.status.success(),
            "{part}: {}\n{out}\n{err}",
            ended.status
        );
    }
}

fn rank_of(part: &str) -> Result<()> {
    let timeout = match part {
        "late" | "early" | "killed" | "anywhere" => Duration::from_secs(2),
        _ => Duration::from_secs(120),
    };
    init_process_group_with("mpi", Init::new().timeout(timeout))?;
    let start = Instant::now();
    match part {
        "operations" => operations()?,
        "training" => training()?,
        "overlap" => overlap::all()?,
        "mismatch" => mismatch()?,
        "late" => fault("did not come within 2 s", || {
            std::thread::sleep(Duration::from_secs(4))
        })?,
        "early" => fault("rank 1", || std::process::exit(3))?,
        "killed" => {
            // SAFETY: it ends this process.
            fault("rank 1", || unsafe {
                libc::kill(libc::getpid(), libc::SIGKILL);
            })?;
        }
        "anywhere" => anywhere()?,
        other => panic!("no part {other}"),
    }
    let is_fault = !matches!(part, "operations" | "training" | "overlap");
    assert!(!is_fault || start.elapsed() < Duration::from_secs(30));
    println!("right");
    match part {
        // After a fault, nothing of MPI is called any more, and the process ends as it is.
        "late" | "early" | "killed" | "anywhere" => std::process::exit(0),
        _ => destroy_process_group(),
    }
}

/// Rank 1 is killed while all train; the others get an error that names operation and rank, or says that one is lost.
fn anywhere() -> Result<()> {
    let rank = rank()?;
    let net = steps::model(1, false)?;
    net.to_dtype(DType::F64)?;
    let options = DataParallelOptions::new().bucket_cap_mb(1e-4);
    let ddp = DistributedDataParallel::with(net, options)?;
    barrier()?;
    if rank == 1 {
        let moment = std::env::var(MOMENT).ok().and_then(|m| m.parse().ok());
        let moment = Duration::from_millis(moment.unwrap_or_default());
        std::thread::spawn(move || {
            std::thread::sleep(moment);
            // SAFETY: it ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
    }
    let start = Instant::now();
    let failed = loop {
        if let Err(e) = steps::train(&ddp, (rank, world_size()?), Device::Cpu) {
            break e.to_string();
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no error");
    };
    // A rank may wait for one that has failed for want of rank 1.
    let named = failed.contains("did not come within 2 s")
        || failed.contains("a rank was lost")
        || failed.contains("communication with rank");
    assert!(named && failed.contains("all_reduce"), "{failed}");
    Ok(())
}

fn operations() -> Result<()> {
    let (rank, ranks) = (rank()?, world_size()?);
    checks::all(&world()?)?;
    let pair = new_group(&[ranks - 1, 0])?;
    assert_eq!(pair.is_some(), rank == 0 || rank == ranks - 1);
    if let Some(pair) = &pair {
        let x = Tensor::from([rank as f32]);
        assert_eq!(
            pair.all_gather(&x).to_vec::<f32>()?,
            [(ranks - 1) as f32, 0.0]
        );
        checks::all(pair)?;
    }
    let all = all_gather_object(&"x".repeat(rank))?;
    assert_eq!(all, (0..ranks).map(|r| "x".repeat(r)).collect::<Vec<_>>());
    let value = (rank == 1).then_some(vec![1.5, 2.5]);
    assert_eq!(broadcast_object(value.as_ref(), 1)?, [1.5, 2.5]);
    // A ring, in which all send first; the last message is large.
    for len in [0, 1, 3_000_000] {
        send(
            Tensor::full([len], rank as f64, DType::F32),
            (rank + 1) % ranks,
        )?;
        let before = (rank + ranks - 1) % ranks;
        let x = recv([len], DType::F32, before);
        assert_eq!(x.to_vec::<f32>()?, vec![before as f32; len as usize]);
    }
    barrier()
}

fn training() -> Result<()> {
    let (rank, ranks) = (rank()?, world_size()?);
    for norm in [false, true] {
        let alone = steps::model(1, norm)?;
        alone.to_dtype(DType::F64)?;
        let (losses, trained) = steps::train(&alone, (0, 1), Device::Cpu)?;
        let net = steps::model(1 + rank as u64, norm)?;
        net.to_dtype(DType::F64)?;
        SyncBatchNorm::convert_sync_batchnorm(&net)?;
        let ddp = DistributedDataParallel::new(net)?;
        let (own, weights) = steps::train(&ddp, (rank, ranks), Device::Cpu)?;
        steps::close(&weights, &trained);
        let mean = all_reduce(Tensor::from(own), ReduceOp::Mean).to_vec::<f64>()?;
        steps::close(&mean, &losses);
    }
    Ok(())
}

fn mismatch() -> Result<()> {
    let x = Tensor::ones([2 + rank()? / 2], DType::F32);
    let e = all_reduce(x, ReduceOp::Sum)
        .realize()
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("rank 2 calls all_reduce(Sum) of 3 elements of f32"),
        "{e}"
    );
    // All ranks know, and go on.
    barrier()
}

/// Rank 1 does something in the middle of its work; the others get an error with this text.
fn fault(text: &str, f: impl FnOnce()) -> Result<()> {
    let x = Tensor::ones([100_000], DType::F32);
    all_reduce(&x, ReduceOp::Sum).realize()?;
    if rank()? == 1 {
        f();
    }
    let e = all_reduce(&x, ReduceOp::Sum)
        .realize()
        .unwrap_err()
        .to_string();
    // The late one finds what the others sent, and then none of them.
    let text = if rank()? == 1 {
        "a rank was lost"
    } else {
        text
    };
    assert!(
        e.contains("all_reduce(Sum) of 100000 elements of f32") && e.contains(text),
        "{e}"
    );
    let again = all_reduce(&x, ReduceOp::Sum)
        .realize()
        .unwrap_err()
        .to_string();
    assert!(again.contains("communication failed before"), "{again}");
    Ok(())
}
