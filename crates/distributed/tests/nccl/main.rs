//! Ranks on emulated GPUs, in threads, over the stand-in for NCCL that the emulated driver brings.
//!
//! This program starts itself for each part, since libraries are found once in a process.

use kiln_distributed::{
    DataParallelOptions, DistributedDataParallel, Init, ReduceOp, SyncBatchNorm, all_gather,
    all_gather_object, all_reduce, barrier, broadcast, broadcast_object, destroy_process_group,
    init_process_group, init_process_group_with, new_group, rank, recv, run_on_gpus, send, world,
};
use kiln_nn::{Linear, Module};
use kiln_tensor::{DType, Device, Result, Tensor};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[path = "../checks.rs"]
mod checks;
mod clock;
mod graphs;
#[path = "../steps.rs"]
mod steps;

/// The part that a process runs.
const PART: &str = "KILN_NCCL_PART";
/// Parts that wait for their time limits, beside the others.
const WAITING: [&str; 3] = ["hanging", "faults", "alone"];
/// Enough for an emulator.
const LONG: Duration = Duration::from_secs(120);
/// For faults.
const SHORT: Duration = Duration::from_secs(8);

fn main() {
    if let Ok(part) = std::env::var(PART) {
        if let Err(e) = run(&part) {
            eprintln!("{e}");
            std::process::exit(1);
        }
        return;
    }
    let library = kiln_fake_cuda::library();
    let filter = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with('-'))
        .unwrap_or_default();
    let start = |part: &str, variables: &[(&str, &str)]| -> Child {
        Command::new(std::env::current_exe().expect("a path"))
            .env(PART, part)
            .env("KILN_CUDA_DRIVER", &library)
            .env("KILN_NCCL", &library)
            .env("KILN_FAKE_CUDA_DEVICES", "3")
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    let end = |child: Child| -> (bool, String) {
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), text)
    };
    let wanted = |part: &str| part.contains(&filter);
    if let Err(e) = kiln_runtime::cuda::Nvrtc::get() {
        let text = e.to_string();
        println!("skipped: {}", text.lines().next().unwrap_or_default());
        return;
    }
    let parts: [(&str, &[(&str, &str)]); 12] = [
        ("operations", &[]),
        // The emulator executes some work as soon as it is enqueued.
        ("early", &[("KILN_FAKE_CUDA_SEED", "5")]),
        ("training", &[]),
        ("graphs", &[]),
        ("uncaptured", &[("KILN_FAKE_CUDA_NO_CAPTURE", "1")]),
        ("hanging", &[("KILN_FAKE_CUDA_HANG", "4")]),
        ("clock", clock::FAST),
        ("clock of launches", clock::LAUNCHES),
        ("clock of a slow network", clock::SLOW),
        ("groups", &[]),
        ("faults", &[]),
        ("alone", &[]),
    ];
    let check = |part: &str, child: Child| {
        let (well, text) = end(child);
        assert!(well, "{part}: {text}");
        // A communicator that ends before its graphs would hang.
        assert!(!text.contains("graphs hold its operations"), "{text}");
    };
    let parts = parts.into_iter().filter(|(part, _)| wanted(part));
    let (waiting, working): (Vec<_>, Vec<_>) = parts.partition(|(part, _)| WAITING.contains(part));
    let waiting = waiting
        .into_iter()
        .map(|(part, variables)| (part, start(part, variables)));
    let waiting: Vec<(&str, Child)> = waiting.collect();
    let rendezvous = wanted("rendezvous").then(|| {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port().to_string();
        drop(free);
        let variables = |rank, secret| {
            [
                ("RANK", rank),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &port),
                ("KILN_STORE_SECRET", secret),
            ]
        };
        ["a", "b"].map(|secret| {
            let rank = if secret == "a" { "0" } else { "1" };
            start("rendezvous", &variables(rank, secret))
        })
    });
    for (part, variables) in working {
        let begun = Instant::now();
        check(part, start(part, variables));
        println!("{part}: ok, {:.1} s", begun.elapsed().as_secs_f64());
    }
    for (part, child) in waiting {
        check(part, child);
        println!("{part}: ok");
    }
    if wanted("absent") {
        let (well, text) = end(start("absent", &[("KILN_NCCL", "/nowhere")]));
        assert!(well, "{text}");
    }
    if let Some(ranks) = rendezvous {
        let [first, second] = ranks.map(|rank| end(rank).1);
        assert!(
            first.contains("init_process_group: rank 1 of 2 did not come within 8 s"),
            "{first}"
        );
        assert!(
            second.contains("has another secret: KILN_STORE_SECRET"),
            "{second}"
        );
        println!("rendezvous: ok");
    }
}

/// The results of ranks that all succeed.
fn every<T: Send>(ranks: usize, f: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let results = run_on_gpus(ranks, LONG, f)?;
    // The first error of a rank is the cause of those of the others.
    results
        .iter()
        .filter_map(|r| r.as_ref().err())
        .for_each(|e| eprintln!("{e}"));
    results.into_iter().collect()
}

/// The errors of ranks.
fn errors(ranks: usize, f: impl Fn(usize) -> Result<()> + Sync) -> Result<Vec<String>> {
    let start = Instant::now();
    let results = run_on_gpus(ranks, SHORT, f)?;
    assert!(start.elapsed() < Duration::from_secs(60));
    let text = |r: Result<()>| r.err().map(|e| e.to_string()).unwrap_or_default();
    Ok(results.into_iter().map(text).collect())
}

/// A tensor on the rank's GPU.
fn own(x: Tensor) -> Result<Tensor> {
    Ok(x.to(world()?.device()))
}

fn run(part: &str) -> Result<()> {
    match part {
        "operations" => {
            for ranks in [2, 3] {
                every(ranks, |_| checks::all(&world()?))?;
            }
        }
        "early" => {
            training()?;
            graphs::all()?;
        }
        "training" => training()?,
        "graphs" => graphs::all()?,
        "uncaptured" => graphs::trained()?,
        "hanging" => graphs::hanging()?,
        "clock" => clock::all(&[2, 3, 8])?,
        "clock of launches" | "clock of a slow network" => clock::all(&[3])?,
        "groups" => groups()?,
        "faults" => faults()?,
        "alone" => alone()?,
        "absent" => {
            let e = run_on_gpus(2, SHORT, |_| Ok(()))?
                .remove(0)
                .unwrap_err()
                .to_string();
            for text in [
                "NCCL was not found",
                "pip install nvidia-nccl-cu13",
                "/nowhere: no such file",
            ] {
                assert!(e.contains(text), "{e}");
            }
        }
        "rendezvous" => init_process_group_with("nccl", Init::new().timeout(SHORT))?,
        other => panic!("no part {other}"),
    }
    Ok(())
}

/// Ranks with parts of a batch, and one process on the CPU with all of it.
fn training() -> Result<()> {
    for norm in [false, true] {
        let alone = steps::model(1, norm)?;
        alone.to_dtype(DType::F64)?;
        let (losses, trained) = steps::train(&alone, (0, 1), Device::Cpu)?;
        for (ranks, bucket) in [(2, 25.0), (3, 1e-4)] {
            let each = every(ranks, |rank| {
                let device = world()?.device();
                // Each rank begins with weights of its own.
                let net = steps::model(1 + rank as u64, norm)?;
                net.to_dtype(DType::F64)?;
                net.to(device)?;
                SyncBatchNorm::convert_sync_batchnorm(&net)?;
                let options = DataParallelOptions::new().bucket_cap_mb(bucket);
                let ddp = DistributedDataParallel::with(net, options)?;
                steps::train(&ddp, (rank, ranks), device)
            })?;
            for step in 0..losses.len() {
                let sum: f64 = each.iter().map(|(l, _)| l[step]).sum();
                steps::close(&[sum / ranks as f64], &losses[step..=step]);
            }
            each.iter().for_each(|(_, w)| steps::close(w, &trained));
        }
    }
    Ok(())
}

fn groups() -> Result<()> {
    every(3, |rank| {
        let pair = new_group(&[2, 0])?;
        let x = own(Tensor::from([10i64 + rank as i64]))?;
        if let Some(pair) = &pair {
            assert_eq!(pair.all_gather(&x).to_vec::<i64>()?, [12, 10]);
        }
        assert_eq!(
            all_gather_object(&vec![rank; rank])?,
            [vec![], vec![1], vec![2, 2]]
        );
        let value = (rank == 2).then_some("two".to_string());
        assert_eq!(broadcast_object(value.as_ref(), 2)?, "two");
        // In a ring: who sends first is received by who receives first.
        let (next, before) = ((rank + 1) % 3, (rank + 2) % 3);
        let received = |from: usize| recv([1], DType::I64, from).item::<i64>();
        let from = match rank {
            0 => {
                send(&x, next)?;
                received(before)?
            }
            _ => {
                let from = received(before)?;
                send(&x, next)?;
                from
            }
        };
        assert_eq!(from, 10 + before as i64);
        // Of the same recording as a value that is not read.
        let sum = all_reduce(&x, ReduceOp::Sum);
        drop(all_gather(&sum));
        assert_eq!((&sum + 1).item::<i64>()?, 34);
        let e = all_reduce(Tensor::from([1.0f32]), ReduceOp::Sum)
            .realize()
            .unwrap_err();
        assert!(e.to_string().contains("the operand is on cpu"), "{e}");
        barrier()
    })
    .map(drop)
}

fn faults() -> Result<()> {
    let sum = |len: i64| -> Result<()> {
        let x = own(Tensor::ones([len], DType::F32))?;
        all_reduce(x, ReduceOp::Sum).to_vec::<f32>().map(drop)
    };
    // Other sizes: all ranks learn of it.
    for e in errors(3, |rank| sum(2 + rank as i64 / 2))? {
        let found = e.contains("the ranks call different operations") && e.contains("main.rs");
        assert!(found && e.contains("of 3") && e.contains("rank 2"), "{e}");
    }
    // Another operation.
    let found = errors(2, |rank| match rank {
        0 => sum(2),
        _ => broadcast(own(Tensor::ones([2], DType::F32))?, 0)
            .to_vec::<f32>()
            .map(drop),
    })?;
    for e in found {
        assert!(e.contains("the ranks call different operations"), "{e}");
    }
    // One rank more often than the others, and one late.
    let found = errors(3, |rank| {
        sum(4)?;
        match rank {
            1 => std::thread::sleep(SHORT + Duration::from_secs(1)),
            _ => sum(5)?,
        }
        Ok(())
    })?;
    for rank in [0, 2] {
        let text = "all_reduce(Sum) of 5 elements of f32: rank 1 of 3";
        assert!(found[rank].contains(text), "{}", found[rank]);
    }
    // A failed step changes no parameter.
    let found = errors(2, |rank| {
        let layer = Linear::new(2, 1)?;
        layer.to(world()?.device())?;
        let before = layer.weight.to_vec::<f32>()?;
        if rank == 0 {
            let more = all_reduce(layer.weight.detach(), ReduceOp::Sum);
            let assigned = layer.weight.assign(more);
            let e = assigned
                .and_then(|()| layer.weight.to_vec::<f32>())
                .unwrap_err();
            assert!(e.to_string().contains("rank 1 of 2"), "{e}");
            assert_eq!(layer.weight.to_vec::<f32>()?, before);
            let e = sum(2).unwrap_err().to_string();
            assert!(e.contains("communication failed before"), "{e}");
        }
        Ok(())
    })?;
    assert!(found[1].is_empty(), "{}", found[1]);
    Ok(())
}

fn alone() -> Result<()> {
    init_process_group("nccl")?;
    assert_eq!(rank()?, 0);
    checks::all(&world()?)?;
    graphs::alone()?;
    destroy_process_group()
}
