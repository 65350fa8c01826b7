//! A model on several emulated GPUs beside the same model on the CPU.
//!
//! This program starts itself for each part, since a process finds its driver once.

use kiln_distributed::{DataParallel, Replicas};
use kiln_nn::{
    BatchNorm1d, Embedding, Forward, Hookable, Linear, Module, ReLU, Sequential, module, sequential,
};
use kiln_tensor::{
    DType, Device, Result, Spec, Tensor, autocast, compile, no_grad, set_warning_hook, with_seed,
};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

#[path = "../steps.rs"]
mod steps;

/// The part that a process runs.
const PART: &str = "KILN_DATA_PARALLEL_PART";

fn main() {
    if let Ok(part) = std::env::var(PART) {
        let result = match &part[..] {
            "values" => values(),
            "training" => training(),
            "structures" => structures(),
            "buffers" => buffers(),
            "hooks" => hooks(),
            "errors" => errors(),
            _ => absent(),
        };
        if let Err(e) = result {
            eprintln!("{e}");
            std::process::exit(1);
        }
        return;
    }
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    if let Err(e) = kiln_runtime::cuda::Nvrtc::get() {
        let text = e.to_string();
        println!("skipped: {}", text.lines().next().unwrap_or_default());
        return;
    }
    let library = kiln_fake_cuda::library();
    for part in [
        "values",
        "training",
        "structures",
        "buffers",
        "hooks",
        "errors",
        "absent",
    ] {
        if filter.as_ref().is_some_and(|f| !part.contains(&f[..])) {
            continue;
        }
        let begun = Instant::now();
        let driver = if part == "absent" {
            "/nowhere".into()
        } else {
            library.clone()
        };
        let ended = Command::new(std::env::current_exe().expect("a path"))
            .env(PART, part)
            .env("KILN_CUDA_DRIVER", driver)
            .env("KILN_FAKE_CUDA_DEVICES", "3")
            .status()
            .expect("it starts");
        assert!(ended.success(), "{part}");
        println!("{part}: ok, {:.1} s", begun.elapsed().as_secs_f64());
    }
}

fn cuda(n: u32) -> Device {
    Device::cuda(n).unwrap_or_else(|e| panic!("{e}"))
}

/// The model on these GPUs, in f64.
fn on(model: Sequential, ids: &[u32]) -> Result<DataParallel<Sequential>> {
    model.to_dtype(DType::F64)?;
    model.to(cuda(ids[0]))?;
    DataParallel::with(model, Replicas::new().device_ids(ids.to_vec()))
}

fn gradients(model: &dyn Module) -> Result<Vec<f64>> {
    let parameters = model.parameters().into_iter();
    let gradients = parameters.map(|p| p.grad().expect("a gradient").to_vec::<f64>());
    Ok(gradients.collect::<Result<Vec<_>>>()?.concat())
}

/// Outputs, gradients of parameters and of the input, of batches that fill all, some or one of the GPUs.
fn values() -> Result<()> {
    let plain = steps::model(1, false)?;
    plain.to_dtype(DType::F64)?;
    for ids in [&[0, 1][..], &[2, 0, 1], &[1]] {
        let parallel = on(steps::model(1, false)?, ids)?;
        for rows in [1, 2, 3, 4, 7] {
            let x = with_seed(rows as u64, || Tensor::randn([rows, 5], DType::F64));
            let x = x.requires_grad_(true);
            let y = plain.call(&x);
            plain.zero_grad();
            y.square().sum(()).backward()?;
            for device in [Device::Cpu, cuda(ids[0]), cuda(2)] {
                let own = x.detach().to(device).requires_grad_(true);
                let z = parallel.call(&own);
                assert_eq!(z.device(), cuda(ids[0]));
                steps::close(&z.to_vec::<f64>()?, &y.to_vec::<f64>()?);
                parallel.zero_grad();
                z.square().sum(()).backward()?;
                steps::close(&gradients(&parallel)?, &gradients(&plain)?);
                let grad = |t: &Tensor| t.grad().expect("a gradient").to_vec::<f64>();
                steps::close(&grad(&own)?, &grad(&x)?);
            }
        }
        let x = Tensor::zeros([0, 5], DType::F64);
        assert_eq!(no_grad(|| parallel.call(&x)).shape()?, [0, 3]);
    }
    Ok(())
}

fn training() -> Result<()> {
    let alone = steps::model(1, false)?;
    alone.to_dtype(DType::F64)?;
    let (losses, trained) = steps::train(&alone, (0, 1), Device::Cpu)?;
    let parallel = on(steps::model(1, false)?, &[0, 1, 2])?;
    let (found, weights) = steps::train(&parallel, (0, 1), cuda(0))?;
    steps::close(&found, &losses);
    steps::close(&weights, &trained);
    // Mixed precision is the same in all replicas.
    let (plain, parallel) = (steps::model(1, false)?, steps::model(1, false)?);
    parallel.to(cuda(0))?;
    let parallel = DataParallel::new(parallel)?;
    let x = Tensor::randn([5, 5], DType::F32);
    let y = autocast(DType::BF16, || plain.call(&x));
    let z = autocast(DType::BF16, || parallel.call(&x));
    assert_eq!(z.dtype(), DType::BF16);
    let far = (z.to(Device::Cpu).to_dtype(DType::F32) - y.to_dtype(DType::F32))
        .abs()
        .amax(());
    assert!(far.item::<f32>()? < 0.02);
    Ok(())
}

module!(struct Words() {
    words: Embedding = Embedding::new(10, 4),
    out: Linear = Linear::new(4, 2),
});

impl Forward<(Tensor, Tensor), (Tensor, Option<Tensor>)> for Words {
    fn forward(&self, (i, x): (Tensor, Tensor)) -> Result<(Tensor, Option<Tensor>)> {
        // Made on the replica's device.
        let ones = Tensor::arange(1, 2, 1).to_dtype(DType::F32);
        let y = self.words.call(&i) + &x;
        Ok((self.out.call(&y) * ones, Some(y.sum(()))))
    }
}

/// Several inputs and outputs, another dim and another output device.
fn structures() -> Result<()> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let texts = seen.clone();
    set_warning_hook(Some(Arc::new(move |text| {
        texts.lock().unwrap().push(text.to_string())
    })));
    let words = with_seed(1, Words::new)?;
    let (i, x) = (
        Tensor::randint(0, 10, [5]),
        Tensor::randn([5, 4], DType::F32),
    );
    let (y, sum) = words.call((&i, &x));
    let (y, sum) = (y.to_vec::<f32>()?, sum.expect("a sum").item::<f32>()?);
    words.to(cuda(0))?;
    let how = Replicas::new().output_device(1u32);
    let parallel = DataParallel::with(words, how)?;
    let (z, sums) = parallel.call((&i, &x));
    assert_eq!((z.device(), z.shape()?), (cuda(1), vec![5, 2]));
    let far = |a: &[f32], b: &[f32]| a.iter().zip(b).any(|(a, b)| (a - b).abs() > 1e-4);
    assert!(!far(&z.to_vec::<f32>()?, &y));
    let sums = sums.expect("sums").to_vec::<f32>()?;
    assert_eq!(sums.len(), 3);
    assert!(!far(&[sums.iter().sum()], &[sum]));
    assert!(
        seen.lock()
            .unwrap()
            .iter()
            .any(|t| t.contains("single numbers"))
    );
    z.sum(()).backward()?;
    assert_eq!(
        parallel
            .module()
            .out
            .weight
            .grad()
            .expect("a gradient")
            .device(),
        cuda(0)
    );
    // Columns are split: [5, 6] in parts of [5, 2].
    module!(struct Double() {});
    impl Forward for Double {
        fn forward(&self, x: Tensor) -> Result<Tensor> {
            assert_eq!(x.shape()?, [5, 2]);
            Ok(x * 2.0)
        }
    }
    let double = DataParallel::with(Double::new()?, Replicas::new().dim(1i64))?;
    let y = double.call(Tensor::ones([5, 6], DType::F32));
    assert_eq!((y.shape()?, y.sum(()).item::<f32>()?), (vec![5, 6], 60.0));
    Ok(())
}

/// Running statistics are those of the first GPU's part.
fn buffers() -> Result<()> {
    let model = || with_seed(2, || sequential![Linear::new(3, 4), BatchNorm1d::new(4)]);
    let plain = model()?;
    let x = Tensor::randn([6, 3], DType::F64);
    plain.to_dtype(DType::F64)?;
    plain.call(x.narrow(0, 0, 2)).realize()?;
    let parallel = on(model()?, &[1, 0, 2])?;
    parallel.call(&x).realize()?;
    let state = |m: &dyn Module| -> Result<Vec<f64>> {
        let buffers = m.buffers().into_iter();
        let values = buffers.map(|b| b.get().to_dtype(DType::F64).to_vec::<f64>());
        Ok(values.collect::<Result<Vec<_>>>()?.concat())
    };
    steps::close(&state(&parallel)?, &state(&plain)?);
    assert!(parallel.buffers().iter().all(|b| b.device() == cuda(1)));
    // In evaluation every replica has the same.
    plain.eval();
    parallel.eval();
    let y = no_grad(|| parallel.call(&x)).to_vec::<f64>()?;
    steps::close(&y, &no_grad(|| plain.call(&x)).to_vec::<f64>()?);
    Ok(())
}

fn hooks() -> Result<()> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &'static str| {
        let seen = seen.clone();
        move |device: Device, rows: usize| seen.lock().unwrap().push((what, device, rows))
    };
    let parallel = on(sequential![Linear::new(2, 1), ReLU::new()]?, &[0, 1])?;
    let (layer, wrapper, weight) = (note("layer"), note("wrapper"), note("weight"));
    let linear = parallel.module().get_as::<Linear>(0)?;
    let rows = |y: &Tensor| y.dims()[0].as_const().unwrap_or_default() as usize;
    linear.register_forward_hook(move |_, _, y| layer(y[0].device(), rows(&y[0])))?;
    parallel.register_forward_hook(move |_, _, y| wrapper(y[0].device(), rows(&y[0])))?;
    linear.weight.register_hook(move |g| {
        weight(g.device(), 0);
        None
    })?;
    let y = parallel.call(Tensor::ones([3, 2], DType::F64));
    y.sum(()).backward()?;
    let right = [
        ("layer", cuda(0), 2),
        ("layer", cuda(1), 1),
        ("wrapper", cuda(0), 3),
        ("weight", cuda(0), 0),
    ];
    assert_eq!(*seen.lock().unwrap(), right);
    Ok(())
}

fn errors() -> Result<()> {
    let text = |r: Result<Tensor>| r.err().map(|e| e.to_string()).unwrap_or_default();
    let has = |e: &str, parts: &[&str]| assert!(parts.iter().all(|p| e.contains(p)), "{e}");
    let words = Embedding::new(4, 2)?;
    words.to(cuda(0))?;
    let parallel = DataParallel::new(words)?;
    // The last part, on the third GPU.
    let i = Tensor::from([0i64, 1, 2, 3, 9]);
    let e = text(parallel.try_call(&i));
    has(&e, &["index 9", "on cuda:2", "main.rs", "Embedding(4, 2)"]);
    // The GPU works on, and so does the model.
    assert_eq!(parallel.call(&i % 4).shape()?, [5, 2]);
    let e = text(parallel.try_call(Tensor::from(3i64)));
    has(&e, &["input 0 is a single number", "main.rs"]);
    let linear = DataParallel::new(Linear::new(3, 1)?)?;
    let x = Tensor::ones([4, 3], DType::F32);
    has(
        &text(linear.try_call(&x)),
        &["have to be on cuda:0", "`weight` is on cpu"],
    );
    linear.to(cuda(0))?;
    let e = text(linear.try_call(Tensor::ones([4, 2], DType::F32)));
    has(&e, &["in replica 0 on cuda:0", "main.rs"]);
    let e = compile(Spec::new(DType::F32, (4, 3)), |x| linear.call(x)).map(drop);
    has(&e.unwrap_err().to_string(), &["outside of compile"]);
    let pair = DataParallel::new(Words::new()?)?;
    pair.to(cuda(0))?;
    let e = pair
        .try_call((&i, Tensor::ones([1, 4], DType::F32)))
        .map(|y| y.0);
    has(
        &text(e),
        &[
            "input 0, [5], is split into 3 parts",
            "input 1, [1, 4], into 1",
        ],
    );
    for (ids, part) in [
        (vec![0u32, 0], "names cuda:0 twice"),
        (vec![], "no GPU"),
        (vec![7], "cuda:7"),
    ] {
        let made = DataParallel::with(Linear::new(1, 1)?, Replicas::new().device_ids(ids));
        has(&made.map(drop).unwrap_err().to_string(), &[part, "main.rs"]);
    }
    Ok(())
}

/// Without a GPU it is just the model.
fn absent() -> Result<()> {
    let how = Replicas::new().device_ids(vec![0, 1]).output_device(1u32);
    let parallel = DataParallel::with(steps::model(1, true)?, how)?;
    let y = parallel.call(Tensor::ones([3, 5], DType::F32));
    y.sum(()).backward()?;
    assert_eq!((y.device(), y.shape()?), (Device::Cpu, vec![3, 3]));
    Ok(())
}
