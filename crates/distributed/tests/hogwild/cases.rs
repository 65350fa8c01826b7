use kiln_distributed::spawn;
use kiln_nn::optim::{AdamW, Optimizer, SGD};
use kiln_nn::{BatchNorm1d, Forward, Linear, Module, ReLU, Sequential, sequential};
use kiln_tensor::{
    DType, Error, Result, Spec, Tensor, Var, assign_together, compile, no_grad, realize_first,
    set_threads, with_seed,
};
use std::time::{Duration, Instant};

type Case = fn() -> Result<()>;

pub fn run() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let cases: [(&str, Case); 6] = [
        ("training", training),
        ("in_place", in_place),
        ("snapshots", snapshots),
        ("killed", killed),
        ("failures", failures),
        ("refused", refused),
    ];
    for (name, case) in cases {
        if filter.as_ref().is_some_and(|f| !name.contains(&f[..])) {
            continue;
        }
        let begun = Instant::now();
        if let Err(e) = case() {
            panic!("{name}: {e}");
        }
        println!("{name}: ok, {:.1} s", begun.elapsed().as_secs_f64());
    }
}

/// Points of two half moons, and which of them.
fn moons(seed: u64, n: i64) -> (Tensor, Tensor) {
    with_seed(seed, || {
        let of = Tensor::randint(0, 2, [n]);
        let (angle, which) = (
            Tensor::rand([n], DType::F32) * std::f64::consts::PI,
            of.to_dtype(DType::F32),
        );
        let sign = 1.0 - 2.0 * &which;
        let x = kiln_tensor::stack(
            [
                angle.cos() * &sign + &which,
                angle.sin() * &sign + &which * 0.5,
            ],
            1,
        );
        (x + Tensor::randn([n, 2], DType::F32) * 0.1, of)
    })
}

fn network() -> Result<Sequential> {
    with_seed(3, || {
        sequential![Linear::new(2, 16), ReLU::new(), Linear::new(16, 2)]
    })
}

fn accuracy(model: &Sequential) -> Result<f64> {
    let (x, y) = moons(1, 500);
    let right = no_grad(|| model.call(&x).argmax(1).eq(&y));
    right.to_dtype(DType::F64).mean(()).item::<f64>()
}

fn training() -> Result<()> {
    // The pool has threads by now, which children don't.
    Tensor::ones([300, 300], DType::F32)
        .matmul(Tensor::ones([300, 300], DType::F32))
        .realize()?;
    for (processes, adam) in [(2, false), (4, true)] {
        let model = network()?;
        model.share_memory()?;
        assert!(model.parameters().iter().all(Var::is_shared));
        assert!(accuracy(&model)? < 0.9);
        spawn(processes, |rank| {
            set_threads(1);
            let mut opt = match adam {
                true => Optimizer::new(model.parameters(), AdamW::new().lr(0.01))?,
                false => Optimizer::new(model.parameters(), SGD::new().lr(0.2).momentum(0.5))?,
            };
            for step in 0..200 {
                let (x, y) = moons(1000 * (rank as u64 + 1) + step, 32);
                opt.zero_grad();
                model.call(&x).cross_entropy(&y).backward()?;
                opt.step()?;
            }
            Ok(())
        })?;
        let reached = accuracy(&model)?;
        assert!(reached > 0.97, "{processes} processes reach {reached}");
    }
    Ok(())
}

/// A process alone loses no update, whether it writes over the old value or copies the new one there.
fn in_place() -> Result<()> {
    let (w, other) = (
        Var::parameter(Tensor::from([1.0f32, 2.0]))?,
        Var::new(Tensor::from([0i64]))?,
    );
    w.share_memory_()?;
    other.share_memory_()?;
    let double = || compile(Spec::new(DType::F32, 2), |x| w.assign(w.detach() * &x));
    for _ in 0..2 {
        spawn(1, |_| {
            for _ in 0..50 {
                w.add_(1.0)?; // recorded, and run at the end
            }
            let held = w.get();
            w.add_(1.0)?;
            assert_eq!(held.to_vec::<f32>()?, (w.get() - 1.0).to_vec::<f32>()?);
            double()?.run(Tensor::from([2.0f32, 1.0]))?;
            assign_together([(&other, &other + 1)])?;
            w.set_grad(Tensor::from([5.0f32, 5.0])) // its own
        })?;
    }
    assert_eq!(
        w.to_vec::<f32>()?,
        [((1.0 + 51.0) * 2.0 + 51.0) * 2.0, 104.0]
    );
    assert_eq!(other.to_vec::<i64>()?, [2]);
    assert!(w.grad().is_none());
    // Several processes lose little: a copy of all elements would lose what others add during each run.
    let (rounds, many) = (100, Var::new(Tensor::zeros([1 << 16], DType::F32))?);
    many.share_memory_()?;
    spawn(2, |_| {
        set_threads(1);
        for _ in 0..rounds {
            many.add_(1.0)?;
            realize_first([&many])?;
        }
        Ok(())
    })?;
    let kept = many.mean(()).item::<f32>()? / (2 * rounds) as f32;
    assert!(kept > 0.9 && kept <= 1.0, "{kept}");
    // Each child draws numbers of its own.
    let drawn = Var::new(Tensor::zeros([3], DType::F64))?;
    drawn.share_memory_()?;
    for rank in 0..3usize {
        spawn(rank + 1, |own| match own == rank {
            true => drawn.set(rank, Tensor::rand((), DType::F64)),
            false => Ok(()),
        })?;
    }
    let drawn = drawn.to_vec::<f64>()?;
    assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2] && drawn.iter().all(|x| *x > 0.0));
    // Statistics are shared with the rest of a module, and so is what has no elements.
    let norm = BatchNorm1d::new(3)?;
    norm.share_memory()?;
    Var::new(Tensor::zeros([0, 4], DType::F32))?.share_memory_()?;
    spawn(1, |_| {
        norm.call(Tensor::randn([4, 3], DType::F32))
            .realize()
            .map(drop)
    })?;
    let batches = norm.num_batches_tracked.as_ref().map(|n| n.to_vec::<i64>());
    assert_eq!(batches.transpose()?, Some(vec![1]));
    Ok(())
}

fn snapshots() -> Result<()> {
    let w = Var::new(Tensor::from([1.0f32, 2.0]))?;
    w.share_memory_()?;
    let (before, view, later) = (w.get(), w.get().reshape([2, 1]), w.get() * 10.0);
    view.realize()?;
    let (copy, sum) = (Var::new(&w)?, &w + 1.0);
    w.assign(&sum)?;
    assert_eq!(w.to_vec::<f32>()?, [2.0, 3.0]);
    w.assign(Tensor::from([7.0f32, 8.0]))?;
    for t in [before.clone(), view, copy.get()] {
        assert_eq!(t.to_vec::<f32>()?, [1.0, 2.0]);
    }
    assert_eq!(later.to_vec::<f32>()?, [10.0, 20.0]);
    assert_eq!(
        (sum.to_vec::<f32>()?, w.to_vec::<f32>()?),
        (vec![2.0, 3.0], vec![7.0, 8.0])
    );
    // Writes of another process are seen by all who read the cell, and by no copy.
    let (result, copy) = (
        compile(Spec::new(DType::F32, 2), |_| w.get())?,
        Var::new(&w)?,
    );
    let returned = result.run(&before)?;
    spawn(1, |_| w.assign(Tensor::from([3.0f32, 4.0])))?;
    assert_eq!(w.to_vec::<f32>()?, [3.0, 4.0]);
    assert_eq!(result.run(&before)?.to_vec::<f32>()?, [3.0, 4.0]);
    for t in [copy.get(), returned] {
        assert_eq!(t.to_vec::<f32>()?, [7.0, 8.0]);
    }
    // A weight that plans would prepare: each run reads it again.
    let (layer, x) = (Linear::new(64, 64)?, Tensor::ones([8, 64], DType::F32));
    layer.share_memory()?;
    let zeros = || {
        layer
            .weight
            .assign(layer.weight.get().detach().zeros_like())
    };
    no_grad(|| layer.call(&x).realize().map(drop))?;
    spawn(1, |_| zeros())?;
    let y = no_grad(|| layer.call(&x) - layer.bias.as_ref().expect("a bias").get());
    assert_eq!(y.abs().amax(()).item::<f32>()?, 0.0);
    Ok(())
}

fn killed() -> Result<()> {
    let segments = || std::fs::read_dir("/dev/shm").map_or(0, |files| files.count());
    let (model, before) = (network()?, segments());
    model.share_memory()?;
    let begun = Instant::now();
    let e = spawn(3, |rank| {
        set_threads(1);
        let mut opt = Optimizer::new(model.parameters(), SGD::new().lr(0.01))?;
        for step in 0.. {
            let (x, y) = moons(step, 16);
            opt.zero_grad();
            model.call(&x).cross_entropy(&y).backward()?;
            opt.step()?;
            if rank == 1 && step == 20 {
                // SAFETY: the signal is to this process alone.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        }
        Ok(())
    });
    let e = e.unwrap_err().to_string();
    assert!(
        e.contains("process 1 was ended by signal 9") && e.contains("cases.rs"),
        "{e}"
    );
    assert!(begun.elapsed() < Duration::from_secs(60));
    // No child is left, and nothing of theirs.
    // SAFETY: without children there is nothing to write.
    let left = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(left, -1);
    assert_eq!(segments(), before);
    // The values are whole, and training goes on.
    assert!(accuracy(&model)?.is_finite());
    spawn(2, |_| {
        model.parameters()[0].assign(model.parameters()[0].detach() * 0.5)
    })
}

fn failures() -> Result<()> {
    let text = |f: &dyn Fn(usize) -> Result<()>| match spawn(2, f) {
        Ok(()) => String::new(),
        Err(e) => e.to_string(),
    };
    let forever = || loop {
        std::thread::sleep(Duration::from_secs(1));
    };
    let e = text(&|rank| match rank {
        0 => forever(),
        _ => Tensor::ones([2], DType::F32)
            .matmul(Tensor::ones([3], DType::F32))
            .realize()
            .map(drop),
    });
    assert!(
        e.contains("process 1 failed: error: matmul") && e.contains("cases.rs"),
        "{e}"
    );
    let e = text(&|rank| match rank {
        0 => panic!("no way"),
        _ => forever(),
    });
    assert!(e.contains("process 0 failed: it panicked: no way"), "{e}");
    let e = text(&|rank| match rank {
        0 => std::process::exit(3),
        _ => Ok(()),
    });
    assert!(e.contains("process 0 ended with exit code 3"), "{e}");
    // A child of a child.
    assert_eq!(text(&|rank| spawn(rank, |_| Ok(()))), "");
    let e = text(&|_| spawn(1, |_| Err(Error::invalid("mine", "deep"))));
    assert!(e.contains("mine: deep"), "{e}");
    spawn(0, |_| Ok(()))
}

fn refused() -> Result<()> {
    let w = Var::parameter(Tensor::from([[1.0f32, 2.0]]))?;
    let f = compile(Spec::new(DType::F32, (2, 2)), |x| x.matmul(w.t()))?;
    w.share_memory_()?;
    w.share_memory_()?;
    let text = |r: Result<()>| r.err().map(|e| e.to_string()).unwrap_or_default();
    let x = Tensor::ones([2, 2], DType::F32);
    let e = text(f.run(&x).map(drop));
    assert!(
        e.contains("was shared with other processes after the function was compiled"),
        "{e}"
    );
    for e in [w.to_dtype_(DType::F64), w.keep_narrow(DType::BF16)] {
        let e = text(e);
        assert!(e.contains("do this before share_memory_"), "{e}");
    }
    let e = text(
        compile(Spec::new(DType::F32, 2), |_| {
            Var::new(Tensor::from(1.0))?.share_memory_()
        })
        .map(drop),
    );
    assert!(!e.is_empty());
    kiln_distributed::init_process_group("mpi")?;
    let e = text(spawn(1, |_| Ok(())));
    assert!(e.contains("spawn first"), "{e}");
    kiln_distributed::destroy_process_group()
}
