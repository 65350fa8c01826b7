//! Steps of data parallel training over MPI beside PyTorch's over gloo: 2 ranks of one thread each, from the same weights
//! on the same batches, in alternating rounds.
//!
//! `cargo bench -p kiln-distributed --bench ddp` with MPICH's folder in `KILN_MPI` and a Python with PyTorch in
//! `KILN_PEER_PYTHON`. Behind `--` stand the workloads (`mlp`, `cnn`; both otherwise) and the number of rounds.

use kiln_distributed::{
    DistributedDataParallel, destroy_process_group, init_process_group, is_main, mpi_folder, rank,
    world_size,
};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::{
    Conv2d, Flatten, Forward, Kernel, Linear, MaxPool2d, Module, ReLU, Sequential, StateDict,
    sequential,
};
use kiln_tensor::{DType, Tensor, set_threads, with_seed};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

const RANKS: usize = 2;
const ROUNDS: usize = 5;
/// Steps before those that are measured, whose first two losses must agree.
const WARM_UP: usize = 20;
const STEPS: usize = 100;
const TOLERANCE: f64 = 1e-3;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|w| w != "--bench")
        .collect();
    if let [command, name, start] = &words[..]
        && command == "rank"
    {
        return train(name, start);
    }
    let rounds = words.iter().find_map(|w| w.parse().ok()).unwrap_or(ROUNDS);
    for name in ["mlp", "cnn"] {
        if words.iter().all(|w| w.parse::<usize>().is_ok()) || words.iter().any(|w| w == name) {
            compare(name, rounds)?;
        }
    }
    Ok(())
}

/// The model, and the shape of a batch of all ranks.
fn workload(name: &str) -> Result<(Sequential, Vec<usize>), Failure> {
    Ok(match name {
        "mlp" => {
            let model = sequential![
                Linear::new(256, 1024),
                ReLU::new(),
                Linear::new(1024, 1024),
                ReLU::new(),
                Linear::new(1024, 10)
            ];
            (model?, vec![128, 256])
        }
        _ => {
            let model = sequential![
                Conv2d::new(3, 32, Kernel::new(3).padding(1)),
                ReLU::new(),
                MaxPool2d::new(2),
                Conv2d::new(32, 64, Kernel::new(3).padding(1)),
                ReLU::new(),
                MaxPool2d::new(2),
                Flatten::new(),
                Linear::new(64 * 8 * 8, 10)
            ];
            (model?, vec![64, 3, 32, 32])
        }
    })
}

/// Trains as one rank. The first one prints two losses, and the seconds of each measured step.
fn train(name: &str, start: &str) -> Result<(), Failure> {
    set_threads(1);
    init_process_group("mpi")?;
    let (model, shape) = workload(name)?;
    let mut state = StateDict::load(start)?;
    let share = shape[0] / world_size()?;
    let mut own = |name| -> Result<Tensor, Failure> {
        let batch = state.remove(name).ok_or("the file holds no batch")?;
        Ok(batch.narrow(0, rank()? * share, share).realize()?.clone())
    };
    let (x, y) = (own("batch.0")?, own("batch.1")?);
    model.load_state_dict(&state, true)?;
    let model = DistributedDataParallel::new(model)?;
    let mut opt = Optimizer::new(model.parameters(), SGD::new().lr(0.01).momentum(0.9))?;
    for step in 0..WARM_UP + STEPS {
        let begun = Instant::now();
        let loss = model.call(&x).cross_entropy(&y);
        opt.zero_grad();
        loss.backward()?;
        opt.step()?;
        let loss = loss.item::<f32>()?;
        let seconds = begun.elapsed().as_secs_f64();
        match is_main()? {
            true if step < 2 => println!("{loss}"),
            true if step >= WARM_UP => println!("{seconds}"),
            _ => {}
        }
    }
    Ok(destroy_process_group()?)
}

fn compare(name: &str, rounds: usize) -> Result<(), Failure> {
    let mpi = mpi_folder().ok_or("no MPI: name its folder in KILN_MPI")?;
    let python = std::env::var("KILN_PEER_PYTHON");
    let python = python.map_err(|_| "name a Python with PyTorch in KILN_PEER_PYTHON")?;
    let start = std::env::temp_dir().join(format!("kiln-ddp-{}.safetensors", std::process::id()));
    let (model, shape) = workload(name)?;
    let mut state = model.state_dict();
    let (x, y) = with_seed(1, || {
        (
            Tensor::randn(&shape[..], DType::F32),
            Tensor::randint(0, 10, [shape[0]]),
        )
    });
    state.insert("batch.0".to_string(), &x);
    state.insert("batch.1".to_string(), &y);
    state.save(&start)?;
    let mut times: [Vec<f64>; 2] = Default::default();
    let mut losses = [[0.0; 2]; 2];
    for _ in 0..rounds {
        let printed = [kiln(&mpi, name, &start)?, pytorch(&python, name, &start)?];
        for (side, text) in printed.iter().enumerate() {
            let numbers = text.lines().map(str::parse::<f64>);
            let numbers = numbers.collect::<Result<Vec<f64>, _>>()?;
            if numbers.len() != 2 + STEPS {
                return Err(format!("{} numbers, not {}", numbers.len(), 2 + STEPS).into());
            }
            losses[side] = [numbers[0], numbers[1]];
            times[side].push(median(&numbers[2..]));
        }
        let [kiln, pytorch] = losses;
        if kiln
            .iter()
            .zip(pytorch)
            .any(|(a, b)| (a - b).abs() > TOLERANCE * b.abs())
        {
            return Err(format!("the losses differ: {kiln:?}, PyTorch's {pytorch:?}").into());
        }
    }
    std::fs::remove_file(&start)?;
    let [kiln, pytorch] = times.map(|t| 1e3 * median(&t));
    println!(
        "{name}, {RANKS} ranks of one thread, batch {}: Kiln {kiln:.3} ms a step, PyTorch {pytorch:.3} ms, ratio {:.2}",
        shape[0],
        kiln / pytorch
    );
    Ok(())
}

fn kiln(mpi: &Path, name: &str, start: &Path) -> Result<String, Failure> {
    let mut mpiexec = Command::new(mpi.join("mpiexec"));
    let ranks = RANKS.to_string();
    mpiexec
        .args(["-n", &ranks])
        .arg(std::env::current_exe()?)
        .args(["rank", name])
        .arg(start);
    let ended = mpiexec.stderr(Stdio::inherit()).output()?;
    match ended.status.success() {
        true => Ok(String::from_utf8(ended.stdout)?),
        false => Err("a rank failed".into()),
    }
}

fn pytorch(python: &str, name: &str, start: &Path) -> Result<String, Failure> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/ddp.py");
    let rank = |rank: usize| {
        Command::new(python)
            .args([script, name])
            .arg(start)
            .args([WARM_UP, STEPS].map(|n| n.to_string()))
            .envs([
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", RANKS.to_string()),
            ])
            .envs([
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &port.to_string()),
            ])
            .env("OMP_NUM_THREADS", "1")
            .stdout(Stdio::piped())
            .spawn()
    };
    let ranks = (0..RANKS).map(rank).collect::<Result<Vec<_>, _>>()?;
    let ended = ranks.into_iter().map(|rank| rank.wait_with_output());
    let ended = ended.collect::<Result<Vec<_>, _>>()?;
    match ended.iter().all(|e| e.status.success()) {
        true => Ok(String::from_utf8(ended[0].stdout.clone())?),
        false => Err("a rank of PyTorch failed".into()),
    }
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
