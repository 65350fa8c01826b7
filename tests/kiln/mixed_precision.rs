//! Training in mixed precision: after a kill it resumes at its last checkpoint, and the plan skips steps that
//! overflow, on the CPU and on a GPU.

use crate::cuda;
use kiln::nn::amp::{GradScaler, GradScalerState, Scaling};
use kiln::nn::optim::{AdamW, Optimizer, SGD};
use kiln::nn::{Checkpoint, Forward, LayerNorm, Linear, Module, ReLU, Sequential, sequential};
use kiln::{Compiled, DType, Device, Result, Spec, Tensor, Var, autocast, compile, with_seed};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

/// A step of images `[6, 9]`, labels and a factor of the loss; it returns the loss.
type Step = Compiled<(Tensor, Tensor, Tensor), Tensor>;

struct Training {
    model: Sequential,
    optimizer: Optimizer,
    scaler: GradScaler,
    step: Step,
}

fn compiled(
    model: &Sequential,
    optimizer: &mut Optimizer,
    scaler: &mut GradScaler,
    dtype: DType,
    device: Device,
) -> Result<Step> {
    let spec = (
        Spec::new(DType::F32, (6, 9)).on(device),
        Spec::new(DType::I64, 6).on(device),
        Spec::new(DType::F32, ()).on(device),
    );
    compile(spec, |(x, y, by)| {
        optimizer.zero_grad();
        let loss = autocast(dtype, || model.call(&x).cross_entropy(&y));
        scaler.scale(&loss * by).backward()?;
        scaler.step(optimizer)?;
        scaler.update()?;
        Ok(loss)
    })
}

impl Training {
    fn new(dtype: DType, device: Device) -> Result<Training> {
        let model = with_seed(3, || {
            sequential![
                Linear::new(9, 13),
                LayerNorm::new([13]),
                ReLU::new(),
                Linear::new(13, 5)
            ]
        })?;
        model.to(device)?;
        let mut optimizer = Optimizer::new(model.parameters(), AdamW::new().lr(1e-2))?;
        let mut scaler = GradScaler::with(Scaling::new().init_scale(1024.0).growth_interval(4i64))?;
        scaler.to(device)?;
        let step = compiled(&model, &mut optimizer, &mut scaler, dtype, device)?;
        Ok(Training {
            model,
            optimizer,
            scaler,
            step,
        })
    }

    /// Runs the step of a number, some of which overflow; returns its loss.
    fn step(&mut self, number: u64) -> Result<f32> {
        let device = self.model.parameters()[0].device();
        let (x, y) = with_seed(number, || {
            (
                Tensor::randn([6, 9], DType::F32),
                Tensor::randint(0, 5, [6]),
            )
        });
        let by = Tensor::from(if overflows(number) {
            f32::INFINITY
        } else {
            1.0
        });
        let [x, y, by] = [x, y, by].map(|t| t.to(device));
        self.step.run((&x, &y, &by))?.item()
    }

    fn checkpoint(&self, next: u64) -> Result<Checkpoint> {
        Ok(Checkpoint::new()
            .module("model", &self.model)
            .optimizer("optimizer", &self.optimizer)
            .value("scaler", &self.scaler.state_dict()?)
            .value("next", &next))
    }

    /// Resumes from a file; returns the number of the next step.
    fn load(&mut self, file: &Path) -> Result<u64> {
        let loaded = Checkpoint::load(file)?;
        let restore = loaded.restore().module("model", &self.model);
        restore
            .optimizer("optimizer", &mut self.optimizer)
            .finish()?;
        self.scaler
            .load_state_dict(&loaded.get::<GradScalerState>("scaler")?)?;
        loaded.get("next")
    }

    /// The results of a step, as text: the bits of its loss, the scale and its counts.
    fn line(&mut self, number: u64) -> Result<String> {
        let loss = self.step(number)?.to_bits();
        let state = self.scaler.state_dict()?;
        let counts = (state.growth_tracker, state.skipped);
        Ok(format!("{number} {loss} {} {counts:?}", state.scale))
    }

    /// The bits of everything that a step may change except the scale.
    fn bits(&self) -> Result<Vec<Vec<u64>>> {
        let state = self.optimizer.named_state().into_iter().map(|s| s.var);
        let all = self.model.parameters().into_iter().chain(state);
        let bits = |v: Var| -> Result<Vec<u64>> {
            let values = v.get().to_dtype(DType::F64).to_vec::<f64>()?;
            Ok(values.into_iter().map(f64::to_bits).collect())
        };
        all.map(bits).collect()
    }
}

fn overflows(step: u64) -> bool {
    step % 7 == 3
}

#[test]
#[ignore = "run by the test below, in processes that it kills"]
fn a_training_until_it_is_killed() {
    let folder = PathBuf::from(std::env::var("KILN_FOLDER").unwrap());
    let until: u64 = std::env::var("KILN_UNTIL").unwrap().parse().unwrap();
    let file = folder.join("checkpoint.safetensors");
    let mut training = Training::new(DType::F16, Device::Cpu).unwrap();
    let mut next = match file.exists() {
        true => training.load(&file).unwrap(),
        false => 0,
    };
    let mut open_options = std::fs::File::options();
    let log = open_options
        .create(true)
        .append(true)
        .open(folder.join("log"));
    let mut log = log.unwrap();
    while next < until {
        let line = training.line(next).unwrap();
        writeln!(log, "{line}").unwrap();
        next += 1;
        training.checkpoint(next).unwrap().save(&file).unwrap();
    }
}

/// Starts training that resumes from the folder's checkpoint.
fn start(folder: &Path, until: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "mixed_precision::a_training_until_it_is_killed",
            "--exact",
            "--ignored",
        ])
        .env("KILN_FOLDER", folder)
        .env("KILN_UNTIL", until.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

fn lines(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(str::to_string).collect()
}

/// Two processes are killed while they train, and a third ends the training.
#[test]
fn a_killed_training_goes_on_to_the_bit() -> Outcome {
    let folder = std::env::temp_dir().join(format!("kiln-killed-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    for enough in [9, 23] {
        let mut child = start(&folder, u64::MAX);
        let begun = Instant::now();
        while lines(&folder).len() < enough {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "it does not train"
            );
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
    }
    let until = lines(&folder).len() as u64 + 10;
    assert!(start(&folder, until).wait()?.success());

    // A step that was logged but not saved ran again.
    let found = lines(&folder);
    let number = |line: &String| line.split(' ').next().unwrap().parse::<u64>().unwrap();
    let steps: BTreeMap<u64, usize> = found.iter().fold(BTreeMap::new(), |mut all, line| {
        *all.entry(number(line)).or_default() += 1;
        all
    });
    assert!(steps.keys().copied().eq(0..until), "{steps:?}");
    assert!(
        steps.values().sum::<usize>() <= until as usize + 2,
        "{steps:?}"
    );
    let mut whole = Training::new(DType::F16, Device::Cpu)?;
    let wanted: Vec<String> = (0..until).map(|n| whole.line(n)).collect::<Result<_>>()?;
    for line in &found {
        assert_eq!(*line, wanted[number(line) as usize]);
    }
    let mut last = Training::new(DType::F16, Device::Cpu)?;
    assert_eq!(last.load(&folder.join("checkpoint.safetensors"))?, until);
    assert_eq!(last.bits()?, whole.bits()?);
    assert_eq!(last.scaler.state_dict()?, whole.scaler.state_dict()?);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// A step that overflows changes nothing. The plan skips updates by a flag: every step that changes parameters,
/// moments or narrow copies has a guard.
fn overflows_are_left_out(dtype: DType, device: Device) -> Outcome {
    let mut training = Training::new(dtype, device)?;
    let plan = training.step.plan();
    let guarded = plan.run.iter().filter(|step| step.guard.is_some());
    let written: Vec<_> = guarded.flat_map(|step| step.args.iter().copied()).collect();
    let (mut left, mut large) = (0, 0);
    for output in plan.outputs.iter().filter(|o| o.donor.is_some()) {
        // Values kept per parameter have its shape; the scale, its counts and the optimiser's are vectors of few
        // elements.
        let elements: i64 = output.shape.iter().filter_map(|d| d.as_const()).product();
        if output.shape.len() == 2 || elements == 13 || elements == 5 && output.dtype != DType::F64
        {
            large += 1;
            left += usize::from(written.contains(&output.buffer));
        }
    }
    // Six parameters with two moments, and copies of two weights and their biases.
    assert_eq!((left, large), (22, 22), "{}", training.step.explain());
    for number in 0..8 {
        let before = training.bits()?;
        let loss = training.step(number)?;
        assert!(loss.is_finite());
        assert_eq!(
            training.bits()? == before,
            overflows(number),
            "step {number}"
        );
    }
    assert_eq!(training.scaler.skipped()?, [0, 1]);
    Ok(())
}

#[test]
fn a_step_that_overflows_is_left_out_by_the_plan() -> Outcome {
    overflows_are_left_out(DType::F16, Device::Cpu)?;
    overflows_are_left_out(DType::BF16, Device::Cpu)
}

#[test]
fn a_step_that_overflows_changes_nothing_on_a_gpu() -> Outcome {
    match cuda::device() {
        Some(gpu) => overflows_are_left_out(DType::F16, gpu),
        None => Ok(()),
    }
}

/// Stochastically rounded parameters have the same bits on a GPU.
#[test]
fn stochastic_rounding_is_the_same_on_a_gpu() -> Outcome {
    let Some(gpu) = cuda::device() else {
        return Ok(());
    };
    let train = |device: Device| -> Result<Vec<f32>> {
        let start = with_seed(1, || Tensor::randn([517], DType::BF16));
        let w = Var::parameter(start.to(device))?;
        let mut optimizer = Optimizer::new(&w, SGD::new().lr(0.01))?;
        optimizer.round_stochastically()?;
        for step in 0..3 {
            let g = with_seed(9 + step, || Tensor::randn([517], DType::BF16));
            w.set_grad(g.to(device))?;
            with_seed(20 + step, || optimizer.step())?;
        }
        w.get().to_dtype(DType::F32).to_vec()
    };
    let (here, there) = (train(Device::Cpu)?, train(gpu)?);
    assert_eq!(here, there);
    Ok(())
}

/// Old values that somebody holds are not overwritten, and a skipped step returns copies of them.
#[test]
fn held_values_survive_steps_that_are_left_out() -> Outcome {
    let mut training = Training::new(DType::F16, Device::Cpu)?;
    for number in 0..5 {
        let held: Vec<Tensor> = training
            .model
            .parameters()
            .iter()
            .map(|p| p.detach())
            .collect();
        let before: Vec<Vec<f32>> = held.iter().map(|t| t.to_vec()).collect::<Result<_>>()?;
        training.step(number)?;
        let after = training.model.parameters();
        for ((held, before), after) in held.iter().zip(&before).zip(&after) {
            assert_eq!(held.to_vec::<f32>()?, *before);
            assert_eq!(after.get().to_vec::<f32>()? == *before, overflows(number));
        }
    }
    Ok(())
}

/// Lazily recorded steps are skipped too, with an optimiser of other state and with master weights.
#[test]
fn lazy_steps_are_left_out() -> Outcome {
    let model = with_seed(4, || Linear::new(7, 3))?;
    model.to_dtype(DType::BF16)?;
    let mut optimizer = Optimizer::new(model.parameters(), SGD::new().lr(0.1).momentum(0.9))?;
    optimizer.keep_master_weights()?;
    let mut scaler = GradScaler::with(Scaling::new().init_scale(8.0))?;
    let mut last = Vec::new();
    for number in 0..6 {
        let x = with_seed(number, || Tensor::randn([4, 7], DType::BF16));
        let by = if overflows(number) { f32::NAN } else { 1.0 };
        optimizer.zero_grad();
        let loss = model.call(&x).to_dtype(DType::F32).square().sum(()) * by;
        scaler.scale(&loss).backward()?;
        scaler.step(&mut optimizer)?;
        scaler.update()?;
        let masters = optimizer.master_params();
        let all = model.parameters().into_iter().chain(masters);
        let now: Vec<Vec<f32>> = all
            .map(|p| p.get().to_dtype(DType::F32).to_vec())
            .collect::<Result<_>>()?;
        assert_eq!(now == last, overflows(number), "step {number}");
        last = now;
    }
    assert_eq!(scaler.get_scale()?, 4.0);
    Ok(())
}

/// Values that an op computes in f32 are rounded when they are stored, explicit casts at the cast.
#[test]
fn ops_of_halves_round_what_they_store() -> Outcome {
    let is_half = |x: f32| half::bf16::from_f32(x).to_f32() == x;
    let x = with_seed(1, || Tensor::randn([5, 33], DType::BF16));
    let devices = [Device::Cpu].into_iter().chain(cuda::device());
    for device in devices {
        let spec = Spec::new(DType::BF16, (5, 33)).on(device);
        let widened = compile(spec.clone(), |x: Tensor| {
            x.rms_norm([33]).to_dtype(DType::F32)
        })?;
        let rounded = compile(spec.clone(), |x: Tensor| {
            let y = x.to_dtype(DType::F32).rms_norm([33]);
            y.to_dtype(DType::BF16).to_dtype(DType::F32)
        })?;
        let stored = compile(spec, |x: Tensor| {
            let y = x.rms_norm([33]);
            (y.to_dtype(DType::F32), y)
        })?;
        let x = x.to(device);
        let wide: Vec<f32> = widened.run(&x)?.to_vec()?;
        assert!(wide.iter().any(|x| !is_half(*x)), "{device}");
        let asked: Vec<f32> = rounded.run(&x)?.to_vec()?;
        assert!(asked.iter().all(|x| is_half(*x)), "{device}");
        let (beside, y) = stored.run(&x)?;
        let y: Vec<f32> = y.to_dtype(DType::F32).to_vec()?;
        assert_eq!(beside.to_vec::<f32>()?, y, "{device}");
        assert_eq!(asked, y, "{device}");
    }
    Ok(())
}
